#include <cstddef>
#include <cstdint>
#include <span>

#include "common/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  (void)outrider::parse_safetensors(bytes, "fuzz.safetensors");
  (void)outrider::parse_index(bytes, "fuzz.index.json");
  return 0;
}
