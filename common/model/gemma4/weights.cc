#include "common/model/gemma4/weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include <fmt/ranges.h>

#include "common/base/random.h"
#include "common/compute/kernels/ops.h"
#include "common/compute/tensor/decode.h"
#include "common/model/checkpoint/checkpoint.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/checkpoint/safetensors.h"
#include "common/os/files.h"

namespace outrider {
namespace {

constexpr char kEmbedTokens[] = "embed_tokens.weight";

/// Hashes a sample of the table's bytes.
std::uint64_t sampled_hash(std::span<const std::byte> bytes) {
  const std::size_t step = std::max<std::size_t>(1, bytes.size() / 4096);
  std::uint64_t hash = bytes.size();
  for (std::size_t i = 0; i < bytes.size(); i += step) hash = mix64(hash ^ static_cast<std::uint64_t>(bytes[i]));
  return hash;
}

Result<void> check_permutation(std::span<const TokenId> order, const std::string& file, const std::string& name) {
  std::vector<bool> seen(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto token = static_cast<std::size_t>(order[i]);
    if (order[i] < 0 || token >= order.size() || seen[token]) {
      return Error(Errc::kMalformed, "{}: {}[{}] is {}, wanted a permutation of 0..{}", file, name, i, order[i],
                   order.size() - 1);
    }
    seen[token] = true;
  }
  return {};
}

/// Packs a checkpoint's matrices when they are read.
class CheckpointWeights final : public WeightSource {
 public:
  CheckpointWeights(Checkpoint checkpoint, WeightType type, OffGrid off_grid)
      : checkpoint_(std::make_shared<const Checkpoint>(std::move(checkpoint))),
        type_(type),
        keeps_(type == WeightType::kQ4 && (off_grid == OffGrid::kKeep || grid_share(*checkpoint_).is_most())) {}

  WeightType type() const override { return type_; }
  bool has(const std::string& name) const override { return checkpoint_->find(name) != nullptr; }
  std::uint64_t fingerprint() const override { return checkpoint_->fingerprint(); }
  std::uint64_t embedding_fingerprint() const override {
    const TensorEntry* const table = checkpoint_->find(text_prefix(*this) + kEmbedTokens);
    return table == nullptr ? 0 : sampled_hash(table->bytes);
  }
  const std::filesystem::path& path() const override { return checkpoint_->path(); }

  Result<std::vector<float>> vector(const std::string& name, std::int64_t size) const override {
    const TensorEntry* const found = checkpoint_->find(name);
    std::vector<std::int64_t> shape = {size};
    if (found != nullptr && found->shape.size() != 1 && found->shape.size() != 2 && found->element_count() == size)
      shape = found->shape;
    ASSIGN_OR_RETURN(const TensorEntry* entry, numbers(name, shape));
    std::vector<float> values(static_cast<std::size_t>(size));
    RETURN_IF_ERROR(read_f32(*entry, values));
    // A scalar may be a bound at infinity (clipped_linear.h).
    if (size == 1 ? std::isnan(values[0]) : !all_finite(values)) return not_finite(*entry, values, 0);
    return values;
  }

  Result<RowTable> table(const std::string& name, std::int64_t rows, std::int64_t width) const override {
    std::vector<std::int64_t> shape = {rows, width};
    if (const TensorEntry* const found = checkpoint_->find(name); found != nullptr && found->shape.size() == 3) {
      const std::int64_t tables = found->shape[0];
      if (tables > 0 && rows % tables == 0) shape = {tables, rows / tables, width};
    }
    ASSIGN_OR_RETURN(const TensorEntry* entry, numbers(name, shape));
    if (entry->coded)
      return file_error(Errc::kUnsupported, entry->file, "table '{}' is {}, wanted F32, BF16, F16 or a block type",
                        name, entry->type_name());
    return RowTable{.dtype = entry->dtype,
                    .numbers = table_dtype(type_, entry->dtype, width),
                    .rows = rows,
                    .width = width,
                    .bytes = entry->bytes,
                    .owner = checkpoint_};
  }

  Result<Linear> linear(WeightType type, std::int64_t in_features, const std::vector<Part>& parts) const override {
    std::vector<const TensorEntry*> entries;
    std::vector<WeightRows> rows;
    // Rows with a weight that is no finite number, which rounding to integers would hide; -1: none.
    std::vector<std::atomic<std::int64_t>> bad_rows(parts.size());
    WeightType kept = type;
    for (const Part& part : parts) {
      std::vector<std::int64_t> shape = {part.rows, in_features};
      if (part.slices > 0) shape.insert(shape.begin(), part.slices);
      ASSIGN_OR_RETURN(const TensorEntry* entry, numbers(part.name, shape));
      if (keeps_ && kept != WeightType::kBf16 && !is_on_q4_grid(*entry))
        kept = entry->coded || block_elements(entry->dtype) > 1 ? WeightType::kInt8 : WeightType::kBf16;
      if (entry->coded && part.slice == 0) RETURN_IF_ERROR(entry->coded->check_scales());  // those of all slices
      std::atomic<std::int64_t>& bad_row = bad_rows[entries.size()];
      bad_row = -1;
      rows.push_back({part.rows, [=, first = part.slice * part.rows, &bad_row](std::int64_t r, std::span<float> out) {
                        entry->read_row(first + r, out);
                        if (!all_finite(out)) bad_row = first + r;
                      }});
      entries.push_back(entry);
    }
    Linear linear = Linear::pack(type == WeightType::kQ4 ? kept : type, in_features, rows);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (bad_rows[i] < 0) continue;
      std::vector<float> row(static_cast<std::size_t>(in_features));
      entries[i]->read_row(bad_rows[i], row);
      return not_finite(*entries[i], row, bad_rows[i]);
    }
    return linear;
  }

  Result<std::vector<TokenId>> permutation(const std::string& name, std::int64_t size) const override {
    ASSIGN_OR_RETURN(const TensorEntry* entry, checkpoint_->require(name, {size}));
    std::vector<std::int64_t> values(static_cast<std::size_t>(size));
    RETURN_IF_ERROR(read_i64(*entry, values));
    std::vector<TokenId> order(values.size());
    // A value that does not fit a TokenId is as wrong as one outside the vocabulary.
    std::ranges::transform(values, order.begin(),
                           [](std::int64_t v) { return std::in_range<TokenId>(v) ? static_cast<TokenId>(v) : -1; });
    RETURN_IF_ERROR(check_permutation(order, entry->file.string(), name));
    return order;
  }

  Result<RowTable> ordered_rows(const std::string& name, std::int64_t width,
                                std::span<const TokenId> order) const override {
    const auto rows = static_cast<std::int64_t>(order.size());
    ASSIGN_OR_RETURN(const RowTable from, table(name, rows, width));
    const DType dtype = table_dtype(type_, activation_dtype(type_), width);
    const std::size_t row_bytes = stored_bytes(dtype, static_cast<std::size_t>(width));
    const auto to = std::make_shared<AlignedArray<std::byte>>(order.size() * row_bytes);
    std::vector<float> row(static_cast<std::size_t>(width));
    for (std::size_t i = 0; i < order.size(); ++i) {
      decode(from.dtype, from.row(order[i]).data(), row);
      if (!all_finite(row)) return not_finite(*checkpoint_->find(name), row, order[i]);
      encode(dtype, row, to->data() + i * row_bytes);
    }
    return RowTable{.dtype = dtype,
                    .numbers = dtype,
                    .rows = rows,
                    .width = width,
                    .bytes = to->span(),
                    .owner = to};
  }

 private:
  /// @param row  with a number that is not finite @param r  its place among the tensor's rows
  static Error not_finite(const TensorEntry& entry, std::span<const float> row, std::int64_t r) {
    const auto at = std::ranges::find_if(row, [](float weight) { return !std::isfinite(weight); });
    return file_error(Errc::kMalformed, entry.file, "tensor {} is {} at element {}, wanted a finite number",
                      quote(entry.name), *at, r * std::ssize(row) + (at - row.begin()));
  }

  /// Returns a tensor whose elements are the model's numbers. FP8 by itself is none of these: they are codes, whose
  /// scales no format has found.
  Result<const TensorEntry*> numbers(const std::string& name, const std::vector<std::int64_t>& shape) const {
    ASSIGN_OR_RETURN(const TensorEntry* entry, checkpoint_->require(name, shape));
    if (!entry->coded && (!is_decodable(entry->dtype) || entry->dtype == DType::kF8_E4M3)) {
      return file_error(Errc::kUnsupported, entry->file, "tensor '{}' is {}, wanted F32, BF16, F16 or a block type",
                        entry->name, to_string(entry->dtype));
    }
    return entry;
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
  WeightType type_;
  bool keeps_;  ///< q4: keeps matrices off the grid in their own precision
};

// ---- packed images ----

// Entries of a pack: vectors and tables under their tensor's name, matrices under their parts' names (matrix_name), a
// head's ordered rows under kOrdered.
constexpr char kOrdered[] = ".ordered", kScales[] = ".scales";
constexpr char kOrderType[] = "I32";

std::string matrix_name(WeightType type, const std::vector<WeightSource::Part>& parts) {
  std::string name;
  for (const WeightSource::Part& part : parts) {
    name += (name.empty() ? "" : "+") + part.name;
    if (part.slices > 0) name += fmt::format("[{}]", part.slice);
  }
  return fmt::format("{}:{}", to_string(type), name);  // a tied head is a table and a matrix of one name
}

template <typename T>
std::vector<T> copy_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

/// Maps the output of PackingWeights.
class MappedWeights final : public WeightSource {
 public:
  MappedWeights(std::shared_ptr<const Pack> pack, WeightType type) : pack_(std::move(pack)), type_(type) {
    for (const PackEntry& entry : pack_->entries()) {  // matrix_name()'s parts
      if (entry.layout.empty()) continue;
      std::string_view rest = std::string_view(entry.name).substr(entry.name.find(':') + 1);
      while (!rest.empty()) {
        const std::string_view part = rest.substr(0, rest.find('+'));
        parts_.emplace(part.substr(0, part.find('[')));
        rest.remove_prefix(std::min(rest.size(), part.size() + 1));
      }
    }
  }

  WeightType type() const override { return type_; }
  bool has(const std::string& name) const override { return pack_->find(name) != nullptr || parts_.contains(name); }
  std::uint64_t fingerprint() const override { return pack_->info().fingerprint; }
  std::uint64_t embedding_fingerprint() const override { return pack_->info().embedding_fingerprint; }
  const std::filesystem::path& path() const override { return pack_->path(); }

  Result<std::vector<float>> vector(const std::string& name, std::int64_t size) const override {
    ASSIGN_OR_RETURN(const PackEntry* entry,
                     require(name, to_string(DType::kF32), {size}, static_cast<std::uint64_t>(size) * sizeof(float)));
    return copy_of<float>(pack_->bytes(*entry));
  }

  Result<RowTable> table(const std::string& name, std::int64_t rows, std::int64_t width) const override {
    const PackEntry* const entry = pack_->find(name);
    const std::optional<DType> dtype = entry == nullptr ? std::nullopt : parse_dtype(entry->type);
    if (entry != nullptr &&
        (!dtype || !is_decodable(*dtype) || width % static_cast<std::int64_t>(block_elements(*dtype)) != 0)) {
      return file_error(Errc::kMalformed, path(), "{} is {} with rows of {}, wanted a table of numbers", quote(name),
                        quote(entry->type), width);
    }
    const DType known = dtype.value_or(DType::kF32);
    return table_of(name, known, rows, width);
  }

  Result<Linear> linear(WeightType type, std::int64_t in_features, const std::vector<Part>& parts) const override {
    std::int64_t rows = 0;
    for (const Part& part : parts) rows += part.rows;
    // In a q4 pack a matrix may have another type.
    for (const WeightType kept : {WeightType::kBf16, WeightType::kInt8})
      if (type == WeightType::kQ4 && pack_->find(matrix_name(kept, parts)) != nullptr) type = kept;
    const std::string name = matrix_name(type, parts);
    ASSIGN_OR_RETURN(const PackEntry* entry, require(name, to_string(type), {rows, in_features}));
    std::vector<float> scales;
    if (pack_->find(name + kScales) != nullptr) {
      ASSIGN_OR_RETURN(scales, vector(name + kScales, rows));
    }
    auto linear = Linear::map({.type = type,
                               .in = in_features,
                               .out = rows,
                               .layout = entry->layout,
                               .bytes = pack_->bytes(*entry),
                               .owner = pack_,
                               .scales = std::move(scales)});
    if (!linear) return file_error(linear.error().code, path(), "{}: {}", quote(name), linear.error().message);
    return linear;
  }

  Result<std::vector<TokenId>> permutation(const std::string& name, std::int64_t size) const override {
    ASSIGN_OR_RETURN(const PackEntry* entry,
                     require(name, kOrderType, {size}, static_cast<std::uint64_t>(size) * sizeof(TokenId)));
    std::vector<TokenId> order = copy_of<TokenId>(pack_->bytes(*entry));
    RETURN_IF_ERROR(check_permutation(order, path().string(), name));
    return order;
  }

  Result<RowTable> ordered_rows(const std::string& name, std::int64_t width,
                                std::span<const TokenId> order) const override {
    return table_of(name + kOrdered, table_dtype(type_, activation_dtype(type_), width),
                    static_cast<std::int64_t>(order.size()), width);
  }

 private:
  Result<RowTable> table_of(const std::string& name, DType dtype, std::int64_t rows, std::int64_t width) const {
    ASSIGN_OR_RETURN(const PackEntry* entry, require(name, to_string(dtype), {rows, width},
                                                     stored_bytes(dtype, static_cast<std::size_t>(rows * width))));
    return RowTable{
        .dtype = dtype, .numbers = dtype, .rows = rows, .width = width, .bytes = pack_->bytes(*entry), .owner = pack_};
  }

  /// Returns an entry, which must exist with this type and shape, and with `size` bytes if given.
  Result<const PackEntry*> require(const std::string& name, std::string_view type,
                                   const std::vector<std::int64_t>& shape,
                                   std::optional<std::uint64_t> size = std::nullopt) const {
    const PackEntry* const entry = pack_->find(name);
    if (entry == nullptr) {
      const char* const why =
          pack_->info().embedding_only ? " (it holds a target's embedding only, for a drafter)" : "";
      return file_error(Errc::kNotFound, path(), "{} is missing, wanted {} [{}]{}", quote(name), type,
                        fmt::join(shape, ", "), why);
    }
    if (entry->type != type || entry->shape != shape || (size && entry->size != *size)) {
      return file_error(Errc::kMismatch, path(), "{} is {} [{}] in {} bytes, wanted {} [{}]{}", quote(name),
                        entry->type, fmt::join(entry->shape, ", "), entry->size, type, fmt::join(shape, ", "),
                        size ? fmt::format(" in {} bytes", *size) : "");
    }
    return entry;
  }

  std::shared_ptr<const Pack> pack_;
  WeightType type_;
  std::unordered_set<std::string> parts_;  ///< tensors that are part of matrices
};

/// Writes everything that a model requests to a pack. Returns empty matrices, so that a model larger than memory can be
/// packed; the model cannot run.
class PackingWeights final : public WeightSource {
 public:
  PackingWeights(std::shared_ptr<const WeightSource> source, PackWriter& writer)
      : source_(std::move(source)), writer_(writer) {}

  WeightType type() const override { return source_->type(); }
  bool has(const std::string& name) const override { return source_->has(name); }
  std::uint64_t fingerprint() const override { return source_->fingerprint(); }
  std::uint64_t embedding_fingerprint() const override { return source_->embedding_fingerprint(); }
  const std::filesystem::path& path() const override { return source_->path(); }

  Result<std::vector<float>> vector(const std::string& name, std::int64_t size) const override {
    ASSIGN_OR_RETURN(std::vector<float> values, source_->vector(name, size));
    RETURN_IF_ERROR(write_vector(name, values));
    return values;
  }

  Result<RowTable> table(const std::string& name, std::int64_t rows, std::int64_t width) const override {
    ASSIGN_OR_RETURN(RowTable table, source_->table(name, rows, width));
    RETURN_IF_ERROR(write_table(name, table));
    return table;
  }

  Result<Linear> linear(WeightType type, std::int64_t in_features, const std::vector<Part>& parts) const override {
    ASSIGN_OR_RETURN(const Linear linear, source_->linear(type, in_features, parts));
    const PackedWeights& packed = linear.packed();
    const std::string name = matrix_name(packed.type, parts);
    RETURN_IF_ERROR(writer_.add({.name = name,
                                 .type = to_string(packed.type),
                                 .shape = {packed.out, in_features},
                                 .layout = packed.layout},
                                packed.bytes));
    if (!packed.scales.empty()) RETURN_IF_ERROR(write_vector(name + kScales, packed.scales));
    return Linear();
  }

  Result<std::vector<TokenId>> permutation(const std::string& name, std::int64_t size) const override {
    ASSIGN_OR_RETURN(std::vector<TokenId> order, source_->permutation(name, size));
    RETURN_IF_ERROR(writer_.add({.name = name, .type = kOrderType, .shape = {size}, .layout = {}},
                                std::as_bytes(std::span(order))));
    return order;
  }

  Result<RowTable> ordered_rows(const std::string& name, std::int64_t width,
                                std::span<const TokenId> order) const override {
    ASSIGN_OR_RETURN(RowTable table, source_->ordered_rows(name, width, order));
    RETURN_IF_ERROR(write_table(name + kOrdered, table));
    return table;
  }

 private:
  Result<void> write_vector(const std::string& name, std::span<const float> values) const {
    return writer_.add({.name = name,
                        .type = to_string(DType::kF32),
                        .shape = {static_cast<std::int64_t>(values.size())},
                        .layout = {}},
                       std::as_bytes(values));
  }

  Result<void> write_table(const std::string& name, const RowTable& table) const {
    const PackEntry entry{
        .name = name, .type = to_string(table.numbers), .shape = {table.rows, table.width}, .layout = {}};
    if (table.numbers == table.dtype) return writer_.add(entry, table.bytes);
    constexpr std::int64_t kRows = 256;
    const std::size_t row_bytes = stored_bytes(table.numbers, static_cast<std::size_t>(table.width));
    std::vector<std::byte> encoded(kRows * row_bytes);
    std::vector<float> row(static_cast<std::size_t>(table.width));
    return writer_.add(entry, (table.rows + kRows - 1) / kRows, [&](std::int64_t piece) {
      const std::int64_t first = piece * kRows, count = std::min(kRows, table.rows - first);
      for (std::int64_t i = 0; i < count; ++i) {
        decode(table.dtype, table.row(first + i).data(), row);
        encode(table.numbers, row, encoded.data() + static_cast<std::size_t>(i) * row_bytes);
      }
      return std::span<const std::byte>(encoded).first(static_cast<std::size_t>(count) * row_bytes);
    });
  }

  std::shared_ptr<const WeightSource> source_;
  PackWriter& writer_;
};

}  // namespace

DType table_dtype(WeightType type, DType stored, std::int64_t width) {
  const bool wide = stored == DType::kF32 || stored == DType::kBf16 || stored == DType::kF16;
  const bool rounds = type == WeightType::kInt8 || type == WeightType::kInt4;
  return rounds && wide && width % static_cast<std::int64_t>(block_elements(DType::kQ8_0)) == 0 ? DType::kQ8_0 : stored;
}

void RowTable::read(std::int64_t r, std::span<float> out) const {
  decode(dtype, row(r).data(), out);
  if (numbers == dtype) return;
  thread_local std::vector<std::byte> encoded;
  encoded.resize(stored_bytes(numbers, out.size()));
  encode_q8_0(out, encoded.data());
  decode(numbers, encoded.data(), out);
}

Result<std::optional<WeightType>> packed_type(const std::filesystem::path& path) {
  if (!is_pack(path)) return std::optional<WeightType>();
  ASSIGN_OR_RETURN(const std::shared_ptr<const Pack> pack, Pack::open(path));
  ASSIGN_OR_RETURN(const WeightType type, parse_weight_type(pack->info().dtype));
  return std::optional(type);
}

Result<std::shared_ptr<const WeightSource>> open_weights(const ModelFiles& files, WeightType type, OffGrid off_grid) {
  if (is_pack(files.path())) {
    ASSIGN_OR_RETURN(std::shared_ptr<const Pack> pack, Pack::open(files.path()));
    if (pack->info().dtype != to_string(type)) {
      return file_error(Errc::kMismatch, files.path(),
                        "a pack of {} weights, wanted {}: choose --dtype {}, or pack the model again",
                        pack->info().dtype, to_string(type), pack->info().dtype);
    }
    return std::shared_ptr<const WeightSource>(std::make_shared<MappedWeights>(std::move(pack), type));
  }
  ASSIGN_OR_RETURN(Checkpoint checkpoint, files.checkpoint());
  return std::shared_ptr<const WeightSource>(
      std::make_shared<CheckpointWeights>(std::move(checkpoint), type, off_grid));
}

Result<Linear> WeightReader::linear(std::int64_t in_features, std::vector<Part> parts) const {
  for (Part& part : parts) part.name = prefix_ + part.name + ".weight";
  return source_.linear(type_, in_features, parts);
}

Result<Linear> WeightReader::split(std::int64_t in_features, std::vector<Part> parts) const {
  ASSIGN_OR_RETURN(const Linear whole, linear(in_features, std::move(parts)));
  return whole.split(shards_);
}

Result<Linear> WeightReader::part(std::int64_t in_features, std::vector<Part> parts,
                                  std::span<const Columns> outputs) const {
  ASSIGN_OR_RETURN(const Linear whole, linear(in_features, std::move(parts)));
  return shards_ == nullptr ? whole : whole.part(outputs);
}

Result<std::vector<Linear>> WeightReader::experts(std::int64_t count, std::int64_t in_features, std::vector<Part> parts,
                                                  std::span<const Columns> outputs) const {
  std::vector<Linear> linears;
  for (Part& part : parts) part = {prefix_ + part.name, part.rows, 0, count};
  for (std::int64_t e = 0; e < count; ++e) {
    for (Part& part : parts) part.slice = e;
    ASSIGN_OR_RETURN(const Linear whole, source_.linear(type_, in_features, parts));
    linears.push_back(shards_ == nullptr ? whole : whole.part(outputs));
  }
  return linears;
}

std::shared_ptr<const WeightSource> packing_weights(std::shared_ptr<const WeightSource> source, PackWriter& writer) {
  return std::make_shared<PackingWeights>(std::move(source), writer);
}

std::string text_prefix(const WeightSource& weights) {
  return weights.has("model.language_model.embed_tokens.weight") ? "model.language_model." : "model.";
}

}  // namespace outrider
