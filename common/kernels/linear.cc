#include "common/kernels/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/kernels/gemm_onednn.h"
#include "common/kernels/int4.h"
#include "common/kernels/kernel_table.h"
#include "common/kernels/weight_layout.h"
#include "common/tensor/decode.h"

namespace outrider {
namespace {

/// Row `r` of a part as float.
void read_row(const WeightRows& part, std::int64_t r, std::span<float> row) {
  decode(part.dtype, part.data + static_cast<std::size_t>(r) * stored_bytes(part.dtype, row.size()), row);
}

/// Of a stored element; int4 has none.
std::size_t element_bytes(WeightType type) { return type == WeightType::kF32 ? 4 : type == WeightType::kBf16 ? 2 : 1; }

/// Of a row of inputs in a stored type.
std::int64_t row_bytes(WeightType type, std::int64_t in) { return in * static_cast<std::int64_t>(element_bytes(type)); }

/// Of the weights as our own kernels want them.
std::size_t own_bytes(WeightType type, std::int64_t in, std::int64_t out) {
  if (type == WeightType::kInt4)
    return static_cast<std::size_t>(int4_blocks(out) * int4_chunks(in)) * sizeof(Int4Chunk);
  return static_cast<std::size_t>(row_bytes(type, in) * out);
}

std::shared_ptr<AlignedArray<std::byte>> aligned_bytes(std::size_t count) {
  return std::make_shared<AlignedArray<std::byte>>(count);
}

/// [out, in] row-major, out of another layout.
std::shared_ptr<AlignedArray<std::byte>> to_rows(const WeightLayout& layout, const std::byte* weights,
                                                 std::size_t element, std::int64_t in, std::int64_t out) {
  const std::vector<std::int64_t> in_offset = layout.offsets(0), out_offset = layout.offsets(1);
  auto rows = aligned_bytes(static_cast<std::size_t>(in) * static_cast<std::size_t>(out) * element);
#pragma omp parallel for schedule(static)
  for (std::int64_t o = 0; o < out; ++o) {
    std::byte* to = rows->data() + static_cast<std::size_t>(o * in) * element;
    for (std::int64_t i = 0; i < in; ++i, to += element) {
      const auto from =
          static_cast<std::size_t>(in_offset[static_cast<std::size_t>(i)] + out_offset[static_cast<std::size_t>(o)]);
      std::memcpy(to, weights + from * element, element);
    }
  }
  return rows;
}

/// Per-thread memory of at least `bytes`, by use.
std::byte* reserve(AlignedArray<std::byte>& scratch, std::int64_t bytes) {
  if (scratch.size() < static_cast<std::size_t>(bytes))
    scratch = AlignedArray<std::byte>(static_cast<std::size_t>(bytes));
  return scratch.data();
}

}  // namespace

const char* to_string(WeightType type) {
  switch (type) {
    case WeightType::kF32: return "f32";
    case WeightType::kBf16: return "bf16";
    case WeightType::kInt8: return "int8";
    case WeightType::kInt4: return "int4";
  }
  return "?";
}

Result<WeightType> parse_weight_type(const std::string& name) {
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    if (name == to_string(type)) return type;
  }
  return Error{Errc::kInvalidArgument, fmt::format("dtype '{}', wanted f32, bf16, int8 or int4", name)};
}

Linear Linear::pack(WeightType type, std::int64_t in_features, std::span<const WeightRows> parts) {
  std::int64_t out_features = 0;
  for (const WeightRows& part : parts) out_features += part.rows;
  const bool onednn = OnednnGemm::supports(type, in_features, out_features);

  Linear linear(type, in_features, out_features);
  if (type == WeightType::kInt8) linear.column_scale_.resize(static_cast<std::size_t>(out_features));
  // Convert to what our own kernels want.
  const auto stored = aligned_bytes(own_bytes(type, in_features, out_features));
  std::int64_t first = 0;  // row of the part
  for (const WeightRows& part : parts) {
#pragma omp parallel
    {
      std::vector<float> row(static_cast<std::size_t>(in_features));
#pragma omp for schedule(static)
      for (std::int64_t r = 0; r < part.rows; ++r) {
        read_row(part, r, row);
        const std::int64_t output = first + r;
        std::byte* to = stored->data() + output * row_bytes(type, in_features);
        switch (type) {
          case WeightType::kF32: std::memcpy(to, row.data(), row.size() * sizeof(float)); break;
          case WeightType::kBf16: kernels().to_bf16(row.data(), in_features, reinterpret_cast<Bf16*>(to)); break;
          case WeightType::kInt8:
            linear.column_scale_[static_cast<std::size_t>(output)] =
                kernels().quantize(row.data(), in_features, reinterpret_cast<std::int8_t*>(to));
            break;
          case WeightType::kInt4:
            pack_int4_row(
                row, output % kInt4Outputs,
                reinterpret_cast<Int4Chunk*>(stored->data()) + output / kInt4Outputs * int4_chunks(in_features));
            break;
        }
      }
    }
    first += part.rows;
  }
  if (onednn) {
    linear.use_gemm(OnednnGemm::pack(type, in_features, out_features, stored->data()));
  } else {
    linear.use_own(stored->span(), stored);
  }
  return linear;
}

Result<Linear> Linear::map(WeightType type, std::int64_t in_features, std::int64_t out_features,
                           const LinearImage& image, std::shared_ptr<const void> keep_alive) {
  if (type == WeightType::kInt4 && image.layout != kInt4Layout) {
    return Error{Errc::kMalformed,
                 fmt::format("weight layout '{}', wanted '{}'", image.layout.substr(0, 40), kInt4Layout)};
  }
  // int4 has one layout; "rows" stands for it here, for the sizes to be checked.
  ASSIGN_OR_RETURN(const WeightLayout layout,
                   WeightLayout::parse(type == WeightType::kInt4 ? "rows" : image.layout, in_features, out_features));
  const std::size_t wanted_bytes =
      type == WeightType::kInt4 ? own_bytes(type, in_features, out_features) : layout.bytes(element_bytes(type));
  const std::size_t wanted_scales = type == WeightType::kInt8 ? static_cast<std::size_t>(out_features) : 0;
  if (image.weights.size() != wanted_bytes || image.scales.size() != wanted_scales) {
    return Error{Errc::kMalformed,
                 fmt::format("{} weights [{}, {}] in layout '{}' have {} bytes and {} scales, wanted {} and {}",
                             to_string(type), out_features, in_features, image.layout, image.weights.size(),
                             image.scales.size(), wanted_bytes, wanted_scales)};
  }

  std::span<const std::byte> weights = image.weights;
  if (reinterpret_cast<std::uintptr_t>(weights.data()) % 64 != 0) {
    const auto copy = aligned_bytes(weights.size());
    std::copy(weights.begin(), weights.end(), copy->data());
    weights = copy->span();
    keep_alive = copy;
  }
  Linear linear(type, in_features, out_features);
  linear.column_scale_.assign(image.scales.begin(), image.scales.end());
  const bool onednn = OnednnGemm::supports(type, in_features, out_features);
  if (onednn) {
    if (auto gemm = OnednnGemm::map(type, in_features, out_features, image.layout, weights, keep_alive)) {
      linear.mapped_ = weights.data() == image.weights.data();
      linear.use_gemm(std::move(gemm));
      return linear;
    }
  }
  if (layout.name() != "rows") {
    const auto rows = to_rows(layout, weights.data(), element_bytes(type), in_features, out_features);
    weights = rows->span();
    keep_alive = rows;
  }
  if (onednn) {
    linear.use_gemm(OnednnGemm::pack(type, in_features, out_features, weights.data()));
  } else {
    linear.mapped_ = weights.data() == image.weights.data();
    linear.use_own(weights, std::move(keep_alive));
  }
  return linear;
}

LinearImage Linear::image() const {
  if (gemm_ != nullptr) return {gemm_->layout(), gemm_->weights(), column_scale_};
  return {type_ == WeightType::kInt4 ? kInt4Layout : "rows", own_weights_, column_scale_};
}

void Linear::use_own(std::span<const std::byte> weights, std::shared_ptr<const void> keep_alive) {
  own_weights_ = weights;
  keep_alive_ = std::move(keep_alive);
  weight_bytes_ = weights.size();
  implementation_ = std::string("own ") + to_string(active_isa());
}

void Linear::use_gemm(std::shared_ptr<const OnednnGemm> gemm) {
  gemm_ = std::move(gemm);
  weight_bytes_ = own_bytes(type_, in_features_, out_features_);
  implementation_ =
      (gemm_->tile_kernel() != nullptr ? "own amx, weights of onednn " : "onednn ") + gemm_->implementation();
}

void Linear::forward(Matrix<const float> x, Matrix<float> y) const {
  DCHECK(x.size(1) == in_features_ && y.size(1) == out_features_ && x.size(0) == y.size(0));
  DCHECK(x.stride(0) == in_features_ && y.stride(0) == out_features_);
  if (x.size(0) == 0) return;
  if (type_ == WeightType::kInt4) return forward_int4(x.data(), x.size(0), y.data());
  if (gemm_ == nullptr) return forward_own(x.data(), x.size(0), y.data());
  if (gemm_->tile_kernel() != nullptr) return forward_tiles(x.data(), x.size(0), y.data());
  for (std::int64_t r = 0; r < x.size(0);) {
    const std::int64_t height = gemm_->height(x.size(0) - r);
    const std::int64_t rows = std::min(height, x.size(0) - r);
    forward_tile(x.data() + r * in_features_, rows, height, y.data() + r * out_features_);
    r += rows;
  }
}

/// Quantised or rounded inputs with their scales, and integer sums, of the rows at hand.
static thread_local AlignedArray<std::byte> input_scratch, scale_scratch, correction_scratch, output_scratch;

std::size_t Linear::held_bytes() const {
  return (gemm_ == nullptr ? own_weights_ : gemm_->weights()).size() + column_scale_.size() * sizeof(float);
}

std::size_t Linear::thread_scratch_bytes() {
  return input_scratch.size() + scale_scratch.size() + correction_scratch.size() + output_scratch.size() +
         OnednnGemm::thread_scratch_bytes();
}

void Linear::forward_tile(const float* x, std::int64_t rows, std::int64_t height, float* y) const {
  const KernelTable& k = kernels();
  switch (type_) {
    case WeightType::kF32: gemm_->execute(height, x, y); return;
    case WeightType::kBf16: {
      auto* input = reinterpret_cast<Bf16*>(reserve(input_scratch, height * in_features_ * 2));
      k.to_bf16(x, rows * in_features_, input);
      gemm_->execute(height, input, y);
      return;
    }
    case WeightType::kInt8: {
      auto* input = reinterpret_cast<std::int8_t*>(reserve(input_scratch, height * in_features_));
      auto* sums = reinterpret_cast<std::int32_t*>(reserve(output_scratch, height * out_features_ * 4));
      float row_scale[kPromptTile];
#pragma omp parallel for schedule(static) if (rows > 1 && rows * in_features_ >= 128 * 1024)
      for (std::int64_t r = 0; r < rows; ++r)
        row_scale[r] = k.quantize(x + r * in_features_, in_features_, input + r * in_features_);
      gemm_->execute(height, input, sums);
      // In pieces of columns: a head's one row has a quarter of a million.
      constexpr std::int64_t kPiece = 4096;
      const std::int64_t pieces = (out_features_ + kPiece - 1) / kPiece;
#pragma omp parallel for collapse(2) schedule(static) if (rows * out_features_ >= 64 * 1024)
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t p = 0; p < pieces; ++p) {
          const std::int64_t first = p * kPiece, count = std::min(kPiece, out_features_ - first);
          k.dequantize(sums + r * out_features_ + first, row_scale[r], column_scale_.data() + first, count,
                       y + r * out_features_ + first);
        }
      }
      return;
    }
    case WeightType::kInt4: return;  // forward_int4
  }
}

/// multiply(b) for all blocks, by the threads of the parallel region around it. Few rows wait for the memory, which
/// likes neighbouring blocks; many for the slowest core, if each has the same share.
template <typename Multiply>
static void deal_out(std::int64_t rows, std::int64_t blocks, Multiply multiply) {
  if (rows <= kRowTile) {
#pragma omp for schedule(static)
    for (std::int64_t b = 0; b < blocks; ++b) multiply(b);
  } else {
#pragma omp for schedule(dynamic)
    for (std::int64_t b = 0; b < blocks; ++b) multiply(b);
  }
}

void Linear::forward_tiles(const float* x, std::int64_t rows, float* y) const {
  const KernelTable& k = kernels();
  const TileKernel multiply = gemm_->tile_kernel();
  const bool int8 = type_ == WeightType::kInt8;
  const std::int64_t bytes = row_bytes(type_, in_features_), blocks = out_features_ / kTileOutputs;
  std::byte* input = reserve(input_scratch, (rows + 2 * kTileRows - 1) / (2 * kTileRows) * (2 * kTileRows) * bytes);
  auto* row_scale = reinterpret_cast<float*>(reserve(scale_scratch, rows * 4));
#pragma omp parallel
  {
    std::byte* row = reserve(output_scratch, bytes);
#pragma omp for schedule(static)
    for (std::int64_t r = 0; r < rows; ++r) {
      if (int8) {
        row_scale[r] = k.quantize(x + r * in_features_, in_features_, reinterpret_cast<std::int8_t*>(row));
      } else {
        k.to_bf16(x + r * in_features_, in_features_, reinterpret_cast<Bf16*>(row));
      }
      std::byte* to = input + r / kTileRows * kTileRows * bytes + r % kTileRows * kTileInputBytes;
      for (std::int64_t i = 0; i < bytes; i += kTileInputBytes)
        std::memcpy(to + i * kTileRows, row + i, kTileInputBytes);
    }
    deal_out(rows, blocks, [&](std::int64_t b) {
      multiply({.weights = gemm_->weights().data() + b * bytes * kTileOutputs,
                .steps = bytes / kTileInputBytes,
                .x = input,
                .rows = rows,
                .row_scale = row_scale,
                .column_scale = int8 ? column_scale_.data() + b * kTileOutputs : nullptr,
                .y = y + b * kTileOutputs,
                .y_stride = out_features_});
    });
  }
}

void Linear::forward_own(const float* x, std::int64_t rows, float* y) const {
  const KernelTable& k = kernels();
  std::vector<Bf16> bf16_input;
  std::vector<std::int8_t> int8_input;
  std::vector<float> row_scale(static_cast<std::size_t>(rows));
  if (type_ == WeightType::kBf16) {
    bf16_input.resize(static_cast<std::size_t>(rows * in_features_));
    k.to_bf16(x, rows * in_features_, bf16_input.data());
  } else if (type_ == WeightType::kInt8) {
    int8_input.resize(static_cast<std::size_t>(rows * in_features_));
    for (std::int64_t r = 0; r < rows; ++r)
      row_scale[static_cast<std::size_t>(r)] =
          k.quantize(x + r * in_features_, in_features_, int8_input.data() + r * in_features_);
  }
  const std::int64_t n = in_features_;
#pragma omp parallel for schedule(static)
  for (std::int64_t o = 0; o < out_features_; ++o) {
    for (std::int64_t r = 0; r < rows; ++r) {
      float& to = y[r * out_features_ + o];
      switch (type_) {
        case WeightType::kF32:
          to = k.dot_f32(x + r * n, reinterpret_cast<const float*>(own_weights_.data()) + o * n, n);
          break;
        case WeightType::kBf16:
          to = k.dot_bf16(bf16_input.data() + r * n, reinterpret_cast<const Bf16*>(own_weights_.data()) + o * n, n);
          break;
        case WeightType::kInt8: {
          const std::int32_t sum = k.dot_int8(int8_input.data() + r * n,
                                              reinterpret_cast<const std::int8_t*>(own_weights_.data()) + o * n, n);
          k.dequantize(&sum, row_scale[static_cast<std::size_t>(r)], &column_scale_[static_cast<std::size_t>(o)], 1,
                       &to);
          break;
        }
        case WeightType::kInt4: break;  // forward_int4
      }
    }
  }
}

void Linear::forward_int4(const float* x, std::int64_t rows, float* y) const {
  const KernelTable& k = kernels();
  const std::int64_t chunks = int4_chunks(in_features_), width = chunks * kInt4Inputs, groups = width / kInt4Group;
  auto* input = reinterpret_cast<std::int8_t*>(reserve(input_scratch, rows * width));
  auto* correction = reinterpret_cast<std::int32_t*>(reserve(correction_scratch, rows * groups * 4));
  auto* row_scale = reinterpret_cast<float*>(reserve(scale_scratch, rows * 4));
  const auto* weights = reinterpret_cast<const Int4Chunk*>(own_weights_.data());
  const std::int64_t blocks = int4_blocks(out_features_);
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (std::int64_t r = 0; r < rows; ++r) {
      std::int8_t* row = input + r * width;
      row_scale[r] = k.quantize(x + r * in_features_, in_features_, row);
      std::fill(row + in_features_, row + width, std::int8_t{0});
      for (std::int64_t g = 0; g < groups; ++g) {
        std::int32_t sum = 0;
        for (std::int64_t i = 0; i < kInt4Group; ++i) sum += row[g * kInt4Group + i];
        correction[r * groups + g] = -8 * sum;
      }
    }
    const auto multiply = [&](std::int64_t b) {
      k.gemm_int4({.weights = weights + b * chunks,
                   .blocks = std::min<std::int64_t>(2, blocks - b),
                   .chunks = chunks,
                   .outputs = std::min(2 * kInt4Outputs, out_features_ - b * kInt4Outputs),
                   .x = input,
                   .correction = correction,
                   .row_scale = row_scale,
                   .rows = rows,
                   .y = y + b * kInt4Outputs,
                   .y_stride = out_features_});
    };
    deal_out(rows, (blocks + 1) / 2, [&](std::int64_t pair) { multiply(2 * pair); });
  }
}

}  // namespace outrider
