#include "common/decoding/grammar/pattern.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/ascii.h"
#include "common/base/text.h"
#include "common/base/utf8.h"

namespace outrider {
namespace {
using Kind = Pattern::Kind;

constexpr std::uint32_t kLast = 0x10FFFF, kSurrogates = 0xD800, kLowSurrogates = 0xDC00, kPastSurrogates = 0xE000;
constexpr int kGroupsMax = 100;  ///< nesting depth of groups
/// More than any limit on characters.
constexpr std::int64_t kCharactersMax = std::int64_t{1} << 40;

const CharRanges kDigits = {{'0', '9'}};
const CharRanges kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharRanges kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
const CharRanges kSpaces = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                            {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

// ---- parts, without branches that cannot match ----

Pattern one_of(CharRanges set) {
  return {.kind = Kind::kSet, .set = all_but(all_but(std::move(set))), .characters = 1};
}
Pattern one(std::uint32_t c) { return one_of({{c, c}}); }

Pattern listed(Kind kind, std::vector<Pattern> parts) {
  Pattern result{.kind = kind};
  for (const Pattern& part : parts) result.characters += part.characters;
  result.characters = std::min(result.characters, kCharactersMax);
  result.parts = std::move(parts);
  return result;
}

Pattern repeated(Pattern part, int least, int most) {
  Pattern result{.kind = Kind::kRepeat, .least = least, .most = most};
  const std::int64_t times = std::max({least, most, 1});
  result.characters = std::min(std::max<std::int64_t>(part.characters, 1), kCharactersMax / times) * times;
  result.parts.push_back(std::move(part));
  return result;
}

bool is_empty(const Pattern& pattern) { return pattern.kind == Kind::kSequence && pattern.parts.empty(); }

Pattern simplified(Pattern pattern) {
  for (Pattern& part : pattern.parts) part = simplified(std::move(part));
  std::vector<Pattern>& parts = pattern.parts;
  if (pattern.kind == Kind::kBegin || pattern.kind == Kind::kEnd) return {};
  if (pattern.kind == Kind::kSet) return pattern.set.empty() ? Pattern{.kind = Kind::kChoice} : pattern;
  if (pattern.kind == Kind::kRepeat) {
    if (parts[0].matches_nothing() && pattern.least > 0) return std::move(parts[0]);
    return parts[0].matches_nothing() || is_empty(parts[0]) || pattern.most == 0 ? Pattern{} : pattern;
  }
  if (pattern.kind == Kind::kSequence) {
    std::erase_if(parts, is_empty);
    if (std::ranges::any_of(parts, &Pattern::matches_nothing)) return {.kind = Kind::kChoice};
  } else {
    std::erase_if(parts, [](const Pattern& part) { return part.matches_nothing(); });
    const bool may_be_empty = std::erase_if(parts, is_empty) > 0;
    if (parts.empty() && may_be_empty) return {};
    if (may_be_empty) return repeated(simplified(std::move(pattern)), 0, 1);
  }
  if (parts.size() != 1) return pattern;
  Pattern only = std::move(parts[0]);
  return only;
}

// ---- lengths ----

constexpr std::int64_t kEndless = kCharactersMax;  ///< of a length

struct Lengths {
  std::int64_t least = 0, most = 0;
  bool fixed() const { return least == most; }
};

Lengths lengths_of(const Pattern& pattern) {
  if (pattern.kind == Kind::kSet) return {1, 1};
  Lengths all = pattern.kind == Kind::kChoice ? Lengths{kEndless, 0} : Lengths{};
  for (const Pattern& part : pattern.parts) {
    const Lengths of_part = lengths_of(part);
    if (pattern.kind == Kind::kChoice) {
      all = {std::min(all.least, of_part.least), std::max(all.most, of_part.most)};
    } else if (pattern.kind == Kind::kSequence) {
      all = {all.least + of_part.least, all.most + of_part.most};
    } else {
      const std::int64_t times = pattern.most < 0 ? kEndless : pattern.most;
      all.least = pattern.least * of_part.least;
      all.most = of_part.most == 0 ? 0 : times > kEndless / of_part.most ? kEndless : times * of_part.most;
    }
  }
  return {std::min(all.least, kEndless), std::min(all.most, kEndless)};
}

class LengthBounds {
 public:
  bool too_many() const { return shares_ > kSharesMax; }

  /// Returns the texts of `least` to `most` characters.
  Pattern bound(const Pattern& pattern, std::int64_t least, std::int64_t most) {
    const Lengths all = lengths_of(pattern);
    if (too_many() || all.least > most || all.most < least) return {.kind = Kind::kChoice};
    if (all.least >= least && all.most <= most) return pattern;
    if (pattern.kind == Kind::kChoice) {
      std::vector<Pattern> parts;
      for (const Pattern& part : pattern.parts) parts.push_back(bound(part, least, most));
      return listed(Kind::kChoice, std::move(parts));
    }
    if (pattern.kind == Kind::kSequence) {
      // Parts of one length stay as they are. One level for each would copy the rest as often.
      const auto varied =
          std::ranges::find_if(pattern.parts, [](const Pattern& part) { return !lengths_of(part).fixed(); });
      std::vector<Pattern> parts(pattern.parts.begin(), varied);
      const std::int64_t before = lengths_of(listed(Kind::kSequence, parts)).least;
      parts.push_back(shared(*varied, listed(Kind::kSequence, {varied + 1, pattern.parts.end()}),
                             std::max<std::int64_t>(least - before, 0), most == kEndless ? kEndless : most - before));
      return listed(Kind::kSequence, std::move(parts));
    }
    const Pattern& part = pattern.parts.front();
    if (const Lengths once = lengths_of(part); once.fixed()) {
      const std::int64_t fewest = std::max<std::int64_t>(pattern.least, (least + once.least - 1) / once.least);
      const std::int64_t times = pattern.most < 0 ? kEndless : pattern.most;
      const std::int64_t highest = std::min(times, most == kEndless ? times : most / once.least);
      if (highest < fewest) return {.kind = Kind::kChoice};
      return repeated(part, static_cast<int>(fewest), highest == kEndless ? -1 : static_cast<int>(highest));
    }
    // The first non-empty repeat, and the others: if a part may be empty, every smaller count matches too.
    const bool may_be_empty = lengths_of(part).least == 0;
    const Pattern others =
        repeated(part, may_be_empty ? 0 : std::max(pattern.least - 1, 0), pattern.most < 0 ? -1 : pattern.most - 1);
    Pattern some = shared(part, others, std::max<std::int64_t>(least, 1), most, 1);
    return least > 0 || all.least > 0 ? some : listed(Kind::kChoice, {Pattern{}, std::move(some)});
  }

 private:
  /// Returns `first` followed by `rest`, for each length of `first` from `shortest` on.
  Pattern shared(const Pattern& first, const Pattern& rest, std::int64_t least, std::int64_t most,
                 std::int64_t shortest = 0) {
    const Lengths lengths = lengths_of(first), left = lengths_of(rest);
    std::vector<Pattern> ways;
    const auto add = [&](std::int64_t from, std::int64_t to, std::int64_t least_left, std::int64_t most_left) {
      if (!lengths.fixed()) ++shares_;
      ways.push_back(listed(Kind::kSequence, {bound(first, from, to), bound(rest, least_left, most_left)}));
    };
    const std::int64_t last = std::min(lengths.most, most - left.least);
    for (std::int64_t length = std::max(lengths.least, shortest); length <= last && !too_many(); ++length) {
      const bool long_enough = length + left.least >= least;
      // From here on the rest has an upper bound at most.
      if (long_enough && most == kEndless) {
        add(length, kEndless, 0, kEndless);
        break;
      }
      if (long_enough && left.fixed()) {
        add(length, last, left.least, left.least);
        break;
      }
      add(length, length, std::max<std::int64_t>(least - length, 0), most == kEndless ? kEndless : most - length);
    }
    return listed(Kind::kChoice, std::move(ways));
  }

  int shares_ = 0;
};

// ---- reading ----

class PatternReader {
 public:
  explicit PatternReader(std::string_view text) : text_(text) {}

  Result<Pattern> read() {
    if (!is_utf8(text_)) return Error{Errc::kInvalidArgument, "is no UTF-8"};
    any_case_ = take("(?i)");
    Pattern pattern = choice();
    if (at_ < text_.size()) fail("has a ')' that closes nothing");
    if (!anchors_hold(pattern, true, true)) fail("has '^' or '$' in its middle", Errc::kUnsupported);
    if (error_) return *error_;
    const std::int64_t characters = pattern.characters;
    pattern = simplified(std::move(pattern));
    pattern.characters = characters;
    return pattern;
  }

 private:
  /// The first error counts, and ends the parsing. @return any pattern, which is not used
  Pattern fail(std::string_view problem, Errc code = Errc::kInvalidArgument) {
    if (!error_) error_ = Error(code, "{}, at byte {}", problem, at_);
    at_ = text_.size();
    return {};
  }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  std::uint32_t character() {
    const std::size_t length = scan_utf8(text_.substr(at_)).length;
    std::uint32_t c = static_cast<unsigned char>(text_[at_]);
    if (length > 1) c &= 0xFFU >> (length + 1);
    for (std::size_t i = 1; i < length; ++i) c = c << 6 | (static_cast<unsigned char>(text_[at_ + i]) & 0x3FU);
    at_ += length;
    return c;
  }

  Pattern choice() {
    std::vector<Pattern> branches;
    do branches.push_back(sequence());
    while (take("|"));
    return branches.size() == 1 ? std::move(branches[0]) : listed(Kind::kChoice, std::move(branches));
  }

  Pattern sequence() {
    std::vector<Pattern> parts;
    while (at_ < text_.size() && peek() != '|' && peek() != ')') parts.push_back(quantified(atom()));
    return listed(Kind::kSequence, std::move(parts));
  }

  Pattern quantified(Pattern part) {
    int least = 1, most = 1;
    if (peek() == '{') {
      const std::optional<Repeat> repeat = repeat_at(text_.substr(at_));
      if (!repeat && (peek(1) == ',' || (peek(1) >= '0' && peek(1) <= '9')))
        return fail("has a repeat that is none, or too large");
      if (!repeat) return part;
      at_ += repeat->bytes;
      least = repeat->least, most = repeat->most;
    } else if (take("*")) {
      least = 0, most = -1;
    } else if (take("+")) {
      most = -1;
    } else if (take("?")) {
      least = 0;
    } else {
      return part;
    }
    if (most >= 0 && most < least) return fail("has a repeat whose ends are in the wrong order");
    take("?");  // lazy: matches the same texts
    if (peek() == '*' || peek() == '+' || peek() == '?' || (peek() == '{' && repeat_at(text_.substr(at_))))
      return fail("has a repeat of a repeat without a group");
    return repeated(std::move(part), least, most);
  }

  Pattern atom() {
    switch (peek()) {
      case '(': return group();
      case '[': return one_of(char_class());
      case '.': ++at_; return one_of(all_but(kLineEnds));
      case '^': ++at_; return {.kind = Kind::kBegin};
      case '$': ++at_; return {.kind = Kind::kEnd};
      case '*':
      case '+':
      case '?': return fail("repeats nothing");
      case '\\': return one_of(cased(escape(/*in_class=*/false)));
      default: return one_of(cased(single(character())));
    }
  }

  Pattern group() {
    ++at_;
    if (take("?") && !take(":")) {
      const bool named = take("P<") || (peek(1) != '=' && peek(1) != '!' && take("<"));
      if (!named) return fail("has a group of a kind that is not supported", Errc::kUnsupported);
      at_ = std::min(text_.find('>', at_), text_.size() - 1) + 1;
    }
    if (++groups_ > kGroupsMax) return fail("has too many groups within one another", Errc::kOutOfRange);
    Pattern inner = choice();
    --groups_;
    if (!take(")")) return fail("has a '(' that is not closed");
    return inner;
  }

  static CharRanges single(std::uint32_t c) { return {{c, c}}; }
  CharRanges cased(CharRanges set) const {
    for (std::size_t i = 0, count = any_case_ ? set.size() : 0; i < count; ++i) {
      const auto [low, high] = set[i];
      for (const auto& [first, last, other] : {std::tuple{'a', 'z', 'A' - 'a'}, std::tuple{'A', 'Z', 'a' - 'A'}}) {
        const auto from = std::max<std::uint32_t>(low, static_cast<std::uint32_t>(first));
        const auto to = std::min<std::uint32_t>(high, static_cast<std::uint32_t>(last));
        if (from <= to)
          set.emplace_back(from + static_cast<std::uint32_t>(other), to + static_cast<std::uint32_t>(other));
      }
    }
    return set;
  }

  CharRanges char_class() {
    ++at_;
    const bool negated = take("^");
    CharRanges set;
    if (peek() == ']') return fail("has a class without characters"), set;
    const auto item = [&] { return peek() == '\\' ? escape(/*in_class=*/true) : single(character()); };
    const auto is_one = [](const CharRanges& ranges) {
      return ranges.size() == 1 && ranges[0].first == ranges[0].second;
    };
    while (at_ < text_.size() && peek() != ']') {
      CharRanges low = item();
      if (is_one(low) && peek() == '-' && peek(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        const CharRanges high = item();
        if (!is_one(high) || high[0].first < low[0].first) return fail("has a range whose ends are none"), set;
        low[0].second = high[0].first;
      }
      set.insert(set.end(), low.begin(), low.end());
    }
    if (!take("]")) fail("has a '[' that is not closed");
    set = cased(std::move(set));
    return negated ? all_but(std::move(set)) : set;
  }

  CharRanges escape(bool in_class) {
    ++at_;
    if (at_ == text_.size()) return fail("ends with a backslash"), CharRanges();
    const std::uint32_t c = character();
    switch (c) {
      case 'd': return kDigits;
      case 'D': return all_but(kDigits);
      case 'w': return kWord;
      case 'W': return all_but(kWord);
      case 's': return kSpaces;
      case 'S': return all_but(kSpaces);
      case 'n': return single('\n');
      case 'r': return single('\r');
      case 't': return single('\t');
      case 'v': return single('\v');
      case 'f': return single('\f');
      case 'x': return single(hex(2));
      case 'u': return single(code_point());
      case 'c': {
        const char letter = to_lower(peek());
        if (letter < 'a' || letter > 'z') return fail("has '\\c' without a letter"), CharRanges();
        ++at_;
        return single(static_cast<std::uint32_t>(letter - 'a' + 1));
      }
      case 'b':
        if (in_class) return single('\b');
        break;
      case '0':
        if (peek() < '0' || peek() > '9') return single(0);
        break;
      default: break;
    }
    if (c < 0x80 && is_letter_or_digit(static_cast<char>(c)))
      return fail(fmt::format("has '\\{}', which is not supported", static_cast<char>(c)), Errc::kUnsupported),
             CharRanges();
    return single(c);
  }

  /// Reads exactly `digits` digits.
  std::uint32_t hex(std::size_t digits) {
    const std::string_view text = text_.substr(at_, digits);
    const auto value = to_number<std::uint32_t>(text, 16);
    if (!value || text.size() != digits)
      return fail(fmt::format("has an escape without its {} hexadecimal digits", digits)), 0;
    at_ += digits;
    return *value;
  }
  std::uint32_t code_point() {
    std::uint32_t c = 0;
    if (peek() == '{') {
      const std::size_t end = text_.find('}', at_);
      ++at_;
      if (end == text_.npos || end == at_ || end - at_ > 6) return fail("has '\\u{' without its digits"), 0;
      c = hex(end - at_);
      take("}");  // absent after an error, which ends the parsing
    } else {
      c = hex(4);
      if (c >= kSurrogates && c < kLowSurrogates && take("\\u")) {
        const std::uint32_t low = hex(4);
        if (low < kLowSurrogates || low >= kPastSurrogates) return fail("has half a character", Errc::kUnsupported), 0;
        return 0x10000 + ((c - kSurrogates) << 10) + (low - kLowSurrogates);
      }
    }
    if (c > kLast || (c >= kSurrogates && c < kPastSurrogates)) fail("has no character", Errc::kUnsupported);
    return c;
  }

  /// Returns true when no text can precede each ^, and none can follow each $.
  static bool anchors_hold(const Pattern& pattern, bool first, bool last) {
    if (pattern.kind == Kind::kBegin) return first;
    if (pattern.kind == Kind::kEnd) return last;
    const bool once = pattern.kind != Kind::kRepeat || pattern.most == 1;
    if (pattern.kind != Kind::kSequence)
      return std::ranges::all_of(pattern.parts,
                                 [&](const Pattern& part) { return anchors_hold(part, first && once, last && once); });
    const auto& parts = pattern.parts;
    const auto stands = [](const Pattern& part) { return part.kind != Kind::kBegin && part.kind != Kind::kEnd; };
    const auto before = std::ranges::find_if(parts, stands) - parts.begin();
    const auto after = std::ranges::find_if(parts.rbegin(), parts.rend(), stands).base() - parts.begin();
    for (std::ptrdiff_t i = 0; i < std::ssize(parts); ++i) {
      if (!anchors_hold(parts[static_cast<std::size_t>(i)], first && i <= before, last && i + 1 >= after)) return false;
    }
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool any_case_ = false;
  int groups_ = 0;
  std::optional<Error> error_ = {};
};

// ---- writing ----

bool is_plain(std::uint32_t c) {
  constexpr std::string_view kOthers = " !#%&',/:;<=>@_`~";
  if (c >= 0x80) return false;
  return is_letter_or_digit(static_cast<char>(c)) || kOthers.find(static_cast<char>(c)) != kOthers.npos;
}

std::string written(std::uint32_t c) {
  if (is_plain(c)) return std::string(1, static_cast<char>(c));
  return c > 0xFFFF ? fmt::format("\\U{:08x}", c) : fmt::format("\\u{:04x}", c);
}

std::string written(CharRanges set) {
  if (set.size() == 1 && set[0].first == set[0].second) return '"' + written(set[0].first) + '"';
  // XGrammar prints a class that begins with '^' as if it were negated.
  if (set[0].first == '^') {
    if (set[0].second == '^')
      set.erase(set.begin());
    else
      ++set[0].first;
    set.emplace_back('^', '^');
  }
  std::string text = "[";
  for (const auto& [low, high] : set) {
    text += written(low);
    if (high > low) text += '-' + written(high);
  }
  return text + ']';
}

std::string counted(int least, int most) {
  if (most < 0) return least == 0 ? "*" : least == 1 ? "+" : fmt::format("{{{},}}", least);
  if (least == 0 && most == 1) return "?";
  return least == most ? fmt::format("{{{}}}", least) : fmt::format("{{{},{}}}", least, most);
}

/// Returns up to `most` repeats of `one`, nested, so that few rule positions are active at once; consecutive chains
/// would have many.
std::string at_most(const std::string& one, int most) {
  if (most <= kRepeatsMax) return one + counted(0, most);
  return fmt::format("({0}{1} | {0}{2} {3})", one, counted(0, kRepeatsMax - 1), counted(kRepeatsMax, kRepeatsMax),
                     at_most(one, most - kRepeatsMax));
}

std::string with_short_repeats(const std::string& one, int least, int most) {
  if (std::max(least, most) <= kRepeatsMax) return one + counted(least, most);
  std::vector<std::string> parts;
  for (int left = least; left > 0; left -= kRepeatsMax) {
    const int times = std::min(left, kRepeatsMax);
    parts.push_back(one + counted(times, times));
  }
  if (most < 0) parts.push_back(one + "*");
  if (most > least) parts.push_back(at_most(one, most - least));
  return fmt::format("({})", fmt::join(parts, " "));
}

/// Returns the escapes of these characters in JSON, without the backslash.
Pattern escapes(const CharRanges& set) {
  constexpr std::pair<char, char> kLetters[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                                {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};
  CharRanges letters, digits[2];
  const auto add = [](CharRanges& to, char c) { to.emplace_back(c, c); };
  for (const auto& [low, high] : set) {
    for (std::uint32_t c = low; c <= high; ++c) {
      const auto* const letter =
          std::ranges::find(kLetters, c, [](const auto& pair) { return static_cast<std::uint32_t>(pair.first); });
      if (letter != std::end(kLetters)) {
        add(letters, letter->second);
        continue;
      }
      add(digits[c / 16], "0123456789abcdef"[c % 16]);
      if (c % 16 > 9) add(digits[c / 16], "ABCDEF"[c % 16 - 10]);
    }
  }
  std::vector<Pattern> numbers;
  numbers.push_back(listed(Kind::kSequence, {one('0'), one_of(digits[0])}));
  numbers.push_back(listed(Kind::kSequence, {one('1'), one_of(digits[1])}));
  return listed(Kind::kChoice, {one_of(letters), listed(Kind::kSequence, {one('u'), one('0'), one('0'),
                                                                          listed(Kind::kChoice, std::move(numbers))})});
}

Pattern set_in_json(const CharRanges& set) {
  const CharRanges escaped = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  CharRanges without = all_but(set);
  CharRanges raw = without;
  raw.insert(raw.end(), escaped.begin(), escaped.end());
  const CharRanges plain = all_but(escaped);
  without.insert(without.end(), plain.begin(), plain.end());
  return listed(Kind::kChoice, {one_of(all_but(raw)), listed(Kind::kSequence, {one('\\'), escapes(all_but(without))})});
}

Pattern in_json_unsimplified(Pattern pattern) {
  if (pattern.kind == Kind::kSet) return set_in_json(pattern.set);
  for (Pattern& part : pattern.parts) part = in_json_unsimplified(std::move(part));
  return pattern;
}

}  // namespace

CharRanges all_but(CharRanges ranges) {
  std::ranges::sort(ranges);
  CharRanges rest;
  const auto add = [&](std::uint32_t low, std::uint32_t end) {
    if (low < end) rest.emplace_back(low, end - 1);
  };
  std::uint32_t next = 0;
  ranges.emplace_back(kLast + 1, kLast + 1);
  for (const auto& [low, high] : ranges) {
    add(next, std::min(low, kSurrogates));
    add(std::max(next, kPastSurrogates), low);
    next = std::max(next, high + 1);
  }
  return rest;
}

Result<Pattern> read_pattern(std::string_view text) { return PatternReader(text).read(); }

std::optional<Pattern> of_length(const Pattern& pattern, std::int64_t least, std::int64_t most) {
  LengthBounds bounds;
  Pattern bounded = bounds.bound(pattern, least, most < 0 ? kEndless : std::min(most, kEndless));
  if (bounds.too_many()) return std::nullopt;
  const std::int64_t characters = bounded.characters;
  bounded = simplified(std::move(bounded));
  bounded.characters = characters;
  return bounded;
}
Pattern in_json(const Pattern& pattern) { return simplified(in_json_unsimplified(pattern)); }

std::string as_ebnf(const Pattern& pattern, bool short_repeats) {
  const auto joined = [&](std::string_view between) {
    std::string text;
    for (const Pattern& part : pattern.parts) {
      if (!text.empty()) text += between;
      text += as_ebnf(part, short_repeats);
    }
    return text;
  };
  switch (pattern.kind) {
    case Kind::kSet: return written(pattern.set);
    case Kind::kChoice: return '(' + joined(" | ") + ')';
    case Kind::kRepeat: {
      const bool bare = pattern.parts[0].kind == Kind::kSet || pattern.parts[0].kind == Kind::kChoice;
      const std::string one = bare ? joined("") : '(' + joined("") + ')';
      return short_repeats ? with_short_repeats(one, pattern.least, pattern.most)
                           : one + counted(pattern.least, pattern.most);
    }
    default: return pattern.parts.empty() ? R"("")" : joined(" ");
  }
}

std::optional<Repeat> repeat_at(std::string_view text) {
  Repeat repeat;
  const char* const end = text.data() + text.size();
  auto read = std::from_chars(text.data() + 1, end, repeat.least);
  if (read.ec != std::errc{} || repeat.least < 0) return std::nullopt;
  repeat.most = repeat.least;
  if (read.ptr != end && *read.ptr == ',') {
    const char* const after = read.ptr + 1;
    read = std::from_chars(after, end, repeat.most);
    if (read.ec == std::errc::result_out_of_range || repeat.most < 0) return std::nullopt;
    if (read.ptr == after) repeat.most = -1;
  }
  if (read.ptr == end || *read.ptr != '}') return std::nullopt;
  repeat.bytes = static_cast<std::size_t>(read.ptr - text.data()) + 1;
  return repeat;
}

}  // namespace outrider
