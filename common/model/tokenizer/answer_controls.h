#pragma once

#include <array>
#include <optional>

#include "common/base/ids.h"
#include "common/model/tokenizer/tokenizer.h"

namespace outrider {

/// The control tokens within an answer in Gemma 4's format (gemma4.md 6.3), as far as the vocabulary has them.
struct AnswerControls {
  std::optional<TokenId> channel_begin, channel_end;  ///< around a thought
  std::optional<TokenId> call_begin, call_end;        ///< around a call
  std::optional<TokenId> quote;                       ///< around a text in a call's arguments

  std::array<std::optional<TokenId>, 5> all() const {
    return {channel_begin, channel_end, call_begin, call_end, quote};
  }
};

inline AnswerControls answer_controls(const Tokenizer& tokenizer) {
  return {.channel_begin = tokenizer.find("<|channel>"),
          .channel_end = tokenizer.find("<channel|>"),
          .call_begin = tokenizer.find("<|tool_call>"),
          .call_end = tokenizer.find("<tool_call|>"),
          .quote = tokenizer.find("<|\"|>")};
}

}  // namespace outrider
