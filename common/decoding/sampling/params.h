#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/base/fields.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/decoding/grammar/limits.h"

namespace outrider {

/// Most alternatives per token in logprobs: OpenAI's and vLLM's limit.
inline constexpr std::int32_t kLogprobsMax = 20;

/// Most tokens of a drafter's distribution on the wire.
inline constexpr std::int32_t kDraftTopK = 64;

/// Most entries of logit_bias and of suppress_tokens.
inline constexpr std::size_t kSamplingListMax = 4096;
/// Most entries of allowed_tokens: any vocabulary's size.
inline constexpr std::size_t kAllowedTokensMax = std::size_t{1} << 18;
/// Most bad words, and most tokens of one.
inline constexpr std::size_t kBadWordsMax = 1024, kBadWordTokensMax = 64;
/// Most entries of logprob_token_ids: vLLM's limit.
inline constexpr std::size_t kScoredIdsMax = 128;

struct LogitBias {
  TokenId token = 0;
  float bias = 0;
  bool operator==(const LogitBias&) const = default;
  static void fields(auto& v, auto& m) {
    v("token", m.token, kNatural);
    v("bias", m.bias, kFinite);
  }
};

/// A word as tokens of a vocabulary.
struct TokenWord {
  std::vector<TokenId> tokens;
  bool operator==(const TokenWord&) const = default;
  static void fields(auto& v, auto& m) { v("tokens", m.tokens, Count{1, kBadWordTokensMax}); }
};

/// Rule that accepts drafts above temperature 0. The first two preserve the target's distribution.
enum class SamplingRule : std::uint8_t {
  kMatch,      ///< accepts tokens that the target itself would draw: one seed gives one answer
  kRejection,  ///< Leviathan et al. 2023: the answer also depends on the drafts
  kTypical,    ///< Cai et al. 2024 (Medusa), 3.3: accepts typical tokens. Lossy: another distribution
};
inline const char* to_string(SamplingRule rule) {
  return rule == SamplingRule::kMatch ? "match" : rule == SamplingRule::kRejection ? "rejection" : "typical";
}

/// A number of SamplingParams, offered on the command line under its name with dashes, over HTTP under its name.
/// On the wire any finite number, or any natural one, is valid; check_sampling() checks the range.
struct Offer {
  double low, high;                       ///< range of a sampler
  const char* wanted = nullptr;           ///< the range in words, if not "LOW to HIGH"
  double api_low = low, api_high = high;  ///< range of the HTTP API, as in OpenAI or vLLM
  const char* option = nullptr;           ///< a second name on the command line
  bool of_draws = false;                  ///< no effect at temperature 0
  const char* help;
};
template <typename Wire>
struct Offered : Range<Wire>, Offer {
  constexpr Offered(Range<Wire> wire, Offer offer) : Range<Wire>(wire), Offer(offer) {}
};
constexpr Offered<double> real(Offer offer) { return {kFinite, offer}; }
constexpr Offered<std::int64_t> natural(Offer offer) { return {kNatural, offer}; }

/// Sampling parameters of a request. The default is greedy. Names and meanings are vLLM's and OpenAI's;
/// docs/sampling.md has the order in which they act.
struct SamplingParams {
  float temperature = 0;   ///< 0: always the most probable token
  std::int32_t top_k = 0;  ///< only the k most probable tokens; 0: all
  float top_p = 1;         ///< only the fewest tokens with this total probability; 1: all
  float min_p = 0;         ///< only tokens with this probability relative to the most probable one; 0: all
  float repetition_penalty =
      1;  ///< of tokens in the prompt or the answer so far: divides positive scores, multiplies others
  float presence_penalty = 0;                 ///< subtracted from the score of every token in the answer so far
  float frequency_penalty = 0;                ///< the same, times the number of its occurrences
  std::vector<LogitBias> logit_bias = {};     ///< added to scores
  std::vector<TokenId> suppress_tokens = {};  ///< never chosen
  std::int64_t min_tokens = 0;                ///< no stop token before the answer has this length
  std::uint64_t seed = 0;                     ///< of the draws; no effect at temperature 0
  SamplingRule rule = SamplingRule::kMatch;
  /// Requests log-probabilities of the emitted tokens, each with this number of alternatives. Changes no choice.
  std::optional<std::int32_t> logprobs = {};
  /// Constrains the whole answer, in the EBNF of common/decoding/grammar. Empty: unconstrained.
  std::string grammar = {};
  /// Requests log-probabilities of the prompt's tokens except the first, each with this number of alternatives.
  std::optional<std::int32_t> prompt_logprobs = {};
  /// Alternatives in `logprobs`, instead of the most probable tokens.
  std::vector<TokenId> logprob_token_ids = {};
  std::vector<TokenId> allowed_tokens = {};  ///< only these are chosen; empty: any
  std::vector<TokenWord> bad_words = {};     ///< their last tokens are masked when the answer ends with the others

  bool greedy() const { return temperature == 0; }
  bool has_penalties() const { return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0; }
  /// Returns true when the answer's tokens decide which tokens are allowed next. Penalties only change scores.
  bool follows_answer() const { return !grammar.empty() || !bad_words.empty(); }
  /// Returns the alternatives per token with log-probabilities.
  std::size_t alternatives() const {
    return logprob_token_ids.empty() ? static_cast<std::size_t>(logprobs.value_or(0)) : logprob_token_ids.size();
  }
  bool operator==(const SamplingParams&) const = default;
  /// Declares each parameter once (common/base/fields.h), in the schema's order. The 1 at the end of `top_p` and of
  /// `repetition_penalty` is the schema's default of an absent field.
  static void fields(auto& v, auto& m) {
    constexpr Count kList{0, kSamplingListMax};
    constexpr double kPenaltyMax = 100;  // wider than any useful value, and narrow enough that no score overflows
    constexpr double kIntMax = std::numeric_limits<std::int32_t>::max();
    v("temperature", m.temperature,
      real({.low = 0, .high = 100, .api_high = 2, .help = "Sample at this temperature; 0: the most probable token"}));
    v("top_k", m.top_k,
      natural({.low = 0,
               .high = kIntMax,
               .wanted = "0 (all) or more",
               .api_low = -1,  // vLLM's value for "all"
               .of_draws = true,
               .help = "Sample from the K most probable tokens; 0: all"}));
    v("top_p", m.top_p,
      real({.low = std::numeric_limits<float>::denorm_min(),
            .high = 1,
            .wanted = "above 0 and at most 1",
            .api_low = 0,
            .of_draws = true,
            .help = "Sample from the fewest tokens whose probabilities add up to this"}),
      1.0f);
    v("min_p", m.min_p,
      real({.low = 0,
            .high = 1,
            .of_draws = true,
            .help = "Sample from tokens this probable relative to the most probable one"}));
    v("repetition_penalty", m.repetition_penalty,
      real({.low = 1 / kPenaltyMax,
            .high = kPenaltyMax,
            .help = "Above 1: makes tokens of prompt and answer less probable"}),
      1.0f);
    v("presence_penalty", m.presence_penalty,
      real({.low = -kPenaltyMax,
            .high = kPenaltyMax,
            .api_low = -2,
            .api_high = 2,
            .help = "Subtracted once from the score of each token in the answer"}));
    v("frequency_penalty", m.frequency_penalty,
      real({.low = -kPenaltyMax,
            .high = kPenaltyMax,
            .api_low = -2,
            .api_high = 2,
            .help = "Subtracted from a token's score for each occurrence in the answer"}));
    v("logit_bias", m.logit_bias, kList);
    v("suppress_tokens", m.suppress_tokens, kList);
    v("min_tokens", m.min_tokens,
      natural({.low = 0,
               .high = 0x1p62,
               .wanted = "0 or more",
               .api_high = kIntMax,
               .option = "--min-response",
               .help = "Minimum number of tokens of the answer"}));
    v("seed", m.seed);
    v("rule", m.rule, SamplingRule::kTypical);
    v("logprobs", m.logprobs, Range{0, kLogprobsMax});
    v("grammar", m.grammar, Verbatim{kGrammarBytesMax});
    v("prompt_logprobs", m.prompt_logprobs, Range{0, kLogprobsMax});
    v("logprob_token_ids", m.logprob_token_ids, Count{0, kScoredIdsMax});
    v("allowed_tokens", m.allowed_tokens, Count{0, kAllowedTokensMax});
    v("bad_words", m.bad_words, Count{0, kBadWordsMax});
  }
};

/// Returns the seed of one of several answers to a request: the first has the request's own.
inline std::uint64_t seed_of_choice(std::uint64_t seed, std::uint64_t choice) { return seed + choice; }

/// Checks that a sampler can work with every value. @return kInvalidArgument, which names the value
Result<void> check_sampling(const SamplingParams& params, std::int32_t vocab_size);

}  // namespace outrider
