#pragma once

#include <optional>
#include <string>

#include "common/wire/messages/messages.h"

namespace outrider {

/// Why a drafter with `drafter` facts may not draft for a verifier with `verifier` facts; none when it
/// may. The message names both sides. context_max may differ: the verifier's holds.
/// @param who  has the second facts: another verifier must fit as a drafter must.
/// @param needs  the drafter's: with tokens alone it need only mean the same by them
std::optional<std::string> mismatch(const PairFacts& verifier, const PairFacts& drafter, const char* who = "drafter",
                                    DraftInput needs = DraftInput::kTargetRows);

}  // namespace outrider
