#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// Slips of the fingers between two words: letters to add, leave out or change, and neighbours to swap (Damerau 1964,
/// without edits of what was swapped). For "did you mean".
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The word that is nearest, the first of several. @pre there is one
const std::string& nearest_of(const std::vector<std::string>& words, std::string_view word);

}  // namespace outrider
