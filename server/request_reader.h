#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "server/request.h"

// The parsers of all APIs share these readers: of the fields that all APIs have, and of the parts of a conversation. A
// parser is a function from a body to a CompletionRequest. The first error names the client's own field.

namespace outrider {

/// Says that there is no such model, if the body names another than the server's.
void check_model(const JsonFields& fields, const ApiDefaults& defaults, FirstError& wrong);
ApiError api_error_of(const FirstError& wrong);

/// A T as `read(fields, T&)` fills it in from the fields of a body, or the first thing that is wrong.
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

/// An API says these in other words than chat/completions.
struct RequestWords {
  std::string_view path = "";        ///< of the endpoint: it says which fields are known
  const char* max_tokens = nullptr;  ///< the API's own name besides OpenAI's
  const char* stop = nullptr;        ///< the API's own name instead of OpenAI's
  bool logprobs = false;             ///< asked for in words of its own
  bool one_reply = false;            ///< its replies have no room for choices, token ids and the like
};
/// The fields of sampling, length, drafts and the reply, but for the grammar and a stream's usage.
/// @param request  whose `chat` is set
void read_request(const JsonFields& fields, const ApiDefaults& defaults, const RequestWords& words,
                  CompletionRequest& request);

/// The tokens of the vocabulary in an array that stands under the key, or in the key's.
std::vector<TokenId> token_ids(const JsonFields& fields, const char* key, const nlohmann::json* array,
                               const ApiDefaults& defaults);

/// A message of this `role`, without its content.
ChatMessage read_role(const JsonFields& fields);
/// Reads a part of a content by its type.
using PartReader = std::function<void(const JsonFields& part, const std::string& type)>;
/// A string, or an array of parts, which the templates write one by one.
void read_content(const JsonFields& fields, const char* key, ChatMessage& message, const PartReader& read);
/// Reads a part in the form of chat/completions: a text, or a medium (is_medium()).
/// @param media  gets the file of a picture, a video or a sound
void read_part(const JsonFields& part, const std::string& type, ChatMessage& message, std::vector<MediumFile>& media);
/// Refuses a picture, a video or a sound of anybody but the user. @return whether the message may have it
bool may_have_medium(const JsonFields& part, const std::string& type, const ChatMessage& message);

/// It reads the name of a function or a tool.
std::string read_name(const JsonFields& fields);
/// A call of a function: its name, and its arguments as text.
ToolCall read_call(const JsonFields& fields);
/// Makes the content of a tool's message the answer to its call.
void make_answer(ChatMessage& message);
/// A function with name and description. @param schema  the key of its parameters
ToolDeclaration read_function(const JsonFields& function, const char* schema);

/// Reads whether the model thinks, and where the prompt ends.
/// @param goes_on  the model goes on with the last message, unless the request says otherwise
void read_ending(const JsonFields& fields, bool goes_on, Conversation& conversation);
/// Refuses a conversation without a message, with too many files, or with files and a bound on its prompt.
/// @param key  of its messages
void check_turns(const JsonFields& fields, const char* key, const Conversation& conversation,
                 const std::vector<MediumFile>& media);

}  // namespace outrider
