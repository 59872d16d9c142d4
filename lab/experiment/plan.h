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

/// The four ways to write the same text, measured side by side in every cell.
enum class ExperimentArm : std::uint8_t { kPlain, kNgram, kColocated, kRemote };
inline constexpr std::array kArms = {ExperimentArm::kPlain, ExperimentArm::kNgram, ExperimentArm::kColocated,
                                     ExperimentArm::kRemote};
inline const char* to_string(ExperimentArm arm) {
  return std::array{"plain", "ngram", "colocated", "remote"}.at(static_cast<std::size_t>(arm));
}

/// When the requests of an open loop come: see arrival_times().
struct Arrivals {
  double rate = 0;  ///< a second; 0: a closed loop
  double burstiness = 1;
  bool operator==(const Arrivals&) const = default;
};

/// The instruction set of a drafter that is told none: the strongest that its host has.
inline constexpr const char* kDetectedIsa = "detected";

/// One cell of an experiment is run with these.
struct Axes {
  std::string dtype = "bf16";              ///< of the backbone
  std::string drafter_dtype = {};          ///< of the assistant; empty: as the backbone's
  int threads = 0;                         ///< of the backbone's forward pass; 0: as many as are found fastest
  int drafter_threads = 1;                 ///< of the assistant's
  std::string drafter_isa = kDetectedIsa;  ///< of every drafter, as OUTRIDER_ISA has it
  double drafter_cpu_share = 1;            ///< of the remote drafters: how much of the time they may run (CpuShare)
  std::string draft_vocabulary = "all";    ///< of every drafter: a number, a file or all (draft_vocabulary.h)
  std::string wire = "exact";              ///< what rows are rounded to on their way to the drafter (a WireForm)
  int verifiers = 1;                       ///< that share the clients' texts
  int drafters = 1;                        ///< workers, each with a link of its own
  double drafter_added_ms = 0;             ///< what a draft takes longer on the remote drafter's host
  std::vector<double> acceptance = {};     ///< empty: the rule. Else a coin's rates, as --synthetic-acceptance has them
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
    v("drafter_threads", m.drafter_threads, kThreads);
    v("drafter_isa", m.drafter_isa);
    v("drafter_cpu_share", m.drafter_cpu_share, Range<double>{0.01, 1});
    v("draft_vocabulary", m.draft_vocabulary);
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

  /// Whose rows share one verifier's passes, rounded up.
  int clients_a_verifier() const { return (clients + verifiers - 1) / verifiers; }
  /// It is the number of drafts; there is none where a policy chooses.
  std::optional<int> fixed_length() const;
  /// @return whether the remote arm drafts while the round before is verified: over a round trip of a millisecond or
  /// more (Session::may_draft_ahead), unless the draft length says @0.
  bool drafts_ahead() const;
  bool synthetic() const { return !acceptance.empty(); }
  bool open_loop() const { return arrivals.rate > 0; }
  /// @return whether the same processes can run both. Then only the link, and the options of each request, differ.
  bool same_rig(const Axes& other) const;
};
/// The first axis that says how a cluster is built, and not what it is asked, and is not as it is by default; none:
/// the cell can be measured on a cluster that runs already.
std::optional<std::string> axis_of_rig(const Axes& axes);
/// The first axis that is not as it is by default and that only processes which this one starts itself can have: of a
/// link through our relay, of a drafter that is stopped and continued. None: the cell can be launched on other hosts.
std::optional<std::string> axis_of_this_machine(const Axes& axes);
/// It writes {"dtype": "bf16", ...}, with every axis.
Json to_json(const Axes& axes);
/// The names of the axes in which they are not all alike. @param axes  as to_json() has them; at least one
std::vector<std::string> varied_axes(const std::vector<Json>& axes);
/// The value of an axis, a text without its quotes.
std::string plain_text(const Json& value);

/// When a cell counts as void: the machine, or the ratio that is to be measured, moved more than this.
struct VoidRule {
  double spread = 0.1;      ///< median absolute deviation of a ratio over plain, as a share of it
  double steal = 0.05;      ///< share of the cores' time that the hypervisor gave to others
  double others = 0.25;     ///< share that processes took which are none of the experiment's
  double bandwidth = 0.25;  ///< change of the read bandwidth from before to after, as a share
  int attempts = 3;         ///< at most; the last one stands, void or not
};

/// An experiment as its JSON file describes it (docs/experiments.md).
struct ExperimentPlan {
  std::string model = {};                 ///< folder of a pair; empty: the nano pair
  std::vector<std::string> prompts = {};  ///< empty: the five of `bench pair`
  std::uint64_t seed = 1;
  int repeats = 5;
  double seconds = 1;  ///< that each arm runs at least in each repeat
  int warm_up = 1;     ///< answers of each arm that go before, of all its clients together, and do not count
  VoidRule void_rule = {};
  /// A launched cluster is made of it (cell_plan()): a plan of `outrider launch`, or the name of its file, beside
  /// this one. Null: each cell's clusters are processes of this one.
  Json launch = {};
  std::string backend = "local";  ///< how it is launched: the name of a Backend
  std::vector<Axes> cells = {};   ///< each once, those together that the same processes can run
};

/// @param text  a plan's JSON, or a lock.json's, which has one.
/// @param file  its name in messages
/// @return kMalformed, with the nearest known name where a key is unknown.
Result<ExperimentPlan> parse_plan(std::string_view text, std::string_view file);
/// It writes a plan that parse_plan() reads, with every cell spelled out.
Json to_json(const ExperimentPlan& plan);

/// @return the number of an open loop's requests in a repeat: as many as arrive in `seconds`, and each question once at
/// least.
std::size_t arrival_count(const Axes& axes, double seconds, std::size_t questions);

/// When they arrive, seconds from the repeat's start: gaps of a gamma distribution with the mean 1 / axes.arrivals.rate
/// and the shape axes.arrivals.burstiness. A shape of 1 makes them a Poisson process, a smaller one bursts, a larger
/// one regular.
std::vector<double> arrival_times(const Axes& axes, std::size_t count, std::uint64_t seed);

}  // namespace outrider
