#pragma once

#include <span>
#include <string>

#include "common/base/result.h"
#include "common/model/tokenizer/answer_controls.h"
#include "common/model/tokenizer/chat.h"

/// Grammars of what an answer in Gemma 4's format has besides text (gemma4.md 6.3).
namespace outrider {

/// The answer is calls of these tools, with arguments by their schemas as grammar_of_schema() follows them, in the
/// order of their names, as the template writes them.
/// @param many  any number of calls, else one
/// @return kUnsupported where the vocabulary has no tokens for calls, or for a keyword, which is named
Result<std::string> grammar_of_calls(std::span<const ToolDeclaration> tools, bool many, const AnswerControls& controls);

/// The answer is anything, with one call at most, which ends it.
Result<std::string> grammar_of_one_call_at_most(const AnswerControls& controls);

/// The answer is a thought, which may be missing, and then what the grammar says.
/// @param open  the prompt has begun the thought
Result<std::string> grammar_after_thought(const std::string& grammar, bool open, const AnswerControls& controls);

}  // namespace outrider
