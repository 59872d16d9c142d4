// A safetensors file, a shard index, and what a `quantization_config` makes of a file's tensors.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/base/json_fields.h"
#include "common/model/checkpoint/quantized.h"
#include "common/model/checkpoint/safetensors.h"
#include "common/os/files.h"
#include "tests/fuzz/driver.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
using nlohmann::json;
constexpr std::size_t kBytesMax = 1 << 16;  ///< of the tensors of an input

/// The JSON of a safetensors file's header.
std::string header_of(const std::filesystem::path& file) {
  const std::string bytes = read_text(file).value();
  return bytes.substr(
      8, static_cast<std::size_t>(static_cast<unsigned char>(bytes[0])) + 256 * static_cast<unsigned char>(bytes[1]));
}

/// A whole checkpoint of `header`, with offsets that fit the tensors, under the configuration beside it: else a changed
/// shape would be refused before any format sees it.
void checkpoint(const json& input) {
  json header = member(input, "header");
  std::size_t bytes = 0;
  for (auto& [name, tensor] : header.items()) {
    if (name == "__metadata__" || !tensor.is_object() || !tensor.contains("data_offsets")) continue;
    const json& type = member(tensor, "dtype");
    const auto dtype = type.is_string() ? parse_dtype(type.get_ref<const std::string&>()) : std::nullopt;
    std::size_t size = dtype ? size_bytes(*dtype) : 1;
    for (const json& extent : member(tensor, "shape"))
      if (extent.is_number_unsigned())
        size = std::min(size * std::min(extent.get<std::size_t>(), kBytesMax), kBytesMax);
    tensor["data_offsets"] = {bytes, bytes + size};
    bytes += size;
    if (bytes > kBytesMax) return;
  }
  const std::string text = to_text(header);
  std::string file = raw_bytes<std::uint64_t>(text.size()) + text;
  for (std::size_t i = 0; i < bytes; ++i) file += static_cast<char>(text[i % text.size()] * 37 + i / text.size());
  auto tensors = parse_safetensors(std::as_bytes(std::span(file)), "fuzz.safetensors");
  if (!tensors) return;
  static const TemporaryDir folder;
  folder.write("config.json", to_text(member(input, "config")));
  folder.write("hf_quant_config.json", to_text(member(input, "beside")));
  if (!decode_quantized(folder / "config.json", *tensors)) return;
  for (const TensorEntry& tensor : *tensors) {
    if (!tensor.coded) continue;
    CHECK(rows_of(tensor) > 0 && !tensor.type_name().empty());
    (void)is_on_q4_grid(tensor);
    std::vector<float> row(static_cast<std::size_t>(tensor.shape.back()));
    for (std::int64_t i = 0; i < std::min<std::int64_t>(rows_of(tensor), 256); ++i) tensor.read_row(i, row);
  }
}

}  // namespace

FuzzSeeds fuzz_seeds() {
  const nlohmann::json header = {{"a", {{"dtype", "F32"}, {"shape", {2, 1}}, {"data_offsets", {0, 8}}}},
                                 {"b", {{"dtype", "BF16"}, {"shape", {1}}, {"data_offsets", {8, 10}}}},
                                 {"__metadata__", {{"format", "pt"}}}};
  const std::string text = header.dump();
  FuzzSeeds seeds{raw_bytes<std::uint64_t>(text.size()) + text + std::string(10, '\0'),
                  R"({"metadata": {"total_size": 4}, "weight_map": {"a": "model-1.safetensors", "b": "x/y"}})"};
  const std::filesystem::path goldens = std::filesystem::path(OUTRIDER_SOURCE_DIR) / "tests/goldens/quantized";
  for (const auto& format : std::filesystem::directory_iterator(goldens)) {
    const std::filesystem::path beside = format.path() / "hf_quant_config.json";
    seeds.push_back(
        to_text({{"config", parse_json(read_text(format.path() / "config.json").value())},
                 {"beside", std::filesystem::exists(beside) ? parse_json(read_text(beside).value()) : json()},
                 {"header", parse_json(header_of(format.path() / "model.safetensors"))}}));
  }
  return seeds;
}

}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  (void)outrider::parse_safetensors(bytes, "fuzz.safetensors");
  (void)outrider::parse_index(bytes, "fuzz.index.json");
  const auto input = outrider::parse_json({reinterpret_cast<const char*>(data), size});
  if (input.is_object()) outrider::checkpoint(input);
  return 0;
}
