#include "launch/answer_flags.h"

#include <algorithm>
#include <limits>
#include <random>

#include <fmt/ranges.h>

#include "common/base/complain.h"
#include "common/base/option.h"
#include "common/decoding/grammar/grammar_text.h"
#include "server/openai.h"

namespace outrider {

void MaxTokensFlag::add_to(Command& command) {
  command
      .add_option("-n,--max-tokens", given,
                  "Maximum number of tokens of the answer (default: 8192, or the rest of the context)")
      ->check(CLI::Range(1, 1 << 20));
}

void MaxTokensFlag::set(Generate& request) const {
  request.max_tokens = given.value_or(kMaxChatTokens);
  request.shorten = !given;
}

std::string MaxTokensFlag::cut_off(const Generation& generation) const {
  const std::size_t count = generation.tokens.size();
  if (generation.cancelled || generation.reason != FinishReason::kLength) return "";
  return fmt::format(
      "(cut off after {} tokens: {})", count,
      std::ssize(generation.tokens) == given.value_or(kMaxChatTokens) ? "--max-tokens" : "the context is full");
}

Option* add_plain(Command& command, bool& plain) {
  return command.add_flag(
      "--plain", plain,
      "Print plain text at a terminal too: accepted drafts are not green, and rejected drafts are not shown");
}

/// @param text  "ID:BIAS"
static LogitBias parse_logit_bias(const std::string& text) {
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

namespace {

/// Adds an option for each number among the parameters.
struct AddParameters {
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

}  // namespace

void SamplingFlags::add_to(Command& command) {
  const HelpGroup group(command, "Sampling");
  of_draws = {command.add_flag("--sample", sample,
                               "Sample with Gemma 4's recommended settings: --temperature 1 --top-k 64 --top-p 0.95, "
                               "each of which may be overridden")};
  AddParameters add{command, *this};
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

SamplingParams SamplingFlags::of(const TextSide& text) const {
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

std::string check_draft_length(const std::string& text) {
  const auto length = parse_draft_length(text);
  return length ? std::string() : length.error().message;
}

void DraftLengthFlag::add_to(Command& command) {
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

}  // namespace outrider
