#pragma once

#include <span>
#include <string>

#include "common/base/result.h"
#include "common/model/tokenizer/answer_controls.h"
#include "common/model/tokenizer/chat.h"

/// Grammars of calls and thoughts in Gemma 4's answers (gemma4.md 6.3).
namespace outrider {

/// Grammar of calls of these tools. Arguments follow their schemas (grammar_of_schema()), in the order of their names,
/// as the template writes them.
/// @param many  any number of calls, else one
/// @return kUnsupported if the vocabulary has no tokens for calls, or for a keyword, which is named
Result<std::string> grammar_of_calls(std::span<const ToolDeclaration> tools, bool many, const AnswerControls& controls);

/// Grammar of any answer with at most one call, which ends it.
Result<std::string> grammar_of_one_call_at_most(const AnswerControls& controls);

/// Grammar of an optional thought, followed by `grammar`. @param open  the prompt has begun the thought
Result<std::string> grammar_after_thought(const std::string& grammar, bool open, const AnswerControls& controls);

}  // namespace outrider
