#pragma once

#include <cstdint>
#include <span>

#include "common/base/ids.h"
#include "common/compute/tensor/tensor.h"

namespace outrider {

/// The accepted drafts of a round, and the token that the target adds.
struct VerifyOutcome {
  std::int32_t accepted = 0;  ///< length of the longest accepted prefix
  TokenId next_token = 0;     ///< bonus token if all were accepted, else the replacement of the first rejected one
  std::int64_t row = 0;       ///< row of the last accepted draft (TokenTree); in a chain equal to `accepted`
};

/// The greedy verification rule (Leviathan et al. 2023 at temperature 0): a draft survives iff it is the target's own
/// choice, so that the emitted tokens are those of plain greedy decoding.
///
/// @param logits  [G + 1, V] of the target; row i follows draft i - 1. Any strictly increasing map (softcap) gives the
/// same outcome, so that raw scores suffice. @param drafts  G token ids; G may be 0
VerifyOutcome verify_greedy(Matrix<const float> logits, std::span<const TokenId> drafts);

}  // namespace outrider
