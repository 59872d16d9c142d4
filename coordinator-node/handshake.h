#pragma once

#include <optional>
#include <string>

#include "common/wire/messages/messages.h"

namespace outrider {

/// Returns the reason that a drafter with `drafter` facts cannot draft for a verifier with `verifier` facts; none if it
/// can. The message has both sides. context_max may differ: the verifier's counts.
/// @param who  owner of the second facts: another verifier must match like a drafter
/// @param needs  the drafter's input: with tokens alone only the vocabulary's size and the tokenizer must match
std::optional<std::string> mismatch(const PairFacts& verifier, const PairFacts& drafter, const char* who = "drafter",
                                    DraftInput needs = DraftInput::kTargetRows);

}  // namespace outrider
