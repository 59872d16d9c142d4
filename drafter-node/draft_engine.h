#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/decoding/grammar/grammar.h"
#include "common/decoding/sampling/distribution.h"
#include "drafter-node/answer_guide.h"
#include "drafter-node/draft_model.h"
#include "drafter-node/draft_tree.h"
#include "drafter-node/drafter_core.h"

namespace outrider {

/// Keeps the texts of a drafter's sessions and drafts on them with its model. Used by one thread.
class DraftEngine {
 public:
  /// @param stop_ids  a draft ends with one of these, where the session has none of its own: nothing may follow it.
  /// @param grammars  makes those that answers have, and outlives this; null: drafts know of none.
  DraftEngine(std::unique_ptr<DraftModel> model, std::vector<TokenId> stop_ids, GrammarCompiler* grammars = nullptr);

  /// What takes no forward pass.
  void run(const DraftWork& work);
  /// One forward pass for several sessions, each of which gets the bits that it gets alone. @param added  for
  /// measurements: so much longer it takes, as if it did. @return what came of each turn.
  std::vector<DraftProgress> step(std::span<const DraftTurn> turns, Duration added = {});

 private:
  /// A grammar's state that goes on over drafts, which it takes back at the end.
  class Followed {
   public:
    explicit Followed(GrammarState* state) : state_(state) {}
    ~Followed() {
      if (count_ > 0) state_->roll_back(count_);
    }
    Followed(const Followed&) = delete;
    Followed& operator=(const Followed&) = delete;
    /// Null: there is no grammar, or it does not let the drafts follow, so that the next ones will be rejected.
    GrammarState* now() const { return lost_ ? nullptr : state_; }
    void accept(TokenId token) {
      lost_ = lost_ || state_ == nullptr || !state_->accept(token);
      count_ += int{!lost_};
    }

   private:
    GrammarState* state_;
    int count_ = 0;
    bool lost_ = false;
  };
  /// A place in a round: the token there, the one that the drafter finds likeliest beside it, and what it gives each.
  struct Place {
    TokenId token = 0, other = 0;
    double p = 0, p_other = 0;
    std::vector<float> state = {};  ///< from which the model goes on after either
  };
  /// A way in which a round may end: so many of its drafts hold, then comes `next`.
  struct Outcome {
    std::size_t held = 0;
    TokenId next = 0;
    double p = 0;
  };
  /// What the model says after a path, as far as drafts are concerned.
  struct Said {
    TokenId draft = 0;
    std::vector<Distribution> q = {};  ///< of the draft, as Candidates::q has it; none is wanted: empty
    Distribution few = {};             ///< its most probable tokens; empty where it has no use, or none is possible
  };
  /// A chain at work: what was asked for or, with `made.after`, what is drafted ahead.
  struct Chain {
    std::vector<float> state;  ///< the next step's
    Candidates made = {};
  };
  /// A token tree, and by node, once its children are there: from what the assistant goes on after these, and what they
  /// were chosen from.
  struct Growth {
    DraftTree tree;
    std::vector<std::size_t> step;  ///< the nodes of the next pass
    std::map<std::size_t, std::vector<float>> states = {};
    std::map<std::size_t, Distribution> q = {};
  };
  /// What is made of a session's last kDraft: the drafts that it asks for, then what the round may lead to while they
  /// are verified.
  struct Round {
    Draft request;
    const AnswerGuide& guide;  ///< the session's
    Followed grammar;
    Chain chain;                         ///< the drafts, then what goes along them
    bool asked = true;                   ///< the drafts are being made
    std::optional<Growth> growth = {};   ///< where the drafts are a tree
    std::vector<TokenId> drafts = {};    ///< that are being verified
    std::vector<Place> path = {};        ///< of each draft, then of what follows them all; as far as it was walked
    bool weighed = false;                ///< outcomes were made of the whole path
    std::vector<Outcome> outcomes = {};  ///< of these, those that are not drafted for yet, the likeliest last
    std::vector<Chain> guesses = {};     ///< that take steps together
    std::vector<TokenId> onward = {};    ///< the path of the first guess, and what the model says behind it
  };
  struct Text {
    std::unique_ptr<DraftText> rows;
    AnswerGuide guide = {};
    /// By path behind the rows, where that stays true (DraftTraits::by_tokens_alone) and drafts are made ahead.
    std::map<std::vector<TokenId>, Said> said = {};
    std::unique_ptr<Round> round = {};  ///< none once its rows are behind the replica's; goes before the guide
  };
  /// Whether nothing is missing of the path: where the sequence ends with the drafts nothing follows them.
  static bool is_walked(const Round& round);
  /// As many of the whole path as are to be drafted for.
  static std::vector<Outcome> outcomes_of(const Round& round);
  /// The tokens that may not come after these drafts of the round: they would complete a bad word, or end it too early.
  static std::vector<TokenId> forbidden(const Round& round, std::span<const TokenId> drafts);
  static bool is_complete(const Round& round, const Chain& chain);
  /// Whether the model is to go on behind its first guess, for the rounds after the next.
  bool goes_onward(const Round& round) const;
  /// What the model said after a path that is true still; nullptr: it has to be asked.
  const Said* recall(const Text& text, const std::vector<TokenId>& path) const;
  /// Rows were added to a text: forgets what was said after other tokens.
  static void go_on(Text& text, Position before, const KvRows& added);

  /// The points that its next pass is to take: none where nothing is left to draft, or the model said all of it before.
  void add_points(Text& text, std::vector<DraftPoint>& points);
  void add_guesses(Text& text, std::vector<DraftPoint>& points);
  /// A point behind `path`, of whose drafts and places so many are wanted.
  DraftPoint point_of(const Text& text, std::vector<TokenId> path, std::size_t wanted,
                      std::span<const float> state = {}, bool goes_on = true);
  /// What the model says at the point that was added as the at-th. @return what VisitPoint does
  std::optional<TokenId> take(Text& text, std::size_t at, std::span<const TokenId> ids, std::span<const float> scores,
            std::span<const float> state);
  void take_child(Round& round, std::size_t at, std::span<const TokenId> ids, std::span<const float> scores,
                  std::span<const float> state);
  /// What scores behind these drafts of the round say.
  /// @param drafts  a draft is wanted, not only `few`
  Said hear(Round& round, std::vector<TokenId> before, std::span<const TokenId> ids, std::span<const float> scores,
            bool drafts);
  static void add_draft(Round& round, Chain& chain, const Said& said, std::span<const float> state);
  static void add_place(Round& round, const Said& said, std::span<const float> state);
  /// A pass is over. @return what is complete with it
  DraftProgress progress(Round& round);
  Candidates finish_tree(Round& round);

  /// Scores by token, as the rules and the grammar (null: none) want them, into row_.
  /// @param out  forbidden()
  void fill_row(const SamplingParams& sampling, std::span<const TokenId> ids, std::span<const float> scores,
                GrammarState* state, std::span<const TokenId> out);
  /// What the drafter makes of a place. @param token what is there, if that is decided.
  static Place weigh(const SamplingParams& sampling, std::int64_t index, const Said& said,
                     std::optional<TokenId> token);
  /// Draws a draft of output `index` from the scores in row_, with the noise that the rule wants, and appends its
  /// distribution to *q for kRejection or if it is wanted (Candidates::q). Penalties are left to the target: a drafter
  /// does not know the sequence.
  TokenId sample(const SamplingParams& sampling, std::int64_t index, bool want_q, std::vector<Distribution>* q);

  /// A node's choices for what follows it, the first first.
  struct Choices {
    std::vector<TokenId> tokens;
    std::vector<double> chances;  ///< DraftTree::grow's
    Distribution q;               ///< as Candidates::q has it
  };
  /// Of output `index`, whose scores are in row_. @param branch  DraftTree::Node's
  Choices choose_several(const SamplingParams& sampling, std::int64_t index, std::uint64_t branch);

  std::unique_ptr<DraftModel> model_;
  const DraftTraits traits_;
  std::vector<TokenId> stop_ids_;
  GrammarCompiler* grammars_;
  std::map<SessionId, Text> texts_;
  std::vector<float> row_;  ///< scores of the whole vocabulary
  SamplingScratch scratch_;
  Distribution q_;
};

}  // namespace outrider
