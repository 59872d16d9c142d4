#include "common/kernels/linear.h"

#include <cmath>
#include <cstring>

#include "common/kernels/gemm_onednn.h"
#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

/// Row `r` of a part as float.
void read_row(const WeightRows& part, std::int64_t r, std::span<float> row) {
  const std::byte* from = part.data + static_cast<std::size_t>(r) * row.size() * size_bytes(part.dtype);
  if (part.dtype == DType::kBf16) {
    kernels().from_bf16(reinterpret_cast<const Bf16*>(from), static_cast<std::int64_t>(row.size()), row.data());
    return;
  }
  CHECK(part.dtype == DType::kF32, "weights are {}, wanted F32 or BF16", to_string(part.dtype));
  std::memcpy(row.data(), from, row.size_bytes());
}

std::size_t element_bytes(WeightType type) {
  return type == WeightType::kF32 ? 4 : type == WeightType::kBf16 ? 2 : 1;
}

}  // namespace

const char* to_string(WeightType type) {
  switch (type) {
    case WeightType::kF32: return "f32";
    case WeightType::kBf16: return "bf16";
    case WeightType::kInt8: return "int8";
  }
  return "?";
}

Result<WeightType> parse_weight_type(const std::string& name) {
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8}) {
    if (name == to_string(type)) return type;
  }
  return Error{Errc::kInvalidArgument, fmt::format("dtype '{}', wanted f32, bf16 or int8", name)};
}

Linear Linear::pack(WeightType type, std::int64_t in_features, std::span<const WeightRows> parts) {
  Linear linear;
  linear.type_ = type;
  linear.in_features_ = in_features;
  for (const WeightRows& part : parts) linear.out_features_ += part.rows;
  const std::size_t row_bytes = static_cast<std::size_t>(in_features) * element_bytes(type);
  linear.weight_bytes_ = row_bytes * static_cast<std::size_t>(linear.out_features_);
  if (type == WeightType::kInt8) linear.column_scale_.resize(static_cast<std::size_t>(linear.out_features_));

  // Convert to the stored type, [out, in] row-major.
  AlignedArray<std::byte> stored(linear.weight_bytes_);
  std::byte* part_start = stored.data();
  float* part_scale = linear.column_scale_.data();
  for (const WeightRows& part : parts) {
#pragma omp parallel
    {
      std::vector<float> row(static_cast<std::size_t>(in_features));
#pragma omp for schedule(static)
      for (std::int64_t r = 0; r < part.rows; ++r) {
        read_row(part, r, row);
        std::byte* to = part_start + static_cast<std::size_t>(r) * row_bytes;
        switch (type) {
          case WeightType::kF32: std::memcpy(to, row.data(), row_bytes); break;
          case WeightType::kBf16: kernels().to_bf16(row.data(), in_features, reinterpret_cast<Bf16*>(to)); break;
          case WeightType::kInt8: part_scale[r] = kernels().quantize(row.data(), in_features, reinterpret_cast<std::int8_t*>(to)); break;
        }
      }
    }
    part_start += static_cast<std::size_t>(part.rows) * row_bytes;
    if (part_scale != nullptr) part_scale += part.rows;
  }
  linear.gemm_ = OnednnGemm::pack(type, in_features, linear.out_features_, stored.data());
  if (linear.gemm_ != nullptr) {
    linear.implementation_ = "onednn " + linear.gemm_->implementation();
  } else {
    linear.own_weights_ = std::move(stored);
    linear.implementation_ = std::string("own ") + to_string(active_isa());
  }
  return linear;
}

void Linear::forward(Matrix<const float> x, Matrix<float> y) const {
  DCHECK(x.size(1) == in_features_ && y.size(1) == out_features_ && x.size(0) == y.size(0));
  DCHECK(x.stride(0) == in_features_ && y.stride(0) == out_features_);
  if (gemm_ == nullptr) return forward_own(x.data(), x.size(0), y.data());
  for (std::int64_t r = 0; r < x.size(0);) {
    const std::int64_t height = gemm_->height(x.size(0) - r);
    const std::int64_t rows = std::min(height, x.size(0) - r);
    forward_tile(x.data() + r * in_features_, rows, height, y.data() + r * out_features_);
    r += rows;
  }
}

/// Quantised or rounded inputs, and integer sums, of the tile at hand.
static thread_local AlignedArray<std::byte> input_scratch, output_scratch;

std::size_t Linear::held_bytes() const {
  return (gemm_ == nullptr ? own_weights_.size() : gemm_->held_bytes()) + column_scale_.size() * sizeof(float);
}

std::size_t Linear::thread_scratch_bytes() { return input_scratch.size() + output_scratch.size() + OnednnGemm::thread_scratch_bytes(); }

void Linear::forward_tile(const float* x, std::int64_t rows, std::int64_t height, float* y) const {
  const KernelTable& k = kernels();
  const auto reserve = [](AlignedArray<std::byte>& scratch, std::int64_t bytes) {
    if (scratch.size() < static_cast<std::size_t>(bytes)) scratch = AlignedArray<std::byte>(static_cast<std::size_t>(bytes));
    return scratch.data();
  };
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
      for (std::int64_t r = 0; r < rows; ++r) row_scale[r] = k.quantize(x + r * in_features_, in_features_, input + r * in_features_);
      gemm_->execute(height, input, sums);
      for (std::int64_t r = 0; r < rows; ++r) {
        k.dequantize(sums + r * out_features_, row_scale[r], column_scale_.data(), out_features_, y + r * out_features_);
      }
      return;
    }
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
    for (std::int64_t r = 0; r < rows; ++r) row_scale[static_cast<std::size_t>(r)] = k.quantize(x + r * in_features_, in_features_, int8_input.data() + r * in_features_);
  }
  const std::int64_t n = in_features_;
#pragma omp parallel for schedule(static)
  for (std::int64_t o = 0; o < out_features_; ++o) {
    for (std::int64_t r = 0; r < rows; ++r) {
      float& to = y[r * out_features_ + o];
      switch (type_) {
        case WeightType::kF32: to = k.dot_f32(x + r * n, reinterpret_cast<const float*>(own_weights_.data()) + o * n, n); break;
        case WeightType::kBf16: to = k.dot_bf16(bf16_input.data() + r * n, reinterpret_cast<const Bf16*>(own_weights_.data()) + o * n, n); break;
        case WeightType::kInt8: {
          const std::int32_t sum = k.dot_int8(int8_input.data() + r * n, reinterpret_cast<const std::int8_t*>(own_weights_.data()) + o * n, n);
          k.dequantize(&sum, row_scale[static_cast<std::size_t>(r)], &column_scale_[static_cast<std::size_t>(o)], 1, &to);
          break;
        }
      }
    }
  }
}

}  // namespace outrider
