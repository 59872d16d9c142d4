#pragma once

#include <optional>
#include <span>
#include <vector>

#include "common/decoding/grammar/grammar.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// A drafter's state of a session's answer besides its K/V: sampling parameters and, if these depend on the answer, its
/// tokens and their grammar state. Drafts ignore a grammar that is missing or not ready yet: that costs acceptance, but
/// never changes the answer.
class AnswerGuide {
 public:
  /// Handles a Draft: adds the session's sampling parameters and stop tokens, if known here.
  /// @param grammars  null: none are compiled here
  /// @return the grammar's state after the answer that the draft continues; null: none
  GrammarState* follow(Draft& draft, GrammarCompiler* grammars);

  /// Returns the tokens that would complete a bad word after the answer and these drafts.
  std::vector<TokenId> completes_bad_word(std::span<const TokenId> drafts) const;

 private:
  std::optional<SamplingParams> sampling_;
  std::vector<TokenId> stop_ids_;
  std::vector<TokenId> answer_;        ///< so far, if sampling depends on it
  GrammarWait wait_;                   ///< for its grammar; none: not requested, or ready
  std::optional<GrammarState> state_;  ///< after the answer; none: not ready yet
  bool lost_ = false;                  ///< the answer violates the grammar or has gaps, or the grammar failed
};

}  // namespace outrider
