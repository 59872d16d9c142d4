#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/text.h"
#include "common/logging/logging.h"
#include "common/media_prompt/media_prompt.h"
#include "common/tokenizer/answer_reader.h"
#include "common/tokenizer/chat.h"
#include "common/transport/client.h"
#include "launch/cluster.h"
#include "launch/command_support.h"
#include "launch/interrupt.h"
#include "launch/line_input.h"

namespace outrider {
namespace {

constexpr const char* kHelp =
    "/image FILE  show a picture, PNG, JPEG or WebP, with the next question\n"
    "/video FILE  show a video, or a folder of pictures, one a second, with the next question\n"
    "/audio FILE  play a sound, WAV, FLAC, Ogg or MP3, with the next question\n"
    "/reset       forget what was said and shown\n"
    "/help        this list\n"
    "/exit        leave, as does Ctrl-D\n"
    "Ctrl-C stops an answer; what there is of it stays in the conversation.\n";

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  ClusterFlags cluster;
  std::string system;
  DraftLengthFlag draft_length;
  std::int64_t max_tokens = 1024;
  bool thinking = false;
};

/// What the lines of kHelp begin with, for Tab.
std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const std::string& line : lines_of(kHelp))
    if (line.starts_with('/')) names.push_back(line.substr(0, line.find(' ')));
  return names;
}

/// What a line shows to the model, if it is such a command.
std::optional<ContentPart::Kind> shown_by(const std::string& line) {
  if (line.starts_with("/image ")) return ContentPart::Kind::kImage;
  if (line.starts_with("/video ")) return ContentPart::Kind::kVideo;
  if (line.starts_with("/audio ")) return ContentPart::Kind::kAudio;
  return std::nullopt;
}

/// Writes an answer as it comes: the thought dimmed, and only for a person to see.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(bool for_person) : for_person_(for_person) {}

  void print(const ChatEvent& event) {
    if (event.kind == ChatEvent::Kind::kContent) {
      if (dimmed_) write("\033[0m\n\n");
      dimmed_ = false;
      write(event.text);
    } else if (event.kind == ChatEvent::Kind::kReasoning && for_person_) {
      if (!dimmed_) write("\033[2m");
      dimmed_ = true;
      write(event.text);
    } else if (event.kind == ChatEvent::Kind::kToolCallEnd) {
      write(fmt::format("[{} {}]", event.name, event.text));
    }
  }

  void finish() {
    write(dimmed_ ? "\033[0m\n" : "\n");
    if (for_person_) write("\n");
    dimmed_ = false;
  }

 private:
  static void write(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  bool for_person_;
  bool dimmed_ = false;
};

/// One conversation with the model.
class Chat {
 public:
  Chat(const ChatFlags& flags, const PairPaths& pair)
      : flags_(flags), text_(load_text_side(open_model(pair.backbone))), sampling_(flags.sampling.of(text_)) {
    conversation_.thinking = flags.thinking;
    reset();
  }

  void reset() {
    conversation_.messages.clear();
    media_.clear();
    asked_media_ = 0;
    shown_.clear();
    if (flags_.system.empty()) return;
    ChatMessage& system = conversation_.messages.emplace_back();
    system.role = ChatMessage::Role::kSystem;
    system.content = flags_.system;
  }

  /// Shows a picture or a video, or plays a sound, with the next question. What is wrong with it is said, and then it
  /// is not.
  void show(const std::filesystem::path& file, ContentPart::Kind kind);
  /// Asks, shows the answer and remembers both. A question that can not be answered is said so and
  /// forgotten; what no other question could change is thrown.
  void ask(Client& client, const std::string& question, Interrupt& interrupt, AnswerPrinter& printer);

 private:
  const ChatFlags& flags_;
  TextSide text_;
  SamplingParams sampling_;
  Conversation conversation_;
  std::vector<WireMedium> media_;   ///< of the conversation, then those of the next question
  std::size_t asked_media_ = 0;     ///< so many of them have been asked about
  std::vector<ContentPart> shown_;  ///< what stands for the others in the next question
};

void Chat::show(const std::filesystem::path& file, ContentPart::Kind kind) {
  const auto admit = [&](std::size_t more) -> Result<void> {
    if (media_.size() + more <= kMediaMax) return {};
    return Error(Errc::kOutOfRange,
                 "{}: this conversation would have {} pictures, frames of videos and "
                 "sounds, {} are its most; /reset forgets them",
                 file.string(), media_.size() + more, kMediaMax);
  };
  const auto seen = [&]() -> Result<SeenVideo> {
    RETURN_IF_ERROR(admit(1));  // before it is decoded, and of a video after that
    ASSIGN_OR_RETURN(SeenVideo shown, see_file(file, kind, text_.vision, text_.audio));
    RETURN_IF_ERROR(admit(shown.frames.size()));
    return shown;
  }();
  if (!seen) {
    std::fprintf(stderr, "outrider: %s\n", seen.error().message.c_str());
    return;
  }
  media_.insert(media_.end(), seen->frames.begin(), seen->frames.end());
  shown_.push_back(seen->part);
}

void Chat::ask(Client& client, const std::string& question, Interrupt& interrupt, AnswerPrinter& printer) {
  ChatMessage& message = conversation_.messages.emplace_back();
  if (shown_.empty()) {
    message.content = question;
  } else {
    message.parts = std::move(shown_);
    message.parts.push_back({.text = question});
  }
  shown_.clear();
  std::vector<TokenId> prompt = or_throw(render_chat(text_.tokenizer, text_.chat_format, conversation_));
  if (!media_.empty()) prompt = or_throw(place_media(prompt, text_.vision, text_.audio, media_));
  ChatMessage answer;
  answer.role = ChatMessage::Role::kAssistant;
  AnswerReader reader(text_.tokenizer, or_throw(StopMatcher::create({})), prompt, [&](const ChatEvent& event) {
    append(event, answer);
    printer.print(event);
  });
  Generate request{.prompt = prompt,
                   .max_tokens = flags_.max_tokens,
                   .stop_ids = text_.stop_ids(),
                   .wait_ms = kVerifierWaitMs,
                   .sampling = sampling_,
                   .tokenizer_fingerprint = text_.tokenizer_fingerprint,
                   .governed = !flags_.draft_length.no_governor,
                   .media = media_};
  set_drafts(request, flags_.draft_length.value());
  ++sampling_.seed;  // the same question again may get another answer
  const Result<Generation> generation = client.generate(
      request,
      [&](std::span<const TokenId> tokens) {
        for (const TokenId token : tokens) reader.push(token);
      },
      [&] { return interrupt.requested(); });
  interrupt.clear();
  if (!generation) {
    const Errc code = generation.error().code;
    if (code != Errc::kOutOfRange && code != Errc::kInvalidArgument && code != Errc::kUnsupported &&
        code != Errc::kUnavailable)
      or_throw(generation);
    conversation_.messages.pop_back();
    media_.resize(asked_media_);
    std::fprintf(stderr, "outrider: %s\n", generation.error().message.c_str());
    return;
  }
  asked_media_ = media_.size();
  reader.finish(generation->reason == FinishReason::kLength);
  printer.finish();
  if (generation->cancelled) std::fprintf(stderr, "(stopped)\n");
  answer.tool_calls.clear();  // nobody here to answer them
  conversation_.messages.push_back(std::move(answer));
}

void chat(const ChatFlags& flags) {
  init_logging("outrider", "warn");
  const PairPaths pair = flags.model.pair();
  TransportContext context(flags.cluster.security);
  const bool drafting = flags.draft_length.value().length > 0;
  Chat conversation(flags, pair);
  ClusterClient cluster =
      or_throw(connect_or_start(context, flags.cluster.connect, flags.cluster.options(flags.model, pair, drafting)));

  const bool for_person = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  if (for_person) std::printf("/help says what there is; /exit or Ctrl-D leaves.\n\n");
  Interrupt interrupt;
  const std::unique_ptr<LineInput> input =
      for_person ? edited_lines("> ", command_names(), history_file("chat_history")) : plain_lines();
  AnswerPrinter printer(for_person);
  while (true) {
    std::string line;
    const LineInput::Got got = input->next(interrupt, line);
    if (got == LineInput::Got::kEnd || line == "/exit") break;
    if (got == LineInput::Got::kInterrupt) {
      if (for_person) std::printf("\n");  // a terminal drops what was typed
    } else if (const std::optional<ContentPart::Kind> kind = shown_by(line)) {
      conversation.show(line.substr(std::min(line.find_first_not_of(' ', 7), line.size())), *kind);
    } else if (line == "/reset") {
      conversation.reset();
    } else if (line == "/help") {
      std::printf("%s", kHelp);
    } else if (line.starts_with('/') && line.find_first_of(" /", 1) == line.npos) {
      std::fprintf(stderr, "outrider: no command %s; see /help\n", line.c_str());
    } else if (line.find_first_not_of(" \t\r") != line.npos) {
      conversation.ask(cluster.client, line, interrupt, printer);
    }
  }
  if (for_person) std::printf("\n");
}

}  // namespace

void add_chat_command(Command& app) {
  Command* command = app.add_subcommand("chat", "Talk: questions from the terminal or a pipe, one a line");
  auto flags = std::make_shared<ChatFlags>();
  flags->model.add_to(*command);
  flags->sampling.add_to(*command);
  command->add_option("--system", flags->system, "What the model is told before the conversation");
  command->add_flag("--thinking", flags->thinking,
                    "Let the model think first; on a terminal the thought is shown dimmed");
  flags->draft_length.add_to(*command);
  add_number(*command, "--max-tokens", flags->max_tokens, 1, 1 << 20, "Longest answer");
  flags->cluster.add_to(*command);
  command->callback([flags] { chat(*flags); });
}

}  // namespace outrider
