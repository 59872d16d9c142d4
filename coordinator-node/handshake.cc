#include "coordinator-node/handshake.h"

#include <cstdint>
#include <functional>

#include <fmt/format.h>

#include "common/wire/messages/donor_rows.h"

namespace outrider {
namespace {

std::string describe_hidden(const DonorFacts& d) {
  return fmt::format("hidden rows of {} layers, {} numbers each (list {:x})", d.num_key_value_heads,
                     2 * std::int64_t{d.head_dim}, d.layer);
}
std::string describe(const DonorFacts& d) {
  return fmt::format("layer {} ({}, {} K/V heads of {}, window {})", d.layer, d.sliding ? "sliding" : "full",
                     d.num_key_value_heads, d.head_dim, d.sliding_window);
}
std::string hex(std::uint64_t x) { return fmt::format("{:016x}", x); }

}  // namespace

std::optional<std::string> mismatch(const PairFacts& verifier, const PairFacts& drafter, const char* who,
                                    DraftInput needs) {
  std::optional<std::string> first;
  const auto compare = [&](const char* what, const auto& v, const auto& d, const auto& show) {
    if (!first && v != d) first = fmt::format("{}: verifier has {}, {} has {}", what, show(v), who, show(d));
  };
  const auto compare_known = [&](const char* what, std::uint64_t v, std::uint64_t d) {
    if (v != 0 && d != 0) compare(what, v, d, hex);
  };
  const auto type = [](DType dtype) { return to_string(dtype); };
  compare("vocab_size", verifier.vocab_size, drafter.vocab_size, std::identity());
  compare_known("tokenizer fingerprint", verifier.tokenizer_fingerprint, drafter.tokenizer_fingerprint);
  if (needs == DraftInput::kTokens) return first;
  compare("hidden_size", verifier.hidden_size, drafter.hidden_size, std::identity());
  compare("K/V type", verifier.kv_dtype, drafter.kv_dtype, type);
  compare("hidden type", verifier.hidden_dtype, drafter.hidden_dtype, type);
  const auto rows = [](const PairFacts& facts) {
    return takes_hidden_rows(facts) ? describe_hidden(facts.donors[0]) : "K/V rows of an assistant's donors";
  };
  if (takes_hidden_rows(verifier) || takes_hidden_rows(drafter))
    compare("what is sent", rows(verifier), rows(drafter), std::identity());
  compare("donor layers", verifier.donors.size(), drafter.donors.size(), std::identity());
  for (std::size_t i = 0; !first && i < verifier.donors.size(); ++i)
    compare("donor", verifier.donors[i], drafter.donors[i], describe);
  compare("target embedding fingerprint", verifier.embedding_fingerprint, drafter.embedding_fingerprint, hex);
  compare_known("backbone fingerprint", verifier.backbone_fingerprint, drafter.backbone_fingerprint);
  return first;
}

}  // namespace outrider
