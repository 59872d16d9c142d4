#pragma once

#include <string>
#include <string_view>

#include "common/base/json_fields.h"
#include "common/model/tokenizer/answer_controls.h"
#include "common/model/tokenizer/chat.h"

// Converts a request's fields for the form of its answer into one grammar (common/decoding/grammar). An invalid or
// unsupported field is the fields' first error.

namespace outrider {

/// Location of an API's own field for the format of an answer, with the schema beside the type.
struct FormatField {
  const char* object = nullptr;  ///< object that contains it; null: the body
  const char* key = nullptr;     ///< null: the API has no such field
};

/// Reads OpenAI's `response_format`, vLLM's `structured_outputs`, llama.cpp's `grammar` and `json_schema`, or the API's
/// own field: at most one of these.
/// @param body  the whole request's text: it has the order of properties, which `fields` has lost
/// @return empty: unconstrained
std::string read_answer_grammar(const JsonFields& fields, std::string_view body, FormatField own = {});

/// Tools that a chat may or must call.
struct ToolChoice {
  enum class Kind { kFree, kForced, kNone };
  Kind kind = Kind::kFree;
  std::string name = {};  ///< name of the required tool; empty: any of them
};
/// Reads OpenAI's `tool_choice`: a word, or an object with a tool's name, in chats within its `function`.
ToolChoice read_tool_choice(const JsonFields& fields, bool of_chat);

/// Returns the grammar of a chat with tools, by `tool_choice`, `parallel_tool_calls` and a tool's `strict`.
/// @param grammar  of an answer without calls
std::string read_call_grammar(const JsonFields& fields, const Conversation& conversation, const ToolChoice& choice,
                              std::string grammar, const AnswerControls& controls, bool parallel = true);

}  // namespace outrider
