#include "common/model/tokenizer/answer_reader.h"

#include <utility>

namespace outrider {

AnswerReader::AnswerReader(const Tokenizer& tokenizer, StopMatcher stops,
                           std::optional<std::span<const TokenId>> chat_prompt,
                           std::function<void(const ChatEvent&)> on_event)
    : stops_(std::move(stops)), text_(tokenizer, /*skip_special=*/true), on_event_(std::move(on_event)) {
  if (chat_prompt) chat_.emplace(tokenizer, *chat_prompt);
}

bool AnswerReader::push(TokenId token) {
  if (chat_)
    pass(chat_->push(token));
  else
    content(stops_.push(text_.push(token)));
  return stops_.stopped();
}

ChatFinish AnswerReader::finish(bool length_reached) {
  ChatFinish finish = length_reached ? ChatFinish::kLength : ChatFinish::kStop;
  if (chat_) {
    std::vector<ChatEvent> rest;
    finish = chat_->finish(length_reached, rest);
    pass(rest);
  } else {
    content(stops_.push(text_.finish()));
  }
  content(stops_.finish());
  return stops_.stopped() ? ChatFinish::kStop : finish;
}

void AnswerReader::content(std::string text) {
  if (!text.empty()) on_event_({ChatEvent::Kind::kContent, std::move(text), {}});
}

void AnswerReader::pass(const std::vector<ChatEvent>& events) {
  for (const ChatEvent& event : events) {
    if (stops_.stopped()) return;
    if (event.kind == ChatEvent::Kind::kContent)
      content(stops_.push(event.text));
    else
      on_event_(event);
  }
}

}  // namespace outrider
