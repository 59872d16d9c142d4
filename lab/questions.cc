#include "lab/questions.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/model/tokenizer/answer_reader.h"
#include "common/model/tokenizer/chat.h"
#include "common/model/tokenizer/stop_matcher.h"
#include "common/os/files.h"
#include "launch/command_line.h"

namespace outrider {
namespace {

/// Returns the assistant's message for the rest of a conversation.
ChatMessage message_of(const TextSide& text, const std::vector<TokenId>& prompt, const std::vector<TokenId>& tokens) {
  ChatMessage message;
  message.role = ChatMessage::Role::kAssistant;
  AnswerReader reader(text.tokenizer, or_throw(StopMatcher::create({})), prompt,
                      [&](const ChatEvent& event) { append(event, message); });
  for (const TokenId token : tokens) reader.push(token);
  reader.finish(false);
  message.tool_calls.clear();  // nothing here can answer them
  return message;
}

}  // namespace

std::vector<Question> user_turns(const TextSide& text, const std::vector<std::string>& messages) {
  std::vector<Question> turns;
  for (const std::string& message : messages)
    turns.push_back({or_throw(render_user_turn(text.tokenizer, message, text.chat_format))});
  return turns;
}

std::vector<Question> read_golden_questions(const std::filesystem::path& path) {
  using nlohmann::json;
  const json list = parse_json(or_throw(read_text(path)));
  const auto malformed = [&] {
    return std::runtime_error(
        fmt::format("{}: wanted a list of objects with 'prompt_ids' and 'greedy', lists of token ids", path.string()));
  };
  if (!list.is_array() || list.empty()) throw malformed();
  const auto numbers = [&](const json& object, const char* key) {
    if (!object.is_object() || !object.contains(key) || !object[key].is_array()) throw malformed();
    std::vector<std::int32_t> result;
    for (const json& number : object[key]) {
      if (!number.is_number_unsigned() || number.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max())
        throw malformed();
      result.push_back(number.get<std::int32_t>());
    }
    return result;
  };
  std::vector<Question> questions;
  for (const json& object : list) {
    questions.push_back({numbers(object, "prompt_ids"), numbers(object, "greedy"),
                         object.contains("matches") ? numbers(object, "matches") : std::vector<std::int32_t>()});
  }
  return questions;
}

std::vector<TokenId> golden_prompt(const Checkpoint& golden) {
  const TensorEntry* input = golden.find("input_ids");
  if (input == nullptr) throw CommandError("{}: no tensor 'input_ids'", golden.path().string());
  std::vector<std::int64_t> ids(static_cast<std::size_t>(input->element_count()));
  or_throw(read_i64(*input, ids));
  return {ids.begin(), ids.end()};
}

std::vector<Conversations> read_question_file(const std::filesystem::path& path, std::int64_t limit) {
  std::ifstream file(path);
  if (!file) throw CommandError("{}: cannot be read", path.string());
  std::vector<Conversations> questions;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const nlohmann::json object = parse_json(line);
    const auto text = [](const nlohmann::json& value) {
      return value.is_string() && !value.get<std::string>().empty();
    };
    const bool good = object.is_object() && object.contains("category") && text(object["category"]) &&
                      object.contains("turns") && object["turns"].is_array() && !object["turns"].empty() &&
                      std::ranges::all_of(object["turns"], text);
    if (!good)
      throw CommandError(
          R"({}, line {}: wanted {{"category": "...", "turns": ["...", ...]}}, as MT-bench and Spec-Bench have it)",
          path.string(), number);
    questions.push_back({object["category"], object["turns"]});
    if (limit > 0 && std::ssize(questions) >= limit) break;
  }
  if (questions.empty()) throw CommandError("{}: no questions", path.string());
  return questions;
}

bool ask_turns(const Conversations& question, const TextSide& text,
               const std::function<std::vector<TokenId>(const std::string& turn, const Question&)>& answer) {
  Conversation conversation;
  for (const std::string& turn : question.turns) {
    conversation.messages.emplace_back().content = turn;
    const Question asked{or_throw(render_chat(text.tokenizer, text.chat_format, conversation))};
    if (text.context_max > 0 && std::ssize(asked.prompt) >= text.context_max) return false;
    conversation.messages.push_back(message_of(text, asked.prompt, answer(turn, asked)));
  }
  return true;
}

void Answers::add(const Answers& more) {
  tokens += more.tokens;
  outrider::add(metrics, more.metrics);
  rounds.insert(rounds.end(), more.rounds.begin(), more.rounds.end());
}
double Answers::tok_per_sec() const {
  return metrics.decode_ns == 0 ? 0 : static_cast<double>(tokens) * 1e9 / static_cast<double>(metrics.decode_ns);
}
double Answers::per_round_ms(std::int64_t ns) const {
  return metrics.rounds == 0 ? 0 : static_cast<double>(ns) / 1e6 / static_cast<double>(metrics.rounds);
}
double Answers::acceptance() const {
  return static_cast<double>(metrics.accepted_tokens) /
         static_cast<double>(std::max<std::int64_t>(metrics.drafted_tokens, 1));
}

Asker::Asker(Client& client, const TextSide& text, std::int64_t max_tokens, bool endless)
    : client_(client),
      request_{.prompt = {},
               .max_tokens = max_tokens,
               .stop_ids = endless ? std::vector<TokenId>() : text.stop_ids(),
               .wait_ms = kVerifierWaitMs,
               .sampling = text.greedy(),
               .report_rounds = true} {}

std::vector<TokenId> Asker::ask(const Question& question, const DraftLength& length, Answers& sums) const {
  Generate request = request_;
  request.prompt = question.prompt;
  set_drafts(request, length);
  Generation generation = or_throw(client_.generate(
      request, [](std::span<const TokenId>) {}, [] { return false; },
      [&](const RoundReport& round) { sums.rounds.push_back(round.outcome); }));
  sums.tokens += std::ssize(generation.tokens) - 1;
  add(sums.metrics, generation.metrics);
  return std::move(generation.tokens);
}

Asker::Both Asker::ask_both(const Question& question, const DraftLength& length, Answers& plain,
                            Answers& drafted) const {
  Both both;
  const bool drafts_first = std::exchange(drafts_first_, !drafts_first_);
  if (!drafts_first) both.plain = ask(question, {}, plain);
  both.drafted = ask(question, length, drafted);
  if (drafts_first) both.plain = ask(question, {}, plain);
  return both;
}

}  // namespace outrider
