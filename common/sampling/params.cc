#include "common/sampling/params.h"

#include <cmath>

#include <fmt/format.h>

namespace outrider {
namespace {

Error wrong(const char* what, auto value, const std::string& wanted) {
  return {Errc::kInvalidArgument, fmt::format("{} is {}, wanted {}", what, value, wanted)};
}

/// Finds the first number that a sampler cannot work with.
struct Check {
  Result<void> result = {};

  template <typename T, typename Wire>
  void operator()(const char* name, const T& value, Offered<Wire> offer, auto&&...) {
    // In the parameter's own precision, where 0.01 is 0.01; written so that a NaN fails.
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
  if (params.suppress_tokens.size() > kSamplingListMax)
    return wrong("suppress_tokens' length", params.suppress_tokens.size(), entries);
  for (const TokenId token : params.suppress_tokens) {
    if (!token_fits(token)) return wrong("suppress_tokens' token", token, ids);
  }
  return {};
}

}  // namespace outrider
