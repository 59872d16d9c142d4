#pragma once

#include <string>
#include <string_view>

#include "common/base/json_fields.h"
#include "common/model/tokenizer/answer_controls.h"
#include "common/model/tokenizer/chat.h"

// A request's fields for the form of its answer become one grammar (common/decoding/grammar), which travels. A wrong
// field, or one that cannot be followed, is the fields' first error.

namespace outrider {

/// The place of an API's own field for the format of an answer, in which the schema stands beside the type.
struct FormatField {
  const char* object = nullptr;  ///< that it is in; null: the body
  const char* key = nullptr;     ///< null: there is no such field
};

/// OpenAI's `response_format`, vLLM's `structured_outputs`, llama.cpp's `grammar` and `json_schema`, or a field of the
/// API's own: one of them at most.
/// @param body  the text of the whole request: properties come in the order of its schemas, which `fields` has lost
/// @return empty: any text
std::string read_answer_grammar(const JsonFields& fields, std::string_view body, FormatField own = {});

/// Which tools a chat may call, and which it must.
struct ToolChoice {
  enum class Kind { kFree, kForced, kNone };
  Kind kind = Kind::kFree;
  std::string name = {};  ///< of the tool that is forced; empty: any of them
};
/// A `tool_choice` that is a word, or missing.
ToolChoice read_tool_choice_word(const JsonFields& fields);

/// The grammar of a chat that may have tools: after `tool_choice`, `parallel_tool_calls` and a tool's `strict`.
/// @param grammar  of an answer that is no call
std::string read_call_grammar(const JsonFields& fields, const Conversation& conversation, const ToolChoice& choice,
                              std::string grammar, const AnswerControls& controls, bool parallel = true);

}  // namespace outrider
