#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/complain.h"
#include "common/base/json_fields.h"
#include "common/base/text.h"
#include "common/client/client.h"
#include "common/client/report.h"
#include "common/media/media_prompt.h"
#include "common/model/tokenizer/answer_reader.h"
#include "common/model/tokenizer/chat.h"
#include "common/os/logging.h"
#include "launch/answer_flags.h"
#include "launch/answer_printer.h"
#include "launch/cluster_flags.h"
#include "launch/interrupt.h"
#include "launch/line_input.h"
#include "launch/local_cluster.h"
#include "launch/model_flags.h"

namespace outrider {
namespace {

constexpr const char* kPrompt = "> ";
constexpr const char* kHelp =
    "/image FILE  send a picture (PNG, JPEG or WebP) with the next question\n"
    "/video FILE  send a video, or a folder of pictures (one per second), with the next question\n"
    "/audio FILE  send a sound (WAV, FLAC, Ogg or MP3) with the next question\n"
    "/stats       figures of the last answer\n"
    "/set         change an option: /set temperature 0.7, /set draft-length 0; /set alone lists them\n"
    "/save FILE   write the conversation as JSON in the form of /v1/chat/completions\n"
    "/reset       forget the conversation\n"
    "/help        show this list\n"
    "/exit        leave, like Ctrl-D\n"
    "A question of several lines begins and ends with \"\"\". Ctrl-C stops an answer; the text so far stays in the\n"
    "conversation.\n";

/// Settings of /set, besides SamplingFlags.
struct AnswerFlags {
  std::string system;
  DraftLengthFlag draft_length;
  MaxTokensFlag max_tokens;
  bool thinking = false;

  void add_to(Command& command) {
    command.add_option("--system", system, "System prompt");
    command.add_flag("--thinking", thinking,
                     "Let the model think before it answers; a terminal shows the thought dimmed");
    draft_length.add_to(command);
    max_tokens.add_to(command);
  }
};

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  ClusterFlags cluster;
  AnswerFlags answer;
  bool plain = false;
};

/// Returns the first words of kHelp's lines, for Tab.
std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const std::string& line : lines_of(kHelp))
    if (line.starts_with('/')) names.push_back(line.substr(0, line.find(' ')));
  return names;
}

/// Returns the kind of medium that a command shows to the model, if any.
std::optional<ContentPart::Kind> shown_by(const std::string& name) {
  if (name == "/image") return ContentPart::Kind::kImage;
  if (name == "/video") return ContentPart::Kind::kVideo;
  if (name == "/audio") return ContentPart::Kind::kAudio;
  return std::nullopt;
}

/// One conversation with the model.
class Chat {
 public:
  Chat(const ChatFlags& flags, const PairPaths& pair)
      : flags_(flags.answer),
        text_(load_text_side(open_model(pair.backbone))),
        sampling_(flags.sampling.of(text_)),
        for_person_(isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1),
        shows_rounds_(for_person_ && !flags.plain && terminal_shows_rounds()),
        printer_(text_.tokenizer, {.for_person = for_person_, .rounds = shows_rounds_}) {
    reset();
  }

  bool for_person() const { return for_person_; }

  void reset() {
    conversation_.messages.clear();
    media_.clear();
    asked_media_ = 0;
    shown_.clear();
    use_flags();
  }

  /// Shows a picture or a video, or plays a sound, with the next question. Reports an error instead if there is one.
  void show(const std::filesystem::path& file, ContentPart::Kind kind);
  /// Asks, shows the answer and remembers both. Reports and forgets a question that cannot be answered; throws an error
  /// that would affect every question.
  void ask(Client& client, const std::string& question, Interrupt& interrupt);
  /// Executes a command of kHelp, except /exit. @return false: there is no such command
  bool obey(const std::string& name, const std::string& argument);

 private:
  /// Applies the system message and thinking of flags_.
  void use_flags();
  /// @param setting  "temperature 0.7"; empty: lists all settings
  void set(const std::string& setting);
  void save(const std::filesystem::path& file);
  /// Updates the state after an answer.
  void conclude(const Generation& generation);

  AnswerFlags flags_;
  TextSide text_;
  SamplingParams sampling_;
  Conversation conversation_;
  std::vector<WireMedium> media_;   ///< of the conversation, then those of the next question
  std::size_t asked_media_ = 0;     ///< number of media_ in earlier questions
  std::vector<ContentPart> shown_;  ///< placeholders of the next question's media
  std::optional<Generation> last_;  ///< the last answer that was not stopped
  std::optional<double> plain_;     ///< tokens per second of the last plainly decoded answer
  std::filesystem::path saved_;     ///< last path of /save
  const bool for_person_, shows_rounds_;
  AnswerPrinter printer_;
};

void Chat::use_flags() {
  std::vector<ChatMessage>& messages = conversation_.messages;
  conversation_.thinking = flags_.thinking;
  if (!messages.empty() && messages[0].role == ChatMessage::Role::kSystem) messages.erase(messages.begin());
  if (flags_.system.empty()) return;
  ChatMessage system;
  system.role = ChatMessage::Role::kSystem;
  system.content = flags_.system;
  messages.insert(messages.begin(), std::move(system));
}

void Chat::set(const std::string& setting) {
  Command command("/set NAME VALUE changes the answers from here on; the names, without their dashes:", "/set");
  AnswerFlags changed = flags_;
  SamplingFlags sampling;
  sampling.params = sampling_;
  changed.add_to(command);
  sampling.add_to(command);
  command.formatter(help_formatter());
  command.callback([&] {
    SamplingParams params = sampling.of(text_);
    if (sampling.options.at("seed")->count() == 0 && !sampling_.greedy()) params.seed = sampling_.seed;
    sampling_ = std::move(params);
    flags_ = changed;
    use_flags();
  });
  const std::size_t space = std::min(setting.find(' '), setting.size());
  const std::string name = setting.substr(0, space), value = setting.substr(std::min(space + 1, setting.size()));
  const std::string word = name.empty() ? "--help" : "--" + name + (value.empty() ? "" : "=" + value);
  const char* const words[] = {"/set", word.c_str()};
  run_command_line(command, 2, words);
}

void Chat::save(const std::filesystem::path& file) {
  nlohmann::json messages = nlohmann::json::array();
  for (const ChatMessage& message : conversation_.messages) {
    std::string content = message.content;
    for (const ContentPart& part : message.parts) content += part.text;
    const char* const role = message.role == ChatMessage::Role::kSystem ? "system"
                             : message.role == ChatMessage::Role::kUser ? "user"
                                                                        : "assistant";
    messages.push_back({{"role", role}, {"content", content}});
  }
  std::error_code ignored;
  if (file.empty()) return complain("/save needs a file name");
  if (file != saved_ && std::filesystem::exists(file, ignored))
    return complain("{}: exists; /save overwrites only a file that this chat wrote", file.string());
  const std::size_t count = messages.size();
  std::ofstream stream(file);
  stream << to_text({{"messages", std::move(messages)}}, 2) << "\n";
  stream.close();
  if (!stream) return complain("{}: cannot be written", file.string());
  saved_ = file;
  print_remark(fmt::format("{} messages in {}{}", count, file.string(),
                           media_.empty() ? "" : ", without the pictures and sounds"));
}

bool Chat::obey(const std::string& name, const std::string& argument) {
  if (const std::optional<ContentPart::Kind> kind = shown_by(name)) {
    show(argument, *kind);
  } else if (name == "/stats") {
    std::printf("%s", last_ ? metrics_text(*last_, plain_).c_str() : "no answer yet\n");
  } else if (name == "/set") {
    set(argument);
  } else if (name == "/save") {
    save(argument);
  } else if (name == "/reset") {
    reset();
  } else if (name == "/help") {
    std::printf("%s", kHelp);
  } else {
    return false;
  }
  return true;
}

void Chat::show(const std::filesystem::path& file, ContentPart::Kind kind) {
  const auto admit = [&](std::size_t more) -> Result<void> {
    if (media_.size() + more <= kMediaMax) return {};
    return Error(Errc::kOutOfRange,
                 "{}: this conversation would have {} pictures, frames of videos and sounds, wanted at most {}; "
                 "/reset removes them",
                 file.string(), media_.size() + more, kMediaMax);
  };
  const auto loaded = [&]() -> Result<LoadedMedia> {
    RETURN_IF_ERROR(admit(1));  // before decoding; a video is checked again afterwards
    ASSIGN_OR_RETURN(LoadedMedia shown, load_medium_file(file, kind, text_.vision, text_.audio));
    RETURN_IF_ERROR(admit(shown.frames.size()));
    return shown;
  }();
  if (!loaded) {
    complain_text(loaded.error().message);
    return;
  }
  media_.insert(media_.end(), loaded->frames.begin(), loaded->frames.end());
  shown_.push_back(loaded->part);
}

void Chat::conclude(const Generation& generation) {
  printer_.finish();
  if (generation.cancelled) {
    std::fprintf(stderr, "(stopped)\n");
    return;
  }
  last_ = generation;
  if (const std::string cut_off = flags_.max_tokens.cut_off(generation); !cut_off.empty()) print_remark(cut_off);
  if (for_person_) print_remark(summary_text(generation, plain_) + "\n");
  // A single token has no rate.
  if (generation.metrics.drafting_rounds == 0 && generation.tokens.size() > 1) plain_ = tokens_per_second(generation);
}

void Chat::ask(Client& client, const std::string& question, Interrupt& interrupt) {
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
    printer_.print(event);
  });
  Generate request{.prompt = prompt,
                   .stop_ids = text_.stop_ids(),
                   .wait_ms = kVerifierWaitMs,
                   .sampling = sampling_,
                   .report_rounds = shows_rounds_,
                   .tokenizer_fingerprint = text_.tokenizer_fingerprint,
                   .governed = !flags_.draft_length.no_governor,
                   .media = media_};
  flags_.max_tokens.set(request);
  set_drafts(request, flags_.draft_length.value());
  ++sampling_.seed;  // the same question again may get another answer
  const Result<Generation> generation = client.generate(
      request,
      [&](std::span<const TokenId> tokens) {
        for (const TokenId token : tokens) {
          printer_.on_token();
          reader.push(token);
        }
      },
      [&] { return interrupt.requested(); }, [&](const RoundReport& round) { printer_.on_round(round); });
  interrupt.clear();
  if (!generation) {
    const Errc code = generation.error().code;
    if (code != Errc::kOutOfRange && code != Errc::kInvalidArgument && code != Errc::kUnsupported &&
        code != Errc::kUnavailable)
      or_throw(generation);
    conversation_.messages.pop_back();
    media_.resize(asked_media_);
    complain_text(generation.error().message);
    return;
  }
  asked_media_ = media_.size();
  reader.finish(generation->reason == FinishReason::kLength);
  conclude(*generation);
  answer.tool_calls.clear();  // nothing here can answer them
  conversation_.messages.push_back(std::move(answer));
}

/// Reads the next question or command.
/// @param quoted  true if the text was between """ and """: one or several lines, and never a command
LineInput::Got next_question(LineInput& input, Interrupt& interrupt, std::string& question, bool& quoted) {
  constexpr std::string_view kQuotes = "\"\"\"";
  LineInput::Got got = input.next(interrupt, question);
  quoted = got == LineInput::Got::kLine && question.starts_with(kQuotes);
  if (!quoted) return got;
  question.erase(0, kQuotes.size());
  input.set_prompt("... ");
  while (got == LineInput::Got::kLine && !question.ends_with(kQuotes)) {
    std::string line;
    got = input.next(interrupt, line);
    question += "\n" + line;
  }
  input.set_prompt(kPrompt);
  if (got == LineInput::Got::kEnd) complain("the closing \"\"\" is missing; the question was not sent");
  if (got == LineInput::Got::kLine) question.resize(question.size() - kQuotes.size());
  return got;
}

void chat(const ChatFlags& flags) {
  init_logging("outrider", "warn");
  const PairPaths pair = flags.model.pair(flags.cluster.need());
  TransportContext context(flags.cluster.security);
  const bool drafting = flags.answer.draft_length.value().length > 0;
  Chat conversation(flags, pair);
  const ClusterOptions options = flags.cluster.options(flags.model, pair, drafting);
  const std::string who = answering_text(flags.model, pair, flags.cluster, options, flags.answer.draft_length);
  ClusterClient cluster = or_throw(connect_or_start(context, flags.cluster.connect, options));

  const bool for_person = conversation.for_person();
  if (for_person) print_remark(who);
  if (for_person) std::printf("/help lists the commands; /exit or Ctrl-D leaves.\n\n");
  Interrupt interrupt;
  const std::unique_ptr<LineInput> input =
      for_person ? edited_lines(kPrompt, command_names(), history_file("chat_history")) : plain_lines();
  while (true) {
    std::string line;
    bool quoted = false;
    const LineInput::Got got = next_question(*input, interrupt, line, quoted);
    const std::size_t space = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, space);
    const std::string argument = line.substr(std::min(line.find_first_not_of(' ', space), line.size()));
    if (got == LineInput::Got::kEnd || (!quoted && name == "/exit")) break;
    if (got == LineInput::Got::kInterrupt) {
      if (for_person) std::printf("\n");  // a terminal drops the typed text
    } else if (!quoted && conversation.obey(name, argument)) {
    } else if (!quoted && line.starts_with('/') && line.find_first_of(" /", 1) == line.npos) {
      complain("unknown command {}; /help lists the commands", line);
    } else if (line.find_first_not_of(" \t\r\n") != line.npos) {
      conversation.ask(cluster.client, line, interrupt);
    }
  }
  if (for_person) std::printf("\n");
}

}  // namespace

void add_chat_command(Command& app) {
  Command* command = app.add_subcommand("chat", "Chat: read questions from the terminal or a pipe, one per line");
  auto flags = std::make_shared<ChatFlags>();
  flags->model.add_to(*command);
  flags->sampling.add_to(*command);
  flags->answer.add_to(*command);
  add_plain(*command, flags->plain);
  flags->cluster.add_to(*command);
  command->callback([flags] { chat(*flags); });
}

}  // namespace outrider
