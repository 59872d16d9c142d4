#pragma once

#include <cstdint>
#include <span>

#include "common/base/ids.h"
#include "common/compute/tensor/tensor.h"

namespace outrider {

/// How much of a draft the target keeps, and the one token it adds.
struct VerifyOutcome {
  std::int32_t accepted = 0;  ///< drafts kept: the longest prefix that agrees
  TokenId next_token = 0;     ///< bonus token when all were kept, else the replacement of the first rejected
  std::int64_t row = 0;       ///< of the last draft kept (TokenTree); in a chain as many as were kept
};

/// The greedy verification rule (Leviathan et al. 2023 at temperature 0): a draft survives iff it is the
/// target's own choice, so the emitted tokens are those of plain greedy decoding.
///
/// @param logits [G + 1, V] target logits; row i follows draft i - 1. Any strictly increasing map of them
///               (softcap) gives the same outcome, so the raw scores do.
/// @param drafts G token ids; G may be 0.
VerifyOutcome verify_greedy(Matrix<const float> logits, std::span<const TokenId> drafts);

}  // namespace outrider
