#pragma once

#include <optional>

#include <xgrammar/xgrammar.h>

#include "common/base/result.h"

namespace outrider {

/// A grammar of the same texts, without the branches that no text goes through to its end: an answer could begin one
/// and never finish.
/// @return none: there are no such branches; kNotFound: there is no text at all
Result<std::optional<xgrammar::Grammar>> without_dead_ends(const xgrammar::Grammar& grammar);

}  // namespace outrider
