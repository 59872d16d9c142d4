#include "common/model/weights.h"

#include <cstring>

#include "common/checkpoint/checkpoint.h"
#include "common/kernels/kernel_table.h"
#include "common/tensor/decode.h"

namespace outrider {
namespace {

/// Packs a checkpoint's matrices on the way.
class CheckpointWeights final : public WeightSource {
 public:
  CheckpointWeights(Checkpoint checkpoint, WeightType type)
      : checkpoint_(std::make_shared<const Checkpoint>(std::move(checkpoint))), type_(type) {}

  WeightType type() const override { return type_; }
  bool has(const std::string& name) const override { return checkpoint_->find(name) != nullptr; }
  std::uint64_t fingerprint() const override { return checkpoint_->fingerprint(); }
  const std::filesystem::path& path() const override { return checkpoint_->path(); }

  Result<std::vector<float>> vector(const std::string& name, std::int64_t size) const override {
    ASSIGN_OR_RETURN(const TensorEntry* entry, checkpoint_->require(name, {size}));
    std::vector<float> values(static_cast<std::size_t>(size));
    RETURN_IF_ERROR(read_f32(*entry, values));
    return values;
  }

  Result<RowTable> table(const std::string& name, std::int64_t rows, std::int64_t width) const override {
    ASSIGN_OR_RETURN(const TensorEntry* entry, matrix(name, {rows, width}));
    return RowTable{.dtype = entry->dtype, .rows = rows, .width = width, .bytes = entry->bytes, .owner = checkpoint_};
  }

  Result<Linear> linear(WeightType type, std::int64_t in_features, const std::vector<Part>& parts) const override {
    std::vector<WeightRows> rows;
    for (const Part& part : parts) {
      std::vector<std::int64_t> shape = {part.rows, in_features};
      if (part.slices > 0) shape.insert(shape.begin(), part.slices);
      ASSIGN_OR_RETURN(const TensorEntry* entry, matrix(part.name, shape));
      const std::size_t slice_bytes = entry->bytes.size() / static_cast<std::size_t>(std::max<std::int64_t>(1, part.slices));
      rows.push_back({entry->dtype, entry->bytes.data() + static_cast<std::size_t>(part.slice) * slice_bytes, part.rows});
    }
    return Linear::pack(type, in_features, rows);
  }

  Result<std::vector<TokenId>> permutation(const std::string& name, std::int64_t size) const override {
    ASSIGN_OR_RETURN(const TensorEntry* entry, checkpoint_->require(name, {size}));
    std::vector<std::int64_t> values(static_cast<std::size_t>(size));
    RETURN_IF_ERROR(read_i64(*entry, values));
    std::vector<bool> seen(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] < 0 || values[i] >= size || seen[static_cast<std::size_t>(values[i])]) {
        return Error{Errc::kMalformed, fmt::format("{}: {}[{}] is {}, wanted a permutation of 0..{}", entry->file.string(), name, i,
                                                   values[i], size - 1)};
      }
      seen[static_cast<std::size_t>(values[i])] = true;
    }
    return std::vector<TokenId>(values.begin(), values.end());
  }

  Result<RowTable> ordered_rows(const std::string& name, std::int64_t width, std::span<const TokenId> order) const override {
    const auto rows = static_cast<std::int64_t>(order.size());
    ASSIGN_OR_RETURN(const RowTable from, table(name, rows, width));
    const DType dtype = type_ == WeightType::kF32 ? DType::kF32 : DType::kBf16;
    const std::size_t row_bytes = static_cast<std::size_t>(width) * size_bytes(dtype);
    const auto to = std::make_shared<AlignedArray<std::byte>>(order.size() * row_bytes);
    std::vector<float> row(static_cast<std::size_t>(width));
    for (std::size_t i = 0; i < order.size(); ++i) {
      decode(from.dtype, from.row(order[i]).data(), row);
      std::byte* const at = to->data() + i * row_bytes;
      if (dtype == DType::kF32) {
        std::memcpy(at, row.data(), row_bytes);
      } else {
        kernels().to_bf16(row.data(), width, reinterpret_cast<Bf16*>(at));
      }
    }
    return RowTable{.dtype = dtype, .rows = rows, .width = width, .bytes = to->span(), .owner = to, .mapped = false};
  }

 private:
  Result<const TensorEntry*> matrix(const std::string& name, const std::vector<std::int64_t>& shape) const {
    ASSIGN_OR_RETURN(const TensorEntry* entry, checkpoint_->require(name, shape));
    if (!is_decodable(entry->dtype)) {
      return Error{Errc::kUnsupported, fmt::format("{}: tensor '{}' is {}, wanted F32, BF16, F16 or a block type", entry->file.string(),
                                                   entry->name, to_string(entry->dtype))};
    }
    return entry;
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
  WeightType type_;
};

}  // namespace

Result<std::shared_ptr<const WeightSource>> open_weights(const std::filesystem::path& path, WeightType type) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(path));
  return std::shared_ptr<const WeightSource>(std::make_shared<CheckpointWeights>(std::move(checkpoint), type));
}

Result<Linear> WeightReader::linear(std::int64_t in_features, const std::vector<Part>& parts) const {
  std::vector<WeightSource::Part> named;
  for (const Part& part : parts) named.push_back({prefix_ + part.name + ".weight", part.rows});
  return source_.linear(type_, in_features, named);
}

Result<std::vector<Linear>> WeightReader::experts(std::int64_t count, std::int64_t in_features, const std::vector<Part>& parts) const {
  std::vector<Linear> linears;
  for (std::int64_t e = 0; e < count; ++e) {
    std::vector<WeightSource::Part> slices;
    for (const Part& part : parts) slices.push_back({prefix_ + part.name, part.rows, e, count});
    ASSIGN_OR_RETURN(Linear linear, source_.linear(type_, in_features, slices));
    linears.push_back(std::move(linear));
  }
  return linears;
}

std::string text_prefix(const WeightSource& weights) {
  return weights.has("model.language_model.embed_tokens.weight") ? "model.language_model." : "model.";
}

}  // namespace outrider
