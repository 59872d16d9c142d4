#include "common/model/weights.h"

#include "common/tensor/decode.h"

namespace outrider {

Result<std::vector<float>> WeightReader::vector(const std::string& name, std::int64_t size) const {
  ASSIGN_OR_RETURN(const TensorEntry* entry, checkpoint_.require(prefix_ + name, {size}));
  std::vector<float> values(static_cast<std::size_t>(size));
  RETURN_IF_ERROR(read_f32(*entry, values));
  return values;
}

Result<const TensorEntry*> WeightReader::table(const std::string& name, std::int64_t rows, std::int64_t columns) const {
  ASSIGN_OR_RETURN(const TensorEntry* entry, checkpoint_.require(prefix_ + name, {rows, columns}));
  if (!is_decodable(entry->dtype)) {
    return Error{Errc::kUnsupported, fmt::format("{}: tensor '{}' is {}, wanted F32, BF16, F16 or a block type", entry->file.string(), entry->name,
                                                 to_string(entry->dtype))};
  }
  return entry;
}

Result<Linear> WeightReader::linear(std::int64_t in_features, const std::vector<Part>& parts) const {
  std::vector<WeightRows> rows;
  for (const Part& part : parts) {
    ASSIGN_OR_RETURN(const TensorEntry* entry, table(part.name + ".weight", part.rows, in_features));
    rows.push_back({entry->dtype, entry->bytes.data(), part.rows});
  }
  return Linear::pack(type_, in_features, rows);
}

}  // namespace outrider
