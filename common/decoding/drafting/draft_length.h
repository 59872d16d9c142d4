#pragma once

#include <algorithm>
#include <array>
#include <limits>

#include "common/decoding/drafting/round_cost.h"

namespace outrider {

/// The longest draft that each source can give in this round; 0: none.
struct DraftLimits {
  int assistant = 0, ngram = 0, table = 0;
  bool must_draft = false;  ///< a probe: plain decoding is not allowed while a source can draft
  bool at_hand = false;     ///< the assistant's drafts were made ahead and cause no wait
  bool ahead = false;       ///< the assistant drafts ahead if that pays
  bool tree = false;        ///< the assistant's drafts may be a token tree
  int drafters = 1;         ///< number of assistants for the verifier's sequences
  int of(DraftSource source) const { return std::array{assistant, ngram, table}.at(static_cast<std::size_t>(source)); }
};

/// A policy's plan of a round.
struct DraftPlan {
  DraftSource source = DraftSource::kAssistant;
  int length = 0;  ///< 0: a plain round
  /// Timeout of the drafts; the round continues without them.
  double patience_s = std::numeric_limits<double>::infinity();
  bool tree = false;    ///< the drafts are a token tree, not a chain
  double worth = 0;     ///< of a tree: the least probability of acceptance that is worth a row
  double verify_s = 0;  ///< expected time of the forward pass, set by the governor; 0: none
  /// Set at the request for drafts: the drafter first computes K/V of many tokens of earlier rounds, so that this
  /// round's times are not typical.
  bool catches_up = false;
  RoundTerms terms = {};  ///< expected costs of the round
  Others others = {};     ///< work of the other sequences meanwhile
};

/// Chooses the draft length of each round of a session. A pure state machine: no clock, no I/O; the caller passes
/// times, alternates choose() and observe(), and keeps the plan meanwhile.
class DraftLengthPolicy {
 public:
  virtual ~DraftLengthPolicy() = default;
  /// Returns a plan within the limits.
  virtual DraftPlan choose(const DraftLimits& limits) = 0;
  /// Chooses how many looked-up drafts follow the plan's drafts, which have arrived.
  /// @param plan  its expected costs are updated
  /// @param begun  the round so far: its drafts, and the time that they took
  /// @param length  available drafts that continue after the last one
  /// @return the number of these that are worth their rows
  virtual int extend(DraftPlan& /*plan*/, const RoundOutcome& /*begun*/, DraftSource /*source*/, int /*length*/) {
    return 0;
  }
  /// Reports a plan's outcome. The estimates observe it first.
  virtual void observe(const DraftPlan& plan, const RoundOutcome& outcome) = 0;
};

/// A fixed number of drafts from the assistant.
class FixedLength : public DraftLengthPolicy {
 public:
  explicit FixedLength(int length) : length_(length) {}
  DraftPlan choose(const DraftLimits& limits) override { return {.length = std::min(length_, limits.assistant)}; }
  void observe(const DraftPlan&, const RoundOutcome&) override {}

 private:
  int length_;
};

}  // namespace outrider
