#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace outrider {

/// A regular expression of the same texts in which nothing is repeated more than kRepeatsMax times at once: X{1,130} is
/// X{1}(?:X(?:X...)?)?. XGrammar counts longer repeats in a pattern by a way of its own, which its cache of rules does
/// not know and in which hardly a token could be judged before the answer is there.
/// @param characters_left  that it may have with its repeats written out, since each is a state of an automaton; those
///   that it has are taken off. @return kUnsupported where it has more
Result<std::string> with_short_repeats(std::string_view pattern, std::int64_t& characters_left);

inline constexpr int kRepeatsMax = 128;

/// X{least,most} in a text.
struct Repeat {
  int least = 0, most = 0;  ///< most: -1: any number
  std::size_t bytes = 0;    ///< of {least,most}
};
/// @pre text[0] == '{'. @return none: it is no repeat, or beyond int
std::optional<Repeat> repeat_at(std::string_view text);

}  // namespace outrider
