#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/base/option.h"
#include "common/wire/transport/address.h"
#include "launch/answer_flags.h"
#include "launch/local_cluster.h"
#include "launch/model_flags.h"

namespace outrider {

/// Adds the options that a node declares.
/// @param wanted  called with an option's name and info: returns true if this command has it
template <class Options, class Wanted>
void add_node_options(Command& command, Options& options, Wanted wanted) {
  const auto add = [&]<typename T>(const char* name, T& value, const OptionInfo& info) {
    if (!wanted(name, info)) return;
    const auto [min, max] = info.range;
    if constexpr (std::is_same_v<T, bool>)
      command.add_flag(name, value, info.help);
    else if constexpr (std::is_integral_v<T>) {
      const auto low = static_cast<T>(min), high = static_cast<T>(max);
      if (info.word_for_0 == nullptr) {
        add_number(command, std::string_view(name) == "--threads" ? "-t,--threads" : name, value, low, high, info.help);
      } else {
        const auto read = [word = info.word_for_0, range = CLI::Range(low, high)](std::string& text) {
          if (text != word) return range(text);
          text = "0";
          return std::string();
        };
        command.add_option(name, value, info.help)
            ->transform(CLI::Validator(read, ""))
            ->type_name(fmt::format("INT|{}", info.word_for_0))
            ->capture_default_str();
      }
    } else if constexpr (std::is_same_v<T, double>)
      add_number(command, name, value, min, max, info.help);
    else if constexpr (std::is_same_v<T, std::vector<double>>)
      command.add_option(name, value, info.help)->delimiter(',')->check(CLI::Range(min, max));
    else if constexpr (std::is_same_v<T, std::vector<std::string>>)
      command.add_option(name, value, info.help)->delimiter(',');
    else
      command.add_option(name, value, info.help);
  };
  declare_options(add, options);
}

/// @return a `wanted` that accepts these names
inline auto named(std::vector<std::string_view> names) {
  return
      [names = std::move(names)](const char* name, const OptionInfo&) { return std::ranges::count(names, name) > 0; };
}

/// Adds the key options of a process that listens, or that connects. The command's address options are there already:
/// an address within one process, which no other process can reach, is refused.
void add_security_options(Command& command, Security& security, bool listens);

/// The coordinator of a command: elsewhere, or in the command's own cluster.
struct ClusterFlags {
  std::string connect;     ///< empty: its own
  Security security;       ///< for `connect`
  ClusterOptions cluster;  ///< its own
  std::vector<std::string> chosen_there = {"--assistant", "--no-assistant", "--dtype",
                                           "--processes"};  ///< options that mean nothing for a coordinator elsewhere

  /// @param command  already has ModelFlags
  void add_to(Command& command);
  /// For model.pair(): with a coordinator elsewhere this side needs no weights.
  PairNeed need() const { return connect.empty() ? PairNeed{} : PairNeed{.assistant = false, .files = HubNeed::kText}; }
  /// @return true if drafts are possible for requests that want them
  bool can_draft(const PairPaths& pair) const {
    return !cluster.drafter.draft_model.empty() || ModelFlags::has_assistant(pair);
  }
  /// Returns the options of the command's own cluster. @param pair  from model.pair(need())
  ClusterOptions options(const ModelFlags& model, const PairPaths& pair, bool drafts_wanted) const;
};

/// @return the line about the answering model: "nano (a demo model), bf16, avx2, 2 threads, drafts: auto"
/// @param pair  from model.pair()
/// @param options  from cluster.options(), before the start
std::string answering_text(const ModelFlags& model, const PairPaths& pair, const ClusterFlags& cluster,
                           const ClusterOptions& options, const DraftLengthFlag& drafts);

/// Raises the limit of file handles: a request has up to seven, and a server one per connection; many shells and
/// systemd allow 1,024 by default.
void raise_file_limit();

}  // namespace outrider
