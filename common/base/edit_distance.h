#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// Returns the number of typing errors between two words: insertions, deletions, substitutions and swaps of neighbours
/// (Damerau 1964, without edits of swapped letters). For "did you mean".
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the nearest word, the first among equals. @pre `words` is not empty
const std::string& nearest_of(const std::vector<std::string>& words, std::string_view word);

}  // namespace outrider
