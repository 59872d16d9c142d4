#include "server/form.h"

#include <algorithm>

#include "common/base/ascii.h"
#include "common/base/text.h"

namespace outrider {
namespace {

constexpr std::size_t kPartsMax = 64, kPartHeadBytesMax = 8 << 10;

/// Removes the value of a header's parameter from its front, up to the next semicolon: a word, or a quoted text, in
/// which quotes are \" or, in browsers' form, %22.
std::string take_value(std::string_view& header) {
  const bool quoted = header.starts_with('"');
  std::size_t at = quoted ? 1 : 0;
  std::string value;
  for (; at < header.size() && header[at] != (quoted ? '"' : ';'); ++at) {
    const std::string_view next = header.substr(at, 2);
    if (quoted && (next == "\\\"" || next == "\\\\")) ++at;  // no others: Windows paths are not escaped
    value += header[at];
  }
  header.remove_prefix(std::min(header.find(';', at), header.size()));
  return quoted ? replaced(value, "%22", "\"") : value;
}

/// Makes a part of a form, with the facts from its head.
FormPart part_of(std::string_view head, std::string_view content) {
  FormPart part{.name = "", .filename = "", .content = content};
  for (const std::string& line : lines_of(head)) {
    constexpr std::string_view kDisposition = "content-disposition:";
    if (!in_lower_case(line).starts_with(kDisposition)) continue;
    std::string_view rest = std::string_view(line).substr(0, line.find('\r'));
    rest.remove_prefix(std::min(rest.find(';'), rest.size()));
    while (!rest.empty()) {
      rest.remove_prefix(std::min(rest.find_first_not_of("; \t"), rest.size()));
      const std::string key = in_lower_case(rest.substr(0, rest.find_first_of("=;")));
      rest.remove_prefix(key.size());
      if (!rest.starts_with('=')) continue;
      rest.remove_prefix(1);
      const std::string value = take_value(rest);
      if (key == "name") part.name = value;
      if (key == "filename") part.filename = value;
    }
  }
  return part;
}

}  // namespace

std::optional<std::vector<FormPart>> parse_form(std::string_view body) {
  const std::string_view boundary = body.substr(0, body.find("\r\n"));
  if (!boundary.starts_with("--") || boundary.size() < 3 || boundary.size() == body.size()) return std::nullopt;
  const std::string between = "\r\n" + std::string(boundary);
  std::vector<FormPart> parts;
  std::string_view rest = body.substr(boundary.size());
  while (rest.starts_with("\r\n")) {
    rest.remove_prefix(2);
    const std::size_t head_end = rest.substr(0, kPartHeadBytesMax).find("\r\n\r\n");
    if (head_end == rest.npos || parts.size() == kPartsMax) return std::nullopt;
    const std::string_view head = rest.substr(0, head_end);
    rest.remove_prefix(head_end + 4);
    const std::size_t end = rest.find(between);
    if (end == rest.npos) return std::nullopt;
    parts.push_back(part_of(head, rest.substr(0, end)));
    rest.remove_prefix(end + between.size());
  }
  return rest.starts_with("--") ? std::optional(std::move(parts)) : std::nullopt;
}

}  // namespace outrider
