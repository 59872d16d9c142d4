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

/// Parses a model's answer incrementally: thought, answer and tool calls (docs: gemma4.md 6.3). Control tokens count by
/// their id alone, so that text which spells one is text.
///
/// Tolerant: a thought may have no label, be empty, occur twice, or be cut off; a stray end of a thought is ignored. A
/// call is emitted as a whole, at its end (call_reader.h); an invalid or unfinished one is content as the model wrote
/// it, with its control tokens spelled out. Never fails, whatever the ids are. O(1) amortised per byte. The tokenizer
/// must outlive the parser.
class ChatParser {
 public:
  /// @param prompt  the answered prompt, which may have opened the thought that the answer continues
  explicit ChatParser(const Tokenizer& tokenizer, std::span<const TokenId> prompt = {});

  /// Returns true while text belongs to a thought.
  bool thinks() const { return state_ == State::kThought || state_ == State::kThoughtLabel; }

  std::vector<ChatEvent> push(TokenId id);

  /// Ends the answer, and appends held-back text to `events`. The parser cannot be used afterwards.
  /// @param length_reached  the answer was cut off
  ChatFinish finish(bool length_reached, std::vector<ChatEvent>& events);
  /// Number of calls so far that became content.
  int broken_calls() const { return broken_calls_; }

 private:
  /// Part of the answer to which the next text belongs.
  enum class State {
    kContent,
    kTurnLabel,     // of a turn that the model opens, until it is "model\n" or cannot become it
    kThoughtLabel,  // of a channel, until it is "thought\n" or cannot become it
    kThought,
    kCall,
  };

  void control(TokenId id);
  void text(std::string_view piece);
  /// Leaves any state for kContent. @param end  text of the end of an invalid call
  void leave(std::string_view end = "");
  /// Holds back a possible prefix of this label. @return the text after it, or all without it; none while undecided
  std::optional<std::string> after_label(std::string_view label, std::string_view piece);

  void thought_text(std::string_view piece);
  bool take_call();  // if the held text is a call
  void emit(ChatEvent::Kind kind, std::string_view text);

  StreamingDetokenizer detokenizer_;
  AnswerControls controls_;
  std::optional<TokenId> turn_begin_;
  std::vector<TokenId> ends_;  // control tokens that end every state

  State state_ = State::kContent;
  std::string held_;  // undecided text: label, white space of a thought, a call
  std::vector<ChatEvent> events_;
  int complete_calls_ = 0, broken_calls_ = 0;
};

/// Appends an event's text or call to an assistant's message: for histories.
void append(const ChatEvent& event, ChatMessage& message);

}  // namespace outrider
