#pragma once

#include <cstddef>
#include <span>

#include "common/base/ids.h"

namespace outrider {

/// Prompt-lookup drafts (Saxena 2023; Hugging Face's prompt_lookup_num_tokens): finds an earlier occurrence of the last
/// tokens and proposes its continuation. The longest match wins, 2 to 16 tokens; among equals the latest.
///
/// @param history  prompt and answer so far
/// @param length  most tokens wanted
/// @return a view into history; empty when nothing matches
std::span<const TokenId> ngram_draft(std::span<const TokenId> history, std::size_t length);

}  // namespace outrider
