#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lab/experiment/cpu_share.h"
#include "lab/experiment/plan.h"
#include "lab/experiment/prediction.h"
#include "lab/link_emulator.h"
#include "lab/questions.h"
#include "launch/command_line.h"
#include "launch/local_cluster.h"

namespace outrider {

/// Three clusters of the same pair: one without a drafter (plain, n-gram), one with drafters beside the verifier, one
/// with drafters elsewhere. Idle ones sleep. Or one running cluster, with its own drafters.
class Rig {
 public:
  /// Starts them here, each role a process; the third's drafters are behind a link, and perhaps slower. Throws the
  /// reason if one cannot start, like launched(). @param context  outlives the result
  static std::unique_ptr<Rig> own(TransportContext& context, const PairPaths& pair, const Axes& axes);
  /// Launches them by the plan's `launch`, each with its cell_plan(). @param folder  receives a run folder of each
  static std::unique_ptr<Rig> launched(const ExperimentPlan& plan, const Axes& axes,
                                       const std::filesystem::path& folder);
  /// @param address  of the coordinator of a running cluster
  static std::unique_ptr<Rig> running(TransportContext& context, std::string address);

  /// @return true if a drafter beside the verifier can be calibrated; false for a cluster elsewhere
  bool calibrates() const { return at(ExperimentArm::kColocated).cluster != nullptr; }
  /// Returns the measurable arms: plain and remote, for a cluster elsewhere.
  std::vector<ExperimentArm> arms() const;
  /// Returns a client of an arm's cluster.
  Client connect(ExperimentArm arm) const { return or_throw(Client::connect(*at(arm).context, at(arm).address)); }
  /// Sets the link of the remote drafters. A cluster elsewhere has its own.
  void set_link(const Link& link) {
    if (link_) link_->set(link);
  }
  /// Throws if a process has ended by itself since.
  void check();

 private:
  /// A cluster, with its address for clients.
  struct Side {
    std::unique_ptr<Cluster> cluster = {};  ///< none: already running
    std::string address = {};
    TransportContext* context = nullptr;  ///< of its clients
  };
  static Side started(TransportContext& context, const ClusterOptions& options);

  const Side& at(ExperimentArm arm) const {
    return arm == ExperimentArm::kColocated ? colocated_ : arm == ExperimentArm::kRemote ? remote_ : alone_;
  }

  std::unique_ptr<LinkEmulator> link_;  // before the next: the clusters' drafters connect through it
  Side alone_, colocated_, remote_;
  std::optional<CpuShare> share_;  // last: it stops the remote drafters, which must then be able to end
};

/// Returns the draft length that an arm requests.
DraftLength draft_length(ExperimentArm arm, const Axes& axes);

/// Returns the plan's prompts as this cell's questions: each after `context` tokens of other text.
std::vector<Question> cell_questions(const TextSide& text, const std::vector<std::string>& prompts, int context);

/// One client of a cluster, whose answers show the cost of rounds there.
class Calibrator {
 public:
  /// @param rig  outlives this object
  Calibrator(const Rig& rig, ExperimentArm arm, const TextSide& text, const Axes& axes);
  /// Asks `question` at each of the draft lengths, with requested drafts. @param into  nullptr: a warm-up
  void ask(const Question& question, std::span<const int> lengths, Calibration* into) const;

 private:
  Client client_;
  Asker asker_;
};

/// Asks all questions at draft lengths 0, 1, 2, 4, 8, 16 and 32, repeatedly for at least `seconds`. Lengths take turns,
/// so that a machine whose speed drifts affects all alike.
Calibration calibrate(const Calibrator& calibrator, const std::vector<Question>& questions, double seconds);

}  // namespace outrider
