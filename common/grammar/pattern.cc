#include "common/grammar/pattern.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace outrider {
namespace {

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

/// `one` so often, each place of the last ones within the one before: a text is then in one place of the pattern, where
/// one chain after another would have it in many at once.
std::string written_out(const std::string& one, const Repeat& repeat) {
  std::string out;
  for (int least = repeat.least; least > 0; least -= kRepeatsMax)
    out += fmt::format("{}{{{}}}", one, std::min(least, kRepeatsMax));
  if (repeat.most < 0) return out + one + "*";
  for (int i = repeat.least; i < repeat.most; ++i) out += "(?:" + one;
  for (int i = repeat.least; i < repeat.most; ++i) out += ")?";
  return out;
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

Result<std::string> with_short_repeats(std::string_view pattern, std::int64_t& characters_left) {
  struct Group {
    std::size_t begin;        // in `out`
    std::int64_t characters;  // of what is before it in the group around it
  };
  std::string out;
  std::vector<Group> open;
  // What a repeat here would be of: where it begins, and its characters; and those before it in its group.
  std::size_t last = 0;
  std::int64_t last_characters = 0, characters = 0;
  const auto too_many = [&] { return characters + last_characters > characters_left; };
  for (std::size_t at = 0, end = 0; at < pattern.size(); at = end) {
    end = end_of_atom(pattern, at);
    const char c = pattern[at];
    const std::optional<Repeat> repeat = c == '{' ? repeat_at(pattern.substr(at)) : std::nullopt;
    if (repeat) {
      end = at + repeat->bytes;
      last_characters = std::max<std::int64_t>(last_characters, 1) * std::max({repeat->least, repeat->most, 1});
      if (too_many()) break;
      const bool in_order = repeat->most < 0 || repeat->least <= repeat->most;
      if (in_order && std::max(repeat->least, repeat->most) > kRepeatsMax) {
        out.replace(last, out.npos, written_out(out.substr(last), *repeat));
        continue;
      }
    } else if (c == ')' && !open.empty()) {
      last = open.back().begin;
      last_characters += characters;
      characters = open.back().characters;
      open.pop_back();
    } else if (c != '*' && c != '+' && c != '?') {
      characters += std::exchange(last_characters, c == '(' ? 0 : 1);
      last = out.size();
      if (c == '(') open.push_back({last, std::exchange(characters, 0)});
    }
    out += pattern.substr(at, end - at);
  }
  for (const Group& group : open) characters += group.characters;
  if (too_many())
    return Error(Errc::kUnsupported, "has {} characters with its repeats written out, wanted at most {}",
                 characters + last_characters, characters_left);
  characters_left -= characters + last_characters;
  return out;
}

}  // namespace outrider
