#pragma once

#include <map>
#include <memory>
#include <vector>

#include "common/grammar/grammar.h"
#include "common/model/assistant.h"
#include "common/protocol/drafter_core.h"
#include "common/sampling/distribution.h"

namespace outrider {

/// Keeps the donor replicas of a drafter's sessions and drafts on them. Used by one thread.
class DraftEngine {
 public:
  /// @param stop_ids a draft ends with one of these: nothing may follow it.
  /// @param grammars  makes those that answers have, and outlives this; null: drafts know of none.
  DraftEngine(std::unique_ptr<Assistant> assistant, std::vector<TokenId> stop_ids, GrammarCompiler* grammars = nullptr);

  /// Does one piece of work; the drafts are empty unless it is a kDraft.
  Candidates run(const DraftWork& work);

 private:
  /// The grammar of a session's answer. A drafter that does not have it, or not yet, drafts without: that costs
  /// acceptance, never a token of the text.
  struct Guide {
    std::string grammar;
    std::vector<TokenId> answer;             ///< so far
    std::optional<GrammarState> state = {};  ///< after it; none: not ready yet, or the answer does not follow it
    bool lost = false;                       ///< it will never be there
  };
  /// The state after the answer that a draft goes on from, or null.
  GrammarState* guide(SessionId session, const Draft& draft);
  /// Draws a draft of output `index` from the scores, with the noise that the rule wants, and appends its distribution
  /// to *q for kRejection or if it is wanted (Candidates::q). Penalties are left to the target: a drafter does not know
  /// the text.
  /// @param state  of the grammar, which goes on over the draft; null: none
  TokenId sample(const SamplingParams& sampling, std::int64_t index, std::span<const TokenId> ids,
                 std::span<const float> scores, GrammarState* state, bool want_q, std::vector<Distribution>* q);

  std::unique_ptr<Assistant> assistant_;
  std::vector<TokenId> stop_ids_;
  GrammarCompiler* grammars_;
  std::map<SessionId, DonorReplica> replicas_;
  std::map<SessionId, Guide> guides_;
  std::vector<float> row_;  ///< scores of the whole vocabulary
  SamplingScratch scratch_;
  Distribution q_;
};

}  // namespace outrider
