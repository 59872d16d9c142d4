#pragma once

#include <functional>
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

/// Keeps the sequences of a drafter's sessions and drafts on them with its model. Used by one thread.
class DraftEngine {
 public:
  /// @param stop_ids  end a draft, unless the session has its own
  /// @param grammars  compiles answers' grammars, and outlives this; null: drafts ignore grammars
  DraftEngine(std::unique_ptr<DraftModel> model, std::vector<TokenId> stop_ids, GrammarCompiler* grammars = nullptr);

  /// Does work without a forward pass.
  void run(const DraftWork& work);
  /// Runs one forward pass for several sessions; the bits of each do not depend on the others.
  /// @param between_steps  see DraftModel::step_each
  /// @param wait  for measurements: called during the pass
  /// @return the progress of each turn
  std::vector<DraftProgress> step(
      std::span<const DraftTurn> turns, const std::function<void()>& between_steps = [] {},
      const std::function<void()>& wait = [] {});

 private:
  /// A grammar's state that advances along drafts, and is rolled back at the end.
  class Followed {
   public:
    explicit Followed(GrammarState* state) : state_(state) {}
    ~Followed() {
      if (count_ > 0) state_->roll_back(count_);
    }
    Followed(const Followed&) = delete;
    Followed& operator=(const Followed&) = delete;
    /// Null: there is no grammar, or it rejects the drafts, so that any further ones will be rejected.
    GrammarState* now() const { return lost_ ? nullptr : state_; }
    void accept(TokenId token) {
      lost_ = lost_ || state_ == nullptr || !state_->accept_draft(token);
      count_ += int{!lost_};
    }

   private:
    GrammarState* state_;
    int count_ = 0;
    bool lost_ = false;
  };
  /// A position in a round: its token, the drafter's most probable alternative, and the probability of each.
  struct Place {
    TokenId token = 0, other = 0;
    double p = 0, p_other = 0;
    std::vector<float> state = {};  ///< to continue the model after either
  };
  /// A possible outcome of a round: the first `accepted` drafts are accepted, then `next` follows.
  struct Outcome {
    std::size_t accepted = 0;
    TokenId next = 0;
    double p = 0;
  };
  /// The model's output after a path, as far as drafts need it.
  struct Prediction {
    TokenId draft = 0;
    std::vector<Distribution> q = {};  ///< of the draft, as in Candidates::q; empty if not wanted
    Distribution few = {};             ///< its most probable tokens; empty if unused, or none is possible
  };
  /// A chain in progress: the requested drafts or, with `made.after`, drafts ahead.
  struct Chain {
    std::vector<float> state;  ///< input of the next step
    Candidates made = {};
  };
  /// A token tree. For each node with children: the assistant's state for the children, and their distribution.
  struct Growth {
    DraftTree tree;
    std::vector<std::size_t> step;  ///< nodes of the next pass
    std::map<std::size_t, std::vector<float>> states = {};
    std::map<std::size_t, Distribution> q = {};
  };
  /// Work for a session's last kDraft: the requested drafts, then drafts ahead while they are verified.
  struct Round {
    Draft request;
    const AnswerGuide& guide;  ///< the session's
    Followed grammar;
    Chain chain;                             ///< the drafts, then the walk along them
    bool asked = true;                       ///< the requested drafts are in progress
    std::optional<Growth> growth = {};       ///< if the drafts are a tree
    std::vector<TokenId> drafts = {};        ///< being verified
    std::vector<Place> path = {};            ///< one per draft, then one after all; as far as it was walked
    bool weighed = false;                    ///< outcomes of the whole path were chosen
    std::vector<Outcome> outcomes = {};      ///< those not yet drafted for, the most probable last
    std::vector<Chain> guesses = {};         ///< in progress together
    std::vector<TokenId> continuation = {};  ///< path of the first guess, and the model's continuation
  };
  struct Sequence {
    std::unique_ptr<DraftSequence> rows;
    AnswerGuide guide = {};
    /// By path after the rows; kept if it stays valid (DraftTraits::by_tokens_alone) and drafts are made ahead.
    std::map<std::vector<TokenId>, Prediction> predictions = {};
    std::unique_ptr<Round> round = {};  ///< none once its rows are behind the replica's; destroyed before the guide
  };
  /// What the next pass of a round is for.
  enum class Stage {
    kTree,          ///< the requested drafts, as a tree
    kChain,         ///< the requested drafts, as a chain
    kWalk,          ///< the target's likely tokens along the drafts
    kAhead,         ///< drafts for outcomes of the verification
    kContinuation,  ///< what follows the first guess
    kDone,
  };
  Stage stage_of(const Round& round) const;
  /// Returns true when the path is complete: if the sequence ends with the drafts nothing follows them.
  static bool is_walked(const Round& round);
  /// Returns the outcomes of the whole path to draft for.
  static std::vector<Outcome> outcomes_of(const Round& round);
  /// Returns the tokens that would complete a bad word after these drafts of the round, or end it too early.
  static std::vector<TokenId> forbidden(const Round& round, std::span<const TokenId> drafts);
  static bool is_complete(const Round& round, const Chain& chain);
  /// Returns true if the model should continue after its first guess, for the rounds after the next.
  bool wants_continuation(const Round& round) const;
  /// Returns the model's earlier output after a path, if still valid; nullptr: it must be computed.
  const Prediction* find_prediction(const Sequence& sequence, const std::vector<TokenId>& path) const;
  /// Rows were added to a sequence: drops outputs after other tokens.
  static void advance(Sequence& sequence, Position before, const KvRows& added);

  /// Adds the points of its next pass: none if nothing is left to draft, or all outputs are known.
  void add_points(Sequence& sequence, std::vector<DraftPoint>& points);
  void add_guesses(Sequence& sequence, std::vector<DraftPoint>& points);
  /// Makes a point after `path`, with the number of wanted drafts and positions.
  DraftPoint point_of(const Sequence& sequence, std::vector<TokenId> path, std::size_t wanted,
                      std::span<const float> state = {}, bool goes_on = true);
  /// Takes the model's output at the at-th added point. @return as VisitPoint
  std::optional<TokenId> take(Sequence& sequence, std::size_t at, std::span<const TokenId> ids,
                              std::span<const float> scores, std::span<const float> state);
  void take_child(Round& round, std::size_t at, std::span<const TokenId> ids, std::span<const float> scores,
                  std::span<const float> state);
  /// Evaluates scores after these drafts of the round. @param drafts  a draft is wanted, not only `few`
  Prediction read_scores(Round& round, std::vector<TokenId> before, std::span<const TokenId> ids,
                         std::span<const float> scores, bool drafts);
  static void add_draft(Round& round, Chain& chain, const Prediction& prediction, std::span<const float> state);
  static void add_place(Round& round, const Prediction& prediction, std::span<const float> state);
  /// Ends a pass. @return the drafts completed with it
  DraftProgress progress(Round& round);
  Candidates finish_tree(Round& round);

  /// Writes scores by token into row_, processed by the rules and the grammar (null: none). @param out  forbidden()
  void fill_row(const SamplingParams& sampling, std::span<const TokenId> ids, std::span<const float> scores,
                GrammarState* state, std::span<const TokenId> out);
  /// Evaluates a position. @param token  its token, if already decided
  static Place weigh(const SamplingParams& sampling, std::int64_t index, const Prediction& prediction,
                     std::optional<TokenId> token);
  /// Draws a draft of output `index` from the scores in row_, with the rule's noise, and appends its distribution to *q
  /// for kRejection or if it is wanted (Candidates::q). Penalties are left to the target: a drafter does not have the
  /// whole sequence.
  TokenId sample(const SamplingParams& sampling, std::int64_t index, bool want_q, std::vector<Distribution>* q);

  /// Choices for the children of a node, the first first.
  struct Choices {
    std::vector<TokenId> tokens;
    std::vector<double> chances;  ///< for DraftTree::grow
    Distribution q;               ///< as in Candidates::q
  };
  /// Chooses for output `index`, whose scores are in row_. @param branch  DraftTree::Node's
  Choices choose_several(const SamplingParams& sampling, std::int64_t index, std::uint64_t branch);

  std::unique_ptr<DraftModel> model_;
  const DraftTraits traits_;
  std::vector<TokenId> stop_ids_;
  GrammarCompiler* grammars_;
  std::map<SessionId, Sequence> sequences_;
  std::vector<float> row_;  ///< scores of the whole vocabulary
  SamplingScratch scratch_;
  Distribution q_;
};

}  // namespace outrider
