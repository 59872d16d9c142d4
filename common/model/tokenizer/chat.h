#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/model/tokenizer/chat_format.h"
#include "common/model/tokenizer/tokenizer.h"

namespace outrider {

/// Greatest nesting of JSON in a conversation (schemas, arguments, responses), in both directions.
inline constexpr int kChatJsonDepthMax = 64;

/// A function that the model may call, as in OpenAI's `tools[].function`.
struct ToolDeclaration {
  std::string name, description;
  nlohmann::json parameters;  ///< a JSON schema, or null: takes none
  nlohmann::json response;    ///< null, or an object with `description` and `type`
  bool strict = false;        ///< refuse `parameters` that no grammar can follow; else leave arguments free
};

struct ToolCall {
  std::string id;  ///< referenced by the tool message that answers it; may be empty
  std::string name;
  nlohmann::json arguments;  ///< an object; null: none; a string is written between the braces as it is
};

/// One piece of multimodal content.
struct ContentPart {
  enum class Kind { kText, kImage, kAudio, kVideo };
  Kind kind = Kind::kText;
  std::string text = {};  ///< of kText; an image and a sound are one soft token each
  /// Of kVideo: the time of each frame. A frame is one soft token, after its time.
  std::vector<std::int64_t> frame_seconds = {};
};

struct ChatMessage {
  enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool, kOther };
  Role role = Role::kUser;
  std::string content;
  std::vector<ContentPart> parts;  ///< instead of `content`, if not empty

  // Assistant messages only.
  std::string reasoning;
  std::vector<ToolCall> tool_calls;

  // Tool messages only: the answer to the call of this id, or else (no call has it) of the function `name`.
  std::string tool_call_id, name;
  nlohmann::json response;

  std::string other_role = {};  ///< of kOther: name of the role, which the templates write as it is

  /// Returns `content` or its parts as one text, as a prompt shows it.
  std::string shown_text() const;
};

struct Conversation {
  std::vector<ChatMessage> messages;
  std::vector<ToolDeclaration> tools;
  bool thinking = false;  ///< ask the model to think before it answers
  /// End of the prompt: after the start of the model's turn, after the last message, or within that message, which is
  /// an assistant's that the model continues.
  enum class End { kModelTurn, kLastMessage, kWithinLastMessage };
  End end = End::kModelTurn;
  bool preserve_thinking = false;  ///< replay older thoughts too, if the format can (kRefreshed)
};

/// Returns the prompt of a conversation up to its `end`, `<bos>` included: token for token the result of the
/// checkpoint's chat template and tokenizer.
///
/// Untrusted text (content, names, schemas, arguments, responses) never yields a special token, whatever it spells.
/// This is the only difference from the template, where text that spells a control token becomes one.
///
/// @return kInvalidArgument for a conversation that the format cannot express (a tool message without a call before it,
/// arguments that are no object, JSON too deep, no text to continue); kNotFound for a control token that the vocabulary
/// lacks; kMismatch for one that is not special there, so that users could forge it
Result<std::vector<TokenId>> render_chat(const Tokenizer& tokenizer, const ChatFormat& format,
                                         const Conversation& conversation);

/// Encodes a text as it is, special tokens included, after a `<bos>`, which the model needs and no template adds
/// (gemma4.md 6.1).
std::vector<TokenId> encode_with_bos(const Tokenizer& tokenizer, std::string_view text);

/// The same for encoded text.
std::vector<TokenId> with_bos(const Tokenizer& tokenizer, std::vector<TokenId> ids);

/// render_chat() of one user message. The format is the checkpoint's: large models' answers begin differently.
Result<std::vector<TokenId>> render_user_turn(const Tokenizer& tokenizer, std::string_view user_text,
                                              const ChatFormat& format);

}  // namespace outrider
