#pragma once

#include <algorithm>
#include <array>
#include <limits>

#include "common/decoding/drafting/round_cost.h"

namespace outrider {

/// The longest draft that each source can give this round; 0: none.
struct DraftLimits {
  int assistant = 0, ngram = 0, table = 0;
  bool must_draft = false;  ///< a probe: plain decoding is no answer while a source can draft
  bool at_hand = false;     ///< the assistant's were drafted ahead: nobody waits for them
  bool ahead = false;       ///< the assistant drafts ahead where that pays
  bool tree = false;        ///< the assistant's may be a token tree
  int drafters = 1;         ///< assistants that draft for the sequences of its verifier
  int of(DraftSource source) const { return std::array{assistant, ngram, table}.at(static_cast<std::size_t>(source)); }
};

/// What a plan expects of its round. The policy has it back with the round's outcome.
struct Expectation {
  int length = 0;         ///< drafts; a round of another number of them says nothing of these times
  RoundTerms terms = {};  ///< of the round
  Others others = {};     ///< what the others do meanwhile
  double seconds = 0;     ///< a round of all without any contention,
  double draft_s = 0;     ///< and the drafts of all
  double load = 1;        ///< of the forward passes at that time (Estimates)
  bool tells = false;     ///< the round tells of the contention
};

/// What a policy wants of a round.
struct DraftPlan {
  DraftSource source = DraftSource::kAssistant;
  int length = 0;  ///< 0: a plain round
  /// Go on without the drafts when they have not come by then.
  double patience_s = std::numeric_limits<double>::infinity();
  bool tree = false;    ///< the drafts are a token tree, not a chain
  double worth = 0;     ///< of a tree: a draft that is less likely to be kept is not worth a row
  double verify_s = 0;  ///< of the forward pass, as the governor expects it; 0: there is none
  /// Set when the drafter is asked: it computes K/V of many tokens of earlier rounds first, and the round's times say
  /// nothing of others'.
  bool catches_up = false;
  Expectation expected = {};
};

/// Decides, for one session, the length of each round's draft. A pure state machine: no clock, no I/O; times
/// are handed in. The caller alternates choose() and observe(), and keeps the plan meanwhile.
class DraftLengthPolicy {
 public:
  virtual ~DraftLengthPolicy() = default;
  /// @return a length within the limits.
  virtual DraftPlan choose(const DraftLimits& limits) = 0;
  /// The drafts of the plan are there, and a source has `length` more that go on from the last of them.
  /// @param plan  expects afterwards what the round has become
  /// @param begun  the round as far as it has come: its drafts, and the time that they took
  /// @return how many of these are worth their rows.
  virtual int extend(DraftPlan& /*plan*/, const RoundOutcome& /*begun*/, DraftSource /*source*/, int /*length*/) {
    return 0;
  }
  /// What became of a plan. The estimates have heard it before.
  virtual void observe(const DraftPlan& plan, const RoundOutcome& outcome) = 0;
};

/// Always the same length, of the assistant's.
class FixedLength : public DraftLengthPolicy {
 public:
  explicit FixedLength(int length) : length_(length) {}
  DraftPlan choose(const DraftLimits& limits) override { return {.length = std::min(length_, limits.assistant)}; }
  void observe(const DraftPlan&, const RoundOutcome&) override {}

 private:
  int length_;
};

}  // namespace outrider
