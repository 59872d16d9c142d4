#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/grammar/grammar.h"
#include "common/model/assistant.h"
#include "common/protocol/drafter_core.h"
#include "common/sampling/distribution.h"
#include "drafter-node/answer_guide.h"

namespace outrider {

/// Keeps the donor replicas of a drafter's sessions and drafts on them. Used by one thread.
class DraftEngine {
 public:
  /// @param stop_ids a draft ends with one of these: nothing may follow it.
  /// @param grammars  makes those that answers have, and outlives this; null: drafts know of none.
  DraftEngine(std::unique_ptr<Assistant> assistant, std::vector<TokenId> stop_ids, GrammarCompiler* grammars = nullptr);

  /// Does one piece of work that is no kAhead; the drafts are empty unless it is a kDraft whose drafts are not known.
  Candidates run(const DraftWork& work);
  /// One forward pass for what is drafted ahead of the session's last kDraft. @pre that wanted it.
  AheadStep go_on(const DraftWork& work);

 private:
  /// A place in a round: the token there, the one that the drafter finds likeliest beside it, and what it gives each.
  struct Place {
    TokenId token = 0, other = 0;
    double p = 0, p_other = 0;
    std::vector<float> state = {};  ///< from which the assistant goes on after either
  };
  /// A way in which a round may end: so many of its drafts hold, then comes `next`.
  struct Outcome {
    std::size_t held = 0;
    TokenId next = 0;
    double p = 0;
  };
  /// What a round may lead to, while its drafts are verified.
  struct Lead {
    Draft request;
    const AnswerGuide* guide = nullptr;  ///< the session's
    std::vector<TokenId> drafts;         ///< that are being verified
    std::vector<Place> path = {};        ///< of each draft, then of what follows them all; as far as it was walked
    std::vector<Outcome> outcomes = {};  ///< of the whole path that are not drafted for yet, the likeliest last
    std::vector<float> state = {};       ///< the next step's
    Candidates guess = {};               ///< at work; without `after` there is none
    int guesses = 0;                     ///< complete
  };

  bool is_stop(TokenId token) const;
  /// Whether nothing is missing of the path: where the text ends with the drafts nothing follows them.
  bool is_walked(const Lead& lead) const;
  void walk(Lead& lead, const DonorReplica& replica);
  void begin_guess(Lead& lead);
  void continue_guess(Lead& lead, const DonorReplica& replica);
  std::vector<Outcome> outcomes_of(const Lead& lead) const;
  /// The scores of output `index` by token, as the rules and the grammar (null: none) want them, into row_.
  /// @param out  tokens that may not come there besides
  void fill_row(const SamplingParams& sampling, std::int64_t index, std::span<const TokenId> ids,
                std::span<const float> scores, GrammarState* state, std::vector<TokenId> out);
  /// What the drafter makes of the place whose scores are in row_. @param token what is there, if that is decided.
  Place weigh(const SamplingParams& sampling, std::int64_t index, std::optional<TokenId> token);
  /// Draws a draft of output `index` from the scores, with the noise that the rule wants, and appends its distribution
  /// to *q for kRejection or if it is wanted (Candidates::q). Penalties are left to the target: a drafter does not know
  /// the text.
  /// @param state, out  as fill_row()'s
  TokenId sample(const SamplingParams& sampling, std::int64_t index, std::span<const TokenId> ids,
                 std::span<const float> scores, GrammarState* state, std::vector<TokenId> out, bool want_q,
                 std::vector<Distribution>* q);

  /// A node's choices for what follows it, the first first.
  struct Choices {
    std::vector<TokenId> tokens;
    std::vector<double> chances;  ///< DraftTree::grow's
    Distribution q;               ///< as Candidates::q has it
  };
  /// Of output `index`, whose scores are in row_. @param branch  DraftTree::Node's
  Choices choose_several(const SamplingParams& sampling, std::int64_t index, std::uint64_t branch);
  Candidates draft_tree(const Draft& draft, const DonorReplica& replica, std::span<const float> hidden,
                        GrammarState* grammar, const AnswerGuide& guide);

  std::unique_ptr<Assistant> assistant_;
  std::vector<TokenId> stop_ids_;
  GrammarCompiler* grammars_;
  std::map<SessionId, DonorReplica> replicas_;
  std::map<SessionId, AnswerGuide> guides_;
  std::map<SessionId, Lead> leads_;  ///< of the sessions that draft ahead
  std::vector<float> row_;           ///< scores of the whole vocabulary
  SamplingScratch scratch_;
  Distribution q_;
};

}  // namespace outrider
