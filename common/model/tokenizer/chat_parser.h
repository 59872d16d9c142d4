#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/model/tokenizer/answer_controls.h"
#include "common/model/tokenizer/chat.h"
#include "common/model/tokenizer/detokenizer.h"
#include "common/model/tokenizer/tokenizer.h"

namespace outrider {

/// A piece of a model's answer. Texts are valid UTF-8.
struct ChatEvent {
  enum class Kind {
    kReasoning,  ///< text: more of the thought
    kContent,    ///< text: more of the answer
    kToolCall,   ///< name; text: the arguments, a JSON object
  };
  Kind kind;
  std::string text;
  std::string name;
  bool operator==(const ChatEvent&) const = default;
};

enum class ChatFinish { kStop, kLength, kToolCalls };

/// Reads a model's answer as it comes: thought, answer and tool calls (docs: gemma4.md 6.3). Control
/// tokens count by their id alone, so text that spells one is text.
///
/// Tolerant: a thought may have no label, be empty, come twice, or be cut off; a stray end of a
/// thought is nothing. A call comes whole, at its end (call_reader.h); one that is none, or that breaks off, is content
/// as the model wrote it, its control tokens spelled out.
/// Never fails, whatever the ids are. O(1) amortised per byte. The tokenizer must outlive the parser.
class ChatParser {
 public:
  /// @param prompt  what the model answers: it may have opened the thought that the answer goes on with.
  explicit ChatParser(const Tokenizer& tokenizer, std::span<const TokenId> prompt = {});

  /// Whether the next text belongs to a thought.
  bool thinks() const { return state_ == State::kThought || state_ == State::kThoughtLabel; }

  std::vector<ChatEvent> push(TokenId id);

  /// Ends the answer, and appends what was held back to `events`. The parser is of no use afterwards.
  /// @param length_reached  the answer was cut off.
  ChatFinish finish(bool length_reached, std::vector<ChatEvent>& events);
  /// Calls so far that became content.
  int broken_calls() const { return broken_calls_; }

 private:
  /// Where in an answer the next text belongs.
  enum class State {
    kContent,
    kTurnLabel,     // of a turn that the model opens, until it is "model\n" or can not become it
    kThoughtLabel,  // of a channel, until it is "thought\n" or can not become it
    kThought,
    kCall,
  };

  void control(TokenId id);
  void text(std::string_view piece);
  /// Whatever the state is, for kContent. @param end  what the model wrote at the end of a call that is none
  void leave(std::string_view end = "");
  /// Holds back what may become this label. @return what follows it, or all if it is none; none while that is open.
  std::optional<std::string> after_label(std::string_view label, std::string_view piece);

  void thought_text(std::string_view piece);
  bool take_call();  // if what is held is one
  void emit(ChatEvent::Kind kind, std::string_view text);

  StreamingDetokenizer detokenizer_;
  AnswerControls controls_;
  std::optional<TokenId> turn_begin_;
  std::vector<TokenId> ends_;  // Control tokens that end whatever was open.

  State state_ = State::kContent;
  std::string held_;  // Text that is not decided yet: label, white space of a thought, a call.
  std::vector<ChatEvent> events_;
  int complete_calls_ = 0, broken_calls_ = 0;
};

/// Adds what an event says to an assistant's message: for histories.
void append(const ChatEvent& event, ChatMessage& message);

}  // namespace outrider
