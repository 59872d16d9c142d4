// Choosers of draft lengths on recorded rounds (tests/goldens/policy/nano_traces.json): the regret of each, by round
// trip, for a verifier like E4B's and one like nano's. Regret is the share that a chooser misses of the tokens per
// second of the best fixed length, which an oracle finds by trying all; below 0 the chooser is faster than any.
//   replay_policies TRACES
#include <cstdio>
#include <exception>

#include "lab/choosers.h"
#include "lab/policy_replay.h"

namespace {

using namespace outrider;

constexpr std::int64_t kTokens = 8000;

/// @param make  makes a chooser for the simulator's costs. @param anew  for every answer, as a coordinator does
/// @return its tokens per second
double rate(World world, const std::vector<Trace>& traces, bool anew, const auto& make) {
  PolicySimulator simulator(world, traced(traces));
  auto policy = make(simulator);
  std::int64_t played = 0;
  for (std::size_t answer = 0; played < kTokens; ++answer) {
    if (anew) policy = make(simulator);
    const auto tokens = std::ssize(traces[answer % traces.size()].runs);
    simulator.run(*policy, tokens);
    played += tokens;
  }
  return simulator.rate();
}

void replay(const std::vector<Trace>& traces) {
  std::printf("%-10s %8s %8s %8s %8s %8s %8s %8s\n", "verifier", "RTT ms", "length", "plain", "auto", "heuristic",
              "ucb1", "thompson");
  const World big, small = {.plain_verify_s = 0.0017, .draft_token_s = 0.0003, .other_s = 0.0001};
  for (const auto& [name, base] : {std::pair("E4B", big), std::pair("nano", small)}) {
    for (const double rtt_s : {0.0001, 0.001, 0.005, 0.02, 0.05}) {
      World world = base;
      world.rtt_s = rtt_s;
      const Oracle best = oracle(
          world, [&] { return traced(traces); }, kTokens);
      const auto regret = [&](const auto& make, bool anew = false) {
        return 1 - rate(world, traces, anew, make) / best.rate;
      };
      std::printf(
          "%-10s %8.1f %8d %8.3f %8.3f %8.3f %8.3f %8.3f\n", name, 1e3 * rtt_s, best.length,
          1 - 1 / world.plain_s() / best.rate,
          regret([](PolicySimulator& s) { return make_auto_policy(s.costs, s.batch); }, /*anew=*/true),
          regret([](PolicySimulator&) { return std::make_unique<HeuristicLength>(); }),
          regret([](PolicySimulator&) { return std::make_unique<Ucb1Length>(default_arms()); }),
          regret([](PolicySimulator& s) { return std::make_unique<ThompsonLength>(default_arms(), s.costs, 1); }));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: replay_policies TRACES\n");
    return 2;
  }
  try {
    replay(read_traces(argv[1]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "replay_policies: %s\n", error.what());
    return 1;
  }
}
