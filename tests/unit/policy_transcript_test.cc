// What the policies plan in simulated sessions, round by round, beside tests/goldens/policy/plans.txt: a change of the
// code that should change no decision changes no line there.
//
//   OUTRIDER_WRITE_PLANS=FILE policy_test     writes such a file, for a change that should
//   OUTRIDER_PLAN_ROUNDS=N                               plays N rounds of each session, and writes all numbers of each
//                                                        plan
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/decoding/drafting/policies.h"

namespace outrider {
namespace {

/// Seconds of a verifier and of its drafter.
struct Machine {
  double pass_s = 0.06, row_s = 0.002, draft_s = 0.003, rtt_s = 0.0002, s_per_byte = 8e-9, jitter = 0.1;
};

/// Sequences that share a verifier, all with the same policy.
struct Scenario {
  std::string name;
  Machine machine = {};
  int sequences = 1;
  double holds = 0.8;      ///< a draft of the drafter's
  double looked_up = 0.4;  ///< one that is looked up
  DraftPolicy policy = DraftPolicy::kAuto;
  int length = 8;  ///< of a fixed length or a tree
  DraftLimits limits = {.assistant = 16};
  int behind = 0;         ///< drafts that are found behind others
  bool in_turns = false;  ///< one half of the sequences begins its rounds while the other is verified
};

/// A sequence and its round that is under way.
struct Player {
  std::unique_ptr<DraftLengthPolicy> policy = {};
  DraftPlan plan = {};
  RoundOutcome outcome = {};
  int emitted = 0, answer = 0;  ///< tokens of the last round, and of the answer
  std::optional<bool> after_all = {};
  std::string line = {};
};

class Game {
 public:
  Game(const Scenario& scenario, int rounds, bool exact) : scenario_(scenario), rounds_(rounds), exact_(exact) {}

  std::string play() {
    players_.resize(static_cast<std::size_t>(scenario_.sequences));
    const std::size_t groups = scenario_.in_turns ? 2 : 1;
    for (int round = 0; round < rounds_; ++round) {
      // A neighbour's burst.
      const double load = round % 50 >= 40 ? 2 : 1;
      for (std::size_t group = 0; group < groups; ++group) {
        int rows = 0;
        for (std::size_t i = group; i < players_.size(); i += groups) rows += 1 + begin(players_[i]);
        const double pass_s = load * (scenario_.machine.pass_s + scenario_.machine.row_s * rows) * noise();
        ++pass_;
        for (std::size_t i = group; i < players_.size(); i += groups) end(players_[i], rows, pass_s);
      }
    }
    std::string text = scenario_.name + '\n';
    for (const Player& player : players_) text += player.line + '\n';
    return text;
  }

 private:
  double noise() { return 1 + scenario_.machine.jitter * random_.uniform(); }
  int held(double each) {
    int held = 0;
    while (held < kDraftLengthMax && random_.uniform() < each) ++held;
    return held;
  }

  /// @return the drafts of its next round
  int begin(Player& player) {
    if (!player.policy || player.answer > 60) {
      player.policy = make_policy(scenario_.policy, scenario_.length, costs_, batch_, /*governed=*/true);
      player.answer = 0;
    }
    DraftLimits limits = scenario_.limits;
    limits.at_hand = limits.ahead && player.after_all && random_.uniform() < (*player.after_all ? 0.6 : 0.2);
    if (limits.at_hand) limits.assistant = std::min(limits.assistant, 4);
    limits.ngram = static_cast<int>(random_.below(static_cast<std::uint64_t>(limits.ngram) + 1));
    player.plan = player.policy->choose(limits);
    RoundOutcome& outcome = player.outcome = {.source = player.plan.source, .drafted = player.plan.length};
    const bool made = player.plan.length > 0 && player.plan.source == DraftSource::kAssistant;
    outcome.ahead = made && limits.at_hand;
    if (made && !outcome.ahead) draft(player);
    const int held_own = held(outcome.source == DraftSource::kAssistant ? scenario_.holds : scenario_.looked_up);
    outcome.accepted = std::min(held_own, outcome.drafted);
    if (player.plan.tree && outcome.drafted > 0)
      outcome.tree = RoundOutcome::Tree{(outcome.drafted + 1) / 2, std::min(held_own, (outcome.drafted + 1) / 2)};
    extend(player, held_own);
    note(player);
    return outcome.drafted;
  }

  void draft(Player& player) {
    const Machine& machine = scenario_.machine;
    RoundOutcome& outcome = player.outcome;
    outcome.draft_rows = player.emitted;
    outcome.draft_bytes = 5200 + 6144 * player.emitted;
    outcome.draft_passes = outcome.drafted;
    outcome.draft_pass_rows = 1 + scenario_.sequences / 2;
    outcome.draft_s = outcome.drafted * machine.draft_s * (1 + 0.1 * scenario_.sequences) * noise();
    outcome.draft_wire_s = machine.rtt_s * noise() + static_cast<double>(outcome.draft_bytes) * machine.s_per_byte;
    if (scenario_.sequences > 2 && random_.uniform() < 0.3) std::swap(outcome.draft_waited_s, outcome.draft_wire_s);
    if (outcome.draft_s + outcome.draft_wire_s + outcome.draft_waited_s <= player.plan.patience_s) return;
    outcome.drafted = 0;
    outcome.draft_s = outcome.draft_passes = outcome.draft_pass_rows = outcome.draft_waited_s = 0;
    outcome.draft_wire_s = player.plan.patience_s;
  }

  void extend(Player& player, int held_own) {
    RoundOutcome& outcome = player.outcome;
    if (scenario_.behind == 0 || player.plan.length == 0 || player.plan.tree) return;
    for (const DraftSource source : kLookUps) {
      if (source == outcome.source) continue;
      const int found = static_cast<int>(random_.below(static_cast<std::uint64_t>(scenario_.behind) + 1));
      if (found == 0) continue;
      const int own = outcome.drafted, more = extend_by(player, source, found);
      outcome.drafted += more;
      if (own > 0) {
        outcome.behind[static_cast<std::size_t>(source)] = more;
      } else if (more > 0) {
        outcome.source = source;
      }
      if (outcome.accepted == own && (own == 0 || held_own >= own))
        outcome.accepted += std::min(more, held(scenario_.looked_up));
    }
  }
  int extend_by(Player& player, DraftSource source, int found) {
    return player.policy->extend(player.plan, player.outcome, source, found);
  }
  void tell(Player& player) {
    now_s_ += player.outcome.round_s / scenario_.sequences;
    costs_.observe(player.outcome, now_s_);
    if (player.after_all && player.outcome.source == DraftSource::kAssistant && player.outcome.drafted > 0)
      costs_.ahead.observe(*player.after_all, player.outcome.ahead, player.outcome.draft_s);
    player.policy->observe(player.plan, player.outcome);
  }

  void end(Player& player, int rows, double pass_s) {
    RoundOutcome& outcome = player.outcome;
    outcome.verify_s = pass_s;
    outcome.pass = pass_;
    outcome.batch_rows = rows;
    outcome.waited_s = scenario_.in_turns ? 0.3 * pass_s * random_.uniform() : 0;
    outcome.round_s =
        outcome.draft_s + outcome.draft_wire_s + outcome.draft_waited_s + outcome.waited_s + pass_s + 5e-4;
    tell(player);
    player.after_all.reset();
    if (scenario_.limits.ahead && outcome.drafted > 0 && outcome.accepted <= outcome.own())
      player.after_all = outcome.accepted == outcome.own();
    player.emitted = outcome.accepted + 1;
    player.answer += player.emitted;
  }

  /// A plain round is '.', else the source, the drafts, and those looked up behind them: "a4+2".
  void note(Player& player) {
    const DraftPlan& plan = player.plan;
    if (exact_) {
      player.line += fmt::format("{} {} {} {:a} {:a} {}\n", static_cast<int>(plan.source), plan.length, plan.tree,
                                 plan.patience_s, plan.worth, player.outcome.drafted);
      return;
    }
    if (!player.line.empty()) player.line += ' ';
    if (plan.length == 0) return player.line.push_back('.');
    player.line += plan.tree ? 'y' : to_string(plan.source)[0];
    player.line += std::to_string(plan.length);
    const auto& behind = player.outcome.behind;
    if (const int more = std::accumulate(behind.begin(), behind.end(), 0); more > 0)
      player.line += '+' + std::to_string(more);
  }

  const Scenario scenario_;
  const int rounds_;
  const bool exact_;
  CounterRng random_{7};
  Estimates costs_;
  BatchGoodput batch_;
  double now_s_ = 0;
  std::int64_t pass_ = 0;
  std::vector<Player> players_;
};

std::vector<Scenario> scenarios() {
  const Machine large, nano{.pass_s = 0.0017, .row_s = 0.0001, .draft_s = 0.0003},
      far{.rtt_s = 0.05, .s_per_byte = 1e-7}, cheap{.pass_s = 0.05, .row_s = 0.0004, .draft_s = 0.001};
  const DraftLimits all{.assistant = 16, .ngram = 8, .table = 6};
  return {
      {.name = "one sequence"},
      {.name = "one, hard text", .holds = 0.15},
      {.name = "one, all sources", .machine = nano, .looked_up = 0.7, .limits = all},
      {.name = "one, looked up behind", .looked_up = 0.7, .behind = 8},
      {.name = "one, trees", .machine = cheap, .limits = {.assistant = 16, .tree = true}},
      {.name = "one, far drafter", .machine = far},
      {.name = "one, far drafter, ahead", .machine = far, .limits = {.assistant = 16, .ahead = true}, .behind = 4},
      {.name = "eight drafts at most", .machine = far, .holds = 0.5, .policy = DraftPolicy::kFixed},
      {.name = "trees of sixteen", .machine = cheap, .policy = DraftPolicy::kTree, .length = 16},
      {.name = "three sequences, far drafter, ahead",
       .machine = far,
       .sequences = 3,
       .limits = {.assistant = 16, .ahead = true}},
      {.name = "four sequences", .sequences = 4},
      {.name = "four, in turns", .sequences = 4, .in_turns = true},
      {.name = "four, looked up behind", .machine = cheap, .sequences = 4, .behind = 6},
      {.name = "eight, hard text", .machine = nano, .sequences = 8, .holds = 0.3},
      {.name = "eight, in turns, two drafters",
       .machine = {.draft_s = 0.02},
       .sequences = 8,
       .holds = 0.7,
       .limits = {.assistant = 16, .ngram = 4, .drafters = 2},
       .in_turns = true},
  };
}

std::string plans(int rounds, bool exact) {
  std::string text;
  for (const Scenario& scenario : scenarios()) text += Game(scenario, rounds, exact).play();
  return text;
}

TEST(Policies, PlanTheRoundsOfSimulatedSessionsAsTheyDid) {
  const char* const rounds = std::getenv("OUTRIDER_PLAN_ROUNDS");
  const std::string now = plans(rounds != nullptr ? std::atoi(rounds) : 60, rounds != nullptr);
  if (const char* const file = std::getenv("OUTRIDER_WRITE_PLANS")) {
    std::ofstream(file) << now;
    return;
  }
  std::ifstream golden(OUTRIDER_SOURCE_DIR "/tests/goldens/policy/plans.txt");
  std::istringstream lines(now);
  std::string scenario, wanted, line;
  while (std::getline(golden, wanted)) {
    ASSERT_TRUE(std::getline(lines, line));
    if (wanted.find_first_of(".0123456789") == std::string::npos) scenario = wanted;
    EXPECT_EQ(line, wanted) << scenario;
  }
  EXPECT_FALSE(std::getline(lines, line)) << line;
}

}  // namespace
}  // namespace outrider
