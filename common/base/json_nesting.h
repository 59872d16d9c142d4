#pragma once

#include <string_view>

namespace outrider {

/// Returns the nesting depth of brackets in a text that may be JSON. Checked before a parser builds a tree, whose
/// copies and texts are made recursively.
int json_nesting(std::string_view text);

/// Limit of parse_json() and parse_json_object(). Requests have a lower one.
inline constexpr int kJsonNestingMax = 512;

}  // namespace outrider
