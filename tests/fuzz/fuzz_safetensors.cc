#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "common/checkpoint/safetensors.h"
#include "tests/fuzz/driver.h"
#include "tests/support/gguf_writer.h"

namespace outrider {

FuzzSeeds fuzz_seeds() {
  const nlohmann::json header = {{"a", {{"dtype", "F32"}, {"shape", {2, 1}}, {"data_offsets", {0, 8}}}},
                                 {"b", {{"dtype", "BF16"}, {"shape", {1}}, {"data_offsets", {8, 10}}}},
                                 {"__metadata__", {{"format", "pt"}}}};
  const std::string text = header.dump();
  return {raw_bytes<std::uint64_t>(text.size()) + text + std::string(10, '\0'),
          R"({"metadata": {"total_size": 4}, "weight_map": {"a": "model-1.safetensors", "b": "x/y"}})"};
}

}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  (void)outrider::parse_safetensors(bytes, "fuzz.safetensors");
  (void)outrider::parse_index(bytes, "fuzz.index.json");
  return 0;
}
