#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "common/base/text.h"
#include "launch/command_line.h"

namespace outrider {

std::string_view manual_roff();  ///< the sections of the manual page after those of the commands

namespace {

/// Quotes text with single quotes, for bash and zsh.
std::string shell_quoted(const std::string& text) { return "'" + replaced(text, "'", R"('\'')") + "'"; }

/// Quotes text for fish, where a backslash is special between quotes too.
std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

/// Joins every place except the program itself: 'outrider run'|'outrider bench'|...
std::string places(const std::vector<CommandText>& commands, const char* separator) {
  std::string result;
  for (const CommandText& command : commands) {
    if (&command != &commands.front()) result += (result.empty() ? "" : separator) + shell_quoted(command.place);
  }
  return result;
}

/// Returns the possible words at a command's place, with help: subcommands and values of a positional argument.
std::vector<std::pair<std::string, std::string>> words_of(const CommandText& command) {
  std::vector<std::pair<std::string, std::string>> words = command.subcommands;
  for (const ArgumentText& positional : command.positionals) {
    for (const std::string& choice : positional.choices) words.emplace_back(choice, positional.help);
  }
  return words;
}

/// Returns the names of its options, with help.
std::vector<std::pair<std::string, std::string>> options_of(const CommandText& command) {
  std::vector<std::pair<std::string, std::string>> options;
  for (const ArgumentText& option : command.options) {
    for (const std::string& name : option.names) options.emplace_back(name, option.help);
  }
  return options;
}

/// Returns name|name: a command's options with a value; "-" if there are none.
std::string with_value(const CommandText& command) {
  std::string result;
  for (const ArgumentText& option : command.options) {
    if (option.value.empty()) continue;
    for (const std::string& name : option.names) result += (result.empty() ? "" : "|") + name;
  }
  return result.empty() ? "-" : result;
}

/// Prints the lines by which bash and zsh find the command at the cursor.
/// @param before  the words before the cursor, as a shell expansion
void print_place(const std::vector<CommandText>& commands, const char* before) {
  std::printf("  local word place=outrider\n  for word in %s; do\n    case \"$place $word\" in\n", before);
  std::printf("      %s) place=\"$place $word\" ;;\n    esac\n  done\n  case $place in\n",
              places(commands, "|").c_str());
}

/// Prints each place's words for the shells.
/// @param if_value  shell code for a place with a value
/// @param list  prints the variable with these words and their help
void print_cases(const std::vector<CommandText>& commands, const char* if_value, const char* words, const auto& list) {
  for (const CommandText& command : commands) {
    std::printf("    %s)\n      case $previous in %s) %s ;; esac", shell_quoted(command.place).c_str(),
                with_value(command).c_str(), if_value);
    list(words, words_of(command));
    list("options", options_of(command));
    std::printf(" ;;\n");
  }
}

void print_bash(const std::vector<CommandText>& commands) {
  std::printf("# bash completion of outrider, made by `outrider completion bash`\n_outrider() {\n");
  std::printf("  local words= options= current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n");
  std::printf("  COMPREPLY=()\n");
  print_place(commands, R"("${COMP_WORDS[@]:1:COMP_CWORD - 1}")");
  print_cases(commands, "return", "words", [](const char* name, const auto& entries) {
    std::printf("\n      %s='", name);
    for (const auto& [word, help] : entries) std::printf("%s ", word.c_str());
    std::printf("'");
  });
  // A value or a path has no words here, and is completed as a file name.
  std::printf("  esac\n  if [[ $current == -* ]]; then words=$options; fi\n");
  std::printf("  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n}\n");
  std::printf("complete -o default -F _outrider outrider\n");
}

void print_zsh(const std::vector<CommandText>& commands) {
  std::printf("#compdef outrider\n# zsh completion of outrider, made by `outrider completion zsh`\n_outrider() {\n");
  std::printf("  local -a known options\n  local previous=${words[CURRENT-1]}\n");
  print_place(commands, "${words[2,CURRENT-1]}");
  print_cases(commands, "_files; return", "known", [](const char* name, const auto& entries) {
    std::printf("\n      %s=(\n", name);
    for (const auto& [word, help] : entries) std::printf("        %s\n", shell_quoted(word + ":" + help).c_str());
    std::printf("      )");
  });
  std::printf("  esac\n  if [[ ${words[CURRENT]} == -* ]]; then _describe -o option options; return; fi\n");
  std::printf("  _describe argument known || _files\n}\n");
  // Loaded from a folder of functions, the file is called; sourced, it registers itself.
  std::printf("if [[ $funcstack[1] == _outrider ]]; then _outrider \"$@\"; else compdef _outrider outrider; fi\n");
}

void print_fish(const std::vector<CommandText>& commands) {
  std::printf("# fish completion of outrider, made by `outrider completion fish`\nfunction __outrider_at\n");
  std::printf("    set -l place outrider\n    for word in (commandline -opc)[2..]\n");
  std::printf("        switch \"$place $word\"\n            case %s\n", places(commands, " ").c_str());
  std::printf("                set place \"$place $word\"\n        end\n    end\n    test $place = $argv[1]\nend\n");
  for (const CommandText& command : commands) {
    const std::string at = fmt::format("complete -c outrider -n \"__outrider_at '{}'\"", command.place);
    for (const auto& [word, help] : command.subcommands)
      std::printf("%s -f -a %s -d %s\n", at.c_str(), word.c_str(), fish_quoted(help).c_str());
    for (const ArgumentText& positional : command.positionals) {
      for (const std::string& choice : positional.choices) std::printf("%s -f -a %s\n", at.c_str(), choice.c_str());
    }
    for (const ArgumentText& option : command.options) {
      std::string names;
      for (const std::string& name : option.names)
        names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      std::printf("%s%s%s -d %s\n", at.c_str(), names.c_str(), option.value.empty() ? "" : " -r",
                  fish_quoted(option.help).c_str());
    }
  }
}

/// Escapes text for roff: a leading dot or quote, and dashes.
std::string roff(const std::string& text) {
  return "\\&" + replaced(replaced(replaced(text, "\\", "\\e"), "-", "\\-"), "\n", " ");
}

/// Prints a command's arguments, with help.
void print_arguments(const CommandText& command, bool with_help) {
  for (const std::vector<ArgumentText>* arguments : {&command.positionals, &command.options}) {
    for (const ArgumentText& argument : *arguments) {
      const std::string names = fmt::format("{}", fmt::join(argument.names, ", "));
      if (names == "-h, --help" && !with_help) continue;
      std::printf(".TP\n\\fB%s\\fR \\fI%s\\fR\n%s\n", roff(names).c_str(), argument.value.c_str(),
                  roff(argument.help).c_str());
    }
  }
}

void print_man(const std::vector<CommandText>& commands) {
  const CommandText& program = commands.front();
  std::printf(".\\\" Made by `outrider completion man`.\n.TH OUTRIDER 1 \"\" \"outrider %s\"\n", OUTRIDER_VERSION);
  std::printf(".SH NAME\noutrider \\- distributed two\\-tier speculative decoding for Gemma 4\n");
  std::printf(".SH SYNOPSIS\n.B outrider\n.I COMMAND\n[options]\n.SH DESCRIPTION\n%s.\n", roff(program.help).c_str());
  std::printf("Each command prints its options with\n.BR \\-\\-help ;\nits section below has them too.\n");
  for (const auto& [word, help] : program.subcommands)
    std::printf(".TP\n.B %s\n%s\n", roff(word).c_str(), roff(help).c_str());
  std::printf(".SH OPTIONS\n");
  print_arguments(program, /*with_help=*/true);
  std::printf(".SH COMMANDS\n");
  for (const CommandText& command : commands) {
    if (&command == &program) continue;
    std::printf(".SS %s [options]%s\n%s.\n", command.place.c_str(), command.synopsis.c_str(),
                roff(command.help).c_str());
    print_arguments(command, /*with_help=*/false);
  }
  std::printf("%s", std::string(manual_roff()).c_str());
}

}  // namespace

void add_completion_command(Command& app) {
  Command* command = app.add_subcommand("completion", "Print a shell completion script or the manual page");
  auto form = std::make_shared<std::string>();
  command->add_option("FORM", *form, "bash, zsh or fish: a completion script; man: the page outrider(1)")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish", "man"}));
  command->callback([&app, form] {
    const std::vector<CommandText> commands = describe(app);
    if (*form == "bash") print_bash(commands);
    if (*form == "zsh") print_zsh(commands);
    if (*form == "fish") print_fish(commands);
    if (*form == "man") print_man(commands);
  });
}

}  // namespace outrider
