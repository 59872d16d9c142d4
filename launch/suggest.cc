#include "launch/suggest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace outrider {
namespace {

/// Insertions, deletions, replacements and swaps of neighbours (Damerau 1964, without edits of what was swapped).
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  std::iota(d[0].begin(), d[0].end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string with_suggestion(std::string problem, const std::string& meant) {
  return meant.empty() ? problem : fmt::format("{}; '{}' is one", problem, meant);
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& words) {
  std::pair<std::size_t, std::string> best{word.size() < 5 ? 2 : 3, ""};  // as far as a slip goes, and one more
  for (const std::string& other : words)
    best =
        std::min(best, {distance(word, other), other}, [](const auto& a, const auto& b) { return a.first < b.first; });
  return best.second;
}

std::string explain(const CLI::App& app, const std::vector<std::string>& arguments, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string name;
  for (const std::string& argument : arguments) {
    const std::vector<const CLI::App*> commands = command->get_subcommands([](const CLI::App*) { return true; });
    if (argument.starts_with("--")) {
      const std::string option = argument.substr(0, argument.find('='));
      if (command->get_option_no_throw(option) != nullptr) continue;
      std::vector<std::string> options;
      for (const CLI::Option* known : command->get_options()) {
        for (const std::string& long_name : known->get_lnames()) options.push_back("--" + long_name);
      }
      return with_suggestion(fmt::format("{}no option {}", name, option), nearest(option, options));
    }
    if (commands.empty() || argument.starts_with('-')) continue;
    const auto known = std::ranges::find(commands, argument, &CLI::App::get_name);
    if (known == commands.end()) {
      std::vector<std::string> names;
      for (const CLI::App* one : commands) names.push_back(one->get_name());
      return with_suggestion(fmt::format("{}no command '{}'", name, argument), nearest(argument, names));
    }
    command = *known;
    name += argument + ": ";
  }
  return error.what();
}

}  // namespace outrider
