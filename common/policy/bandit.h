#pragma once

#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/base/result.h"
#include "common/policy/draft_length.h"

namespace outrider {

/// What a bandit chooses between. Length 0 is plain decoding.
struct Arm {
  DraftSource source = DraftSource::kAssistant;
  int length = 0;
  bool operator==(const Arm&) const = default;
};

/// Plain decoding, assistant drafts of 1, 2, 3, 4, 6, 8, 12, 16, n-gram drafts of 2, 4, 8 and, if there is a table, as
/// many from it.
std::vector<Arm> default_arms(bool table = false);

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

  DraftChoice choose(const DraftLimits& limits) override;
  void observe(const RoundOutcome& outcome) override;

  /// What was learned, as JSON. load() of it continues as if nothing had happened.
  std::string save() const;
  /// @return kMalformed, and the state stays, when it is not of save() with the same arms.
  Result<void> load(const std::string& json);

 private:
  struct Stats {
    double pulls = 0, tokens = 0, seconds = 0;
  };
  std::vector<Arm> arms_;
  Options options_;
  std::vector<Stats> stats_;
};

/// Thompson sampling with the geometric likelihood: every position of a source has a Beta posterior of its
/// conditional acceptance, which all lengths share; a sample of them gives tau, the cost model the round's time,
/// and the arm with the most tokens per second is taken. How drafts fare is one knowledge, what they cost each
/// verifier's.
class Thompson {
 public:
  /// @param discount weight of the past at each round.
  Thompson(std::vector<Arm> arms, std::uint64_t seed, double discount = 0.99);

  DraftChoice choose(const DraftLimits& limits, const CostModel& costs);
  void observe(const RoundOutcome& outcome);

  /// See Ucb1Length. The random numbers go on from a loaded state as they would have.
  std::string save() const;
  Result<void> load(const std::string& json);

 private:
  struct Beta {
    double held = 0, missed = 0;  ///< on top of Beta(1, 1)
  };
  std::vector<Arm> arms_;
  std::uint64_t seed_, draws_ = 0;
  double discount_;
  std::array<std::array<Beta, kDraftLengthMax>, kDraftSources> positions_ = {};
};

/// A session's way to what Thompson knows.
class ThompsonLength : public DraftLengthPolicy {
 public:
  /// @param shared, costs outlive the policy.
  ThompsonLength(Thompson& shared, const CostModel& costs) : shared_(shared), costs_(costs) {}
  DraftChoice choose(const DraftLimits& limits) override { return shared_.choose(limits, costs_); }
  void observe(const RoundOutcome& outcome) override { shared_.observe(outcome); }

 private:
  Thompson& shared_;
  const CostModel& costs_;
};

}  // namespace outrider
