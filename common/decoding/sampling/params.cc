#include "common/decoding/sampling/params.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace outrider {
namespace {

Error wrong(const char* what, auto value, const std::string& wanted) {
  return {Errc::kInvalidArgument, "{} is {}, wanted {}", what, value, wanted};
}

/// Finds the first value that a sampler cannot work with.
struct Check {
  Result<void> result = {};

  template <typename T, typename Wire>
  void operator()(const char* name, const T& value, Offered<Wire> offer, auto&&...) {
    // Compares in the parameter's own precision, in which 0.01 is 0.01. A NaN fails.
    if (!result || (value >= static_cast<T>(offer.low) && value <= static_cast<T>(offer.high))) return;
    result = wrong(name, value, offer.wanted ? offer.wanted : fmt::format("{} to {}", offer.low, offer.high));
  }
  void operator()(auto&&...) {}
};

}  // namespace

Result<void> check_sampling(const SamplingParams& params, std::int32_t vocab_size) {
  Check check;
  SamplingParams::fields(check, params);
  RETURN_IF_ERROR(check.result);
  if (params.logprobs && (*params.logprobs < 0 || *params.logprobs > kLogprobsMax)) {
    return wrong("logprobs", *params.logprobs, fmt::format("0 to {}", kLogprobsMax));
  }
  const auto token_fits = [&](TokenId token) { return token >= 0 && token < vocab_size; };
  const std::string ids = fmt::format("a token id from 0 to {}", vocab_size - 1);
  const std::string entries = fmt::format("at most {} entries", kSamplingListMax);
  if (params.logit_bias.size() > kSamplingListMax)
    return wrong("logit_bias's length", params.logit_bias.size(), entries);
  for (const LogitBias& entry : params.logit_bias) {
    if (!token_fits(entry.token)) return wrong("logit_bias's token", entry.token, ids);
    if (!(std::abs(entry.bias) <= 100)) return wrong("logit_bias", entry.bias, "-100 to 100");
  }
  const auto list_fits = [&](const char* name, const std::vector<TokenId>& tokens, std::size_t most) -> Result<void> {
    if (tokens.size() > most)
      return wrong(fmt::format("{}' length", name).c_str(), tokens.size(), fmt::format("at most {} entries", most));
    const auto beyond = std::ranges::find_if_not(tokens, token_fits);
    if (beyond != tokens.end()) return wrong(fmt::format("{}' token", name).c_str(), *beyond, ids);
    return {};
  };
  RETURN_IF_ERROR(list_fits("suppress_tokens", params.suppress_tokens, kSamplingListMax));
  RETURN_IF_ERROR(list_fits("allowed_tokens", params.allowed_tokens, kAllowedTokensMax));
  RETURN_IF_ERROR(list_fits("logprob_token_ids", params.logprob_token_ids, kScoredIdsMax));
  if (params.prompt_logprobs && (*params.prompt_logprobs < 0 || *params.prompt_logprobs > kLogprobsMax))
    return wrong("prompt_logprobs", *params.prompt_logprobs, fmt::format("0 to {}", kLogprobsMax));
  if (params.bad_words.size() > kBadWordsMax)
    return wrong("bad_words' length", params.bad_words.size(), fmt::format("at most {} entries", kBadWordsMax));
  for (const TokenWord& word : params.bad_words) {
    if (word.tokens.empty()) return wrong("a bad word's length", 0, "1 token or more");
    RETURN_IF_ERROR(list_fits("bad_words", word.tokens, kBadWordTokensMax));
  }
  return {};
}

}  // namespace outrider
