#include "launch/cluster/host_set.h"

#include <cstdint>

#include <fmt/format.h>

#include "common/base/text.h"

namespace outrider {
namespace {

constexpr std::size_t kNamesMax = 4096, kNameBytesMax = 200;
constexpr int kBracketsMax = 5;  // in Slurm's names: racks, rows, ...

Error bad(std::string_view set, std::string_view problem) {
  return {Errc::kInvalidArgument, "host set '{}': {}, wanted something like node[1-8,12]", set, problem};
}

/// Splits a text at commas outside brackets.
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

/// Appends the names of one part: a name, or PREFIX[RANGES]SUFFIX, with more ranges in its suffix.
Result<void> expand_part(std::string_view part, std::string prefix, int brackets, std::vector<std::string>& names) {
  const std::size_t open = part.find('['), close = part.find(']');
  if (open == part.npos && close == part.npos) {
    const std::string name = prefix.append(part);
    if (names.size() == kNamesMax) return bad(name, fmt::format("more than {} hosts", kNamesMax));
    if (name.empty()) return bad(name, "empty");
    if (name.size() > kNameBytesMax)
      return bad(part.substr(0, kNameBytesMax), fmt::format("a name of {} bytes", name.size()));
    // It becomes an argument of ssh and the name of a file.
    if (name.find('/') != name.npos || name.front() == '-' || name.front() == '.')
      return bad(name, fmt::format("'{}' is no host's name", name));
    names.push_back(name);
    return {};
  }
  if (open == part.npos || close == part.npos || close < open) return bad(part, "odd brackets");
  if (brackets == kBracketsMax) return bad(part, fmt::format("more than {} pairs of brackets", kBracketsMax));
  for (const std::string_view range : split(part.substr(open + 1, close - open - 1))) {
    const std::size_t dash = range.find('-');
    const std::string_view first = range.substr(0, dash), last = dash == range.npos ? first : range.substr(dash + 1);
    const auto from = to_number<std::uint32_t>(first), to = to_number<std::uint32_t>(last);
    if (!from || !to || *to < *from) return bad(part, fmt::format("'{}' is no range", range));
    for (std::int64_t i = *from; i <= *to; ++i)
      RETURN_IF_ERROR(expand_part(part.substr(close + 1),
                                  fmt::format("{}{}{:0{}}", prefix, part.substr(0, open), i, first.size()),
                                  brackets + 1, names));
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> expand_host_set(std::string_view set) {
  std::vector<std::string> names;
  for (const std::string_view part : split(set)) RETURN_IF_ERROR(expand_part(part, "", 0, names));
  return names;
}

Result<std::string> host_file_of_environment(const std::function<const char*(const char*)>& value_of) {
  for (const char* variable : {"SKYPILOT_NODE_IPS", "DSTACK_NODES_IPS", "SLURM_JOB_NODELIST"}) {
    const char* const value = value_of(variable);
    if (value == nullptr) continue;
    std::string text, set;
    for (const std::string& line : lines_of(value)) {
      if (!line.empty()) set += (set.empty() ? "" : ",") + line;
    }
    const auto names = expand_host_set(set);
    if (!names) return Error{names.error().code, fmt::format("{}: {}", variable, names.error().message)};
    for (const std::string& name : *names) text += name + (text.empty() ? " role=verifier\n" : "\n");
    return text;
  }
  return Error(Errc::kInvalidArgument,
               "--hosts env: none of SKYPILOT_NODE_IPS, DSTACK_NODES_IPS and SLURM_JOB_NODELIST is set, wanted one");
}

}  // namespace outrider
