#include <unistd.h>
#include <algorithm>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/client/client.h"
#include "common/client/report.h"
#include "common/compute/kernels/isa.h"
#include "common/media/media_prompt.h"
#include "common/model/tokenizer/answer_reader.h"
#include "common/model/tokenizer/chat.h"
#include "common/model/tokenizer/stop_matcher.h"
#include "common/os/logging.h"
#include "launch/answer_flags.h"
#include "launch/answer_printer.h"
#include "launch/cluster_flags.h"
#include "launch/interrupt.h"
#include "launch/local_cluster.h"
#include "launch/model_flags.h"

namespace outrider {
namespace {

struct PromptFlags {
  std::string text, ids;
  std::vector<std::filesystem::path> images, videos, sounds;
  std::optional<std::int64_t> soft_tokens;
  bool raw = false;

  bool has_media() const { return !images.empty() || !videos.empty() || !sounds.empty(); }
};

struct RunFlags {
  ModelFlags model;
  SamplingFlags sampling;
  ClusterFlags cluster;
  PromptFlags prompt;
  std::vector<std::string> stops;
  std::optional<std::int32_t> logprobs;
  DraftLengthFlag draft_length;
  MaxTokensFlag max_tokens;
  ReportFlags report;
  bool compare = false, quiet = false, plain = false;

  /// Returns true if a person at a terminal gets more messages.
  bool for_person() const { return !quiet && !report.json && isatty(STDERR_FILENO) != 0; }
  /// Returns true if all figures are shown, which --compare requests.
  bool shows_figures() const { return compare && !quiet && !report.json; }
  bool shows_rounds() const { return !plain && !quiet && !report.json && terminal_shows_rounds(); }
};

std::vector<TokenId> parse_ids(const std::string& text) {
  std::vector<TokenId> ids;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    std::size_t used = 0;
    long long id = -1;
    try {
      id = std::stoll(part, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used == 0 || used != part.size() || id < 0 || id > std::numeric_limits<TokenId>::max())
      throw CommandError("--prompt-ids: '{}', wanted token ids like 2,105,2633", part);
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

/// Reads all of the standard input, without the end of its last line.
std::string read_standard_input() {
  std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string prompt_text(const PromptFlags& flags) {
  std::string text = flags.text == "-" ? read_standard_input() : flags.text;
  if (text.find_first_not_of(" \t\r\n") == text.npos) throw CommandError("run: the prompt is empty");
  return text;
}

/// Adds the pictures, videos, sounds and then the prompt, as one user message.
void ask_about_media(const PromptFlags& flags, const TextSide& text, Generate& request) {
  ChatMessage message;
  std::size_t left = flags.images.size() + flags.videos.size() + flags.sounds.size();  // files: a medium or more each
  // Called before each file is read, so that no file is decoded in vain.
  const auto admit = [&] {
    const std::size_t count = request.media.size() + left;
    if (count > kMediaMax)
      throw CommandError("run: {} pictures, frames of videos and sounds, wanted at most {}", count, kMediaMax);
    if (left > 0) --left;
  };
  using Kind = ContentPart::Kind;
  for (const auto& [kind, files] :
       {std::pair(Kind::kImage, &flags.images), {Kind::kVideo, &flags.videos}, {Kind::kAudio, &flags.sounds}}) {
    for (const std::filesystem::path& file : *files) {
      admit();
      LoadedMedia loaded = or_throw(load_medium_file(file, kind, text.vision, text.audio, flags.soft_tokens));
      std::ranges::move(loaded.frames, std::back_inserter(request.media));
      message.parts.push_back(std::move(loaded.part));
    }
  }
  admit();
  message.parts.push_back({.text = prompt_text(flags)});
  const std::vector<TokenId> rendered =
      or_throw(render_chat(text.tokenizer, text.chat_format, Conversation{.messages = {message}, .tools = {}}));
  request.prompt = or_throw(place_media(rendered, text.vision, text.audio, request.media));
}

std::vector<TokenId> encode_prompt(const PromptFlags& flags, const TextSide& text) {
  if (!flags.ids.empty()) return parse_ids(flags.ids);
  const std::string prompt = prompt_text(flags);
  if (!flags.raw) return or_throw(render_user_turn(text.tokenizer, prompt, text.chat_format));
  return encode_with_bos(text.tokenizer, prompt);
}

/// Writes the sampling parameters as JSON.
struct SamplingJson {
  nlohmann::json object;
  bool greedy;

  template <typename T, typename Wire>
  void operator()(const char* name, const T& value, Offered<Wire> offer, std::type_identity_t<T> absent = {}) {
    if (offer.of_draws ? greedy : value == absent) return;
    // 0.7 and not 0.699999988: the shortest equal decimal.
    if constexpr (std::is_floating_point_v<T>)
      object[name] = std::stod(fmt::format("{}", value));
    else
      object[name] = value;
  }
  void operator()(auto&&...) {}
};

nlohmann::json sampling_json(const SamplingParams& sampling) {
  SamplingJson json{{{"rule", sampling.greedy() ? "greedy" : to_string(sampling.rule)}, {"temperature", 0.0}},
                    sampling.greedy()};
  SamplingParams::fields(json, sampling);
  if (!sampling.greedy()) json.object["seed"] = sampling.seed;
  return json.object;
}

nlohmann::json logprobs_json(const Tokenizer& tokenizer, const Generation& generation) {
  const auto entry = [&](TokenId token, float logprob) {
    return nlohmann::json{
        {"id", token}, {"token", tokenizer.decode({&token, 1}, /*skip_special=*/false)}, {"logprob", logprob}};
  };
  nlohmann::json array = nlohmann::json::array();
  for (std::size_t i = 0; i < generation.tokens.size(); ++i) {
    const TokenLogprobs& logprobs = generation.logprobs[i];
    nlohmann::json object = entry(generation.tokens[i], logprobs.logprob);
    object["top_logprobs"] = nlohmann::json::array();
    for (const Logprob& other : logprobs.top) object["top_logprobs"].push_back(entry(other.token, other.logprob));
    array.push_back(std::move(object));
  }
  return array;
}

Generate request_of(const RunFlags& flags, const TextSide& side) {
  const DraftLength draft_length = flags.draft_length.value();
  Generate request{.prompt = {},
                   .stop_ids = side.stop_ids(),
                   .wait_ms = kVerifierWaitMs,
                   .sampling = flags.sampling.of(side),
                   .report_rounds = flags.compare || flags.for_person() || flags.shows_rounds(),
                   .tokenizer_fingerprint = side.tokenizer_fingerprint,
                   .governed = !flags.draft_length.no_governor};
  flags.max_tokens.set(request);
  set_drafts(request, draft_length);
  request.sampling.logprobs = flags.logprobs;
  if (flags.prompt.has_media())
    ask_about_media(flags.prompt, side, request);
  else
    request.prompt = encode_prompt(flags.prompt, side);
  return request;
}

/// @return the same request for plain decoding
Generate without_drafts(Generate request) {
  set_drafts(request, {});
  return request;
}

struct Answer {
  std::string text;
  Generation generation;
  std::vector<RoundOutcome> rounds;        ///< of `generation`, where they are reported
  std::optional<bool> drafter_there = {};  ///< see why_left_out()
  std::optional<Generation> plain;         ///< of --compare
  bool plain_first = false;

  double speedup() const {
    const double alone = tokens_per_second(*plain);
    return alone > 0 ? tokens_per_second(generation) / alone : 0;
  }
};

/// @return true if the answer does not depend on drafts
bool has_one_text(const Generate& request) { return request.sampling.rule == SamplingRule::kMatch; }

/// @return why most rounds had no drafts; empty if that needs no explanation
std::string reason_of_few_drafts(const RunFlags& flags, const Generate& request, const Answer& answer) {
  if (request.draft_length == 0) return "";
  return why_left_out(answer.rounds, flags.cluster.connect.empty() ? to_string(active_isa()) : "",
                      answer.drafter_there);
}

/// @return none where it is unknown: a drafter of another's cluster may be busy with other answers
std::optional<bool> is_drafter_there(const RunFlags& flags, Client& client) {
  const Result<Status> status = client.status();
  if (!status || (status->drafters > 0 && !flags.cluster.connect.empty())) return std::nullopt;
  return status->drafters > 0;
}

nlohmann::json answer_json(const RunFlags& flags, const TextSide& side, const Generate& request, const Answer& answer) {
  const Generation& generation = answer.generation;
  nlohmann::json metrics = metrics_json(generation);
  metrics["backbone_only_tok_per_sec"] =
      answer.plain ? nlohmann::json(tokens_per_second(*answer.plain)) : nlohmann::json();
  if (answer.plain) {
    const std::string why = reason_of_few_drafts(flags, request, answer);
    metrics["speedup"] = answer.speedup();
    metrics["texts_equal"] = has_one_text(request) ? nlohmann::json(true) : nlohmann::json();
    metrics["drafts_left_out"] = why.empty() ? nlohmann::json() : nlohmann::json(why);
  }
  nlohmann::json object = {{"prompt_ids", request.prompt},
                           {"token_ids", generation.tokens},
                           {"text", answer.text},
                           {"finish_reason", generation.reason == FinishReason::kStop ? "stop" : "length"},
                           {"sampling", sampling_json(request.sampling)},
                           {"metrics", std::move(metrics)}};
  if (request.sampling.rule == SamplingRule::kTypical) object["lossy"] = true;
  if (flags.logprobs) object["logprobs"] = logprobs_json(side.tokenizer, generation);
  return object;
}

/// Prints a summary of an answer for a person at a terminal: a line, and the reason for few drafts if needed.
void print_summary(const RunFlags& flags, const Generate& request, const Answer& answer) {
  std::string text = summary_text(answer.generation, std::nullopt);
  if (!request.sampling.greedy()) text += fmt::format(", seed {}", request.sampling.seed);
  if (const std::string why = reason_of_few_drafts(flags, request, answer); !why.empty()) text += "\n" + why;
  print_remark("\n" + text);
}

/// Prints the figures of --compare.
void print_figures(const RunFlags& flags, const Generate& request, const Answer& answer) {
  std::string text;
  if (!request.sampling.greedy()) text += fmt::format("seed {}\n", request.sampling.seed);
  text += metrics_text(answer.generation, tokens_per_second(*answer.plain));
  text +=
      fmt::format("{:<22}{} (decoded {} drafts first)\n", "texts equal",
                  has_one_text(request) ? "yes" : "not required by this rule", answer.plain_first ? "without" : "with");
  if (const std::string why = reason_of_few_drafts(flags, request, answer); !why.empty()) text += why + "\n";
  std::fprintf(stderr, "\n%s", text.c_str());
}

/// Decodes for `run`, and prints one answer as it arrives.
class Decoding {
 public:
  Decoding(const RunFlags& flags, const TextSide& side, Client& client, StopMatcher stops)
      : flags_(flags),
        side_(side),
        client_(client),
        stops_(std::move(stops)),
        printer_(side.tokenizer, {.for_person = false, .rounds = flags.shows_rounds()}) {}

  /// @param shown  true for the answer that is printed, and kept as answer.text
  Generation decode(const Generate& wanted, bool shown, Answer& answer, std::vector<RoundOutcome>* rounds = nullptr) {
    AnswerReader reader(side_.tokenizer, stops_, /*chat_prompt=*/{}, [&](const ChatEvent& piece) {
      if (!shown) return;
      answer.text += piece.text;
      if (!flags_.report.json) printer_.print(piece);
    });
    std::int64_t count = 0;
    const auto on_tokens = [&](std::span<const TokenId> tokens) {
      for (const TokenId token : tokens) {
        ++count;
        if (shown) printer_.on_token();
        if (reader.push(token)) return client_.end_answer(count);
      }
    };
    Generation generation = or_throw(client_.generate(
        wanted, on_tokens, [&] { return interrupt_.requested(); },
        [&](const RoundReport& round) {
          if (rounds != nullptr) rounds->push_back(round.outcome);
          if (shown) printer_.on_round(round);
        }));
    reader.finish(/*length_reached=*/false);
    if (!generation.cancelled) return generation;
    if (!flags_.report.json) std::printf("\n");
    throw ExitStatus(128 + SIGINT);
  }

  Answer answer(const Generate& request) {
    Answer answer;
    if (!flags_.compare) {
      answer.generation = decode(request, /*shown=*/true, answer, &answer.rounds);
      return answer;
    }
    const Generate alone = without_drafts(request);
    Generate warm_up = alone;  // so that neither run pays for first use
    warm_up.max_tokens = std::min<std::int64_t>(warm_up.max_tokens, kWarmUp);
    warm_up.sampling.min_tokens = std::min(warm_up.sampling.min_tokens, warm_up.max_tokens);
    decode(warm_up, /*shown=*/false, answer);
    // A machine whose speed drifts favours the first or the second run: chance decides which comes first.
    answer.plain_first = std::random_device()() % 2 == 0;
    // The first answer is printed, for the shorter wait. But plain decoding has no rounds to show.
    const bool plain_shown = answer.plain_first && has_one_text(request) && !flags_.shows_rounds();
    const auto plainly = [&] { answer.plain = decode(alone, plain_shown, answer); };
    if (answer.plain_first) plainly();
    answer.generation = decode(request, !plain_shown, answer, &answer.rounds);
    if (!answer.plain_first) plainly();
    if (has_one_text(request) && answer.plain->tokens != answer.generation.tokens) {
      throw std::runtime_error(
          "--compare: speculative and plain decoding gave different tokens; this is a bug in Outrider, please report "
          "it");
    }
    return answer;
  }

 private:
  static constexpr std::int64_t kWarmUp = 8;  ///< tokens

  const RunFlags& flags_;
  const TextSide& side_;
  Client& client_;
  const StopMatcher stops_;
  AnswerPrinter printer_;
  Interrupt interrupt_;
};

void run(const RunFlags& flags) {
  init_logging("outrider", "warn");
  StopMatcher stops = or_throw(StopMatcher::create(flags.stops));  // before anything is loaded
  const PairPaths pair = flags.model.pair(flags.cluster.need());
  const TextSide side = load_text_side(open_model(pair.backbone));
  const Generate request = request_of(flags, side);

  TransportContext context(flags.cluster.security);
  const ClusterOptions options = flags.cluster.options(flags.model, pair, request.draft_length > 0);
  const std::string who = answering_text(flags.model, pair, flags.cluster, options, flags.draft_length);
  ClusterClient cluster = or_throw(connect_or_start(context, flags.cluster.connect, options));
  if (flags.for_person()) print_remark(who);
  Answer answer = Decoding(flags, side, cluster.client, std::move(stops)).answer(request);
  if (request.draft_length != 0 && answer.generation.metrics.drafting_rounds == 0)
    answer.drafter_there = is_drafter_there(flags, cluster.client);
  if (flags.report.json) {
    std::printf("%s\n", to_text(answer_json(flags, side, request, answer)).c_str());
    return;
  }
  std::printf("\n");
  std::fflush(stdout);
  const std::string cut_off = flags.max_tokens.cut_off(answer.generation);
  if (flags.for_person() && !cut_off.empty()) print_remark(cut_off);
  if (flags.shows_figures())
    print_figures(flags, request, answer);
  else if (flags.for_person())
    print_summary(flags, request, answer);
}

void add_prompt_options(Command& command, RunFlags& flags) {
  const HelpGroup group(command, "Prompt");
  auto* prompt = command.add_option("prompt", flags.prompt.text, "The user's message; -: the standard input");
  auto* ids = command.add_option("--prompt-ids", flags.prompt.ids, "The whole prompt as token ids, 2,105,...");
  prompt->excludes(ids);
  const auto media = [&](const char* name, std::vector<std::filesystem::path>& files, const char* help) {
    return repeatable(command.add_option(name, files, help))->excludes(ids);
  };
  auto* images = media("--image", flags.prompt.images,
                       "A picture before the message: PNG, JPEG or WebP; may be given several times");
  auto* videos = media("--video", flags.prompt.videos,
                       "A video before the message: MP4, Matroska, WebM or AVI, or a folder of pictures, one for every "
                       "second; may be given several times");
  auto* sounds = media("--audio", flags.prompt.sounds,
                       "A sound before the message, of at most 30 s: WAV, FLAC, Ogg or MP3; may be given several "
                       "times");
  command
      .add_option("--soft-tokens", flags.prompt.soft_tokens,
                  "Most soft tokens per picture: 70, 140, 280, 560 or 1120 (default: 280, or 140 for a model with "
                  "bidirectional attention to pictures)")
      ->check(CLI::IsMember(std::vector<std::int64_t>(kSoftTokenBudgets.begin(), kSoftTokenBudgets.end())))
      ->needs(images);
  command.add_flag("--raw", flags.prompt.raw, "The prompt is plain text, not a chat message")
      ->excludes(images)
      ->excludes(videos)
      ->excludes(sounds);
}

void add_output_options(Command& command, RunFlags& flags) {
  const HelpGroup group(command, "Output");
  flags.max_tokens.add_to(command);
  repeatable(command.add_option("--stop", flags.stops, "End the answer before this text; may be given several times"));
  auto* json = flags.report.add_json(command);
  command.add_flag("--quiet,-q", flags.quiet, "Print only the text: no figures, no colours");
  add_plain(command, flags.plain);
  command
      .add_option("--logprobs", flags.logprobs,
                  "Add the log-probability of every token and of the N most probable ones to the JSON object")
      ->check(CLI::Range(0, kLogprobsMax))
      ->needs(json);
  command.add_flag("--compare", flags.compare,
                   "Also decode without drafts: print both rates and the speed-up, and check that the tokens are equal "
                   "(not with --rejection or --typical)");
}

}  // namespace

void add_run_command(Command& app) {
  Command* command = app.add_subcommand("run", "Answer one prompt");
  auto flags = std::make_shared<RunFlags>();
  add_prompt_options(*command, *flags);
  flags->model.add_to(*command);
  flags->sampling.add_to(*command);
  flags->draft_length.add_to(*command);
  add_output_options(*command, *flags);
  flags->cluster.add_to(*command);
  command->footer(
      "Examples:\n"
      "  outrider run 'Tell me a story about a fox.' --compare\n"
      "  outrider run -m DIR --dtype int8 --sample 'Why is the sky blue?'\n"
      "  git diff | outrider run - -m DIR -n 200");
  command->callback([flags] {
    if (flags->prompt.text.empty() && flags->prompt.ids.empty()) throw UsageError("run: give a prompt or --prompt-ids");
    run(*flags);
  });
}

}  // namespace outrider
