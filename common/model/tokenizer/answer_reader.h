#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/model/tokenizer/chat_parser.h"
#include "common/model/tokenizer/detokenizer.h"
#include "common/model/tokenizer/stop_matcher.h"
#include "common/model/tokenizer/tokenizer.h"

namespace outrider {

/// Converts an answer's tokens into events, up to the first stop string.
class AnswerReader {
 public:
  /// @param tokenizer  outlives this object
  /// @param chat_prompt  the prompt of a chat's answer; none: all of the answer is content
  /// @param on_event  receives each piece as soon as no stop string can begin in it any more
  AnswerReader(const Tokenizer& tokenizer, StopMatcher stops, std::optional<std::span<const TokenId>> chat_prompt,
               std::function<void(const ChatEvent&)> on_event);

  /// @return true when a stop string is complete: the answer ends with this token
  bool push(TokenId token);
  /// Ends the answer and emits held-back text. @param length_reached  the answer was cut off
  ChatFinish finish(bool length_reached);
  /// Returns true while the next token belongs to a thought.
  bool thinks() const { return chat_ && chat_->thinks(); }
  /// See ChatParser.
  int broken_calls() const { return chat_ ? chat_->broken_calls() : 0; }
  /// The stop string that ended the answer; empty: none.
  const std::string& stop() const { return stops_.stop(); }

 private:
  void content(std::string text);
  void pass(const std::vector<ChatEvent>& events);

  StopMatcher stops_;
  std::optional<ChatParser> chat_;
  StreamingDetokenizer text_;
  std::function<void(const ChatEvent&)> on_event_;
};

}  // namespace outrider
