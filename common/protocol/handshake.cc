#include "common/protocol/handshake.h"

#include <cstdint>

#include <fmt/format.h>

namespace outrider {
namespace {

std::string describe(const DonorFacts& d) {
  return fmt::format("layer {} ({}, {} K/V heads of {}, window {})", d.layer, d.sliding ? "sliding" : "full",
                     d.num_key_value_heads, d.head_dim, d.sliding_window);
}

}  // namespace

std::optional<std::string> mismatch(const PairFacts& verifier, const PairFacts& drafter, const char* who) {
  const auto differ = [who](const char* what, const auto& v, const auto& d) {
    return fmt::format("{}: verifier has {}, {} has {}", what, v, who, d);
  };
  const auto hex = [](std::uint64_t x) { return fmt::format("{:016x}", x); };
  if (verifier.hidden_size != drafter.hidden_size)
    return differ("hidden_size", verifier.hidden_size, drafter.hidden_size);
  if (verifier.vocab_size != drafter.vocab_size) return differ("vocab_size", verifier.vocab_size, drafter.vocab_size);
  if (verifier.kv_dtype != drafter.kv_dtype)
    return differ("K/V type", to_string(verifier.kv_dtype), to_string(drafter.kv_dtype));
  if (verifier.hidden_dtype != drafter.hidden_dtype)
    return differ("hidden type", to_string(verifier.hidden_dtype), to_string(drafter.hidden_dtype));
  if (verifier.donors.size() != drafter.donors.size())
    return differ("donor layers", verifier.donors.size(), drafter.donors.size());
  for (std::size_t i = 0; i < verifier.donors.size(); ++i) {
    if (verifier.donors[i] == drafter.donors[i]) continue;
    return differ("donor", describe(verifier.donors[i]), describe(drafter.donors[i]));
  }
  if (verifier.embedding_fingerprint != drafter.embedding_fingerprint)
    return differ("target embedding fingerprint", hex(verifier.embedding_fingerprint),
                  hex(drafter.embedding_fingerprint));
  const bool both_known = verifier.backbone_fingerprint != 0 && drafter.backbone_fingerprint != 0;
  if (both_known && verifier.backbone_fingerprint != drafter.backbone_fingerprint)
    return differ("backbone fingerprint", hex(verifier.backbone_fingerprint), hex(drafter.backbone_fingerprint));
  const bool both_tokenize = verifier.tokenizer_fingerprint != 0 && drafter.tokenizer_fingerprint != 0;
  if (both_tokenize && verifier.tokenizer_fingerprint != drafter.tokenizer_fingerprint)
    return differ("tokenizer fingerprint", hex(verifier.tokenizer_fingerprint), hex(drafter.tokenizer_fingerprint));
  return std::nullopt;
}

}  // namespace outrider
