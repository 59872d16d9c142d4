#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/base/fields.h"
#include "common/base/ids.h"
#include "common/decoding/sampling/distribution.h"
#include "common/decoding/sampling/params.h"

namespace outrider {

/// What a log-probability may be.
inline constexpr Range<double> kLogprobs{kFinite.min, 0};

struct Logprob {
  TokenId token = 0;
  float logprob = 0;  ///< natural logarithm, at most 0
  bool operator==(const Logprob&) const = default;
  static void fields(auto& v, auto& m) {
    v("token", m.token, kNatural);
    v("logprob", m.logprob, kLogprobs);
  }
};

/// What the model itself thought of an emitted token: log-probabilities before masks, biases, penalties, temperature
/// and filters (vLLM's raw_logprobs), so that of the token may be far below those of the alternatives.
struct TokenLogprobs {
  float logprob = 0;  ///< of the token
  std::vector<Logprob>
      top;                ///< the most probable tokens, the best first; among equals the lower id. Or those asked for
  std::int32_t rank = 1;  ///< of the token: 1 more than there are more probable ones
  bool operator==(const TokenLogprobs&) const = default;
  static void fields(auto& v, auto& m) {
    v("logprob", m.logprob, kLogprobs);
    v("top", m.top, Count{0, kScoredIdsMax});
    v("rank", m.rank, Range{1, std::numeric_limits<std::int32_t>::max()});
  }
};

/// @param logits  [V] finite, without the softcap.
/// @param softcap the model's final_logit_softcapping, 0 for none; it counts.
/// @param count   alternatives; all of a vocabulary that has fewer.
/// O(V log count). The same bits for the same row, whatever was verified beside it.
TokenLogprobs logprobs_of(std::span<const float> logits, float softcap, TokenId token, std::int32_t count,
                          SamplingScratch& scratch);
/// Likewise with these tokens for alternatives, in their order. O(V).
TokenLogprobs logprobs_of(std::span<const float> logits, float softcap, TokenId token, std::span<const TokenId> ids,
                          SamplingScratch& scratch);

}  // namespace outrider
