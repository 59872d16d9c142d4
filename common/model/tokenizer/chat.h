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

/// JSON of a conversation (schemas, arguments, responses) may nest so deep, both ways.
inline constexpr int kChatJsonDepthMax = 64;

/// A function that the model may call, as in OpenAI's `tools[].function`.
struct ToolDeclaration {
  std::string name, description;
  nlohmann::json parameters;  ///< a JSON schema, or null: takes none
  nlohmann::json response;    ///< null, or an object with `description` and `type`
  bool strict = false;        ///< `parameters` that no grammar can follow are refused; else the arguments are any
};

struct ToolCall {
  std::string id;  ///< which a tool message answers; may be empty
  std::string name;
  nlohmann::json arguments;  ///< an object; null: none; a string is written between the braces as it is
};

/// One piece of a content that is not text alone.
struct ContentPart {
  enum class Kind { kText, kImage, kAudio, kVideo };
  Kind kind = Kind::kText;
  std::string text = {};  ///< of kText; an image and a sound are one soft token each
  /// Of kVideo: when each of its frames is shown. It is one soft token for each of them, behind its time.
  std::vector<std::int64_t> frame_seconds = {};
};

struct ChatMessage {
  enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool, kOther };
  Role role = Role::kUser;
  std::string content;
  std::vector<ContentPart> parts;  ///< instead of `content`, where there are any

  // Of an assistant.
  std::string reasoning;
  std::vector<ToolCall> tool_calls;

  // Of a tool: the answer to the call of this id, else (no call has it) of the function `name`.
  std::string tool_call_id, name;
  nlohmann::json response;

  std::string other_role = {};  ///< of kOther: its name, which the templates write as it is

  /// `content` or its parts as one text, as a prompt has it.
  std::string shown_text() const;
};

struct Conversation {
  std::vector<ChatMessage> messages;
  std::vector<ToolDeclaration> tools;
  bool thinking = false;  ///< ask the model to think before it answers
  /// Where the prompt ends: where the model's turn has begun, after the last message, or within it, which is an
  /// assistant's that the model goes on with.
  enum class End { kModelTurn, kLastMessage, kWithinLastMessage };
  End end = End::kModelTurn;
  bool preserve_thinking = false;  ///< replay older thoughts too, where the format can (kRefreshed)
};

/// The prompt of a conversation up to its `end`, `<bos>` included: token for token
/// what the checkpoint's chat template and tokenizer give.
///
/// Nothing that comes from outside (content, names, schemas, arguments, responses) yields a special
/// token, whatever it spells: that alone differs from the template, where text that spells a
/// control token becomes one.
///
/// @return kInvalidArgument for a conversation that the format has no words for (a tool message
///   that no call precedes, arguments that are no object, JSON too deep, no text to go on with); kNotFound for a
///   control token that the vocabulary lacks; kMismatch for one that is not special there, so that users could forge
///   it.
Result<std::vector<TokenId>> render_chat(const Tokenizer& tokenizer, const ChatFormat& format,
                                         const Conversation& conversation);

/// A text as it is, special tokens that it spells included, after a `<bos>`: no template brings the one that the model
/// needs (gemma4.md 6.1).
std::vector<TokenId> encode_with_bos(const Tokenizer& tokenizer, std::string_view text);

/// The same of what is encoded already.
std::vector<TokenId> with_bos(const Tokenizer& tokenizer, std::vector<TokenId> ids);

/// render_chat() of one message of the user. The format is the checkpoint's: large models' answers begin otherwise.
Result<std::vector<TokenId>> render_user_turn(const Tokenizer& tokenizer, std::string_view user_text,
                                              const ChatFormat& format);

}  // namespace outrider
