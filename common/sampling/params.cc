#include "common/sampling/params.h"

#include <fmt/format.h>

namespace outrider {
namespace {

/// Wider than anything of use, and so narrow that no score overflows.
constexpr float kTemperatureMax = 100, kPenaltyMax = 100;

Error wrong(const char* what, auto value, const std::string& wanted) {
  return {Errc::kInvalidArgument, fmt::format("{} is {}, wanted {}", what, value, wanted)};
}

}  // namespace

Result<void> check_sampling(const SamplingParams& params, std::int32_t vocab_size) {
  // Written so that a NaN fails.
  const auto within = [](float value, float low, float high) { return value >= low && value <= high; };
  const auto range = [](auto low, auto high) { return fmt::format("{} to {}", low, high); };
  if (!within(params.temperature, 0, kTemperatureMax))
    return wrong("temperature", params.temperature, range(0, kTemperatureMax));
  if (params.top_k < 0) return wrong("top_k", params.top_k, "0 (all) or more");
  if (!(params.top_p > 0 && params.top_p <= 1)) return wrong("top_p", params.top_p, "above 0 and at most 1");
  if (!within(params.min_p, 0, 1)) return wrong("min_p", params.min_p, range(0, 1));
  if (!within(params.repetition_penalty, 1 / kPenaltyMax, kPenaltyMax)) {
    return wrong("repetition_penalty", params.repetition_penalty, range(1 / kPenaltyMax, kPenaltyMax));
  }
  if (!within(params.presence_penalty, -kPenaltyMax, kPenaltyMax)) {
    return wrong("presence_penalty", params.presence_penalty, range(-kPenaltyMax, kPenaltyMax));
  }
  if (!within(params.frequency_penalty, -kPenaltyMax, kPenaltyMax)) {
    return wrong("frequency_penalty", params.frequency_penalty, range(-kPenaltyMax, kPenaltyMax));
  }
  if (params.min_tokens < 0) return wrong("min_tokens", params.min_tokens, "0 or more");
  if (params.logprobs && (*params.logprobs < 0 || *params.logprobs > kLogprobsMax)) {
    return wrong("logprobs", *params.logprobs, range(0, kLogprobsMax));
  }
  const auto token_fits = [&](TokenId token) { return token >= 0 && token < vocab_size; };
  const std::string ids = fmt::format("a token id from 0 to {}", vocab_size - 1);
  const std::string entries = fmt::format("at most {} entries", kSamplingListMax);
  if (params.logit_bias.size() > kSamplingListMax)
    return wrong("logit_bias's length", params.logit_bias.size(), entries);
  for (const LogitBias& entry : params.logit_bias) {
    if (!token_fits(entry.token)) return wrong("logit_bias's token", entry.token, ids);
    if (!within(entry.bias, -kPenaltyMax, kPenaltyMax))
      return wrong("logit_bias", entry.bias, range(-kPenaltyMax, kPenaltyMax));
  }
  if (params.suppress_tokens.size() > kSamplingListMax)
    return wrong("suppress_tokens' length", params.suppress_tokens.size(), entries);
  for (const TokenId token : params.suppress_tokens) {
    if (!token_fits(token)) return wrong("suppress_tokens' token", token, ids);
  }
  return {};
}

}  // namespace outrider
