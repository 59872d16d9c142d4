#include "common/model/weights.h"

namespace outrider {

Result<std::vector<float>> WeightReader::vector(const std::string& name, std::int64_t size) const {
  ASSIGN_OR_RETURN(const TensorEntry* entry, checkpoint_.require(prefix_ + name, {size}));
  std::vector<float> values(static_cast<std::size_t>(size));
  RETURN_IF_ERROR(read_f32(*entry, values));
  return values;
}

Result<const TensorEntry*> WeightReader::packable(const std::string& name, const std::vector<std::int64_t>& shape) const {
  ASSIGN_OR_RETURN(const TensorEntry* entry, checkpoint_.require(prefix_ + name, shape));
  if (entry->dtype != DType::kF32 && entry->dtype != DType::kBf16) {
    return Error{Errc::kUnsupported, fmt::format("{}: tensor '{}' is {}, wanted F32 or BF16", entry->file.string(), entry->name,
                                                 to_string(entry->dtype))};
  }
  return entry;
}

Result<const TensorEntry*> WeightReader::table(const std::string& name, std::int64_t rows, std::int64_t columns) const {
  return packable(name, {rows, columns});
}

Result<Linear> WeightReader::linear(std::int64_t in_features, const std::vector<Part>& parts) const {
  std::vector<WeightRows> rows;
  for (const Part& part : parts) {
    ASSIGN_OR_RETURN(const TensorEntry* entry, table(part.name + ".weight", part.rows, in_features));
    rows.push_back({entry->dtype, entry->bytes.data(), part.rows});
  }
  return Linear::pack(type_, in_features, rows);
}

Result<std::vector<Linear>> WeightReader::experts(std::int64_t count, std::int64_t in_features, const std::vector<Part>& parts) const {
  std::vector<const TensorEntry*> entries;
  for (const Part& part : parts) {
    ASSIGN_OR_RETURN(const TensorEntry* entry, packable(part.name, {count, part.rows, in_features}));
    entries.push_back(entry);
  }
  std::vector<Linear> linears;
  for (std::int64_t e = 0; e < count; ++e) {
    std::vector<WeightRows> rows;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const std::size_t slice_bytes = entries[p]->bytes.size() / static_cast<std::size_t>(count);
      rows.push_back({entries[p]->dtype, entries[p]->bytes.data() + static_cast<std::size_t>(e) * slice_bytes, parts[p].rows});
    }
    linears.push_back(Linear::pack(type_, in_features, rows));
  }
  return linears;
}

}  // namespace outrider
