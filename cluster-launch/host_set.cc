#include "cluster-launch/host_set.h"

#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "common/base/text.h"

namespace outrider {
namespace {

constexpr std::size_t kNamesMax = 4096;

Error bad(std::string_view set, std::string_view problem) {
  return {Errc::kInvalidArgument, "host set '{}': {}, wanted something like node[1-8,12]", set, problem};
}

/// The parts of a text between commas that are not in brackets.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0, depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '[') ++depth;
    if (i < text.size() && text[i] == ']' && depth > 0) --depth;
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  return parts;
}

/// Appends the names of one part: PREFIX[RANGES]SUFFIX, or a name.
Result<void> expand_part(std::string_view part, std::vector<std::string>& names) {
  const std::size_t open = part.find('['), close = part.find(']');
  const auto add = [&](std::string name) -> Result<void> {
    if (names.size() == kNamesMax) return bad(part, fmt::format("more than {} hosts", kNamesMax));
    // It becomes a word of ssh's and the name of a file.
    if (name.find('/') != name.npos || name.front() == '-' || name.front() == '.')
      return bad(part, fmt::format("'{}' is no host's name", name));
    names.push_back(std::move(name));
    return {};
  };
  if (open == part.npos && close == part.npos && !part.empty()) return add(std::string(part));
  if (open == part.npos || close == part.npos || close < open)
    return bad(part, part.empty() ? "empty" : "odd brackets");
  const std::string_view prefix = part.substr(0, open), suffix = part.substr(close + 1);
  if (suffix.find_first_of("[]") != suffix.npos) return bad(part, "more than one pair of brackets");
  for (const std::string_view range : split(part.substr(open + 1, close - open - 1))) {
    const std::size_t dash = range.find('-');
    const std::string_view first = range.substr(0, dash), last = dash == range.npos ? first : range.substr(dash + 1);
    const auto from = to_number<std::uint32_t>(first), to = to_number<std::uint32_t>(last);
    if (!from || !to || *to < *from) return bad(part, fmt::format("'{}' is no range", range));
    for (std::int64_t i = *from; i <= *to; ++i)
      RETURN_IF_ERROR(add(fmt::format("{}{:0{}}{}", prefix, i, first.size(), suffix)));
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> expand_host_set(std::string_view set) {
  std::vector<std::string> names;
  for (const std::string_view part : split(set)) RETURN_IF_ERROR(expand_part(part, names));
  return names;
}

}  // namespace outrider
