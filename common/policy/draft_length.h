#pragma once

#include <limits>
#include <memory>
#include <optional>

#include "common/policy/batch_goodput.h"

namespace outrider {

/// The longest draft that each source can give this round; 0: none.
struct DraftLimits {
  int assistant = 0, ngram = 0, table = 0;
  bool must_draft = false;  ///< a probe: plain decoding is no answer while a source can draft
  bool at_hand = false;     ///< the assistant's were drafted ahead: nobody waits for them
  bool ahead = false;       ///< the assistant drafts ahead where that pays
  bool tree = false;        ///< the assistant's may be a token tree
  int drafters = 1;         ///< assistants that draft for the texts of its verifier
  int of(DraftSource source) const { return std::array{assistant, ngram, table}.at(static_cast<std::size_t>(source)); }
};

struct DraftChoice {
  DraftSource source = DraftSource::kAssistant;
  int length = 0;  ///< 0: a plain round
  /// Go on without the drafts when they have not come by then.
  double patience_s = std::numeric_limits<double>::infinity();
  std::size_t arm = 0;  ///< the policy's own number of the choice; comes back with the outcome
  bool tree = false;    ///< the drafts are a token tree, not a chain
  double worth = 0;     ///< of a tree: a draft that is less likely to be kept is not worth a row
};

/// Decides, for one session, the length of each round's draft. A pure state machine: no clock, no I/O; times
/// are handed in. The caller alternates choose() and observe(); only the bandits serve several sessions at once.
class DraftLengthPolicy {
 public:
  virtual ~DraftLengthPolicy() = default;
  /// @return a length within the limits.
  virtual DraftChoice choose(const DraftLimits& limits) = 0;
  /// The drafts of the last choice are there, and a source has `length` more that go on from the last of them.
  /// @param begun  the round as far as it has come: its drafts, and the time that they took
  /// @return how many of these are worth their rows.
  virtual int extend(const RoundOutcome& begun, DraftSource source, int length);
  /// What became of the last choice. The cost model has heard it before.
  virtual void observe(const RoundOutcome& outcome) = 0;
};

/// Always the same length, of the assistant's.
class FixedLength : public DraftLengthPolicy {
 public:
  explicit FixedLength(int length) : length_(length) {}
  DraftChoice choose(const DraftLimits& limits) override;
  void observe(const RoundOutcome&) override {}

 private:
  int length_;
};

/// Hugging Face's num_assistant_tokens_schedule "heuristic": 2 more when every draft held, else 1 fewer, at
/// least 1 (transformers, generation/candidate_generator.py, update_candidate_strategy). Knows no costs.
class HeuristicLength : public DraftLengthPolicy {
 public:
  explicit HeuristicLength(int start = 5) : length_(start) {}
  DraftChoice choose(const DraftLimits& limits) override;
  void observe(const RoundOutcome& outcome) override;

 private:
  int length_;
};

/// Maximises the expected tokens per second of all texts of a verifier (goodput; SmartSpec, Liu et al. 2024): tau(g) /
/// T_round(g) over all sources and every g, plain decoding included, in the company of the others as BatchGoodput
/// plans them, with survival from this session leaning on all sessions'. What is looked up behind these drafts follows
/// by the same rule once they are there, one row after the other.
class GoodputLength : public DraftLengthPolicy {
 public:
  /// @param costs, batch  outlive the policy.
  GoodputLength(const CostModel& costs, BatchGoodput& batch);
  ~GoodputLength() override { batch_.forget(this); }
  GoodputLength(const GoodputLength&) = delete;
  GoodputLength& operator=(const GoodputLength&) = delete;
  DraftChoice choose(const DraftLimits& limits) override;
  int extend(const RoundOutcome& begun, DraftSource source, int length) override;
  void observe(const RoundOutcome& outcome) override;

 private:
  const CostModel& costs_;
  BatchGoodput& batch_;
  /// The round that was last chosen.
  struct Expected {
    int length = 0;
    RoundTerms terms = {};
    double seconds = 0, draft_s = 0;  ///< without any drag
    double load = 1;                  ///< of the forward passes at that time
    bool tells = false;               ///< how long drafts keep all texts
    BatchGoodput::Others others = {};
  } expected_;
  /// The drag is what a round takes longer than without one, whether all texts meet or they take turns: there drafts
  /// are made beside a forward pass, and a round in time shows that they keep nobody. A text's first round tells
  /// nothing of it: it begins somewhere amid the others' forward pass, which it would wait for without drafts too.
  void expect(const RoundTerms& terms, int length);
  /// A token tree of at most so many drafts, where it is better than a chain that brings so many tokens per second.
  std::optional<DraftChoice> tree(int most, double rate);
  bool has_begun_ = false;   ///< a round of it has ended
  int last_ = 0;             ///< length of the last round with drafts
  SourceSurvival survival_;  ///< this session's, as these
  TreeGain trees_;
};

/// What `--draft-length auto` means: goodput under the governor. @param costs, batch  outlive the policy.
std::unique_ptr<DraftLengthPolicy> make_auto_policy(const CostModel& costs, BatchGoodput& batch);

}  // namespace outrider
