#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "server/request.h"

// Readers shared by the parsers of all APIs: fields that all APIs have, and the parts of a conversation. A parser is a
// function from a body to a CompletionRequest. The first error names the client's own field.

namespace outrider {

/// Reports an error if the body names another model than the server's.
void check_model(const JsonFields& fields, const ApiDefaults& defaults, FirstError& wrong);
ApiError api_error_of(const FirstError& wrong);

/// Returns a T filled in by `read(fields, T&)` from a body, or the first error.
template <typename T, typename Read>
ApiResult<T> read_body(const nlohmann::json& body, const ApiDefaults& defaults, Read read) {
  FirstError wrong{.file = ""};
  const JsonFields fields(body, "", wrong);
  check_model(fields, defaults, wrong);
  T value;
  read(fields, value);
  if (wrong.error) return api_error_of(wrong);
  return value;
}

/// Differences of an API from chat/completions.
struct RequestWords {
  std::string_view path = "";        ///< of the endpoint: determines the known fields
  const char* max_tokens = nullptr;  ///< the API's own name besides OpenAI's
  const char* stop = nullptr;        ///< the API's own name instead of OpenAI's
  bool logprobs = false;             ///< requested by the API's own field
  bool one_reply = false;            ///< its replies cannot represent choices, token ids and the like
};
/// Reads the fields of sampling, length, drafts and the reply, except the grammar and a stream's usage.
/// @param request  its `chat` must be set
void read_request(const JsonFields& fields, const ApiDefaults& defaults, const RequestWords& words,
                  CompletionRequest& request);

/// Reads tokens of the vocabulary from an array under the key, or the key's own.
std::vector<TokenId> token_ids(const JsonFields& fields, const char* key, const nlohmann::json* array,
                               const ApiDefaults& defaults);

/// Makes a message with this `role`, without its content.
ChatMessage read_role(const JsonFields& fields);
/// Reads a part of a content by its type.
using PartReader = std::function<void(const JsonFields& part, const std::string& type)>;
/// Reads a string, or an array of parts, which the templates write one by one.
void read_content(const JsonFields& fields, const char* key, ChatMessage& message, const PartReader& read);
/// Reads a part in chat/completions' form: a text, or a medium (is_medium()).
/// @param media  receives the file of a picture, a video or a sound
void read_part(const JsonFields& part, const std::string& type, ChatMessage& message, std::vector<MediumFile>& media);
/// Refuses a medium in a message that is neither a user's nor a tool's. @return true if the message may have it
bool may_have_medium(const JsonFields& part, const std::string& type, const ChatMessage& message);

/// Reads the name of a function or a tool.
std::string read_name(const JsonFields& fields, const char* key = "name");
/// Reads a call of a function: its name, and its arguments as text.
ToolCall read_call(const JsonFields& fields);
/// Makes the text of a tool's message the answer to its call.
void make_answer(ChatMessage& message);
/// Reads a function with name and description. @param schema  the key of its parameters
ToolDeclaration read_function(const JsonFields& function, const char* schema);
/// Reads `tools`. Tools that the server would have to run are left out with a warning; they are refused with
/// --strict-fields, or if there are no other tools.
/// @param read  adds a tool that the client runs; returns false for any other
void read_tools(const JsonFields& fields, const ApiDefaults& defaults, Conversation& conversation,
                std::vector<std::string>& warnings, const std::function<bool(const JsonFields& tool)>& read);

/// Reads whether the model thinks, and where the prompt ends.
/// @param goes_on  by default the model continues the last message
void read_ending(const JsonFields& fields, bool goes_on, Conversation& conversation);
/// Refuses a conversation without a message, with too many files, or with files and a limit on its prompt. Moves the
/// pictures and sounds of tools' answers, for which the templates have no place, to a user's message behind them.
/// @param key  of its messages
void finish_turns(const JsonFields& fields, const char* key, Conversation& conversation,
                  const std::vector<MediumFile>& media);

}  // namespace outrider
