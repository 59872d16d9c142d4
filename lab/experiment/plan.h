#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/fields.h"
#include "common/base/result.h"
#include "lab/json.h"
#include "lab/link.h"

namespace outrider {

/// The four ways to generate the same answer, measured together in every cell.
enum class ExperimentArm : std::uint8_t { kPlain, kNgram, kColocated, kRemote };
inline constexpr std::array kArms = {ExperimentArm::kPlain, ExperimentArm::kNgram, ExperimentArm::kColocated,
                                     ExperimentArm::kRemote};
inline const char* to_string(ExperimentArm arm) {
  return std::array{"plain", "ngram", "colocated", "remote"}.at(static_cast<std::size_t>(arm));
}

/// Arrival of requests in an open loop: see arrival_times().
struct Arrivals {
  double rate = 0;  ///< a second; 0: a closed loop
  double burstiness = 1;
  bool operator==(const Arrivals&) const = default;
};

/// The instruction set of a drafter without a given one: the strongest that its host has.
inline constexpr const char* kDetectedIsa = "detected";

/// Parameters of one cell of an experiment.
struct Axes {
  std::string dtype = "bf16";              ///< of the backbone
  std::string drafter_dtype = {};          ///< of the assistant; empty: the backbone's
  int threads = 0;                         ///< of the backbone's forward pass; 0: the fastest number
  int shards = 1;                          ///< processes that compute each verifier's backbone together
  int drafter_threads = 1;                 ///< of the assistant's
  std::string drafter_isa = kDetectedIsa;  ///< of every drafter, for OUTRIDER_ISA
  double drafter_cpu_share = 1;            ///< of the remote drafters: share of the time that they may run (CpuShare)
  int draft_vocabulary = 0;                ///< of every drafter; 0: cells do not depend on earlier texts
  std::string wire = "exact";              ///< rounding of rows on their way to the drafter (a WireForm)
  int verifiers = 1;                       ///< sharing the clients' sequences
  int drafters = 1;                        ///< workers, each with a link of its own
  double drafter_added_ms = 0;             ///< added to each draft on the remote drafter's host
  std::vector<double> acceptance = {};     ///< empty: the rule. Else random, with the rates of --synthetic-acceptance
  Link link = {};                          ///< between the remote drafter and the coordinator
  std::string draft_length = "4";          ///< 0 to 16, tree:1 to tree:16, or auto
  int clients = 1;                         ///< closed loop: each asks again as soon as it has its answer
  Arrivals arrivals = {};                  ///< of an open loop
  int context = 0;                         ///< tokens of other text before each question
  int output = 64;                         ///< longest answer, tokens
  bool operator==(const Axes&) const = default;

  static void fields(auto& v, auto& m) {
    constexpr Range<int> kThreads{0, 1024};
    constexpr Range<double> kMs{0, 10000};
    v("dtype", m.dtype);
    v("drafter_dtype", m.drafter_dtype);
    v("threads", m.threads, kThreads);
    v("shards", m.shards, Range<int>{1, 64});
    v("drafter_threads", m.drafter_threads, kThreads);
    v("drafter_isa", m.drafter_isa);
    v("drafter_cpu_share", m.drafter_cpu_share, Range<double>{0.01, 1});
    v("draft_vocabulary", m.draft_vocabulary, Range<int>{0, 1 << 30});
    v("wire", m.wire);
    v("verifiers", m.verifiers, Range<int>{1, 64});
    v("drafters", m.drafters, Range<int>{1, 64});
    v("acceptance", m.acceptance);
    v("drafter_added_ms", m.drafter_added_ms, kMs);
    v("context", m.context, Range<int>{0, 1 << 20});
    v("output", m.output, Range<int>{2, 1 << 20});
    v("clients", m.clients, Range<int>{1, 256});
    v("rtt_ms", m.link.rtt_ms, kMs);
    v("jitter_ms", m.link.jitter_ms, kMs);
    v("bandwidth_mbit", m.link.bandwidth_mbit, Range<double>{0, 1e6});
    v("loss", m.link.loss, Range<double>{0, 0.5});
    v("draft_length", m.draft_length);
    v("request_rate", m.arrivals.rate, Range<double>{0, 1e4});
    v("burstiness", m.arrivals.burstiness, Range<double>{0.01, 1e4});
  }

  /// Returns the clients per verifier, whose rows share its passes, rounded up.
  int clients_a_verifier() const { return (clients + verifiers - 1) / verifiers; }
  /// Returns the number of drafts; none if a policy chooses.
  std::optional<int> fixed_length() const;
  /// @return true if the remote arm drafts while the previous round is verified: over a round trip of a millisecond or
  /// more (Session::may_draft_ahead), unless the draft length has @0
  bool drafts_ahead() const;
  bool synthetic() const { return !acceptance.empty(); }
  bool open_loop() const { return arrivals.rate > 0; }
  /// Returns the axes without the link and the options of requests: equal for cells that the same processes can run.
  Axes rig() const;
};
/// Returns the first axis about the cluster itself, rather than its requests, that is not the default; none: the cell
/// can be measured on a running cluster.
std::optional<std::string> axis_of_rig(const Axes& axes);
/// Returns the first axis that is not the default and that requires processes started by this one: a link through our
/// relay, or a drafter that is stopped and continued. None: the cell can be launched on other hosts.
std::optional<std::string> axis_of_this_machine(const Axes& axes);
/// Writes {"dtype": "bf16", ...}, with every axis.
Json to_json(const Axes& axes);
/// Returns the names of the axes with several values. @param axes  from to_json(); at least one
std::vector<std::string> varied_axes(const std::vector<Json>& axes);
/// Returns the value of an axis, a string without its quotes.
std::string plain_text(const Json& value);

/// Limits beyond which a cell counts as void: the machine, or the measured ratio, varied more.
struct VoidRule {
  double spread = 0.1;      ///< median absolute deviation of a ratio over plain, as a share of it
  double steal = 0.05;      ///< share of the cores' time that the hypervisor gave to others
  double others = 0.25;     ///< share taken by processes that are not the experiment's
  double bandwidth = 0.25;  ///< change of the read bandwidth from before to after, as a share
  int attempts = 3;         ///< limit; the last one counts, void or not
};

/// An experiment, from its JSON file (docs/experiments.md).
struct ExperimentPlan {
  std::string model = {};                 ///< folder of a pair; empty: the nano pair
  std::vector<std::string> prompts = {};  ///< empty: the five of `bench pair`
  std::uint64_t seed = 1;
  int repeats = 5;
  double seconds = 1;  ///< least running time of each arm in each repeat
  int warm_up = 1;     ///< uncounted answers of each arm before, over all its clients
  VoidRule void_rule = {};
  /// Plan of a launched cluster (cell_plan()): a plan of `outrider launch`, or the name of its file, beside this one.
  /// Null: each cell's clusters are processes of this one.
  Json launch = {};
  std::string backend = "local";  ///< name of a Backend, for launching it
  std::vector<Axes> cells = {};   ///< each once, grouped by processes that can run them
};

/// @param text  a plan's JSON, or a lock.json's, which has one
/// @param file  its name in messages
/// @return kMalformed, with the nearest known name for an unknown key
Result<ExperimentPlan> parse_plan(std::string_view text, std::string_view file);
/// Writes a plan that parse_plan() reads, with every cell spelled out.
Json to_json(const ExperimentPlan& plan);

/// @return the number of an open loop's requests in a repeat: those that arrive in `seconds`, and each question at
/// least once
std::size_t arrival_count(const Axes& axes, double seconds, std::size_t questions);

/// Returns their arrival times, seconds from the repeat's start: gaps have a gamma distribution with the mean 1 /
/// axes.arrivals.rate and the shape axes.arrivals.burstiness. A shape of 1 gives a Poisson process, a smaller one
/// bursts, a larger one regular arrivals.
std::vector<double> arrival_times(const Axes& axes, std::size_t count, std::uint64_t seed);

}  // namespace outrider
