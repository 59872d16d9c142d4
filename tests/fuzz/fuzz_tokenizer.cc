#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/model/tokenizer/tokenizer.h"
#include "tests/fuzz/driver.h"

namespace outrider {

FuzzSeeds fuzz_seeds() {
  const auto replace = [](const char* from, const char* to) {
    return nlohmann::json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const nlohmann::json tokenizer = {
      {"added_tokens",
       {{{"id", 0}, {"content", "<x>"}, {"special", true}}, {{"id", 4}, {"content", "aa"}, {"normalized", true}}}},
      {"normalizer", replace(" ", "\u2581")},
      {"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}}},
      {"decoder",
       {{"type", "Sequence"}, {"decoders", {replace("\u2581", " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<x>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", {{"<x>", 0}, {"a", 1}, {"b", 2}, {"ab", 3}, {"aa", 4}}},
        {"merges", {{"a", "b"}, {"a", "a"}}}}}};
  return {tokenizer.dump()};
}

}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = outrider::Tokenizer::parse(text, "fuzz.json");
  if (!tokenizer) return 0;
  const auto ids = tokenizer->encode("a b <x> \n\xff");
  (void)tokenizer->decode(ids, true);
  return 0;
}
