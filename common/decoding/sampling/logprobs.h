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

/// Range of a log-probability.
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

/// The model's own log-probabilities of an emitted token and its alternatives: before masks, biases, penalties,
/// temperature and filters (vLLM's raw_logprobs). The token's may be far below those of the alternatives.
struct TokenLogprobs {
  float logprob = 0;  ///< of the token
  std::vector<Logprob>
      top;                ///< the most probable tokens, the best first (the lower id among equals), or requested ones
  std::int32_t rank = 1;  ///< of the token: 1 plus the number of more probable tokens
  bool operator==(const TokenLogprobs&) const = default;
  static void fields(auto& v, auto& m) {
    v("logprob", m.logprob, kLogprobs);
    v("top", m.top, Count{0, kScoredIdsMax});
    v("rank", m.rank, Range{1, std::numeric_limits<std::int32_t>::max()});
  }
};

/// @param logits  [V] finite, before the softcap
/// @param softcap  the model's final_logit_softcapping, which is applied; 0 for none
/// @param count  alternatives; at most the vocabulary
/// O(V log count). Equal rows give equal bits, whatever was verified in the same pass.
TokenLogprobs logprobs_of(std::span<const float> logits, float softcap, TokenId token, std::int32_t count,
                          SamplingScratch& scratch);
/// The same with these tokens as alternatives, in their order. O(V).
TokenLogprobs logprobs_of(std::span<const float> logits, float softcap, TokenId token, std::span<const TokenId> ids,
                          SamplingScratch& scratch);

}  // namespace outrider
