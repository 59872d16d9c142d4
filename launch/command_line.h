#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace outrider {

// The command line, with CLI11 behind it in command_line.cc alone: whoever includes that library compiles all of it,
// which cost each file of a command some five seconds.

/// Thrown by a command to end the program with this status, without a word.
struct ExitStatus : std::runtime_error {
  explicit ExitStatus(int code) : std::runtime_error("exit status " + std::to_string(code)), status(code) {}
  int status;
};

/// Thrown by a command whose command line is wrong in a way that it alone can see.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What the value of an option must be.
class Check {
 public:
  struct Rule;
  using WhyNot = std::string (*)(const std::string& text);  ///< empty: it is wanted

  Check(WhyNot why_not);
  explicit Check(std::shared_ptr<const Rule> rule) : rule_(std::move(rule)) {}
  const Rule& rule() const { return *rule_; }
  /// Either will do.
  Check operator|(const Check& other) const;

 private:
  std::shared_ptr<const Rule> rule_;
};

/// A number of a range, both ends included. T: int, std::int64_t, their unsigned kin, or double.
template <typename T>
Check in_range(T min, T max);
Check above_zero();
Check one_of(std::initializer_list<const char*> words);
Check one_of(const std::vector<std::string>& words);
Check one_of(const std::vector<std::int64_t>& numbers);

/// An option or a positional argument of a command, which owns it.
class Option {
 public:
  struct Impl;
  explicit Option(std::unique_ptr<Impl> impl);
  ~Option();

  Option* required();
  Option* check(const Check& check);
  /// The help says the value that the variable has now.
  Option* capture_default_str();
  Option* default_str(const std::string& text);
  /// A list's entries stand in one word, with this between them.
  Option* delimiter(char between);
  /// A list's entries are given one by one, each with the option's name.
  Option* repeatable();
  /// How many values it takes.
  Option* expected(int least, int most);
  Option* excludes(Option* other);
  Option* excludes(const std::string& name);  ///< of the same command
  Option* needs(Option* other);

  std::string get_name() const;
  /// How often it was given.
  std::size_t count() const;
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// What is known of an option or a positional argument.
struct ArgumentText {
  std::vector<std::string> names;  ///< with their dashes; a positional argument has one without
  std::string help, value;         ///< value: what follows the name, as `--help` has it; empty: nothing
  std::vector<std::string> choices;
};

/// What is known of a command.
struct CommandText {
  std::string place;  ///< all words that lead to it: "outrider bench pair"
  std::string help, synopsis;
  std::vector<ArgumentText> options, positionals;
  std::vector<std::pair<std::string, std::string>> subcommands;  ///< word and help
};

/// A command or one below it. What it is told to fill in must live as long as it does.
class Command {
 public:
  struct Impl;
  explicit Command(std::unique_ptr<Impl> impl);
  ~Command();

  Command* add_subcommand(const std::string& name, const std::string& help);
  /// One of those below it must be given, or may be.
  void require_subcommand();
  void allow_one_subcommand();
  /// Whether one of those below it was given.
  bool has_subcommand() const;
  /// Runs when the command was given, once all is read. Throws std::exception with the one line that a person needs, or
  /// ExitStatus.
  void callback(std::function<void()> run);

  /// T: what the end of command_line.cc lists; another one is a line there.
  /// @param names  "--dtype", "-q,--quiet", or "FORM": a positional argument
  template <typename T>
  Option* add_option(const std::string& names, T& value, const std::string& help);
  Option* add_flag(const std::string& names, bool& value, const std::string& help);
  bool has_option(const std::string& name) const;
  /// @pre has_option(name).
  Option* get_option(const std::string& name) const;

  /// This command and then those below it.
  std::vector<CommandText> describe() const;

 protected:
  std::unique_ptr<Impl> impl_;
};

/// A whole program.
class CommandLine : public Command {
 public:
  /// @param version  what --version prints; empty: there is no such option
  CommandLine(const std::string& about, const std::string& name, const std::string& version = "");

  /// Reads the arguments and runs the command that they name. What is wrong with them is said to standard error, with
  /// what was probably meant where a word is unknown; --help and --version go to standard output.
  /// @return the exit status: 0, 2 for a wrong command line, or a command's ExitStatus. What else a command throws is
  ///         the caller's.
  int run(int argc, const char* const* argv);
};

}  // namespace outrider
