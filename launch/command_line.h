#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace outrider {

/// A command or one below it. What it is told to fill in must live as long as it does. Its callback throws
/// std::exception with the one line that a person needs, ExitStatus or UsageError.
using Command = CLI::App;
using Option = CLI::Option;

/// Thrown by a command to end the program with this status, without a word.
struct ExitStatus : std::runtime_error {
  explicit ExitStatus(int code) : std::runtime_error("exit status " + std::to_string(code)), status(code) {}
  int status;
};

/// Thrown by a command that cannot do what it should: the one line that a person needs, as fmt::format makes it.
struct CommandError : std::runtime_error {
  template <typename... Values>
  explicit CommandError(fmt::format_string<Values...> format, Values&&... values)
      : std::runtime_error(fmt::format(format, std::forward<Values>(values)...)) {}
};

/// Thrown by a command whose command line is wrong in a way that it alone can see.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An option that is a number of a range, both ends included, or several with commas between; the help says its
/// default.
template <typename T, typename Bound>
Option* add_number(Command& command, const char* names, T& value, Bound min, Bound max, const std::string& help) {
  Option* const option = command.add_option(names, value, help)->check(CLI::Range(min, max));
  if constexpr (!std::is_arithmetic_v<T>) option->delimiter(',');
  return option->capture_default_str();
}

/// A list's entries are given one by one, each with the option's name.
inline Option* repeatable(Option* option) {
  return option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

/// Options that are added while this lives stand under its heading in --help.
class HelpGroup {
 public:
  HelpGroup(Command& command, const char* heading)
      : command_(command), before_(command.option_defaults()->get_group()) {
    command.option_defaults()->group(heading);
  }
  ~HelpGroup() { command_.option_defaults()->group(before_); }
  HelpGroup(const HelpGroup&) = delete;
  HelpGroup& operator=(const HelpGroup&) = delete;

 private:
  Command& command_;
  std::string before_;
};

/// The --help of a program and of all commands added to it later. It leaves out which options exclude each other; the
/// error names them.
std::shared_ptr<CLI::FormatterBase> help_formatter();

/// It describes an option or a positional argument.
struct ArgumentText {
  std::vector<std::string> names;  ///< with their dashes; a positional argument has one without
  std::string help, value;         ///< value: what follows the name, as `--help` has it; empty: nothing
  std::vector<std::string> choices;
};

/// It describes a command.
struct CommandText {
  std::string place;  ///< all words that lead to it: "outrider bench pair"
  std::string help, synopsis;
  std::vector<ArgumentText> options, positionals;
  std::vector<std::pair<std::string, std::string>> subcommands;  ///< word and help
};

/// This command and then those below it.
std::vector<CommandText> describe(const Command& command);

/// Reads a program's arguments and runs the command that they name. Errors go to standard error, an unknown word with
/// its nearest neighbour; --help and --version go to standard output.
/// @return the exit status: 0, 2 for a wrong command line, a command's ExitStatus, or 1 for what else it throws, which
///         is said too.
int run_command_line(Command& program, int argc, const char* const* argv);

}  // namespace outrider
