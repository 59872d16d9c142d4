#pragma once

#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/decoding/sampling/params.h"

namespace outrider {

/// The tokens that would complete a bad word after an answer that ends with these; of an answer as vLLM counts it,
/// without its prompt. Some may be there twice.
/// @param answer  its last kBadWordTokensMax - 1 tokens at least, or all of it
std::vector<TokenId> completes_bad_word(std::span<const TokenWord> words, std::span<const TokenId> answer);

/// Takes all but these tokens out of a row of scores. @param allowed  of the row; empty: nothing is taken out
void keep_allowed(std::span<const TokenId> allowed, std::span<float> scores);

}  // namespace outrider
