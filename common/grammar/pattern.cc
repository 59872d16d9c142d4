#include "common/grammar/pattern.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include <fmt/format.h>

namespace outrider {
namespace {

constexpr std::size_t kPatternBytesMax = 32 << 10;

/// Where the character, class or escape that begins at `at` ends.
std::size_t end_of_atom(std::string_view pattern, std::size_t at) {
  if (pattern[at] == '[') {
    for (std::size_t i = at + 1; i < pattern.size(); ++i) {
      if (pattern[i] == '\\')
        ++i;
      else if (pattern[i] == ']')
        return i + 1;
    }
    return pattern.size();
  }
  std::size_t end = at + 1;
  if (pattern[at] == '\\' && end < pattern.size()) {
    const char kind = pattern[end++];
    if ((kind == 'u' || kind == 'p' || kind == 'P') && end < pattern.size() && pattern[end] == '{')
      end = pattern.find('}', end) == pattern.npos ? pattern.size() : pattern.find('}', end) + 1;
    else
      end += kind == 'u' ? 4 : kind == 'x' ? 2 : kind == 'c' ? 1 : 0;
  }
  while (end < pattern.size() && (pattern[end] & 0xC0) == 0x80) ++end;  // of one character of UTF-8
  return std::min(end, pattern.size());
}

}  // namespace

std::optional<Repeat> repeat_at(std::string_view text) {
  Repeat repeat;
  const char* const end = text.data() + text.size();
  auto read = std::from_chars(text.data() + 1, end, repeat.least);
  if (read.ec != std::errc{}) return std::nullopt;
  repeat.most = repeat.least;
  if (read.ptr != end && *read.ptr == ',') {
    const char* const after = read.ptr + 1;
    read = std::from_chars(after, end, repeat.most);
    if (read.ec == std::errc::result_out_of_range) return std::nullopt;
    if (read.ptr == after) repeat.most = -1;
  }
  if (read.ptr == end || *read.ptr != '}') return std::nullopt;
  repeat.bytes = static_cast<std::size_t>(read.ptr - text.data()) + 1;
  return repeat;
}

Result<std::string> with_short_repeats(std::string_view pattern) {
  std::string out;
  std::vector<std::size_t> groups;  // where those that are open begin in `out`
  std::size_t last = 0;             // where what a repeat would be of does
  for (std::size_t at = 0; at < pattern.size();) {
    if (pattern[at] == '{' && last < out.size()) {
      const std::optional<Repeat> repeat = repeat_at(pattern.substr(at));
      const bool bounded = repeat && repeat->most >= 0;
      if (repeat && std::max(repeat->least, repeat->most) > kRepeatsMax &&
          (!bounded || repeat->least <= repeat->most)) {
        const std::string one = out.substr(last);
        out.resize(last);
        for (int least = repeat->least; least > 0 && out.size() <= kPatternBytesMax; least -= kRepeatsMax)
          out += fmt::format("{}{{{}}}", one, std::min(least, kRepeatsMax));
        if (!bounded) out += one + "*";
        // Each within the one before, so that a text is in one place of the pattern and not in many at once.
        const int more = bounded ? repeat->most - repeat->least : 0;
        for (int i = 0; i < more && out.size() <= kPatternBytesMax; ++i) out += "(?:" + one;
        if (out.size() > kPatternBytesMax)
          return Error{Errc::kUnsupported,
                       fmt::format("repeats {}{} too often", one, pattern.substr(at, repeat->bytes))};
        for (int i = 0; i < more; ++i) out += ")?";
        at += repeat->bytes;
        last = out.size();
        continue;
      }
    }
    std::size_t end = end_of_atom(pattern, at);
    const bool quantifier = pattern[at] == '*' || pattern[at] == '+' || pattern[at] == '?' || pattern[at] == '{';
    if (pattern[at] == '(') groups.push_back(out.size());
    if (pattern[at] == ')' && !groups.empty()) {
      last = groups.back();
      groups.pop_back();
    } else if (!quantifier) {
      last = out.size();
    }
    if (pattern[at] == '{') {
      if (const std::optional<Repeat> repeat = repeat_at(pattern.substr(at))) end = at + repeat->bytes;
    }
    out += pattern.substr(at, end - at);
    at = end;
  }
  return out;
}

}  // namespace outrider
