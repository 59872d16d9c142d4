#pragma once

#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/decoding/sampling/params.h"

namespace outrider {

/// Returns the tokens that would complete a bad word after this answer, which excludes the prompt, as in vLLM. May
/// contain duplicates. @param answer  its last kBadWordTokensMax - 1 tokens at least, or all of it
std::vector<TokenId> completes_bad_word(std::span<const TokenWord> words, std::span<const TokenId> answer);

/// Masks all other tokens in a row of scores. @param allowed  empty: masks nothing
void keep_allowed(std::span<const TokenId> allowed, std::span<float> scores);

}  // namespace outrider
