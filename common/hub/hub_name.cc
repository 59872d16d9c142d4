#include "common/hub/hub_name.h"

#include <algorithm>
#include <array>
#include <system_error>
#include <vector>

#include "common/base/ascii.h"
#include "common/base/text.h"

namespace outrider {
namespace {

constexpr std::size_t kPartMax = 96;  ///< characters of ORG or NAME, as on the hub
constexpr std::string_view kFolder = "models--", kSnapshots = "snapshots";

/// The hub's rule: letters, digits, '-', '_' and '.', no two of "-." in a row, and none at an end.
bool is_part(std::string_view text) {
  const bool letters =
      std::ranges::all_of(text, [](char c) { return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.'; });
  const auto at_end = [](char c) { return c == '-' || c == '.'; };
  return letters && !text.empty() && text.size() <= kPartMax && !at_end(text.front()) && !at_end(text.back()) &&
         text.find("--") == text.npos && text.find("..") == text.npos;
}

bool is_revision(std::string_view text) {
  const bool letters = std::ranges::all_of(
      text, [](char c) { return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.' || c == '/'; });
  return letters && !text.empty() && is_letter_or_digit(text.front()) && text.back() != '/' &&
         text.find("..") == text.npos && text.find("//") == text.npos;
}

bool is_name_of_file(std::string_view text) {
  constexpr std::array kEndings = {".gguf", ".safetensors", ".json", ".git"};
  return std::ranges::any_of(kEndings, [&](std::string_view ending) { return text.ends_with(ending); });
}

}  // namespace

std::optional<HubName> HubName::parse(std::string_view text) {
  HubName name;
  if (const std::size_t colon = text.find(':'); colon != text.npos) {
    name.file = text.substr(colon + 1);
    if (name.file.empty() || !std::ranges::all_of(name.file, [](char c) { return c > ' ' && c < 0x7f && c != ':'; }))
      return std::nullopt;
    text = text.substr(0, colon);
  }
  if (const std::size_t at = text.find('@'); at != text.npos) {
    name.revision = text.substr(at + 1);
    if (!is_revision(name.revision)) return std::nullopt;
    text = text.substr(0, at);
  }
  const std::size_t slash = text.find('/');
  if (slash == text.npos || !is_part(text.substr(0, slash)) || !is_part(text.substr(slash + 1)) ||
      is_name_of_file(text))
    return std::nullopt;
  name.repository = text;
  return name;
}

std::optional<HubName> HubName::of_path(const std::filesystem::path& path) {
  std::vector<std::string> parts;
  std::error_code failed;  // an empty path, or one in a deleted folder, is in no cache
  for (const auto& part : std::filesystem::absolute(path, failed).lexically_normal()) parts.push_back(part.string());
  for (std::size_t i = 0; i + 2 < parts.size(); ++i) {
    if (!parts[i].starts_with(kFolder) || parts[i + 1] != kSnapshots) continue;
    std::optional<HubName> name = parse(replaced(parts[i].substr(kFolder.size()), "--", "/"));
    if (name) name->revision = parts[i + 2];
    return name;
  }
  return std::nullopt;
}

std::string HubName::text() const {
  return repository + (revision == "main" ? "" : "@" + revision) + (file.empty() ? "" : ":" + file);
}

std::string HubName::folder() const { return std::string(kFolder) + replaced(repository, "/", "--"); }

bool is_commit(std::string_view revision) {
  return revision.size() == 40 && revision.find_first_not_of("0123456789abcdef") == revision.npos;
}

}  // namespace outrider
