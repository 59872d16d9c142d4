#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lab/experiment/machine.h"
#include "lab/experiment/rig.h"

namespace outrider {

/// One answer to one client.
struct Sample {
  ExperimentArm arm;
  int repeat = 0, client = 0;
  std::size_t prompt = 0;  ///< index into the plan's
  std::uint64_t text = 0;  ///< hash of the tokens
  double arrival_s = 0;    ///< due time, from the start of the arm's part of the repeat
  double waited_s = 0;     ///< from then until it was sent
  double latency_s = 0;    ///< from then until its last token
  Answers answer = {};     ///< this one alone, without its rounds
  Acceptance ahead = {};   ///< of rounds drafted while the previous one was verified
};

/// All measurements of a cell in one attempt.
struct Measured {
  std::vector<Sample> samples;
  std::map<ExperimentArm, std::vector<double>> wall_s;  ///< of each arm that was run, by repeat
  MachineUse machine = {};
  double seconds = 0;  ///< of the whole attempt

  bool has(ExperimentArm arm) const { return wall_s.contains(arm); }
  /// Returns sums of `value` over an arm's samples, by repeat. @pre has(arm)
  std::vector<double> by_repeat(ExperimentArm arm, double (*value)(const Sample&)) const;
  /// Returns tokens per second of all clients while they decode, by repeat, without the prompt's time.
  std::vector<double> rates(ExperimentArm arm, int clients) const;
  /// Returns sums over an arm's answers.
  Answers sums(ExperimentArm arm) const;
  /// Returns one hash of all answers of all arms; none if a prompt has two different answers.
  std::optional<std::uint64_t> text() const;
};

/// Runs the rig's arms of a cell, in another order in every repeat. In each repeat an arm's clients ask all questions,
/// each client from another one on, and again until plan.seconds are over; in an open loop they arrive at times that
/// are the same for all arms of a repeat, whether earlier ones have been answered or not. `plan.warm_up` answers of
/// each arm go before and do not count. Throws when a worker or an answer fails. In each repeat, somewhere in the
/// order, one question is calibrated too, so that the prediction is of the same minutes. @param seed  of the order
/// @param calibration  of the rig; receives this cell's times @param name  the attempt's, for people
Measured measure_cell(Rig& rig, const TextSide& text, const std::vector<Question>& questions, const Axes& axes,
                      const ExperimentPlan& plan, std::uint64_t seed, Calibration& calibration,
                      const std::string& name);

/// Returns the reason that the attempt does not count, or none.
std::optional<std::string> void_reason(const Measured& measured, const Axes& axes, const VoidRule& rule);

/// Return the lines of cells.jsonl and requests.jsonl.
Json cell_json(std::size_t cell, int attempt, const Axes& axes, const ExperimentPlan& plan, const Measured& measured,
               const std::optional<Prediction>& prediction);
std::vector<Json> request_lines(std::size_t cell, int attempt, const Measured& measured);

}  // namespace outrider
