#include "common/tokenizer/chat_parser.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "common/base/ascii.h"
#include "common/base/json_fields.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Kind = ChatEvent::Kind;

constexpr std::string_view kTurnLabel = "model\n", kThoughtLabel = "thought\n";
constexpr std::string_view kCallPrefix = "call:";
constexpr std::size_t kNameBytesMax = 256;
constexpr std::string_view kSpaces = " \t\r\n";

bool is_space(char c) { return kSpaces.find(c) != kSpaces.npos; }

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}

std::string_view without_spaces(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

/// `text` as the inside of a JSON string.
std::string escaped(std::string_view text) {
  const std::string quoted = to_text(Json(text));
  return quoted.substr(1, quoted.size() - 2);
}

/// A number that JSON has too, and that a double can hold.
bool is_number(const std::string& text) {
  if (text.find_first_not_of("-+.0123456789eE") != text.npos) return false;
  return Json::accept(text) && std::isfinite(std::strtod(text.c_str(), nullptr));
}

/// A value without quotes, as JSON. Case does not matter, since the template prints Python's None.
std::string bare_json(const std::string& text) {
  const std::string word = in_lower_case(text);
  if (word == "true" || word == "false") return word;
  if (word == "null" || word == "none" || word == "nil") return "null";
  return is_number(text) ? text : '"' + escaped(text) + '"';
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
  leave();
  std::ranges::move(events_, std::back_inserter(events));
  events_.clear();
  if (complete_calls_ > 0) return ChatFinish::kToolCalls;
  return length_reached ? ChatFinish::kLength : ChatFinish::kStop;
}

void ChatParser::control(TokenId id) {
  if (id == controls_.quote) {
    if (state_ == State::kArguments) return quote();
    if (state_ == State::kCallHead) return break_call();
    return;
  }
  // The arguments are complete, and the model hands over with another token than usual.
  if (state_ == State::kArguments && call_.want == Want::kEnd) end_call();
  leave();
  if (id == turn_begin_) state_ = State::kTurnLabel;  // where the prompt ended within none
  if (id == controls_.channel_begin) state_ = State::kThoughtLabel;
  if (id == controls_.call_begin) state_ = State::kCallHead;
}

void ChatParser::leave() {
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
    case State::kThought: break;  // white space at its end is not the thought's
    case State::kCallHead:
    case State::kArguments: break_call(); break;
    case State::kCallSkipped: break;
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
    case State::kCallHead: return head_text(piece);
    case State::kArguments: return arguments_text(piece);
    case State::kCallSkipped: return;
  }
}

std::optional<std::string> ChatParser::after_label(std::string_view label, std::string_view piece) {
  held_ += piece;
  if (held_.starts_with(label)) return std::exchange(held_, {}).substr(label.size());
  if (!label.starts_with(held_)) return std::exchange(held_, {});
  return std::nullopt;
}

/// Holds back the white space before what may be the thought's end.
void ChatParser::thought_text(std::string_view piece) {
  const std::size_t last = piece.find_last_not_of(kSpaces);
  if (last != piece.npos) {
    emit(Kind::kReasoning, held_.append(piece.substr(0, last + 1)));
    held_.clear();
    piece.remove_prefix(last + 1);
  }
  held_ += piece;
}

void ChatParser::head_text(std::string_view piece) {
  const std::size_t brace = piece.find('{');
  held_ += piece.substr(0, brace);
  if (brace == piece.npos) {
    if (held_.size() > kCallPrefix.size() + kNameBytesMax) break_call();
    return;
  }
  const std::string head = std::exchange(held_, {});
  std::string_view name = without_spaces(head);
  const bool prefixed = name.starts_with(kCallPrefix);
  if (prefixed) name = without_spaces(name.substr(kCallPrefix.size()));
  if (!prefixed || name.empty() || name.size() > kNameBytesMax || !std::ranges::all_of(name, is_name_char))
    return break_call();
  call_ = {.name = std::string(name)};
  state_ = State::kArguments;
  emit(Kind::kToolCallBegin, {});
  arguments_text(piece.substr(brace + 1));
}

void ChatParser::arguments_text(std::string_view piece) {
  while (!piece.empty() && state_ == State::kArguments) {
    if (call_.want == Want::kString || call_.want == Want::kQuotedKey) {
      call_.json += escaped(piece);  // up to the next quote, which is a token
      break;
    }
    argument_char(piece.front());
    piece.remove_prefix(1);
  }
  if (state_ == State::kArguments) emit_json();
}

void ChatParser::argument_char(char c) {
  switch (call_.want) {
    case Want::kKey:
      if (is_space(c) || c == ',') return;
      if (c == '}') return end_container(c);
      call_.want = Want::kBareKey;
      held_ = c;
      if (c == ':') break;  // an empty key
      return;
    case Want::kBareKey:
      if (c == '}' || c == ',') return break_call();
      held_ += c;
      if (c == ':') break;
      return;
    case Want::kColon:
      if (is_space(c)) return;
      if (c != ':') return break_call();
      call_.json += ':';
      call_.want = Want::kValue;
      return;
    case Want::kItem:
      if (is_space(c) || c == ',') return;
      if (c == ']') return end_container(c);
      [[fallthrough]];
    case Want::kValue:
      if (is_space(c)) return;
      if (c == '{' || c == '[') {
        if (call_.open.size() >= static_cast<std::size_t>(kChatJsonDepthMax)) return break_call();
        begin_value();
        call_.open += c;
        call_.json += c;
        call_.first = true;
        call_.want = c == '{' ? Want::kKey : Want::kItem;
        return;
      }
      call_.want = Want::kBare;
      held_.clear();
      [[fallthrough]];
    case Want::kBare:
      if (c != ',' && c != '}' && c != ']') {
        held_ += c;
        return;
      }
      end_bare();
      [[fallthrough]];
    case Want::kComma:
      if (is_space(c)) return;
      if (c == '}' || c == ']') return end_container(c);
      if (c != ',') return break_call();
      call_.want = call_.open.back() == '{' ? Want::kKey : Want::kItem;
      return;
    case Want::kEnd:
      if (!is_space(c)) break_call();
      return;
    case Want::kQuotedKey:
    case Want::kString: return;  // arguments_text() takes them whole
  }
  // A bare key, its colon included.
  held_.pop_back();
  begin_value();
  call_.json += '"' + escaped(without_spaces(held_)) + "\":";
  held_.clear();
  call_.want = Want::kValue;
}

/// A quote token.
void ChatParser::quote() {
  const Want at = call_.want;
  const bool opens_value = at == Want::kValue || at == Want::kItem;
  if (at == Want::kKey || opens_value)
    begin_value();
  else if (at != Want::kQuotedKey && at != Want::kString)
    return break_call();
  call_.json += '"';
  call_.want = opens_value           ? Want::kString
               : at == Want::kKey    ? Want::kQuotedKey
               : at == Want::kString ? Want::kComma
                                     : Want::kColon;
  emit_json();
}

/// A comma, when this is another key or item. A value after its key has had it.
void ChatParser::begin_value() {
  if (call_.want == Want::kValue) return;
  if (!call_.first) call_.json += ',';
  call_.first = false;
}

void ChatParser::end_bare() {
  const std::string value(without_spaces(held_));
  held_.clear();
  if (call_.open.back() == '[') {
    call_.want = Want::kItem;
    begin_value();
  }
  call_.json += bare_json(value);
  call_.want = Want::kComma;
}

void ChatParser::end_container(char close) {
  if ((call_.open.back() == '{') != (close == '}')) return break_call();
  call_.open.pop_back();
  call_.json += close;
  call_.first = false;
  call_.want = call_.open.empty() ? Want::kEnd : Want::kComma;
}

void ChatParser::end_call() {
  ++complete_calls_;
  emit(Kind::kToolCallEnd, call_.json);
  state_ = State::kContent;
}

void ChatParser::break_call() {
  if (state_ == State::kCallHead) call_.name.clear();
  held_.clear();
  state_ = State::kCallSkipped;
  emit(Kind::kToolCallBroken, {});
}

void ChatParser::emit(Kind kind, std::string_view text) {
  const bool of_call = kind != Kind::kReasoning && kind != Kind::kContent && kind != Kind::kToolArguments;
  events_.push_back({.kind = kind, .text = std::string(text), .name = of_call ? call_.name : std::string()});
}

void ChatParser::emit_json() {
  if (call_.json.size() == call_.emitted) return;
  emit(Kind::kToolArguments, std::string_view(call_.json).substr(call_.emitted));
  call_.emitted = call_.json.size();
}

void append(const ChatEvent& event, ChatMessage& message) {
  switch (event.kind) {
    case Kind::kReasoning: message.reasoning += event.text; break;
    case Kind::kContent: message.content += event.text; break;
    case Kind::kToolCallEnd:
      message.tool_calls.push_back({.id = {}, .name = event.name, .arguments = parse_json(event.text)});
      break;
    case Kind::kToolCallBegin:
    case Kind::kToolArguments:
    case Kind::kToolCallBroken: break;
  }
}

}  // namespace outrider
