#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = outrider::Tokenizer::parse(text, "fuzz.json");
  if (!tokenizer) return 0;
  const auto ids = tokenizer->encode("a b <x> \n\xff");
  (void)tokenizer->decode(ids, true);
  return 0;
}
