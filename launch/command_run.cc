#include <unistd.h>
#include <algorithm>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/logging/logging.h"
#include "common/media_prompt/media_prompt.h"
#include "common/report/report.h"
#include "common/tokenizer/answer_reader.h"
#include "common/tokenizer/chat.h"
#include "common/tokenizer/stop_matcher.h"
#include "common/transport/client.h"
#include "launch/cluster.h"
#include "launch/command_support.h"
#include "launch/interrupt.h"

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
  std::int64_t max_tokens = 256;
  ReportFlags report;
  bool compare = false, no_verifier = false, quiet = false;
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

/// All of the standard input, but for the end of its last line.
std::string read_standard_input() {
  std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string prompt_text(const PromptFlags& flags) { return flags.text == "-" ? read_standard_input() : flags.text; }

/// The pictures, the videos, the sounds and then the prompt, as one message of the user.
void ask_about_media(const PromptFlags& flags, const TextSide& text, Generate& request) {
  ChatMessage message;
  std::size_t left = flags.images.size() + flags.videos.size() + flags.sounds.size();  // files, a medium each at least
  // Before each is read, so that none is decoded in vain.
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
      SeenVideo seen = or_throw(see_file(file, kind, text.vision, text.audio, flags.soft_tokens));
      std::ranges::move(seen.frames, std::back_inserter(request.media));
      message.parts.push_back(std::move(seen.part));
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

/// What the answer's tokens were chosen by: the parameters that had a meaning for it.
struct SamplingJson {
  nlohmann::json object;
  bool greedy;

  template <typename T, typename Wire>
  void operator()(const char* name, const T& value, Offered<Wire> offer, std::type_identity_t<T> absent = {}) {
    if (offer.of_draws ? greedy : value == absent) return;
    // 0.7 and not 0.699999988: the double that a person would write.
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
  DraftLength draft_length = flags.draft_length.value();
  // There is nothing to choose by where nobody says which drafts hold.
  if (flags.no_verifier && draft_length.policy == DraftPolicy::kAuto) draft_length = {.length = 4};
  Generate request{.prompt = {},
                   .max_tokens = flags.max_tokens,
                   .stop_ids = side.stop_ids(),
                   .wait_ms = kVerifierWaitMs,
                   .sampling = flags.sampling.of(side),
                   .unverified = flags.no_verifier,
                   .tokenizer_fingerprint = side.tokenizer_fingerprint,
                   .governed = !flags.draft_length.no_governor};
  set_drafts(request, draft_length);
  request.sampling.logprobs = flags.logprobs;
  if (flags.prompt.has_media())
    ask_about_media(flags.prompt, side, request);
  else
    request.prompt = encode_prompt(flags.prompt, side);
  return request;
}

/// The same text, decoded plainly.
Generate without_drafts(Generate request) {
  set_drafts(request, {});
  return request;
}

struct Answer {
  std::string text;
  Generation generation;
  std::optional<Generation> plain;  ///< of --compare
};

nlohmann::json answer_json(const RunFlags& flags, const TextSide& side, const Generate& request, const Answer& answer) {
  const Generation& generation = answer.generation;
  nlohmann::json metrics = metrics_json(generation);
  metrics["backbone_only_tok_per_sec"] =
      answer.plain ? nlohmann::json(tokens_per_second(*answer.plain)) : nlohmann::json();
  nlohmann::json object = {{"prompt_ids", request.prompt},
                           {"token_ids", generation.tokens},
                           {"text", answer.text},
                           {"finish_reason", generation.reason == FinishReason::kStop ? "stop" : "length"},
                           {"sampling", sampling_json(request.sampling)},
                           {"metrics", std::move(metrics)}};
  if (request.sampling.rule == SamplingRule::kTypical) object["lossy"] = true;
  if (flags.no_verifier) object["unverified"] = true;
  if (flags.logprobs) object["logprobs"] = logprobs_json(side.tokenizer, generation);
  return object;
}

/// For a person, beside the text.
void print_metrics(const SamplingParams& sampling, const Answer& answer) {
  if (!sampling.greedy()) std::fprintf(stderr, "\nseed %llu", static_cast<unsigned long long>(sampling.seed));
  std::fprintf(
      stderr, "\n%s",
      metrics_text(answer.generation, answer.plain ? std::optional(tokens_per_second(*answer.plain)) : std::nullopt)
          .c_str());
}

void run(const RunFlags& flags) {
  init_logging("outrider", "warn");
  const StopMatcher stops = or_throw(StopMatcher::create(flags.stops));
  const PairPaths pair = flags.model.pair();
  const TextSide side = load_text_side(open_model(pair.backbone));
  const Generate request = request_of(flags, side);
  if (flags.no_verifier)
    std::fprintf(stderr, "outrider: --no-verifier: all but the first token is the drafter's own, unverified\n");

  TransportContext context(flags.cluster.security);
  ClusterClient cluster = or_throw(connect_or_start(
      context, flags.cluster.connect, flags.cluster.options(flags.model, pair, request.draft_length > 0)));
  Client& client = cluster.client;

  Interrupt interrupt;
  const auto decode = [&](const Generate& wanted, const std::function<void(const ChatEvent&)>& emit) {
    AnswerReader reader(side.tokenizer, stops, /*chat_prompt=*/{}, emit);
    std::int64_t count = 0;
    const auto on_tokens = [&](std::span<const TokenId> tokens) {
      for (const TokenId token : tokens) {
        ++count;
        if (reader.push(token)) return client.end_answer(count);
      }
    };
    Generation generation = or_throw(client.generate(wanted, on_tokens, [&] { return interrupt.requested(); }));
    reader.finish(/*length_reached=*/false);
    if (!generation.cancelled) return generation;
    if (!flags.report.json) std::printf("\n");
    throw ExitStatus(128 + SIGINT);
  };
  Answer answer;
  if (flags.compare) answer.plain = decode(without_drafts(request), [](const ChatEvent&) {});
  answer.generation = decode(request, [&](const ChatEvent& piece) {
    answer.text += piece.text;
    if (flags.report.json) return;
    std::fwrite(piece.text.data(), 1, piece.text.size(), stdout);
    std::fflush(stdout);
  });
  if (answer.plain && request.sampling.rule == SamplingRule::kMatch &&
      answer.plain->tokens != answer.generation.tokens) {
    throw std::runtime_error(
        "--compare: speculative and plain decoding gave different tokens; this is a bug of Outrider's, please report "
        "it");
  }
  if (flags.report.json) {
    std::printf("%s\n", to_text(answer_json(flags, side, request, answer)).c_str());
    return;
  }
  std::printf("\n");
  std::fflush(stdout);
  if (!flags.quiet && isatty(STDERR_FILENO) != 0) print_metrics(request.sampling, answer);
}

}  // namespace

void add_run_command(Command& app) {
  Command* command = app.add_subcommand("run", "Answer one prompt");
  auto flags = std::make_shared<RunFlags>();
  auto* prompt = command->add_option("prompt", flags->prompt.text, "The user's message; -: the standard input");
  auto* ids = command->add_option("--prompt-ids", flags->prompt.ids, "The whole prompt as token ids, 2,105,...");
  prompt->excludes(ids);
  const auto media = [&](const char* name, std::vector<std::filesystem::path>& files, const char* help) {
    return repeatable(command->add_option(name, files, help))->excludes(ids);
  };
  auto* images = media("--image", flags->prompt.images,
                       "A picture before the message: PNG, JPEG or WebP; may be given several times");
  auto* videos = media("--video", flags->prompt.videos,
                       "A video before the message: MP4, Matroska, WebM or AVI, or a folder of pictures, one for every "
                       "second; may be given several times");
  auto* sounds = media("--audio", flags->prompt.sounds,
                       "A sound before the message, of at most 30 s: WAV, FLAC, Ogg or MP3; may be given several "
                       "times");
  command
      ->add_option("--soft-tokens", flags->prompt.soft_tokens,
                   "Of a picture, at most: 70, 140, 280, 560 or 1120; unless you say, 280, or 140 where a model sees "
                   "it both ways")
      ->check(CLI::IsMember(std::vector<std::int64_t>(kSoftTokenBudgets.begin(), kSoftTokenBudgets.end())))
      ->needs(images);
  flags->model.add_to(*command);
  flags->sampling.add_to(*command);
  flags->draft_length.add_to(*command);
  auto* no_verifier =
      command->add_flag("--no-verifier", flags->no_verifier,
                        "To see what the drafter would say: after the first token nobody verifies its drafts");
  add_number(*command, "--max-tokens", flags->max_tokens, 1, 1 << 20, "Longest answer");
  flags->cluster.add_to(*command);
  repeatable(
      command->add_option("--stop", flags->stops, "End the answer before this text; may be given several times"));
  command->add_flag("--raw", flags->prompt.raw, "The prompt is plain text, not a chat message")
      ->excludes(images)
      ->excludes(videos)
      ->excludes(sounds);
  auto* json = flags->report.add_json(*command);
  command->add_flag("--quiet,-q", flags->quiet, "The text alone: no metrics on the terminal");
  command
      ->add_option("--logprobs", flags->logprobs,
                   "Log-probability of every token and of the N most probable ones, in the JSON object")
      ->check(CLI::Range(0, kLogprobsMax))
      ->needs(json)
      ->excludes(no_verifier);
  command
      ->add_flag("--compare", flags->compare,
                 "Decode plainly first: measures backbone_only_tok_per_sec, checks that the tokens are equal (not "
                 "under --rejection and --typical)")
      ->excludes(no_verifier);
  command->callback([flags] {
    if (flags->prompt.text.empty() && flags->prompt.ids.empty())
      throw std::runtime_error("run: give a prompt or --prompt-ids");
    run(*flags);
  });
}

}  // namespace outrider
