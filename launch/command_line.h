#pragma once

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "common/base/result.h"

namespace outrider {

/// A command or subcommand. Variables that it sets must live as long as the command. Its callback throws std::exception
/// with a one-line message, ExitStatus or UsageError.
using Command = CLI::App;
using Option = CLI::Option;

/// Thrown by a command to end the program silently with this status.
struct ExitStatus : std::runtime_error {
  explicit ExitStatus(int code) : std::runtime_error("exit status " + std::to_string(code)), status(code) {}
  int status;
};

/// Thrown by a command that fails, with a one-line message made by fmt::format.
struct CommandError : std::runtime_error {
  template <typename... Values>
  explicit CommandError(fmt::format_string<Values...> format, Values&&... values)
      : std::runtime_error(fmt::format(format, std::forward<Values>(values)...)) {}
};

/// Thrown by a command that finds its command line invalid.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns the value, or throws the error as main()'s one-line message.
template <typename T>
T or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

/// Adds an option for a number in an inclusive range, or for several separated by commas; the help shows its default.
template <typename T, typename Bound>
Option* add_number(Command& command, const char* names, T& value, Bound min, Bound max, const std::string& help) {
  Option* const option = command.add_option(names, value, help)->check(CLI::Range(min, max));
  if constexpr (!std::is_arithmetic_v<T>) option->delimiter(',');
  return option->capture_default_str();
}

/// Makes a list's option take one entry per occurrence.
inline Option* repeatable(Option* option) {
  return option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

/// Puts options that are added while it lives under its heading in --help.
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

/// Destination of a command's report.
struct ReportFlags {
  bool json = false;          ///< as one JSON object on standard output, instead of text
  std::filesystem::path out;  ///< also as JSON to this file, unless empty

  Option* add_json(Command& command) {
    return command.add_flag("--json", json, "Print one JSON object instead of text");
  }
  void add_to(Command& command) {
    add_json(command);
    command.add_option("--out", out, "Also write the JSON object to this file")->capture_default_str();
  }
};

/// Returns the --help formatter of a program and of all commands added to it later. It omits which options exclude each
/// other; the error names them.
std::shared_ptr<CLI::FormatterBase> help_formatter();

/// Describes an option or a positional argument.
struct ArgumentText {
  std::vector<std::string> names;  ///< with dashes; a positional argument has one name, without dashes
  std::string help, value;         ///< value: placeholder after the name in `--help`; empty: none
  std::vector<std::string> choices;
};

/// Describes a command.
struct CommandText {
  std::string place;  ///< all words up to the command: "outrider bench pair"
  std::string help, synopsis;
  std::vector<ArgumentText> options, positionals;
  std::vector<std::pair<std::string, std::string>> subcommands;  ///< word and help
};

/// Returns this command and then those below it.
std::vector<CommandText> describe(const Command& command);

/// Parses a program's arguments and runs their command. Errors go to standard error, an unknown word with its nearest
/// neighbour; --help and --version go to standard output.
/// @return the exit status: 0, 2 for an invalid command line, a command's ExitStatus, or 1 for any other exception,
/// which is printed too
int run_command_line(Command& program, int argc, const char* const* argv);

}  // namespace outrider
