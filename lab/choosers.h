#pragma once

#include <array>
#include <vector>

#include "common/base/random.h"
#include "common/decoding/drafting/draft_length.h"

// Choosers of draft lengths that the product does not have, to compare `auto` with (policy_replay.h).
namespace outrider {

/// Hugging Face's num_assistant_tokens_schedule "heuristic": 2 more when every draft was accepted, else 1 fewer, at
/// least 1 (transformers, generation/candidate_generator.py, update_candidate_strategy). Knows no costs.
class HeuristicLength : public DraftLengthPolicy {
 public:
  explicit HeuristicLength(int start = 5) : length_(start) {}
  DraftPlan choose(const DraftLimits& limits) override;
  void observe(const DraftPlan& plan, const RoundOutcome& outcome) override;

 private:
  int length_;
};

/// What a bandit chooses between. Length 0 is plain decoding.
struct Arm {
  DraftSource source = DraftSource::kAssistant;
  int length = 0;
  bool operator==(const Arm&) const = default;
};

/// Plain decoding, assistant drafts of 1, 2, 3, 4, 6, 8, 12, 16, and n-gram drafts of 2, 4, 8.
std::vector<Arm> default_arms();

/// UCB1 (Auer et al. 2002) with discounting (D-UCB, Garivier and Moulines 2008). An arm's reward is its tokens per
/// second (a ratio of discounted sums, so that long rounds weigh what they last) over the best arm's, so in [0, 1].
class Ucb1Length : public DraftLengthPolicy {
 public:
  struct Options {
    double discount = 0.99;  ///< weight of the past at each round; 1: nothing is forgotten
    double exploration = 0.2;
  };
  Ucb1Length(std::vector<Arm> arms, const Options& options);
  explicit Ucb1Length(std::vector<Arm> arms) : Ucb1Length(std::move(arms), Options()) {}

  DraftPlan choose(const DraftLimits& limits) override;
  void observe(const DraftPlan& plan, const RoundOutcome& outcome) override;

 private:
  struct Stats {
    double pulls = 0, tokens = 0, seconds = 0;
  };
  std::vector<Arm> arms_;
  Options options_;
  std::vector<Stats> stats_;
  std::size_t played_ = 0;  ///< in this round; none of the arms: as many as there are
};

/// Thompson sampling with the geometric likelihood: every position of a source has a Beta posterior of its
/// conditional acceptance, which all lengths share; a sample of them gives tau, the estimates the round's time, and the
/// arm with the most tokens per second is taken.
class ThompsonLength : public DraftLengthPolicy {
 public:
  /// @param estimates outlive the policy. @param discount weight of the past at each round.
  ThompsonLength(std::vector<Arm> arms, const Estimates& estimates, std::uint64_t seed, double discount = 0.99);

  DraftPlan choose(const DraftLimits& limits) override;
  void observe(const DraftPlan& plan, const RoundOutcome& outcome) override;

 private:
  struct Beta {
    double held = 0, missed = 0;  ///< on top of Beta(1, 1)
  };
  std::vector<Arm> arms_;
  const Estimates& estimates_;
  std::uint64_t seed_, draws_ = 0;
  double discount_;
  std::array<std::array<Beta, kDraftLengthMax>, kDraftSources> positions_ = {};
};

}  // namespace outrider
