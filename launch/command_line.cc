#include "launch/command_line.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "common/base/check.h"
#include "common/base/edit_distance.h"

namespace outrider {

// ---- checks ----

struct Check::Rule {
  CLI::Validator validator;
};

namespace {

Check check_of(CLI::Validator validator) { return Check(std::make_shared<const Check::Rule>(std::move(validator))); }

}  // namespace

Check::Check(WhyNot why_not)
    : Check(check_of(CLI::Validator([why_not](std::string& text) { return why_not(text); }, ""))) {}
Check Check::operator|(const Check& other) const { return check_of(rule_->validator | other.rule_->validator); }

template <typename T>
Check in_range(T min, T max) {
  return check_of(CLI::Range(min, max));
}
template Check in_range(int, int);
template Check in_range(unsigned, unsigned);
template Check in_range(long, long);
template Check in_range(unsigned long, unsigned long);
template Check in_range(double, double);

Check above_zero() { return check_of(CLI::PositiveNumber); }
Check one_of(std::initializer_list<const char*> words) {
  return one_of(std::vector<std::string>(words.begin(), words.end()));
}
Check one_of(const std::vector<std::string>& words) { return check_of(CLI::IsMember(words)); }
Check one_of(const std::vector<std::int64_t>& numbers) { return check_of(CLI::IsMember(numbers)); }

// ---- options ----

struct Option::Impl {
  CLI::Option& option;
};

Option::Option(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Option::~Option() = default;

Option* Option::required() {
  impl_->option.required();
  return this;
}
Option* Option::check(const Check& check) {
  impl_->option.check(check.rule().validator);
  return this;
}
Option* Option::capture_default_str() {
  impl_->option.capture_default_str();
  return this;
}
Option* Option::default_str(const std::string& text) {
  impl_->option.default_str(text);
  return this;
}
Option* Option::delimiter(char between) {
  impl_->option.delimiter(between);
  return this;
}
Option* Option::repeatable() {
  impl_->option.expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return this;
}
Option* Option::expected(int least, int most) {
  impl_->option.expected(least, most);
  return this;
}
Option* Option::excludes(Option* other) {
  impl_->option.excludes(&other->impl_->option);
  return this;
}
Option* Option::excludes(const std::string& name) {
  impl_->option.excludes(name);
  return this;
}
Option* Option::needs(Option* other) {
  impl_->option.needs(&other->impl_->option);
  return this;
}
std::string Option::get_name() const { return impl_->option.get_name(); }
std::size_t Option::count() const { return impl_->option.count(); }

// ---- commands ----

struct Command::Impl {
  explicit Impl(CLI::App& part) : app(part) {}
  explicit Impl(std::unique_ptr<CLI::App> whole) : owned(std::move(whole)), app(*owned) {}

  Option* add(CLI::Option* option) {
    return &options.emplace_back(std::unique_ptr<Option::Impl>(new Option::Impl{*option}));
  }

  std::unique_ptr<CLI::App> owned;  ///< of a whole program
  CLI::App& app;
  std::deque<Option> options;
  std::deque<Command> below;
};

Command::Command(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Command::~Command() = default;

Command* Command::add_subcommand(const std::string& name, const std::string& help) {
  return &impl_->below.emplace_back(std::make_unique<Impl>(*impl_->app.add_subcommand(name, help)));
}
void Command::require_subcommand() { impl_->app.require_subcommand(); }
void Command::allow_one_subcommand() { impl_->app.require_subcommand(0, 1); }
bool Command::has_subcommand() const { return !impl_->app.get_subcommands().empty(); }
void Command::callback(std::function<void()> run) { impl_->app.callback(std::move(run)); }

template <typename T>
Option* Command::add_option(const std::string& names, T& value, const std::string& help) {
  return impl_->add(impl_->app.add_option(names, value, help));
}
Option* Command::add_flag(const std::string& names, bool& value, const std::string& help) {
  return impl_->add(impl_->app.add_flag(names, value, help));
}

bool Command::has_option(const std::string& name) const { return impl_->app.get_option_no_throw(name) != nullptr; }
Option* Command::get_option(const std::string& name) const {
  const CLI::Option* const wanted = impl_->app.get_option_no_throw(name);
  const auto option = std::ranges::find_if(impl_->options, [&](const Option& o) { return &o.impl().option == wanted; });
  CHECK(option != impl_->options.end(), "no option {}", name);
  return &*option;
}

// ---- what is known of them ----

namespace {

/// The choices in CLI11's name of a type that only takes some words: "TEXT:{bash,zsh}".
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
  return app.get_subcommands([](const CLI::App*) { return true; });
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

/// The problem, with the word that was probably meant: the nearest within a few slips of the fingers.
std::string with_nearest(std::string problem, std::string_view word, const std::vector<std::string>& words) {
  std::pair<std::size_t, std::string> best{word.size() < 5 ? 2 : 3, ""};  // as far as a slip goes, and one more
  for (const std::string& other : words)
    best = std::min(best, {edit_distance(word, other), other},
                    [](const auto& a, const auto& b) { return a.first < b.first; });
  return best.second.empty() ? problem : fmt::format("{}; '{}' is one", problem, best.second);
}

/// Why a command line was not understood, for its user: the first word that nobody knows, and what was probably meant.
/// @param error  the parser's, for what is wrong otherwise
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
      std::vector<std::string> names;
      for (const CLI::App* one : commands) names.push_back(one->get_name());
      return with_nearest(fmt::format("{}no command '{}'", name, argument), argument, names);
    }
    command = *known;
    name += argument + ": ";
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)  // which lists them from behind
    return name + "more words than it takes: a text of several goes into quotes";
  return error.what();
}

}  // namespace

std::vector<CommandText> Command::describe() const {
  std::vector<CommandText> commands;
  collect(impl_->app, "", commands);
  return commands;
}

// ---- the program ----

CommandLine::CommandLine(const std::string& about, const std::string& name, const std::string& version)
    : Command(std::make_unique<Impl>(std::make_unique<CLI::App>(about, name))) {
  if (!version.empty()) impl_->app.set_version_flag("--version", version);
}

int CommandLine::run(int argc, const char* const* argv) {
  const auto wrong = [&](const std::string& why) {
    std::fprintf(stderr, "%s: %s; see --help\n", impl_->app.get_name().c_str(), why.c_str());
    return 2;
  };
  // What many type first: `help COMMAND` is `COMMAND --help`, and `version` is `--version`.
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words.front() == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  } else if (words == std::vector<std::string>{"version"}) {
    words.front() = "--version";
  }
  try {
    impl_->app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // as CLI11 wants it
  } catch (const ExitStatus& end) {
    return end.status;
  } catch (const UsageError& error) {
    return wrong(error.what());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return impl_->app.exit(error);  // --help, --version
    const bool unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                         dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
    const std::string why = unknown ? explain(impl_->app, words, error) : error.what();
    return wrong(why);
  }
  return 0;
}

// ---- the types of options ----

#define OUTRIDER_OPTION(...) template Option* Command::add_option(const std::string&, __VA_ARGS__&, const std::string&)
OUTRIDER_OPTION(int);
OUTRIDER_OPTION(unsigned);
OUTRIDER_OPTION(long);
OUTRIDER_OPTION(unsigned long);
OUTRIDER_OPTION(float);
OUTRIDER_OPTION(double);
OUTRIDER_OPTION(std::string);
OUTRIDER_OPTION(std::filesystem::path);
OUTRIDER_OPTION(std::optional<int>);
OUTRIDER_OPTION(std::optional<long>);
OUTRIDER_OPTION(std::optional<double>);
OUTRIDER_OPTION(std::vector<int>);
OUTRIDER_OPTION(std::vector<long>);
OUTRIDER_OPTION(std::vector<double>);
OUTRIDER_OPTION(std::vector<std::string>);
OUTRIDER_OPTION(std::vector<std::filesystem::path>);
#undef OUTRIDER_OPTION

}  // namespace outrider
