#pragma once

#include <cstddef>
#include <string_view>

namespace outrider {

/// Slips of the fingers between two words: letters to add, leave out or change, and neighbours to swap (Damerau 1964,
/// without edits of what was swapped). For "did you mean".
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace outrider
