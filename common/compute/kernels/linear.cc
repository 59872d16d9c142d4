#include "common/compute/kernels/linear.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "common/base/random.h"
#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/packed_matrix.h"
#include "common/compute/kernels/team.h"
#include "common/compute/kernels/weight_layout.h"
#include "common/compute/tensor/decode.h"

namespace outrider {

/// The implementations, by preference. Each has a file with this function: block_matrix.cc and so on.
MakeMatrix make_block, make_onednn, make_plain;
static constexpr MakeMatrix* kWays[] = {make_block, make_onednn, make_plain};

/// Makes the matrix with the best implementation here, or the one requested by OUTRIDER_GEMM.
static std::shared_ptr<const PackedMatrix> make_matrix(const PackedWeights& weights) {
  std::shared_ptr<const PackedMatrix> matrix = active_gemm() == Gemm::kOnednn ? make_onednn(weights) : nullptr;
  for (MakeMatrix* const make : kWays) {
    if (matrix != nullptr) return matrix;
    if (make != make_onednn || active_gemm() != Gemm::kOwn) matrix = make(weights);
  }
  CHECK(matrix != nullptr, "nothing multiplies {}", to_string(weights.type));
  return matrix;
}

WeightRows WeightRows::of(DType dtype, const std::byte* data, std::int64_t rows) {
  return {rows, [=](std::int64_t row, std::span<float> out) {
            decode(dtype, data + static_cast<std::size_t>(row) * stored_bytes(dtype, out.size()), out);
          }};
}

Linear Linear::pack(WeightType type, std::int64_t in_features, std::span<const WeightRows> parts) {
  std::int64_t out_features = 0;
  for (const WeightRows& part : parts) out_features += part.rows;
  const WeightFormat& format = format_of(type);
  const auto memory = std::make_shared<AlignedArray<std::byte>>(format.bytes(in_features, out_features));
  std::vector<float> scales(static_cast<std::size_t>(out_features));
  std::int64_t first = 0;  // first row of the part
  for (const WeightRows& part : parts) {
    team_run(part.rows, kInputsPerPiece / in_features + 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> row(static_cast<std::size_t>(in_features));
      for (std::int64_t r = begin; r < end; ++r) {
        part.read(r, row);
        scales[static_cast<std::size_t>(first + r)] = format.store_row(row, first + r, memory->data());
      }
    });
    first += part.rows;
  }
  if (!format.has_scales) scales.clear();
  return {type, in_features, out_features,
          make_matrix({type, in_features, out_features, format.layout, memory->span(), memory, std::move(scales)})};
}

Result<Linear> Linear::map(PackedWeights weights) {
  const WeightFormat& format = format_of(weights.type);
  if (!format.is_elements() && weights.layout != format.layout) {
    return Error(Errc::kMalformed, "weight layout '{}', wanted '{}'", weights.layout.substr(0, 40), format.layout);
  }
  // "rows" stands in for a type's only layout, to check the sizes.
  ASSIGN_OR_RETURN(const WeightLayout layout,
                   WeightLayout::parse(format.is_elements() ? weights.layout : "rows", weights.in, weights.out));
  const std::size_t wanted_bytes = format.is_elements() ? layout.bytes(static_cast<std::size_t>(format.unit_bytes))
                                                        : format.bytes(weights.in, weights.out);
  const std::size_t wanted_scales = format.has_scales ? static_cast<std::size_t>(weights.out) : 0;
  const std::span<const std::byte> bytes = weights.bytes;
  if (bytes.size() != wanted_bytes || weights.scales.size() != wanted_scales) {
    return Error(Errc::kMalformed, "{} weights [{}, {}] in layout '{}' have {} bytes and {} scales, wanted {} and {}",
                 format.name, weights.out, weights.in, weights.layout, bytes.size(), weights.scales.size(),
                 wanted_bytes, wanted_scales);
  }
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % 64 != 0) {
    const auto copy = std::make_shared<AlignedArray<std::byte>>(bytes.size());
    std::ranges::copy(bytes, copy->data());
    weights.bytes = copy->span();
    weights.owner = copy;
  }
  return Linear(weights.type, weights.in, weights.out, make_matrix(weights));
}

Linear Linear::select(std::span<const std::int32_t> outputs) const {
  return {type_, in_features_, std::ssize(outputs), make_matrix(select_outputs(matrix_->weights(), outputs))};
}

/// Returns true if these outputs of random rows equal those of `part` bit for bit.
static bool same_sums(const PackedMatrix& whole, const PackedMatrix& part, std::span<const std::int32_t> outputs) {
  const std::int64_t in = whole.weights().in, out = whole.weights().out;
  AlignedArray<float> x(static_cast<std::size_t>(kGemmHeight * in)), all(static_cast<std::size_t>(kGemmHeight * out)),
      some(static_cast<std::size_t>(kGemmHeight * std::ssize(outputs)));
  CounterRng rng(1);
  for (float& value : x.span()) value = static_cast<float>(2 * rng.uniform() - 1);
  whole.multiply(x.data(), kGemmHeight, all.data(), out);
  part.multiply(x.data(), kGemmHeight, some.data(), std::ssize(outputs));
  const float* y = some.data();
  for (std::int64_t r = 0; r < kGemmHeight; ++r)
    for (const std::int32_t o : outputs)
      if (std::memcmp(y++, all.data() + r * out + o, sizeof *y) != 0) return false;
  return true;
}

/// Selected outputs of a matrix that multiplies all of them.
class PickedMatrix final : public PackedMatrix {
 public:
  PickedMatrix(std::shared_ptr<const PackedMatrix> whole, std::vector<std::int32_t> outputs)
      : PackedMatrix(whole->weights(), whole->implementation()),
        whole_(std::move(whole)),
        outputs_(std::move(outputs)) {}

  void multiply(const float* x, std::int64_t rows, float* y, std::int64_t y_stride) const override {
    const std::int64_t out = weights().out;
    auto* const all = scratch<float>(Scratch::kPicked, padded_rows(rows) * out);
    whole_->multiply(x, rows, all, out);
    for (std::int64_t r = 0; r < rows; ++r)
      std::ranges::transform(outputs_, y + r * y_stride, [&](std::int32_t o) { return all[r * out + o]; });
  }

 private:
  std::shared_ptr<const PackedMatrix> whole_;
  std::vector<std::int32_t> outputs_;
};

Linear Linear::part(std::span<const Columns> outputs) const {
  std::vector<std::int32_t> all;
  for (const Columns& some : outputs)
    for (std::int64_t o = some.begin; o < some.end(); ++o) all.push_back(static_cast<std::int32_t>(o));
  if (all.empty()) return {type_, in_features_, 0, nullptr};
  Linear part = select(all);
  // Of another shape, the part may have another implementation than the whole.
  const bool keeps_bits = matrix_->keeps_bits_in_part() && part.matrix_->keeps_bits_in_part();
  if (!keeps_bits && !same_sums(*matrix_, *part.matrix_, all))
    part.matrix_ = std::make_shared<PickedMatrix>(matrix_, std::move(all));
  return part;
}

Linear Linear::split(Shards* shards) const {
  if (shards == nullptr || matrix_ == nullptr) return *this;
  const Columns own = shards->place().share(out_features_);
  Linear split = part({&own, 1});
  split.out_features_ = out_features_;
  split.shards_ = shards;
  split.own_ = own;
  return split;
}

const PackedWeights& Linear::packed() const { return matrix_->weights(); }

void Linear::forward(Matrix<const float> x, Matrix<float> y) const {
  DCHECK(x.size(1) == in_features_ && y.size(1) == out_features_ && x.size(0) == y.size(0));
  DCHECK(x.stride(0) == in_features_);
  if (x.size(0) == 0) return;
  if (matrix_ != nullptr) matrix_->multiply(x.data(), x.size(0), y.data() + own_.begin, y.stride(0));
  gather(shards_, y, own_);
}

void Linear::forward_groups(std::span<const Group> groups, Matrix<const float> x, Matrix<float> y) {
  if (groups.empty() || groups[0].linear->matrix_ == nullptr) return;
  DCHECK(x.stride(0) == x.size(1) && x.size(0) == y.size(0));
  std::vector<ProductGroup> products;
  for (const auto& [linear, rows] : groups) {
    DCHECK(linear->in_features_ == x.size(1) && linear->out_features_ == y.size(1) && linear->shards_ == nullptr);
    products.push_back({linear->matrix_.get(), rows});
  }
  products[0].matrix->multiply_groups(products, x.data(), y.data(), y.stride(0));
}

std::size_t Linear::weight_bytes() const {
  return matrix_ == nullptr ? 0 : format_of(type_).bytes(in_features_, matrix_->weights().out);
}

const std::string& Linear::implementation() const { return matrix_->implementation(); }

}  // namespace outrider
