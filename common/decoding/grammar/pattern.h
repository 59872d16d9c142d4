#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"

namespace outrider {

/// Characters of Unicode, each range with both of its ends.
using CharRanges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
/// All other characters, in order. Halves of a surrogate pair are none.
CharRanges all_but(CharRanges ranges);

/// A regular expression that a whole text has to match.
struct Pattern {
  enum class Kind {
    kSet,       ///< one character
    kSequence,  ///< of none: the empty text
    kChoice,    ///< of none: no text at all
    kRepeat,    ///< of one part
    kBegin,     ///< ^
    kEnd        ///< $
  };
  Kind kind = Kind::kSequence;
  CharRanges set = {};
  std::vector<Pattern> parts = {};
  int least = 1, most = 1;      ///< of a repeat; most: -1: any number
  std::int64_t characters = 0;  ///< with repeats written out

  bool matches_nothing() const { return kind == Kind::kChoice && parts.empty(); }
};

/// It reads as ECMA-262 (JavaScript, thus JSON Schema) does with the flag u, and with its flag i where the text begins
/// with (?i). Classes are those of ECMA-262: \d and \w are ASCII, `.` is no line's end. What has no text is left out:
/// branches that cannot match, and anchors where they hold anyway.
/// @return kInvalidArgument for what is no expression, kUnsupported for lookaround, back references and the like; the
///   message goes on a sentence whose subject is the expression
Result<Pattern> read_pattern(std::string_view text);

/// It keeps the texts that have `least` to `most` characters; most: -1: any number.
/// @return none: the parts can share these characters in more than kSharesMax ways
std::optional<Pattern> of_length(const Pattern& pattern, std::int64_t least, std::int64_t most);
inline constexpr int kSharesMax = 256;

/// The same texts as they stand between the quotes of a JSON text: quotes, backslashes and control characters as their
/// escapes, all others as they are.
Pattern in_json(const Pattern& pattern);

/// It writes a part of a rule in XGrammar's EBNF. (Its own Regex() takes `a(bc+)?` for one that matches `ac`, too.)
/// @pre something matches
/// @param short_repeats  nothing is repeated more than kRepeatsMax times at once: XGrammar counts longer repeats in a
///   way of its own, which its cache of rules does not know and in which hardly a token could be judged before the
///   answer is there. The text grows with the repeats.
std::string as_ebnf(const Pattern& pattern, bool short_repeats);

inline constexpr int kRepeatsMax = 128;

/// X{least,most} in a text.
struct Repeat {
  int least = 0, most = 0;  ///< most: -1: any number
  std::size_t bytes = 0;    ///< of {least,most}
};
/// @pre text[0] == '{'. @return none: it is no repeat, or beyond int
std::optional<Repeat> repeat_at(std::string_view text);

}  // namespace outrider
