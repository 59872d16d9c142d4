// What an experiment is apart from running it: lab/experiment, lab/statistics.h, lab/link.h.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <ctime>
#include <fstream>
#include <numeric>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lab/experiment/cell_plan.h"
#include "lab/experiment/cpu_share.h"
#include "lab/experiment/journal.h"
#include "lab/experiment/machine.h"
#include "lab/experiment/plan.h"
#include "lab/experiment/prediction.h"
#include "lab/experiment/report.h"
#include "lab/experiment/svg.h"
#include "lab/statistics.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

TEST(Statistics, OfKnownNumbers) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median_absolute_deviation({1, 1, 2, 2, 4, 6, 9}), 1);  // distances 1 1 0 0 2 4 7
  EXPECT_EQ(median_absolute_deviation({5}), 0);
  EXPECT_DOUBLE_EQ(quantile({10, 20, 30, 40, 50}, 0.9), 46);
  EXPECT_EQ(quantile({}, 0.9), 0);
}

TEST(Statistics, TheBootstrapOfEqualRatiosIsAPoint) {
  const Interval interval = bootstrap_median({1.5, 1.5, 1.5}, 1);
  EXPECT_EQ(interval.low, 1.5);
  EXPECT_EQ(interval.median, 1.5);
  EXPECT_EQ(interval.high, 1.5);
}

TEST(Statistics, TheBootstrapOfThreeRatiosIsTheirSpan) {
  // A resample of three has the smallest as its median in 7 of 27: far more than 2.5 %.
  const Interval interval = bootstrap_median({1, 2, 3}, 7);
  EXPECT_EQ(interval.low, 1);
  EXPECT_EQ(interval.median, 2);
  EXPECT_EQ(interval.high, 3);
}

TEST(Statistics, TheBootstrapNarrowsWithMoreRepeatsAndRepeatsItself) {
  std::vector<double> few, many;
  for (int i = 0; i < 200; ++i) many.push_back(i % 10);
  few.assign(many.begin(), many.begin() + 10);
  const Interval wide = bootstrap_median(few, 3), narrow = bootstrap_median(many, 3);
  EXPECT_LT(narrow.high - narrow.low, wide.high - wide.low);
  EXPECT_EQ(bootstrap_median(few, 3).high, wide.high);
}

TEST(Link, AnExchangeTakesRoundTripJitterBytesAndLosses) {
  EXPECT_EQ(Link{}.exchange_ms(5000), 0);
  EXPECT_DOUBLE_EQ((Link{.rtt_ms = 20, .jitter_ms = 4}).exchange_ms(100), 22);
  EXPECT_DOUBLE_EQ((Link{.bandwidth_mbit = 100}).exchange_ms(12500), 1);
  // Two segments there and one back, each lost with 1 %, each then 220 ms late.
  EXPECT_DOUBLE_EQ((Link{.rtt_ms = 20, .loss = 0.01}).exchange_ms(2000), 20 + 3 * 0.01 * 220);
}

std::string error_of(const std::string& plan) {
  const auto parsed = parse_plan(plan, "p.json");
  return parsed ? "none" : parsed.error().message;
}

TEST(ExperimentPlan, SweepsAreProductsWithTheLastAxisFastestAndEachCellOnce) {
  const auto plan = parse_plan(
      R"({"sweeps": [{"rtt_ms": [0, 5], "draft_length": [2, "auto"]}, {"rtt_ms": [5, 9], "draft_length": [2]}]})", "p");
  ASSERT_TRUE(plan) << plan.error().message;
  std::vector<std::string> cells;
  for (const Axes& cell : plan->cells) cells.push_back(fmt::format("{} {}", cell.link.rtt_ms, cell.draft_length));
  EXPECT_EQ(cells, (std::vector<std::string>{"0 2", "0 auto", "5 2", "5 auto", "9 2"}));
}

TEST(ExperimentPlan, CellsOfTheSameProcessesStandTogether) {
  const auto plan = parse_plan(R"({"sweeps": [{"rtt_ms": [0, 5], "drafter_added_ms": [0, 2]}]})", "p");
  ASSERT_TRUE(plan) << plan.error().message;
  std::vector<std::string> cells;
  for (const Axes& cell : plan->cells) cells.push_back(fmt::format("{} {}", cell.drafter_added_ms, cell.link.rtt_ms));
  EXPECT_EQ(cells, (std::vector<std::string>{"0 0", "0 5", "2 0", "2 5"}));
}

TEST(ExperimentPlan, MayHaveManyCells) {
  std::vector<int> times(300);
  std::iota(times.begin(), times.end(), 0);
  const Json axes = {{"drafter_added_ms", times}, {"rtt_ms", times}};
  EXPECT_EQ(parse_plan(Json{{"sweeps", {axes}}}.dump(), "p").value().cells.size(), 90'000u);
  EXPECT_EQ(error_of(Json{{"sweeps", {axes, axes}}}.dump()), "p.json: sweeps make more than 100000 cells");
}

TEST(ExperimentPlan, OfAnyDepthCrashesNothing) {
  constexpr std::size_t kLevels = 200'000;
  EXPECT_EQ(error_of(R"({"launch": )" + std::string(kLevels, '[') + std::string(kLevels, ']') + "}"),
            "p.json: nests deeper than 512 levels");
}

TEST(ExperimentPlan, RunsAgainFromALockFile) {
  const auto plan = parse_plan(R"({"seed": 9, "prompts": ["Hello"], "warm_up": 10, "void": {"spread": 0.3},
    "sweeps": [{"acceptance": ["real", [0.8, 0.5]], "clients": [1, 4], "bandwidth_mbit": [100]}]})",
                               "p");
  ASSERT_TRUE(plan) << plan.error().message;
  const Json lock = {{"plan", to_json(*plan)}, {"machine", Json::object()}};
  const auto again = parse_plan(lock.dump(), "lock.json");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->cells, plan->cells);
  EXPECT_EQ(to_json(*again), to_json(*plan));
  EXPECT_EQ(again->void_rule.spread, 0.3);
  EXPECT_EQ(again->warm_up, 10);
}

TEST(ExperimentPlan, AnUnknownKeyIsRefusedWithItsNearestNeighbour) {
  EXPECT_EQ(error_of(R"({"sweep": []})"), "p.json: sweep is no known key; the nearest is sweeps");
  EXPECT_EQ(error_of(R"({"sweeps": [{"rtt": [1]}]})"), "p.json: sweeps[0].rtt is no known key; the nearest is rtt_ms");
  EXPECT_EQ(error_of(R"({"void": {"spred": 1}, "sweeps": [{"rtt_ms": [1]}]})"),
            "p.json: void.spred is no known key; the nearest is spread");
}

TEST(ExperimentPlan, AValueThatNoAxisHasIsRefused) {
  EXPECT_EQ(error_of(R"({"sweeps": [{"rtt_ms": [-1]}]})"),
            "p.json: sweeps[0].rtt_ms is -1, wanted a number from 0 to 10000");
  EXPECT_EQ(error_of(R"({"sweeps": [{"rtt_ms": 1}]})"), "p.json: sweeps[0].rtt_ms is 1, wanted a list of values");
  EXPECT_EQ(error_of(R"({"sweeps": [{"draft_length": [17]}]})"),
            "p.json: sweeps[0].draft_length is 17, wanted 0 to 16, tree:1 to tree:16, or auto");
  EXPECT_NE(error_of(R"({"sweeps": [{"dtype": ["int3"]}]})").find("sweeps[0].dtype"), std::string::npos);
  EXPECT_EQ(error_of(R"({"sweeps": [{"wire": ["int3"]}]})"),
            "p.json: sweeps[0].wire is \"int3\", wanted exact, int8, int4 or auto");
  EXPECT_NE(error_of(R"({"sweeps": [{"drafter_isa": ["fast"]}]})")
                .find("sweeps[0].drafter_isa is \"fast\", wanted detected, scalar, "),
            std::string::npos);
  EXPECT_EQ(error_of(R"({"sweeps": [{"drafter_cpu_share": [0]}]})"),
            "p.json: sweeps[0].drafter_cpu_share is 0, wanted a number from 0.01 to 1");
  EXPECT_NE(error_of(R"({"sweeps": [{"acceptance": [[0.5, 0.6]]}]})").find("non-increasing"), std::string::npos);
  EXPECT_NE(error_of(R"({"repeats": 2, "sweeps": [{"rtt_ms": [1]}]})").find("repeats is 2"), std::string::npos);
  EXPECT_NE(error_of(R"({"sweeps": [{"request_rate": [2], "clients": [4]}]})").find("clients is for a closed loop"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"sweeps": [{"burstiness": [2]}]})").find("only for a request_rate above 0"),
            std::string::npos);
  EXPECT_EQ(error_of("{}"), "p.json: sweeps is missing, wanted a list of at least one sweep");
  EXPECT_EQ(error_of("[]"), "p.json: is an array of 0, wanted a JSON object");
}

TEST(ExperimentPlan, SaysWhatIsLaunchedAndHow) {
  const auto plan =
      parse_plan(R"({"launch": {"verifiers": [{}]}, "backend": "ssh", "sweeps": [{"rtt_ms": [0]}]})", "p");
  ASSERT_TRUE(plan) << plan.error().message;
  const auto again = parse_plan(Json({{"plan", to_json(*plan)}}).dump(), "lock.json");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->launch, (Json{{"verifiers", Json::array({Json::object()})}}));
  EXPECT_EQ(again->backend, "ssh");
  EXPECT_TRUE(parse_plan(R"({"launch": "cluster.json", "sweeps": [{"rtt_ms": [0]}]})", "p")->launch.is_string());
  EXPECT_EQ(error_of(R"({"launch": 3, "sweeps": [{"rtt_ms": [0]}]})"),
            "p.json: launch is 3, wanted a plan of launch, or the name of its file");
  EXPECT_EQ(error_of(R"({"backend": "ssh", "sweeps": [{"rtt_ms": [0]}]})"),
            "p.json: backend is for a plan with launch");
}

TEST(ExperimentPlan, NamesTheAxesThatNoOtherHostCanHave) {
  EXPECT_FALSE(axis_of_this_machine({.drafter_threads = 2, .drafter_added_ms = 1, .clients = 4}));
  EXPECT_EQ(axis_of_this_machine({.link = {.loss = 0.1}}), "loss");
  EXPECT_EQ(axis_of_this_machine({.drafter_cpu_share = 0.5}), "drafter_cpu_share");
}

const Json kLaunch = Json::parse(R"({"hosts": [{"name": "big"}, {"name": "small"}],
  "verifiers": [{"hosts": "big", "cpuset": "0-29"}], "drafters": [{"hosts": "small", "cpuset": "0-1"}]})");

TEST(CellPlan, ACellsAxesAreOptionsOfTheRoles) {
  const Axes axes{.dtype = "int8",
                  .drafter_dtype = "f32",
                  .threads = 3,
                  .shards = 2,
                  .drafter_threads = 2,
                  .drafter_isa = "scalar",
                  .draft_vocabulary = 64,
                  .wire = "int4",
                  .verifiers = 2,
                  .drafters = 3,
                  .drafter_added_ms = 1.5,
                  .acceptance = {0.5}};
  const auto plan = cell_plan(kLaunch, axes, ExperimentArm::kRemote);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->at("dtype"), "int8");
  EXPECT_EQ(plan->at("verifiers"),
            Json::parse(R"([{"hosts": "big", "cpuset": "0-29", "dtype": "int8", "count": 2, "threads": 3,
                             "shards": 2, "synthetic_acceptance": [0.5]}])"));
  EXPECT_EQ(plan->at("drafters"),
            Json::parse(R"([{"hosts": "small", "cpuset": "0-1", "dtype": "f32", "count": 3, "threads": 2,
                             "draft_vocabulary": 64, "wire": "int4", "added_draft_us": [1500.0],
                             "environment": {"OUTRIDER_ISA": "scalar"}}])"));
}

TEST(CellPlan, ColocatedDraftersAreOnTheVerifiersHostsAndPlainHasNone) {
  const Axes axes{.drafter_added_ms = 1};
  const Json drafters = cell_plan(kLaunch, axes, ExperimentArm::kColocated)->at("drafters")[0];
  EXPECT_EQ(drafters["hosts"], "big");
  EXPECT_EQ(drafters["added_draft_us"], Json::array({0.0}));
  EXPECT_FALSE(drafters.contains("cpuset"));  // of the other host
  Json one_host = kLaunch;
  one_host["drafters"][0]["hosts"] = "big";
  EXPECT_EQ(cell_plan(one_host, axes, ExperimentArm::kColocated)->at("drafters")[0]["cpuset"], "0-1");
  Json any_host = kLaunch;
  any_host["verifiers"][0].erase("hosts");
  EXPECT_FALSE(cell_plan(any_host, axes, ExperimentArm::kColocated)->at("drafters")[0].contains("hosts"));
  for (const ExperimentArm arm : {ExperimentArm::kPlain, ExperimentArm::kNgram})
    EXPECT_FALSE(cell_plan(kLaunch, axes, arm)->contains("drafters"));
}

TEST(CellPlan, WhatAnAxisSaysThePlanMustNot) {
  const auto error = [](auto change, const Axes& axes = {}) {
    Json plan = kLaunch;
    change(plan);
    const auto made = cell_plan(plan, axes, ExperimentArm::kPlain);
    return made ? "none" : made.error().message;
  };
  EXPECT_EQ(error([](Json& plan) { plan["drafters"][0]["threads"] = 4; }),
            "launch: drafters[0].threads is 4, which the axis drafter_threads says");
  EXPECT_EQ(error([](Json& plan) { plan["dtype"] = "int8"; }), "launch: dtype is \"int8\", which the axis dtype says");
  const auto with_isa = [](Json& plan) { plan["drafters"][0]["environment"]["OUTRIDER_ISA"] = "avx2"; };
  EXPECT_NE(error(with_isa, {.drafter_isa = "scalar"}).find("which the axis drafter_isa says"), std::string::npos);
  EXPECT_NE(error([](Json& plan) { plan["run"] = Json::array(); }).find("run: wanted no commands"), std::string::npos);
  EXPECT_NE(error([](Json& plan) { plan.erase("drafters"); }).find("drafters is missing, wanted one group"),
            std::string::npos);
  EXPECT_NE(error([](Json& plan) { plan["verifiers"].push_back(plan["verifiers"][0]); }).find("wanted one group"),
            std::string::npos);
}

/// A child that computes until it is killed.
class BusyChild {
 public:
  BusyChild() : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) getppid();
  }
  ~BusyChild() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  /// As /proc has it: R runs, T is stopped.
  char state() const {
    std::ifstream file(fmt::format("/proc/{}/stat", pid_));
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return text.at(text.rfind(')') + 2);
  }
  /// Whether so many of the next looks find it stopped, or not stopped.
  bool is_found(bool stopped, int times, int looks = 100'000) const {
    for (; looks > 0 && times > 0; --looks) {
      std::this_thread::sleep_for(std::chrono::microseconds(1300));  // no multiple of a turn
      times -= (state() == 'T') == stopped ? 1 : 0;
    }
    return times == 0;
  }

 private:
  pid_t pid_;
};

TEST(CpuShare, AProcessIsStoppedForTheRestOfTheTimeAndGoesOnAfterwards) {
  const BusyChild child;
  {
    const CpuShare whole({child.pid()}, 1);
    EXPECT_TRUE(child.is_found(/*stopped=*/false, 200, 200));
  }
  {
    const CpuShare quarter({child.pid()}, 0.25);
    EXPECT_TRUE(child.is_found(/*stopped=*/true, 20));
    EXPECT_TRUE(child.is_found(/*stopped=*/false, 20));
  }
  EXPECT_TRUE(child.is_found(/*stopped=*/false, 200, 200));
}

/// The mean over 10,000 moments of a turn of 1 ms at which work may begin.
double simulated_s(double work_s, double share) {
  double sum_ms = 0;
  for (int i = 0; i < 10000; ++i) {
    const double begin_ms = (i + 0.5) / 10000;
    double at_ms = begin_ms;
    for (double left_ms = work_s * 1e3; left_ms > 1e-9;) {
      const double phase = at_ms - std::floor(at_ms);
      if (phase > share - 1e-12) {  // stopped
        at_ms = std::floor(at_ms) + 1;
        continue;
      }
      const double runs_ms = std::min(left_ms, share - phase);
      at_ms += runs_ms;
      left_ms -= runs_ms;
    }
    sum_ms += at_ms - begin_ms;
  }
  return sum_ms / 10000 * 1e-3;
}

TEST(CpuShare, WorkTakesLongerAsASimulationSays) {
  for (const double share : {0.1, 0.25, 0.5, 0.9}) {
    for (const double work_s : {1e-5, 2.4e-4, 1.1e-3, 7.77e-3})
      EXPECT_NEAR(CpuShare::mean_s(work_s, share), simulated_s(work_s, share), 1e-6) << share << " " << work_s;
  }
  EXPECT_DOUBLE_EQ(CpuShare::mean_s(3e-3, 1), 3e-3);
}

/// Rounds of a made-up pair: T(M) = 10 + M ms, t_d = 1 ms, 2 ms of wire, 1 ms of the rest; 3 of 4 drafts hold.
Calibration made_up() {
  Calibration calibration;
  const auto observe = [&](int drafted, int accepted, int rows) {
    RoundOutcome round{.drafted = drafted, .accepted = accepted};
    round.verify_s = (10 + drafted + 1) * 1e-3;
    round.draft_s = drafted * 1e-3;
    round.draft_wire_s = drafted > 0 ? 2e-3 : 0;
    round.round_s = round.verify_s + round.draft_s + round.draft_wire_s + 1e-3;
    round.draft_rows = rows;
    round.draft_bytes = 1000 + 500 * rows;
    calibration.observe(round);
  };
  observe(0, 0, 0);
  observe(4, 3, 2);
  observe(4, 3, 4);
  observe(8, 3, 4);
  calibration.observe_answer(33, 0.1);
  return calibration;
}

TEST(Prediction, IsTheClosedForm) {
  Axes axes{.drafter_added_ms = 1, .link = {.rtt_ms = 10, .bandwidth_mbit = 12}};
  const auto prediction = predict(made_up(), axes);
  ASSERT_TRUE(prediction);
  EXPECT_DOUBLE_EQ(prediction->tau, 4);
  EXPECT_DOUBLE_EQ(prediction->plain, 1 / 12e-3);
  EXPECT_DOUBLE_EQ(prediction->colocated, 4 / 22e-3);  // 15 + 4 + 2 + 1
  // 4 ms of slower drafts, 10 of the link, and 3000 bytes at 12 Mbit/s.
  EXPECT_DOUBLE_EQ(prediction->remote, 4 / 38e-3);
  // 4 plain rounds take 48 ms; all but the round trip takes 28.
  ASSERT_TRUE(prediction->break_even_rtt_ms);
  EXPECT_NEAR(*prediction->break_even_rtt_ms, 20, 1e-9);
  EXPECT_DOUBLE_EQ(prediction->capacity, 1 + 4.0 / 15);
}

TEST(Prediction, ARemoteDraftersShareMakesItsDraftsDearerAlone) {
  const auto prediction = predict(made_up(), {.drafter_cpu_share = 0.3});
  EXPECT_DOUBLE_EQ(prediction->colocated, 4 / 22e-3);
  // 4 ms of drafts are 13 1/3 parts of 0.3 ms, a pause of 0.7 after each. Three in ten begin while it may run, after
  // which 13 1/3 pauses come on average; the others wait for half a pause first, and 13 come.
  const double drafting_ms = 4 + 0.7 * (0.3 * (13 + 1.0 / 3) + 0.7 * 13.5);
  EXPECT_NEAR(prediction->remote, 4 / (18e-3 + drafting_ms / 1e3), 1e-9);
  EXPECT_DOUBLE_EQ(prediction->draft_ms, 1);
  EXPECT_NEAR(prediction->remote_draft_ms, drafting_ms / 4, 1e-9);
}

TEST(Prediction, OfALaunchedClusterTheLinkIsTheOneThatWasSeen) {
  Calibration there;
  there.observe({.drafted = 4, .draft_s = 8e-3, .draft_wire_s = 9e-3, .verify_s = 15e-3, .round_s = 33e-3});
  const auto prediction = predict(made_up(), with_seen_link({}, made_up(), there));
  // Drafts take 4 ms more there, and 7 ms of wire are none of a drafter beside the verifier.
  EXPECT_NEAR(prediction->remote, 4 / 33e-3, 1e-9);
  EXPECT_TRUE(prediction->ahead);
  EXPECT_FALSE(predict(made_up(), {})->ahead);
}

TEST(Prediction, AtTheBreakEvenRoundTripRemoteIsAsFastAsPlain) {
  Axes axes{.drafter_added_ms = 0.5};
  axes.link.rtt_ms = *predict(made_up(), axes)->break_even_rtt_ms;
  const auto prediction = predict(made_up(), axes);
  EXPECT_NEAR(prediction->remote, prediction->plain, 1e-9);
}

TEST(Prediction, ManyClientsMeetOrTakeTurns) {
  const Axes two{.clients = 2};
  // Both meet in 10 rows, 20 ms; drafts of both 4 ms, wire 2, other 1. Turns would take 2 x 16.
  EXPECT_NEAR(predict(made_up(), two)->remote, 2 * 4 / 27e-3, 1e-6);
  EXPECT_NEAR(predict(made_up(), two)->plain, 2 / 13e-3, 1e-6);  // T(2) = 12 and 1
  const Axes many{.clients = 8};
  // 40 rows take 50 ms and 57 with all the rest; two halves of 20 rows would take turns in 31 each.
  const auto shared = predict(made_up(), many);
  EXPECT_NEAR(shared->remote, 8 * 4 / 57e-3, 1e-6);
  EXPECT_NEAR(shared->plain, 8 / 19e-3, 1e-6);  // T(8) = 18 and 1
  EXPECT_NEAR(shared->capacity_shared, 1 + 8 * 4.0 / 50, 1e-9);
  Axes slow = many;
  slow.drafter_added_ms = 4;  // drafts take 20 ms: turns, which the drafter does not hold up
  EXPECT_NEAR(predict(made_up(), slow)->remote, 8 * 4 / 62e-3, 1e-6);
  EXPECT_NEAR(predict(made_up(), slow)->colocated, 8 * 4 / 57e-3, 1e-6) << "no turns on the same cores";
  slow.drafter_added_ms = 9;  // 40 ms
  EXPECT_NEAR(predict(made_up(), slow)->remote, 8 * 4 / 80e-3, 1e-6);
  Axes halves = many;
  halves.verifiers = 2;  // passes of 20 rows take 30 ms
  halves.drafters = 8;
  EXPECT_NEAR(predict(made_up(), halves)->remote, 8 * 4 / 37e-3, 1e-6);
  EXPECT_NEAR(predict(made_up(), halves)->capacity_shared, 1 + 4 * 4.0 / 30, 1e-9);
}

TEST(Prediction, ACellsTimesAreItsOwnAndAcceptanceIsTheRigs) {
  Calibration calibration = made_up();
  calibration.forget_times();
  RoundOutcome plain{.verify_s = 20e-3, .round_s = 21e-3};
  RoundOutcome drafted{.drafted = 4, .draft_s = 4e-3, .draft_wire_s = 2e-3, .verify_s = 30e-3, .round_s = 37e-3};
  calibration.observe(plain);
  calibration.observe(drafted);
  const auto prediction = predict(calibration, {});
  EXPECT_DOUBLE_EQ(prediction->plain, 1 / 21e-3);
  // The first position was tried once more and failed: 3 of 4 instead of 3 of 3.
  EXPECT_DOUBLE_EQ(prediction->tau, 1 + 3 * 0.75);
  EXPECT_DOUBLE_EQ(prediction->colocated, prediction->tau / 37e-3);
}

TEST(Prediction, CalibratesTheRowsOfAllClients) {
  EXPECT_EQ(calibrated_lengths({}), (std::vector<int>{0, 4}));
  EXPECT_EQ(calibrated_lengths({.draft_length = "2", .clients = 4}), (std::vector<int>{0, 2, 3, 11}));
  EXPECT_EQ(calibrated_lengths({.clients = 8}), (std::vector<int>{0, 4, 7, 32}));  // 39, but 32 is the most
  EXPECT_EQ(calibrated_lengths({.verifiers = 2, .clients = 8}), (std::vector<int>{0, 3, 4, 19}));
  EXPECT_TRUE(calibrated_lengths({.draft_length = "auto"}).empty());
  EXPECT_TRUE(calibrated_lengths({.arrivals = {.rate = 2}}).empty());
}

TEST(Prediction, DraftsAreMadeAheadOverALinkUnlessThePlanSaysNo) {
  const auto ahead = [](double rtt_ms, const char* length) {
    return Axes{.link = {.rtt_ms = rtt_ms}, .draft_length = length}.drafts_ahead();
  };
  EXPECT_TRUE(ahead(1, "4"));
  EXPECT_TRUE(ahead(1, "4@2"));
  EXPECT_FALSE(ahead(0.5, "4"));
  EXPECT_FALSE(ahead(20, "4@0"));
  EXPECT_FALSE(ahead(20, "0"));
  EXPECT_FALSE(ahead(20, "tree:8"));
}

TEST(Arrivals, HaveTheirRateAndTheirBurstiness) {
  constexpr std::size_t kCount = 20000;
  for (const double burstiness : {0.25, 1.0, 16.0}) {
    const Axes axes{.arrivals = {.rate = 40, .burstiness = burstiness}};
    const std::vector<double> times = arrival_times(axes, kCount, 7);
    EXPECT_EQ(times, arrival_times(axes, kCount, 7));
    EXPECT_NE(times, arrival_times(axes, kCount, 8));
    double sum = 0, squares = 0;
    for (std::size_t i = 1; i < times.size(); ++i) {
      const double gap = times[i] - times[i - 1];
      ASSERT_GE(gap, 0);
      sum += gap;
      squares += gap * gap;
    }
    // Of a gamma distribution of shape k: mean 1 / rate, variance mean^2 / k. Over 20,000 gaps the standard error of
    // the mean is 1 / sqrt(20,000 k) of it, 1.4 % at most, and of the variance below 5 %; five of each are allowed.
    const double mean = sum / (kCount - 1), variance = squares / (kCount - 1) - mean * mean;
    EXPECT_NEAR(mean * 40, 1, 0.07);
    EXPECT_NEAR(variance / (mean * mean) * burstiness, 1, 0.25);
  }
}

TEST(Arrivals, AreAsManyAsTheTimeHasAndEachQuestionOnce) {
  const Axes axes{.arrivals = {.rate = 10}};
  EXPECT_EQ(arrival_count(axes, 2.05, 5), 21u);
  EXPECT_EQ(arrival_count(axes, 0, 5), 5u);
}

TEST(Prediction, NothingIsSaidOfAPolicyAndPlainNeedsNoLink) {
  EXPECT_FALSE(predict(made_up(), {.draft_length = "auto"}));
  EXPECT_FALSE(predict(made_up(), {.draft_length = "4", .arrivals = {.rate = 2}}));
  const auto plain = predict(made_up(), {.link = {.rtt_ms = 50}, .draft_length = "0"});
  EXPECT_DOUBLE_EQ(plain->remote, plain->plain);
  EXPECT_FALSE(plain->break_even_rtt_ms);
}

TEST(AcceptanceByPosition, CountsADraftWhereAllBeforeItHold) {
  Acceptance acceptance;
  EXPECT_TRUE(acceptance.shares().empty());
  acceptance.add({.drafted = 3, .accepted = 1});
  acceptance.add({.drafted = 2, .accepted = 2});
  EXPECT_EQ(acceptance.shares(), (std::vector<double>{1, 0.5, 0}));
  acceptance.add(Acceptance{{2, 2, 2, 2}, {0, 0, 0, 0}});
  EXPECT_EQ(acceptance.shares(), (std::vector<double>{0.5, 0.25, 0, 0}));
}

TEST(Machine, SharesAreOfAllCoresTime) {
  const CpuTicks before = parse_proc_stat("cpu  100 0 50 800 50 0 0 10 0 0\ncpu0 1 2 3\n");
  EXPECT_EQ(before.busy, 150);
  EXPECT_EQ(before.idle, 850);
  EXPECT_EQ(before.steal, 10);
  CpuTicks after = before;
  after.busy += 60;
  after.idle += 30;
  after.steal += 10;
  after.ours += 40;
  const MachineUse use = machine_use(before, after);
  EXPECT_DOUBLE_EQ(use.steal, 0.1);
  EXPECT_DOUBLE_EQ(use.others, 0.2);
}

TEST(Machine, TheTimeOfAGrandchildIsOurs) {  // such as a verifier's shard
  const double before = CpuTicks::now().ours, second = static_cast<double>(sysconf(_SC_CLK_TCK));
  const std::clock_t begun = std::clock();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const BusyChild grandchild;
    while (true) pause();
  }
  const auto of_others = [&] {
    return CpuTicks::now().ours - before - second * static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
  };
  while (of_others() < 0.3 * second) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(Machine, ACellIsVoidWhereItMovedAndSaysWhy) {
  const VoidRule rule{.steal = 0.05, .others = 0.25, .bandwidth = 0.2};
  EXPECT_FALSE(moved_too_much({.read_gb_s_before = 30, .read_gb_s_after = 33}, rule));
  EXPECT_EQ(*moved_too_much({.steal = 0.1}, rule), "10 % of the cores' time was stolen, wanted at most 5 %");
  EXPECT_EQ(*moved_too_much({.others = 0.5}, rule),
            "other processes took 50 % of the cores' time, wanted at most 25 %");
  EXPECT_EQ(*moved_too_much({.read_gb_s_before = 30, .read_gb_s_after = 20}, rule),
            "the read bandwidth went from 30.0 to 20.0 GB/s, wanted at most 20 % of change");
}

TEST(CellJournal, KeepsWholeLinesAndCutsATornTail) {
  const TemporaryDir dir;
  const auto path = dir.write("cells.jsonl", "{\"cell\":0}\n{\"cell\":1}\n{\"cel");
  {
    auto journal = CellJournal::open(path);
    ASSERT_TRUE(journal) << journal.error().message;
    ASSERT_EQ(journal->lines().size(), 2u);
    ASSERT_TRUE(journal->append({{{"cell", 2}}}));
    EXPECT_EQ(journal->bytes(), 33);
  }
  const auto lines = read_journal(path);
  ASSERT_TRUE(lines) << lines.error().message;
  ASSERT_EQ(lines->size(), 3u);
  EXPECT_EQ(lines->back(), Json({{"cell", 2}}));
}

TEST(CellJournal, RefusesAForeignFileAndASecondWriter) {
  const TemporaryDir dir;
  const auto foreign = CellJournal::open(dir.write("foreign", "{}\nhello\n"));
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().message, (dir / "foreign").string() + ": line 2 is no JSON object");
  const auto first = CellJournal::open(dir / "cells.jsonl");
  ASSERT_TRUE(first);
  EXPECT_FALSE(CellJournal::open(dir / "cells.jsonl"));
}

TEST(CellJournal, WhatIsCutIsGoneAndAppendingGoesOnThere) {
  const TemporaryDir dir;
  auto journal = CellJournal::open(dir / "requests.jsonl");
  ASSERT_TRUE(journal->append({{{"a", 1}}}));
  const std::int64_t end = journal->bytes();
  ASSERT_TRUE(journal->append({{{"a", 2}}, {{"a", 3}}}));
  ASSERT_TRUE(journal->truncate(end));
  ASSERT_TRUE(journal->append({{{"a", 4}}}));
  EXPECT_EQ(*read_journal(dir / "requests.jsonl"), (std::vector<Json>{{{"a", 1}}, {{"a", 4}}}));
}

/// A line of cells.jsonl with what the report reads.
Json line(int cell, double rtt, double remote, std::optional<std::string> why_void = {}, double error = 0.1) {
  Axes axes;
  axes.link.rtt_ms = rtt;
  Json arms = Json::object(), ratios = Json::object();
  for (const ExperimentArm arm : kArms)
    arms[to_string(arm)] = {
        {"tok_per_sec", 100}, {"mad", 1}, {"acceptance_per_position", std::vector<double>{0.8, 0.6}}};
  for (const char* name : {"ngram/plain", "colocated/plain", "remote/plain", "remote/colocated"})
    ratios[name] = {{"median", remote}, {"low", remote}, {"high", remote}};
  return {{"cell", cell},
          {"attempt", 0},
          {"axes", to_json(axes)},
          {"void", why_void ? Json(*why_void) : Json()},
          {"text", "00"},
          {"arms", arms},
          {"ratios", ratios},
          {"predicted",
           {{"tokens_per_round", 4},
            {"plain_round_ms", 10},
            {"verify_ms", 12},
            {"draft_ms_per_token", 1},
            {"wire_ms", 1},
            {"exchange_ms", rtt},
            {"colocated/plain", 1.5},
            {"remote/plain", remote * (1 + error)},
            {"remote/colocated", 0.9},
            {"colocated_error", nullptr},
            {"remote_error", error},
            {"break_even_rtt_ms", 23},
            {"capacity", 1.3},
            {"capacity_shared", 1.5}}}};
}

TEST(Report, AVoidAttemptGivesWayToTheNextAndVoidCellsAreCountedNotJudged) {
  const std::vector<Json> cells =
      chosen_cells({line(0, 0, 2, "noise", 9.0), line(0, 0, 1.9, {}, 0.1), line(1, 9, 1, {}, -0.3),
                    line(2, 50, 0.5, "noise", 9.0), line(2, 50, 0.4, "more noise", 9.0)});
  ASSERT_EQ(cells.size(), 3u);
  EXPECT_EQ(cells[0]["ratios"]["remote/plain"]["median"], 1.9);
  EXPECT_EQ(cells[2]["void"], "more noise");
  const PredictionErrors errors = prediction_errors(cells);
  EXPECT_EQ(errors.count, 2u);
  EXPECT_EQ(errors.void_cells, 1u);
  EXPECT_DOUBLE_EQ(errors.median, 0.2);
  EXPECT_EQ(to_text(errors), "2 predictions, off by 20.0 % in the median and 28.0 % at the 90th percentile");
  EXPECT_EQ(to_text(prediction_errors({})), "no predictions to hold against what was measured");
}

TEST(Report, TheVerdictNamesBreakEvenAndWhatItWouldTake) {
  const std::string text = verdict({line(0, 0, 1.6), line(1, 51, 0.5)});
  EXPECT_TRUE(
      text.starts_with("It depends on the round trip: a remote drafter paid at 0 ms (1.60 times plain decoding); "
                       "it did not pay at 51 ms (0.50 times plain decoding). Predicted with 4 drafts a round: "
                       "break-even at a round trip of 23.0 ms"))
      << text;
  // 51 + 4 * 1 + 1 ms against 4 * 10 - 12.
  EXPECT_NE(text.find("At 51 ms it would pay if the backbone's forward passes took 2.0 times as long"),
            std::string::npos)
      << text;
}

TEST(Report, TheVerdictBeginsWithYesNoOrUndecided) {
  Json undecided = line(2, 5, 1.1);
  undecided["ratios"]["remote/plain"]["low"] = 0.9;
  const auto begins = [](const std::vector<Json>& cells, const char* words) {
    EXPECT_TRUE(verdict(cells).starts_with(words)) << verdict(cells);
  };
  begins({line(0, 0, 1.9), line(1, 20, 1.2)},
         "Yes: a remote drafter paid at every round trip measured (1.20 to 1.90 times plain decoding at 0 ms, 20 ms).");
  begins({line(0, 0, 0.8), line(1, 20, 0.45)}, "No: a remote drafter did not pay at any round trip measured");
  begins({undecided},
         "Undecided: at every round trip measured the interval spans 1 (1.10 times plain decoding at 5 ms)");
  begins(
      {line(0, 0, 1.9), undecided, line(1, 20, 0.7)},
      "It depends on the round trip: a remote drafter paid at 0 ms (1.90 times plain decoding); it did not pay at 20 "
      "ms (0.70 times plain decoding); it is undecided at 5 ms (1.10 times plain decoding).");
  begins({line(0, 0, 1.9, "noise")}, "Undecided: all cells that could show whether a remote drafter pays are void.");
  EXPECT_NE(verdict({line(0, 0, 1.9), line(1, 20, 1, "noise")}).find("Void cells: 1 of 2. Repeat on a quiet machine"),
            std::string::npos);
  EXPECT_NE(verdict({line(0, 0, 0.8, {}, 0.4)}).find("they are unreliable here"), std::string::npos);
  const std::string html = report_html({{"date", "2026-11-28"}}, {line(0, 0, 1.9), undecided});
  for (const char* wanted :
       {"<td>undecided</td>", "<td>yes</td>", "2026-11-28", "outrider experiment lock.json", "rtt_ms 0, 5"})
    EXPECT_NE(html.find(wanted), std::string::npos) << wanted;
}

TEST(Report, TheVerdictOfARunningClusterBeginsInTheSameWay) {
  const auto cell = [](double ratio, std::optional<std::string> why_void = {}) {
    Json only = line(0, 0, ratio, std::move(why_void));
    only["arms"].erase("colocated");
    only["predicted"] = nullptr;
    return only;
  };
  EXPECT_EQ(verdict({cell(1.9), cell(1.2)}),
            "Yes: on a cluster that ran already drafts paid in every cell (1.20 to 1.90 times plain decoding).");
  EXPECT_EQ(verdict({cell(0.8), cell(3, "noise")}),
            "No: on a cluster that ran already drafts paid in no cell (0.80 times plain decoding). Void cells: 1 of 2. "
            "Repeat on a quiet machine, or loosen 'void' in the plan.");
  EXPECT_EQ(verdict({cell(1.9), cell(0.8), cell(0.7)}),
            "It depends: on a cluster that ran already drafts paid in 1 of 3 cells, 0 are undecided (0.70 to 1.90 "
            "times plain decoding).");
  Json spans = cell(1.1);
  spans["ratios"]["remote/plain"]["low"] = 0.9;
  EXPECT_TRUE(verdict({spans}).starts_with("Undecided: ")) << verdict({spans});
}

TEST(Report, FactsAreForPeople) {
  const Json lock = {{"machine", {{"memory", "24684096 kB"}}},
                     {"program", {{"threads", 0}, {"program", "2c9c0123456789abcdef"}}}};
  const std::string html = report_html(lock, {line(0, 0, 2)});
  for (const char* wanted : {"<td>25.3 GB</td>", "<td>the fastest number, by trial</td>", "<td>2c9c0123</td>"})
    EXPECT_NE(html.find(wanted), std::string::npos) << wanted;
}

TEST(Report, OnePageThatLoadsNothingAndEscapesWhatItShows) {
  const Json lock = {{"machine", {{"cpu", "<script>&"}}}};
  const std::string html = report_html(lock, {line(0, 0, 2), line(1, 20, 0.7, "neighbours <b>")});
  for (const char* never : {"http:", "https:", "<script", "<b>", "url(", "@import", "nan", "inf"})
    EXPECT_EQ(html.find(never), std::string::npos) << never;
  for (const char* figure :
       {"Remote over plain", "Remote over co-located", "Speed-up over plain", "Acceptance by position"})
    EXPECT_NE(html.find(figure), std::string::npos) << figure;
  EXPECT_NE(report_html(lock, {}).find("No cell has been measured"), std::string::npos);
}

TEST(Report, AcceptanceOfDraftsMadeAheadIsShownWhereThereAreAny) {
  Json ahead = line(1, 20, 2);
  ahead["arms"]["remote"]["acceptance_per_position_ahead"] = std::vector<double>{0.7, 0.4};
  EXPECT_EQ(report_html(Json::object(), {line(0, 0, 2)}).find("remote, made ahead"), std::string::npos);
  EXPECT_NE(report_html(Json::object(), {line(0, 0, 2), ahead}).find("remote, made ahead"), std::string::npos);
}

TEST(Report, EachFigureStandsAlone) {
  const std::string html = report_html(Json::object(), {line(0, 0, 2), line(1, 20, 0.7)});
  const std::vector<std::string> files = figures(html);
  ASSERT_EQ(files.size(), 4u);  // two maps, the predictions, the acceptance
  for (const std::string& file : files) {
    EXPECT_TRUE(file.starts_with("<svg xmlns='http://www.w3.org/2000/svg' viewBox=")) << file.substr(0, 80);
    EXPECT_TRUE(file.ends_with("</svg>\n"));
    EXPECT_NE(file.find("--ink:"), std::string::npos);
  }
  EXPECT_TRUE(figures("no figure").empty());
}

TEST(Report, AnOpenLoopIsShownByItsRate) {
  Json open = line(0, 0, 2);
  EXPECT_EQ(report_html(Json::object(), {open}).find("come by the clock"), std::string::npos);
  open["axes"]["request_rate"] = 3.0;
  open["predicted"] = nullptr;
  for (auto& [name, arm] : open["arms"].items()) arm["latency_ms"] = {{"p50", 20}, {"p90", 30}, {"p99", 40}};
  EXPECT_NE(report_html(Json::object(), {open}).find("come by the clock"), std::string::npos);
  EXPECT_NE(csv({open}).find("remote_latency_ms_p99"), std::string::npos);
}

TEST(Report, CsvHasALineOfEachCellWithAsManyColumns) {
  const std::string text = csv({line(0, 0, 2), line(1, 20, 0.7, "a, \"b\"")});
  EXPECT_EQ(std::ranges::count(text, '\n'), 3);
  EXPECT_NE(text.find("\"a, \"\"b\"\"\""), std::string::npos) << text;
  const std::string head = text.substr(0, text.find('\n'));
  EXPECT_NE(head.find("rtt_ms"), std::string::npos);
  EXPECT_NE(head.find("remote/plain_median"), std::string::npos);
}

TEST(Svg, TheBreakEvenLineIsDrawnOnlyWhereThereIsOne) {
  const double none = std::nan("");
  Heatmap map{.title = "t",
              .x_title = "x",
              .y_title = "y",
              .columns = {"0", "5"},
              .rows = {"a"},
              .values = {{2, 0.5}},
              .hatched = {{false, false}},
              .undecided = {{false, false}},
              .line = {none}};
  EXPECT_EQ(heatmap_svg(map).find("class='even'"), std::string::npos);
  map.line = {0.5};
  EXPECT_NE(heatmap_svg(map).find("class='even'"), std::string::npos);
}

// As of speed-ups between 1.2 and 3, where 2 alone is a round value of a decade.
TEST(Svg, ALogarithmicAxisHasMarksThoughItsSpanIsShort) {
  const std::string svg = chart_svg({.series = {{.points = {{1.3, 1.3}, {2.7, 2.6}}}}, .logarithmic = true});
  const std::string mark = "text-anchor='end'";
  int marks = 0;
  for (std::size_t at = svg.find(mark); at != svg.npos; at = svg.find(mark, at + 1)) ++marks;
  EXPECT_GE(marks, 3);
}

}  // namespace
}  // namespace outrider
