#include "common/pair/assistant_names.h"

#include <algorithm>
#include <regex>

#include "common/base/ascii.h"

namespace outrider {
namespace {

constexpr std::string_view kGoogle = "google/";
constexpr std::size_t kNameMax = 256;  ///< in characters: std::regex recurses

}  // namespace

std::optional<std::string> published_assistant(std::string_view model) {
  static const std::regex form("gemma-?4-(e2b|e4b|12b|26b-a4b|31b)-it(?![a-z0-9])(.*)");
  std::string name = in_lower_case(model.substr(0, kNameMax));
  std::ranges::replace(name, '_', '-');
  std::smatch parts;
  if (name.find("assistant") != name.npos || !std::regex_search(name, parts, form)) return std::nullopt;
  std::string size = parts[1];
  std::ranges::transform(size, size.begin(), to_upper);
  return "gemma-4-" + size + (parts[2].str().find("-qat") == std::string::npos ? "-it" : "-it-qat-q4_0-unquantized") +
         "-assistant";
}

std::vector<std::string> assistant_names(const std::string& model) {
  if (in_lower_case(model).find("assistant") != model.npos) return {};
  std::vector<std::string> names = {model + "-assistant"};
  if (const auto published = published_assistant(model); published && *published != names[0])
    names.push_back(*published);
  return names;
}

std::vector<std::string> assistant_repositories(const std::string& repository) {
  const std::size_t slash = repository.find('/') + 1;
  const std::string org = repository.substr(0, slash), model = repository.substr(slash);
  const std::optional<std::string> published = published_assistant(model);
  std::vector<std::string> names;
  if (!(org == kGoogle && published) && !assistant_names(model).empty()) names.push_back(repository + "-assistant");
  if (published) names.push_back(std::string(kGoogle) + *published);
  return names;
}

}  // namespace outrider
