#include "common/model/tokenizer/chat_parser.h"

#include <algorithm>
#include <utility>

#include "common/base/json_fields.h"
#include "common/base/text.h"
#include "common/model/tokenizer/call_reader.h"

namespace outrider {
namespace {

using Kind = ChatEvent::Kind;

constexpr std::string_view kTurnLabel = "model\n", kThoughtLabel = "thought\n";
constexpr std::string_view kSpaces = " \t\r\n";

/// Returns a call's text as the model wrote it.
std::string spelled(std::string_view call) {
  return "<|tool_call>" + replaced(call, std::string_view(&kQuoteMark, 1), "<|\"|>");
}

}  // namespace

ChatParser::ChatParser(const Tokenizer& tokenizer, std::span<const TokenId> prompt)
    : detokenizer_(tokenizer, /*skip_special=*/true),
      controls_(answer_controls(tokenizer)),
      turn_begin_(tokenizer.find("<|turn>")) {
  for (const char* token : {"<|turn>", "<turn|>", "<eos>", "<|tool_response>", "<tool_response|>"}) {
    if (const auto id = tokenizer.find(token)) ends_.push_back(*id);
  }
  for (std::size_t i = prompt.size(); i-- > 0;) {
    const TokenId id = prompt[i];
    if (id == controls_.channel_end || std::ranges::find(ends_, id) != ends_.end()) break;
    if (id == controls_.channel_begin) {
      state_ = State::kThought;  // the prompt has the label
      break;
    }
  }
}

std::vector<ChatEvent> ChatParser::push(TokenId id) {
  const auto within = controls_.all();
  if (std::ranges::find(within, id) != within.end() || std::ranges::find(ends_, id) != ends_.end()) {
    text(detokenizer_.finish());
    control(id);
  } else {
    text(detokenizer_.push(id));
  }
  return std::exchange(events_, {});
}

ChatFinish ChatParser::finish(bool length_reached, std::vector<ChatEvent>& events) {
  text(detokenizer_.finish());
  const bool cut = length_reached && state_ == State::kCall;
  leave();
  std::ranges::move(events_, std::back_inserter(events));
  events_.clear();
  if (complete_calls_ > 0 && !cut) return ChatFinish::kToolCalls;
  return length_reached ? ChatFinish::kLength : ChatFinish::kStop;
}

void ChatParser::control(TokenId id) {
  if (id == controls_.quote) {
    if (state_ == State::kCall) held_ += kQuoteMark;
    return;
  }
  // Models also end a call with other control tokens than its end token.
  const bool called = state_ == State::kCall && take_call();
  if (!called) leave(id == controls_.call_end ? "<tool_call|>" : "");
  if (id == turn_begin_) state_ = State::kTurnLabel;  // if the prompt did not end within a turn
  if (id == controls_.channel_begin) state_ = State::kThoughtLabel;
  if (id == controls_.call_begin) state_ = State::kCall;
}

void ChatParser::leave(std::string_view end) {
  switch (state_) {
    case State::kContent: break;
    case State::kTurnLabel:
      if (!held_.empty() && !kTurnLabel.starts_with(held_ + '\n')) emit(Kind::kContent, held_);
      break;
    case State::kThoughtLabel:
      if (held_ != kThoughtLabel.substr(0, kThoughtLabel.size() - 1)) {
        state_ = State::kThought;
        thought_text(std::exchange(held_, {}));
      }
      break;
    case State::kThought: break;  // white space at its end is not part of the thought
    case State::kCall:
      ++broken_calls_;
      emit(Kind::kContent, spelled(held_).append(end));
      break;
  }
  held_.clear();
  state_ = State::kContent;
}

void ChatParser::text(std::string_view piece) {
  if (piece.empty()) return;
  switch (state_) {
    case State::kContent: return emit(Kind::kContent, piece);
    case State::kTurnLabel:
      if (const auto content = after_label(kTurnLabel, piece)) {
        state_ = State::kContent;
        text(*content);
      }
      return;
    case State::kThoughtLabel:
      if (const auto thought = after_label(kThoughtLabel, piece)) {
        state_ = State::kThought;
        thought_text(*thought);
      }
      return;
    case State::kThought: return thought_text(piece);
    case State::kCall: held_ += piece; return;
  }
}

std::optional<std::string> ChatParser::after_label(std::string_view label, std::string_view piece) {
  held_ += piece;
  if (held_.starts_with(label)) return std::exchange(held_, {}).substr(label.size());
  if (!label.starts_with(held_)) return std::exchange(held_, {});
  return std::nullopt;
}

/// Holds back white space before a possible end of the thought.
void ChatParser::thought_text(std::string_view piece) {
  const std::size_t last = piece.find_last_not_of(kSpaces);
  if (last != piece.npos) {
    emit(Kind::kReasoning, held_.append(piece.substr(0, last + 1)));
    held_.clear();
    piece.remove_prefix(last + 1);
  }
  held_ += piece;
}

bool ChatParser::take_call() {
  const std::optional<ToolCall> call = read_call(held_);
  if (!call) return false;
  held_.clear();
  state_ = State::kContent;
  ++complete_calls_;
  events_.push_back({.kind = Kind::kToolCall, .text = to_text(call->arguments), .name = call->name});
  return true;
}

void ChatParser::emit(Kind kind, std::string_view text) {
  events_.push_back({.kind = kind, .text = std::string(text), .name = {}});
}

void append(const ChatEvent& event, ChatMessage& message) {
  switch (event.kind) {
    case Kind::kReasoning: message.reasoning += event.text; break;
    case Kind::kContent: message.content += event.text; break;
    case Kind::kToolCall:
      message.tool_calls.push_back({.id = {}, .name = event.name, .arguments = parse_json(event.text)});
      break;
  }
}

}  // namespace outrider
