#pragma once

#include <string>
#include <string_view>

#include "common/base/json_fields.h"
#include "common/tokenizer/answer_controls.h"
#include "common/tokenizer/chat.h"

// What a request says of the form of its answer, as the grammar that travels (common/grammar). What is wrong, or cannot
// be followed, is the fields' first error.

namespace outrider {

/// OpenAI's `response_format`, vLLM's `structured_outputs`, llama.cpp's `grammar` and `json_schema`: one of them at
/// most.
/// @param body  the text of the whole request: properties come in the order of its schemas, which `fields` has lost
/// @return empty: any text
std::string read_answer_grammar(const JsonFields& fields, std::string_view body);

/// The same for a chat with tools: `tool_choice`, `parallel_tool_calls`, and a tool's `strict`. @param grammar  of an
/// answer that is no call
std::string read_call_grammar(const JsonFields& fields, const Conversation& conversation, std::string grammar,
                              const AnswerControls& controls);

}  // namespace outrider
