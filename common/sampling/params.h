#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/fields.h"
#include "common/base/ids.h"
#include "common/base/result.h"

namespace outrider {

/// Most alternatives that logprobs may ask for: OpenAI's and vLLM's limit.
inline constexpr std::int32_t kLogprobsMax = 20;

/// Most tokens of a drafter's distribution on the wire.
inline constexpr std::int32_t kDraftTopK = 64;

/// Most entries of logit_bias and of suppress_tokens.
inline constexpr std::size_t kSamplingListMax = 4096;

struct LogitBias {
  TokenId token = 0;
  float bias = 0;
  bool operator==(const LogitBias&) const = default;
  static void fields(auto& v, auto& m) {
    v("token", m.token, kNatural);
    v("bias", m.bias, kFinite);
  }
};

/// Which drafts survive above temperature 0. The first two leave the target's distribution as it is.
enum class SamplingRule : std::uint8_t {
  kMatch,      ///< those that the target would have drawn itself: one seed is one text
  kRejection,  ///< Leviathan et al. 2023: the text also depends on the drafts
  kTypical,    ///< Cai et al. 2024 (Medusa), 3.3: those that are typical of the target. Lossy: another distribution
};
inline const char* to_string(SamplingRule rule) {
  return rule == SamplingRule::kMatch ? "match" : rule == SamplingRule::kRejection ? "rejection" : "typical";
}

/// How a request wants its tokens chosen. As it stands: greedily. The names and meanings are vLLM's and OpenAI's;
/// docs/sampling.md says in which order they act.
struct SamplingParams {
  float temperature = 0;   ///< 0: always the most probable token
  std::int32_t top_k = 0;  ///< only the k most probable tokens; 0: all
  float top_p = 1;         ///< only the fewest tokens that together are this probable; 1: all
  float min_p = 0;         ///< only tokens that are this probable relative to the most probable one; 0: all
  float repetition_penalty =
      1;  ///< of tokens in the prompt or the answer so far: divides positive scores, multiplies others
  float presence_penalty = 0;                 ///< taken off the score of every token in the answer so far
  float frequency_penalty = 0;                ///< the same, times how often it is there
  std::vector<LogitBias> logit_bias = {};     ///< added to scores
  std::vector<TokenId> suppress_tokens = {};  ///< never chosen
  std::int64_t min_tokens = 0;                ///< no stop token before the answer has so many
  std::uint64_t seed = 0;                     ///< of the draws; without a meaning at temperature 0
  SamplingRule rule = SamplingRule::kMatch;
  /// Log-probabilities of the emitted tokens, and of so many alternatives each, are wanted. Changes no choice.
  std::optional<std::int32_t> logprobs = {};

  bool greedy() const { return temperature == 0; }
  bool has_penalties() const { return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0; }
  bool operator==(const SamplingParams&) const = default;
  /// What may be on the wire (common/base/fields.h); check_sampling() says what a sampler can work with. The two 1s
  /// are what the schema says of a field that is not there.
  static void fields(auto& v, auto& m) {
    constexpr Count kList{0, kSamplingListMax};
    v("temperature", m.temperature, kFinite);
    v("top_k", m.top_k, kNatural);
    v("top_p", m.top_p, kFinite, 1.0f);
    v("min_p", m.min_p, kFinite);
    v("repetition_penalty", m.repetition_penalty, kFinite, 1.0f);
    v("presence_penalty", m.presence_penalty, kFinite);
    v("frequency_penalty", m.frequency_penalty, kFinite);
    v("logit_bias", m.logit_bias, kList);
    v("suppress_tokens", m.suppress_tokens, kList);
    v("min_tokens", m.min_tokens, kNatural);
    v("seed", m.seed);
    v("rule", m.rule, SamplingRule::kTypical);
    v("logprobs", m.logprobs, Range{0, kLogprobsMax});
  }
};

/// The seed of answer `choice` of several to one request: the first is the answer of a request for one.
inline std::uint64_t seed_of_choice(std::uint64_t seed, std::uint64_t choice) { return seed + choice; }

/// Whether every value is one that a sampler can work with. @return kInvalidArgument, which names the value.
Result<void> check_sampling(const SamplingParams& params, std::int32_t vocab_size);

}  // namespace outrider
