#include "launch/command_line.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/edit_distance.h"
#include "common/base/utf8.h"

namespace outrider {

namespace {

/// Returns the choices in CLI11's name of a type with fixed words: "TEXT:{bash,zsh}".
std::vector<std::string> choices_in(const std::string& type) {
  const std::size_t open = type.find('{'), close = type.rfind('}');
  if (open == type.npos || close == type.npos || close < open) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

ArgumentText argument_of(const CLI::Option& option) {
  ArgumentText result{{}, option.get_description(), "", {}};
  for (const std::string& name : option.get_snames()) result.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) result.names.push_back("--" + name);
  if (result.names.empty()) result.names.push_back(option.get_name());
  if (option.get_items_expected_max() > 0) {
    const std::string type = option.get_type_name();
    result.value = type.substr(0, type.find(':'));
    result.choices = choices_in(type);
    if (const std::string text = option.get_default_str(); !text.empty()) result.help += " (default: " + text + ")";
  }
  return result;
}

std::vector<const CLI::App*> below(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

/// Appends a command and then those below it.
void collect(const CLI::App& app, const std::string& before, std::vector<CommandText>& into) {
  CommandText command{before + app.get_name(), app.get_description(), "", {}, {}, {}};
  for (const CLI::Option* option : app.get_options({})) {
    const bool named = !option->get_snames().empty() || !option->get_lnames().empty();
    (named ? command.options : command.positionals).push_back(argument_of(*option));
    if (named) continue;
    const std::string& name = option->get_name();
    command.synopsis += (option->get_required() ? " " + name : " [" + name + "]");
    if (option->get_items_expected_max() > 1) command.synopsis += "...";
  }
  for (const CLI::App* sub : below(app)) command.subcommands.emplace_back(sub->get_name(), sub->get_description());
  if (!command.subcommands.empty()) command.synopsis += " COMMAND";
  into.push_back(command);
  for (const CLI::App* sub : below(app)) collect(*sub, command.place + " ", into);
}

/// Appends the probably intended word to the problem: the nearest within a few typing errors.
std::string with_nearest(std::string problem, std::string_view word, const std::vector<std::string>& words) {
  if (words.empty()) return problem;
  const std::string& nearest = nearest_of(words, word);
  const std::size_t slips_max = word.size() < 5 ? 1 : 2;
  return edit_distance(word, nearest) > slips_max ? problem : fmt::format("{}; '{}' is one", problem, nearest);
}

/// Explains an invalid option value. @param message  the parser's message, "Could not convert: --top-k = many"
std::string explain_value(const CLI::App& command, const std::string& message) {
  const std::size_t begin = message.find("--"), end = message.find(" = ");
  if (begin == message.npos || end == message.npos || end < begin) return message;
  const std::string name = message.substr(begin, end - begin);
  const CLI::Option* const option = command.get_option_no_throw(name);
  const bool whole = option != nullptr && option->get_type_name().find("INT") != std::string::npos;
  return fmt::format("{} is '{}', wanted a {}number", name, message.substr(end + 3), whole ? "whole " : "");
}

/// @return true if words that are no commands may be arguments
bool takes_words(const CLI::App& command) {
  return std::ranges::any_of(command.get_options(), [](const CLI::Option* option) { return option->get_positional(); });
}

/// @return the reason that a command line was not understood, for the user: the first unknown word with its nearest
/// neighbour @param error  the parser's, for other errors
std::string explain(const CLI::App& app, const std::vector<std::string>& arguments, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string name;
  for (const std::string& argument : arguments) {
    const std::vector<const CLI::App*> commands = below(*command);
    if (argument.starts_with("--")) {
      const std::string option = argument.substr(0, argument.find('='));
      if (command->get_option_no_throw(option) != nullptr) continue;
      std::vector<std::string> options;
      for (const CLI::Option* known : command->get_options()) {
        for (const std::string& long_name : known->get_lnames()) options.push_back("--" + long_name);
      }
      return with_nearest(fmt::format("{}no option {}", name, option), option, options);
    }
    if (commands.empty() || argument.starts_with('-')) continue;
    const auto known = std::ranges::find(commands, argument, &CLI::App::get_name);
    if (known == commands.end()) {
      if (takes_words(*command)) continue;
      std::vector<std::string> names;
      for (const CLI::App* one : commands) names.push_back(one->get_name());
      return with_nearest(fmt::format("{}no command '{}'", name, argument), argument, names);
    }
    command = *known;
    name += argument + ": ";
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)  // lists them in reverse
    return name + "more words than it takes: a text of several goes into quotes";
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) return explain_value(*command, error.what());
  if (command->get_require_subcommand_min() > 0 && command->get_subcommands().empty()) {
    std::vector<std::string> names;
    for (const CLI::App* one : below(*command)) names.push_back(one->get_name());
    return fmt::format("{}wanted a command: {}", name, fmt::join(names, ", "));
  }
  return error.what();
}

/// CLI11's formatter, except for options that exclude each other.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string text = CLI::Formatter::make_option_opts(option);
    return text.substr(0, text.find(" " + get_label("Excludes") + ":"));
  }
};

}  // namespace

std::vector<CommandText> describe(const Command& command) {
  std::vector<CommandText> commands;
  collect(command, "", commands);
  return commands;
}

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

int run_command_line(Command& program, int argc, const char* const* argv) {
  const auto wrong = [&](const std::string& why) {
    std::fprintf(stderr, "%s: %s; see --help\n", program.get_name().c_str(), printable(why).c_str());
    return 2;
  };
  // Many users type these first: `help COMMAND` is `COMMAND --help`, and `version` is `--version`.
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words.front() == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  } else if (words == std::vector<std::string>{"version"}) {
    words.front() = "--version";
  }
  try {
    program.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 expects reverse order
  } catch (const ExitStatus& end) {
    return end.status;
  } catch (const UsageError& error) {
    return wrong(error.what());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help, --version
    const bool unclear = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                         dynamic_cast<const CLI::RequiredError*>(&error) != nullptr ||
                         dynamic_cast<const CLI::ConversionError*>(&error) != nullptr;
    return wrong(unclear ? explain(program, words, error) : error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program.get_name().c_str(), printable(error.what()).c_str());
    return 1;
  }
  return 0;
}

}  // namespace outrider
