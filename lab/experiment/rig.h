#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/experiment/plan.h"
#include "lab/experiment/prediction.h"
#include "lab/link_emulator.h"
#include "lab/questions.h"
#include "launch/cluster.h"

namespace outrider {

/// Three clusters of the same pair, each role a process: one without a drafter (plain, n-gram), one with drafters
/// beside the verifier, one whose drafters are behind a link and perhaps slower. Those that have nothing to do sleep.
/// Or one that runs already, whose drafters are where they are.
class Rig {
 public:
  /// Starts them. Throws the reason when one cannot start.
  /// @param context  outlives this object
  Rig(TransportContext& context, const PairPaths& pair, const Axes& axes);
  /// @param address  of the coordinator of a cluster that runs already
  explicit Rig(std::string address) : elsewhere_(std::move(address)) {}

  /// Those that can be measured on it: of a cluster elsewhere, plain and remote.
  std::vector<ExperimentArm> arms() const;
  /// Where the clients of an arm connect.
  const std::string& address(ExperimentArm arm) const;
  /// Of the remote drafters. A cluster elsewhere has its own.
  void set_link(const Link& link) {
    if (link_) link_->set(link);
  }
  /// Throws what has ended by itself since.
  void check();

 private:
  static std::unique_ptr<Cluster> started(TransportContext& context, const ClusterOptions& options);

  const std::string elsewhere_;
  std::unique_ptr<LinkEmulator> link_;  // before the next: the clusters' drafters lead through it
  std::unique_ptr<Cluster> alone_, colocated_, remote_;
};

/// What an arm asks for.
DraftLength draft_length(ExperimentArm arm, const Axes& axes);

/// The plan's prompts as this cell's questions: each after `context` tokens of other text.
std::vector<Question> cell_questions(const TextSide& text, const std::vector<std::string>& prompts, int context);

/// One client's answers at draft lengths 0, 1, 2, 4, 8, 16 and 32 with the drafter beside the verifier, again and again
/// for `seconds` at least. Lengths take turns, so that a machine that wanders slows all alike.
Calibration calibrate(TransportContext& context, const Rig& rig, const TextSide& text,
                      const std::vector<Question>& questions, const Axes& axes, double seconds);

}  // namespace outrider
