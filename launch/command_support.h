#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/complain.h"
#include "common/base/names.h"
#include "common/base/option.h"
#include "common/base/result.h"
#include "common/base/text.h"
#include "common/client/text_side.h"
#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/linear.h"
#include "common/compute/kernels/team.h"
#include "common/decoding/drafting/policies.h"
#include "common/decoding/grammar/grammar_text.h"
#include "common/decoding/sampling/params.h"
#include "common/model/checkpoint/pack.h"
#include "common/pair/pair_files.h"
#include "common/wire/transport/address.h"
#include "launch/answer_printer.h"
#include "launch/command_line.h"
#include "launch/local_cluster.h"
#include "launch/suitable_type.h"
#include "server/openai.h"

namespace outrider {

/// Returns the value, or throws the error as main()'s one-line message.
template <typename T>
T or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

/// Opens the model at a path.
inline ModelFiles open_model(const std::filesystem::path& path) { return or_throw(ModelFiles::open(path)); }

/// Loads a client's part of a model, and warns if its chat format was guessed.
inline TextSide load_text_side(const ModelFiles& files) {
  TextSide text = or_throw(TextSide::load(files));
  if (!text.chat_format.warning.empty()) complain("{}", text.chat_format.warning);
  return text;
}

/// Options of all commands with a model.
struct ModelFlags {
  std::filesystem::path model, backbone, assistant;  ///< no model: the nano pair
  std::string dtype;                                 ///< empty: suitable_type()
  bool no_assistant = false;
  bool whole = true;  ///< the whole backbone is loaded: the default type must fit the memory

  void add_to(Command& command) {
    const HelpGroup group(command, "Model");
    command.add_option(
        "-m,--model", model,
        "A model: a Hugging Face directory, a .gguf file or a pack, with NAME-assistant beside it if there is one; "
        "ORG/NAME[@REVISION][:GGUF] on the Hugging Face hub, which is downloaded once; or the directory of a pair: "
        "with pair.json, or with backbone/ and assistant/ (default: the nano pair)");
    command.add_option("--backbone", backbone,
                       "The target alone: a Hugging Face directory, a .gguf file, a pack, or a name on the hub");
    auto* given = command.add_option("--assistant", assistant, "The assistant alone, in the forms of --backbone");
    command.add_flag("--no-assistant", no_assistant, "Decode plainly, or with drafts looked up in the text")
        ->excludes(given);
    command.add_flag_callback("--offline", forbid_asking_hub,
                              "Never download: models by name must be in the cache (as HF_HUB_OFFLINE=1)");
    add_dtype(command, dtype);
  }
  /// @param dtype  the default; empty: suitable_type()
  static void add_dtype(Command& command, std::string& dtype) {
    command.add_option("--dtype", dtype, "Weights: " + names_of(kWeightTypes))
        ->check([](const std::string& name) {
          const auto type = parse_weight_type(name);
          return type ? std::string() : type.error().message;
        })
        ->default_str(dtype.empty() ? "a pack's own; else bf16, or what suits the file and the memory" : dtype);
  }
  PairPaths pair(PairNeed need = {}) const {
    need.assistant = need.assistant && assistant.empty() && !no_assistant;
    const bool alone = model.empty() && !backbone.empty();  // nano's assistant is for nano
    PairPaths paths = or_throw(alone ? model_pair(backbone, need) : pair_paths(model, need));
    if (!alone && !backbone.empty()) paths.backbone = or_throw(model_path(backbone, need.files));
    if (!assistant.empty() || no_assistant) paths.assistant = or_throw(model_path(assistant));
    return paths;
  }
  /// @param paths  from pair()
  static bool has_assistant(const PairPaths& paths) {
    std::error_code ignored;
    return !paths.assistant.empty() && std::filesystem::exists(paths.assistant, ignored);
  }
  /// @return true if our own cluster gets a drafter. If drafts are wanted and no assistant was given, logs once which
  /// assistant was found, or that there is none. @param paths  from pair()
  bool wants_drafter(const PairPaths& paths, bool drafts_wanted) const {
    if (!drafts_wanted) return false;
    if (!assistant.empty()) return true;
    const bool found = has_assistant(paths);
    if (!found && !no_assistant)
      complain("{} has no assistant beside it: decoding plainly; --assistant names one", shown_model(paths.backbone));
    if (found && paths.assistant == assistant_beside(paths.backbone))
      complain("drafting with {}", shown_model(paths.assistant));
    return found;
  }
  /// @param paths  from pair()
  WeightType weight_type(const PairPaths& paths) const {
    if (!dtype.empty()) return or_throw(parse_weight_type(dtype));
    if (!suitable_) suitable_ = or_throw(whole ? suitable_type(paths) : suitable_type(paths, std::nullopt));
    return suitable_->type;
  }
  /// The same, for weights that are loaded next. Logs an unexpected type.
  WeightType type_to_load(const PairPaths& paths) const {
    const WeightType type = weight_type(paths);
    if (suitable_ && !suitable_->why.empty())
      complain("{} as {}: {} (--dtype chooses another type)", shown_model(paths.backbone), to_string(type),
               suitable_->why);
    return type;
  }

 private:
  mutable std::optional<SuitableType> suitable_;  ///< computed once, since loading changes the free memory
};

/// Returns a model's name for clients without --served-model-name: the directory of the pair, or of the backbone;
/// ORG/NAME for a model in the hub's cache.
inline std::string served_name(const std::filesystem::path& backbone) {
  if (backbone.extension() == ".gguf") return backbone.stem().string();
  if (const auto name = HubName::of_path(backbone)) return name->repository;
  const std::filesystem::path path = std::filesystem::weakly_canonical(backbone);
  if (path.filename() == "backbone") return path.parent_path().filename().string();
  return path.filename().string();
}

/// @return true if the user named no model, and the program's demo model answers
inline bool is_demo(const ModelFlags& model) { return model.model.empty() && model.backbone.empty(); }

/// An answer's --max-tokens. Without it an answer continues to its end, like the HTTP server's chats.
struct MaxTokensFlag {
  std::optional<std::int64_t> given;

  void add_to(Command& command) {
    command
        .add_option("-n,--max-tokens", given,
                    "Maximum number of tokens of the answer (default: 8192, or the rest of the context)")
        ->check(CLI::Range(1, 1 << 20));
  }
  void set(Generate& request) const {
    request.max_tokens = given.value_or(kMaxChatTokens);
    request.shorten = !given;
  }
  /// Explains an answer's end to a person; empty: the model ended it.
  std::string cut_off(const Generation& generation) const {
    const std::size_t count = generation.tokens.size();
    if (generation.cancelled || generation.reason != FinishReason::kLength) return "";
    return fmt::format(
        "(cut off after {} tokens: {})", count,
        std::ssize(generation.tokens) == given.value_or(kMaxChatTokens) ? "--max-tokens" : "the context is full");
  }
};

/// Adds --plain to commands that show rounds at a terminal.
inline Option* add_plain(Command& command, bool& plain) {
  return command.add_flag(
      "--plain", plain,
      "Print plain text at a terminal too: accepted drafts are not green, and rejected drafts are not shown");
}

/// Raises the limit of file handles: a request has up to seven, and a server one per connection; many shells and
/// systemd allow 1,024 by default.
inline void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, 16384));
  setrlimit(RLIMIT_NOFILE, &limit);
}

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

/// @param text  "ID:BIAS"
inline LogitBias parse_logit_bias(const std::string& text) {
  const std::size_t colon = text.find(':');
  try {
    std::size_t id_end = 0, bias_end = 0;
    const int id = std::stoi(text.substr(0, colon), &id_end);
    const std::string bias = colon == text.npos ? "" : text.substr(colon + 1);
    const float value = std::stof(bias, &bias_end);
    if (id_end == colon && bias_end == bias.size()) return {id, value};
  } catch (const std::exception&) {  // not numbers: reported below
  }
  throw CommandError("--logit-bias: '{}', wanted ID:BIAS like 2633:-5", text);
}

/// Sampling options. The default is greedy; above temperature 0 the rule is `match`.
struct SamplingFlags {
  SamplingParams params;  ///< as given; see of()
  std::vector<std::string> logit_bias;
  std::filesystem::path json_schema, grammar;
  bool sample = false, rejection = false, typical = false;
  std::map<std::string, Option*> options;  ///< of the numbers, by the parameter's name
  std::vector<Option*> of_draws;           ///< without effect at temperature 0

  void add_to(Command& command) {
    const HelpGroup group(command, "Sampling");
    of_draws = {command.add_flag("--sample", sample,
                                 "Sample with Gemma 4's recommended settings: --temperature 1 --top-k 64 --top-p 0.95, "
                                 "each of which may be overridden")};
    AddOptions add{command, *this};
    SamplingParams::fields(add, params);
    of_draws.push_back(
        options["seed"] = command.add_option(
            "-s,--seed", params.seed,
            "Seed of sampling: the same seed gives the same text, whatever the draft length (default: random)"));
    auto* by_rejection = command.add_flag(
        "--rejection", rejection,
        "Accept drafts by rejection sampling: the same distribution, but the text depends on the drafts");
    auto* by_typicality =
        command.add_flag("--typical", typical,
                         "Accept drafts by typical acceptance (Medusa): lossy, the text follows another distribution");
    by_typicality->excludes(by_rejection);
    of_draws.insert(of_draws.end(), {by_rejection, by_typicality});
    command
        .add_option("--logit-bias", logit_bias,
                    "ID:BIAS,...: values from -100 to 100 added to the logits of these token ids")
        ->delimiter(',');
    auto* schema =
        command.add_option("--json-schema", json_schema, "Constrain the answer to the JSON schema in this file");
    command.add_option("--grammar", grammar, "Constrain the answer to the grammar in this file (GBNF)")
        ->excludes(schema);
  }

  /// @return the parameters for this model, with a seed if one is needed
  SamplingParams of(const TextSide& text) const {
    SamplingParams result = params;
    const auto unless_given = [&](const char* name, auto& value, auto advised) {
      if (sample && options.at(name)->count() == 0) value = advised;
    };
    unless_given("temperature", result.temperature, 1.0f);
    unless_given("top_k", result.top_k, 64);
    unless_given("top_p", result.top_p, 0.95f);
    if (result.greedy() &&
        std::any_of(of_draws.begin(), of_draws.end(), [](const Option* option) { return option->count() > 0; })) {
      std::vector<std::string> names;
      for (const Option* option : of_draws) names.push_back(option->get_name());
      throw CommandError("{} need a --temperature above 0; --sample sets 1", fmt::join(names, ", "));
    }
    if (!result.greedy() && options.at("seed")->count() == 0) result.seed = std::random_device()();
    if (rejection) result.rule = SamplingRule::kRejection;
    if (typical) {
      result.rule = SamplingRule::kTypical;
      complain("--typical is lossy: the text does not follow the model's distribution");
    }
    for (const std::string& entry : logit_bias) result.logit_bias.push_back(parse_logit_bias(entry));
    if (!json_schema.empty()) result.grammar = or_throw(grammar_of_schema_file(json_schema));
    if (!grammar.empty()) result.grammar = or_throw(grammar_of_file(grammar));
    result.suppress_tokens = text.generation.suppress_tokens;
    or_throw(check_sampling(result, std::numeric_limits<std::int32_t>::max()));
    return result;
  }

 private:
  struct AddOptions {
    Command& command;
    SamplingFlags& flags;

    template <typename T, typename Wire>
    void operator()(const char* name, T& value, Offered<Wire> offer, auto&&...) {
      std::string option = std::string("--") + name;
      std::replace(option.begin(), option.end(), '_', '-');
      if (offer.option != nullptr) option += std::string(",") + offer.option;
      flags.options[name] = command.add_option(option, value, offer.help);
      if (offer.of_draws) flags.of_draws.push_back(flags.options[name]);
    }
    void operator()(auto&&...) {}
  };
};

/// A check for Option::check. @return the reason that this is not a draft length, if it is not
inline std::string check_draft_length(const std::string& text) {
  const auto length = parse_draft_length(text);
  return length ? std::string() : length.error().message;
}

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
inline void add_security_options(Command& command, Security& security, bool listens) {
  for (const char* name : {"--listen", "--join", "--connect", "--drafts-for"}) {
    if (Option* const option = command.get_option_no_throw(name))
      option->check([](const std::string& address) {
        return address.starts_with("inproc://")
                   ? fmt::format("{} is an address within one process, wanted {}", address, kAddressForm)
                   : std::string();
      });
  }
  add_node_options(command, security, named({"--key", listens ? "--authorized" : "--coordinator-key", "--insecure"}));
}

/// The option for the length of drafts.
struct DraftLengthFlag {
  std::string text = "auto";
  bool no_governor = false;

  void add_to(Command& command) {
    const HelpGroup group(command, "Drafts");
    command.add_flag("--no-governor", no_governor,
                     "With a numeric --draft-length, draft in every round, even while drafts cost time");
    command
        .add_option("--draft-length", text,
                    "Drafts per round: auto (chosen in every round), 0 (plain decoding) to 32, or tree:1 to tree:32 (a "
                    "token tree of at most so many drafts). auto or a number may end in @0 to @8: outcomes of a round "
                    "for which drafts are made ahead (default: as many as pay). A number or a tree may end in +ngram, "
                    "+table or +ngram+table: as many more drafts are looked up in the text and in --draft-table")
        ->check(check_draft_length)
        ->capture_default_str();
  }
  /// Already validated.
  DraftLength value() const { return or_throw(parse_draft_length(text)); }
};

/// The coordinator of a command: elsewhere, or in the command's own cluster.
struct ClusterFlags {
  std::string connect;     ///< empty: its own
  Security security;       ///< for `connect`
  ClusterOptions cluster;  ///< its own
  std::vector<std::string> chosen_there = {"--assistant", "--no-assistant", "--dtype",
                                           "--processes"};  ///< options that mean nothing for a coordinator elsewhere

  /// @param command  already has ModelFlags
  void add_to(Command& command) {
    const HelpGroup group(command, "Cluster");
    auto* elsewhere = command.add_option(
        "--connect", connect,
        "Use the coordinator at tcp://HOST:PORT; of several separated by commas, the first that answers");
    add_security_options(command, security, /*listens=*/false);
    add_number(command, "--failover-wait", cluster.coordinator.failover_wait_s, 0, 86'400,
               "Seconds that an answer waits for a coordinator after its own is lost");
    for (const char* option : {"--key", "--coordinator-key", "--insecure", "--failover-wait"})
      command.get_option(option)->needs(elsewhere);
    const auto of_cluster = [&](const char* name, const OptionInfo& info) {
      // An option that every worker has is declared once, for both.
      const bool is_new = info.of_cluster && command.get_option_no_throw(name) == nullptr;
      if (is_new) chosen_there.push_back(name);
      return is_new;
    };
    add_node_options(command, cluster.verifier, of_cluster);
    add_node_options(command, cluster.drafter, of_cluster);
    add_node_options(command, cluster.coordinator, of_cluster);
    command.add_flag("--processes", cluster.processes,
                     "Start coordinator, verifier and drafter as separate processes, connected over TCP");
    for (const std::string& option : chosen_there) elsewhere->excludes(command.get_option(option));
  }
  /// For model.pair(): with a coordinator elsewhere this side needs no weights.
  PairNeed need() const { return connect.empty() ? PairNeed{} : PairNeed{.assistant = false, .files = HubNeed::kText}; }
  /// @return true if drafts are possible for requests that want them
  bool can_draft(const PairPaths& pair) const {
    return !cluster.drafter.draft_model.empty() || ModelFlags::has_assistant(pair);
  }
  /// Returns the options of the command's own cluster. @param pair  from model.pair(need())
  ClusterOptions options(const ModelFlags& model, const PairPaths& pair, bool drafts_wanted) const {
    ClusterOptions options = cluster;
    options.pair = pair;
    options.drafter.worker.verify_weights = options.verifier.worker.verify_weights;
    if (!connect.empty()) {
      options.drafters = 0;
      return options;
    }
    options.load_as(model.type_to_load(pair), /*chosen=*/!model.dtype.empty());
    const bool assistant = options.drafter.draft_model.empty();
    options.drafters = assistant ? model.wants_drafter(pair, drafts_wanted) : drafts_wanted;
    return options;
  }
};

/// @return the line about the answering model: "nano (a demo model), bf16, avx2, 2 threads, drafts: auto"
/// @param pair  from model.pair()
/// @param options  from cluster.options(), before the start
inline std::string answering_text(const ModelFlags& model, const PairPaths& pair, const ClusterFlags& cluster,
                                  const ClusterOptions& options, const DraftLengthFlag& drafts) {
  const std::string name = served_name(pair.backbone) + (is_demo(model) ? " (a demo model)" : "");
  if (!cluster.connect.empty()) return fmt::format("{} at {}, drafts: {}", name, cluster.connect, drafts.text);
  const int threads = options.verifier.threads > 0 ? options.verifier.threads : team_size();
  return fmt::format("{}, {}, {}, {}, drafts: {}", name, to_string(options.weight_type), to_string(active_isa()),
                     counted(threads, "thread"), options.drafters > 0 ? drafts.text : "none");
}

/// Prints a remark to a person at a terminal: dimmed, unless NO_COLOR forbids that.
inline void print_remark(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, colours_allowed() ? "\033[2m%s\033[0m\n" : "%s\n", text.c_str());
}

}  // namespace outrider
