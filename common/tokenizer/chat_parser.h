#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/tokenizer/answer_controls.h"
#include "common/tokenizer/chat.h"
#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/tokenizer.h"

namespace outrider {

/// A piece of a model's answer. Texts are valid UTF-8.
struct ChatEvent {
  enum class Kind {
    kReasoning,       ///< text: more of the thought
    kContent,         ///< text: more of the answer
    kToolCallBegin,   ///< name
    kToolArguments,   ///< text: more of the arguments, as JSON; the pieces join to the whole
    kToolCallEnd,     ///< name; text: the whole arguments, a JSON object
    kToolCallBroken,  ///< name, perhaps none yet; the call broke off or broke its grammar: forget it
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
/// thought is nothing. A call that breaks its grammar gives kToolCallBroken, and reading goes on after it.
/// Never fails, whatever the ids are. O(1) amortised per byte; arguments nest kChatJsonDepthMax deep.
/// The tokenizer must outlive the parser.
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

 private:
  /// Where in an answer the next text belongs.
  enum class State {
    kContent,
    kTurnLabel,     // of a turn that the model opens, until it is "model\n" or can not become it
    kThoughtLabel,  // of a channel, until it is "thought\n" or can not become it
    kThought,
    kCallHead,  // "call:NAME{"
    kArguments,
    kCallSkipped,  // after an error in a call, up to its end
  };
  /// Where in a call's arguments the next text belongs.
  enum class Want {
    kKey,  // or the end of the object
    kBareKey,
    kQuotedKey,
    kColon,  // after a quoted key
    kValue,
    kItem,  // a value, or the end of the array
    kBare,  // a value without quotes
    kString,
    kComma,  // or the end of what encloses the value
    kEnd,    // the arguments are complete
  };

  /// The call that is being read.
  struct Call {
    Want want = Want::kKey;
    std::string name = {};
    std::string open = "{";   // The containers around, '{' or '['.
    bool first = true;        // Nothing in the innermost container yet.
    std::string json = "{";   // So far.
    std::size_t emitted = 0;  // Of json.
  };

  void control(TokenId id);
  void text(std::string_view piece);
  void leave();  // whatever the state is, for kContent
  /// Holds back what may become this label. @return what follows it, or all if it is none; none while that is open.
  std::optional<std::string> after_label(std::string_view label, std::string_view piece);

  void thought_text(std::string_view piece);
  void head_text(std::string_view piece);
  void arguments_text(std::string_view piece);
  void argument_char(char c);
  void quote();
  void begin_value();
  void end_bare();
  void end_container(char close);
  void end_call();
  void break_call();

  void emit(ChatEvent::Kind kind, std::string_view text);
  void emit_json();

  StreamingDetokenizer detokenizer_;
  AnswerControls controls_;
  std::optional<TokenId> turn_begin_;
  std::vector<TokenId> ends_;  // Control tokens that end whatever was open.

  State state_ = State::kContent;
  std::string held_;  // Text that is not decided yet: label, white space of a thought, head, bare text.
  std::vector<ChatEvent> events_;
  int complete_calls_ = 0;

  Call call_;
};

/// Adds what an event says to an assistant's message: for histories.
void append(const ChatEvent& event, ChatMessage& message);

}  // namespace outrider
