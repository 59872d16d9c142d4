#pragma once

#include <memory>
#include <span>
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

  /// Whether there is a drafter beside the verifier to calibrate with: not of a cluster elsewhere.
  bool calibrates() const { return elsewhere_.empty(); }
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

/// One client of the drafter that sits beside the verifier: its answers say what rounds cost here.
class Calibrator {
 public:
  /// @param context, rig  outlive this object
  Calibrator(TransportContext& context, const Rig& rig, const TextSide& text, const Axes& axes);
  /// Asks `question` at each of the draft lengths, of drafts that are asked for. @param into  nullptr: a warm-up
  void ask(const Question& question, std::span<const int> lengths, Calibration* into) const;

 private:
  Client client_;
  Asker asker_;
};

/// All questions at draft lengths 0, 1, 2, 4, 8, 16 and 32, again and again for `seconds` at least. Lengths take turns,
/// so that a machine that wanders slows all alike.
Calibration calibrate(const Calibrator& calibrator, const std::vector<Question>& questions, double seconds);

}  // namespace outrider
