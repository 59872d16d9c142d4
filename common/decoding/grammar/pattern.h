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

/// Ranges of Unicode code points, inclusive.
using CharRanges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
/// Returns the complement, in order, without surrogates.
CharRanges all_but(CharRanges ranges);

/// A regular expression that matches a whole text.
struct Pattern {
  enum class Kind {
    kSet,       ///< one character
    kSequence,  ///< without parts: the empty text
    kChoice,    ///< without parts: no text
    kRepeat,    ///< of one part
    kBegin,     ///< ^
    kEnd        ///< $
  };
  Kind kind = Kind::kSequence;
  CharRanges set = {};
  std::vector<Pattern> parts = {};
  int least = 1, most = 1;      ///< of a repeat; most -1: unbounded
  std::int64_t characters = 0;  ///< with repeats expanded

  bool matches_nothing() const { return kind == Kind::kChoice && parts.empty(); }
};

/// Parses ECMA-262 (JavaScript, and thus JSON Schema) with the flag u, and with the flag i if the text begins with
/// (?i). Classes are ECMA-262's: \d and \w are ASCII, `.` excludes line ends. Branches that cannot match and redundant
/// anchors are removed.
/// @return kInvalidArgument for an invalid expression, kUnsupported for lookaround, back references and the like; the
/// message continues a sentence whose subject is the expression
Result<Pattern> read_pattern(std::string_view text);

/// Restricts the pattern to texts of `least` to `most` characters; most -1: unbounded.
/// @return none: the parts can share these characters in more than kSharesMax ways
std::optional<Pattern> of_length(const Pattern& pattern, std::int64_t least, std::int64_t most);
inline constexpr int kSharesMax = 256;

/// Returns the same texts as they are written between the quotes of JSON: quotes, backslashes and control characters
/// are escaped, all others unchanged.
Pattern in_json(const Pattern& pattern);

/// Writes a part of a rule in XGrammar's EBNF. (XGrammar's own Regex() lets `a(bc+)?` match `ac`, too.)
/// @pre something matches
/// @param short_repeats  repeat at most kRepeatsMax times at once: XGrammar counts longer repeats in its own way, which
/// its rule cache does not cover, and which leaves most tokens undecided until the answer is there. The result grows
/// with the repeats
std::string as_ebnf(const Pattern& pattern, bool short_repeats);

inline constexpr int kRepeatsMax = 128;

/// X{least,most} in a pattern.
struct Repeat {
  int least = 0, most = 0;  ///< most -1: unbounded
  std::size_t bytes = 0;    ///< length of {least,most}
};
/// @pre text[0] == '{' @return none: not a repeat, or beyond int
std::optional<Repeat> repeat_at(std::string_view text);

}  // namespace outrider
