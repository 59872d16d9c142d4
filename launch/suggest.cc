#include "launch/suggest.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "common/base/edit_distance.h"

namespace outrider {
namespace {

std::string with_suggestion(std::string problem, const std::string& meant) {
  return meant.empty() ? problem : fmt::format("{}; '{}' is one", problem, meant);
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& words) {
  std::pair<std::size_t, std::string> best{word.size() < 5 ? 2 : 3, ""};  // as far as a slip goes, and one more
  for (const std::string& other : words)
    best = std::min(best, {edit_distance(word, other), other},
                    [](const auto& a, const auto& b) { return a.first < b.first; });
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
