#pragma once

#include <span>
#include <string>

#include "common/base/result.h"
#include "common/tokenizer/answer_controls.h"
#include "common/tokenizer/chat.h"

/// Grammars of what an answer in Gemma 4's format has besides text (gemma4.md 6.3).
namespace outrider {

/// A tool as it may be called.
struct CallableTool {
  const ToolDeclaration* tool = nullptr;
  bool strict = false;  ///< what its schema says and no grammar of calls can, is refused; else that is let be
};

/// The answer is calls of these tools, with arguments by their schemas: names, types, required ones, enums and nesting,
/// in the order of their names, as the template writes them. Lengths, bounds, patterns and formats of values are not
/// followed (see `strict`).
/// @param many  any number of calls, else one
/// @return kUnsupported where the vocabulary has no tokens for calls, or for a keyword, which is named
Result<std::string> grammar_of_calls(std::span<const CallableTool> tools, bool many, const AnswerControls& controls);

/// The answer is anything, with one call at most, which ends it.
Result<std::string> grammar_of_one_call_at_most(const AnswerControls& controls);

/// The answer is a thought, which may be missing, and then what the grammar says.
/// @param open  the prompt has begun the thought
Result<std::string> grammar_after_thought(const std::string& grammar, bool open, const AnswerControls& controls);

}  // namespace outrider
