#pragma once

#include <optional>

#include <xgrammar/xgrammar.h>

#include "common/base/result.h"

namespace outrider {

/// Returns an equivalent grammar without dead ends: branches that an answer could begin but never finish.
/// @return none: there are none; kNotFound: the grammar matches no text
Result<std::optional<xgrammar::Grammar>> without_dead_ends(const xgrammar::Grammar& grammar);

}  // namespace outrider
