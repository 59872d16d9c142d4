#pragma once

#include <optional>
#include <span>
#include <vector>

#include "common/decoding/grammar/grammar.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// What a drafter knows of a session's answer besides its K/V: how its tokens are chosen, and, where that depends on
/// them, the tokens so far and where they are in the grammar. A drafter that does not have the grammar, or not yet,
/// drafts without: that costs acceptance, never a token of the sequence.
class AnswerGuide {
 public:
  /// A Draft has come: puts the session's sampling and stop tokens into it, where they are known here. @param grammars
  /// null: none is made here. @return the grammar's state after the answer that the draft goes on from; null: there is
  /// none.
  GrammarState* follow(Draft& draft, GrammarCompiler* grammars);

  /// The tokens that may not come after the answer and these drafts, since they would complete a bad word.
  std::vector<TokenId> completes_bad_word(std::span<const TokenId> drafts) const;

 private:
  std::optional<SamplingParams> sampling_;
  std::vector<TokenId> stop_ids_;
  std::vector<TokenId> answer_;        ///< so far, where the sampling depends on it
  GrammarWait wait_;                   ///< for its grammar; none: nobody has asked, or it is there
  std::optional<GrammarState> state_;  ///< after it; none: not ready yet
  bool lost_ = false;                  ///< the answer does not follow the grammar, or it will never be there
};

}  // namespace outrider
