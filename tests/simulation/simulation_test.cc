#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <span>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "tests/simulation/simulator.h"

namespace outrider::simulation {
namespace {

/// OUTRIDER_SIM_SEED=n replays one seed; else a fixed set, so that a failure is a failure everywhere.
std::vector<std::uint64_t> seeds() {
  if (const char* seed = std::getenv("OUTRIDER_SIM_SEED")) return {std::strtoull(seed, nullptr, 10)};
  std::vector<std::uint64_t> all;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) all.push_back(seed);
  return all;
}

/// Outcomes that are drafted ahead for: as many as pay, none, one, or up to eight.
std::optional<std::int32_t> some_ahead(CounterRng& rng) {
  constexpr std::array<std::int32_t, 4> kAhead = {-1, 0, 1, kDraftAheadMax};
  const std::int32_t ahead = kAhead[rng.below(kAhead.size())];
  return ahead < 0 ? std::nullopt : std::optional(ahead);
}

/// What to type to see this history again.
std::string replay(std::uint64_t seed) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  return fmt::format("replay: OUTRIDER_SIM_SEED={} build/tests/simulation/simulation_test --gtest_filter={}.{}", seed,
                     test->test_suite_name(), test->name());
}

/// Of virtual time, once everything works: until every text has ended, and then until nothing is left of any. A Free
/// that was lost is noticed after 120 s by the clock of whoever did not get it (VerifierConfig::session_idle_max),
/// which may be a slow one, and the texts that wait for its memory come after that: twelve of a thousand tokens, one
/// after the other where the memory is small, take a minute.
constexpr Duration kHealing = std::chrono::seconds(240), kForgotten = std::chrono::seconds(220);

/// What is wrong with a history that should have come to its end; empty: nothing.
std::string unfinished(Simulator& simulator, Duration limit = std::chrono::hours(1)) {
  const bool done = simulator.run_until_done(limit);
  if (!simulator.violations().empty()) return simulator.violations().front();
  return done ? "" : "no progress";
}

struct Totals {
  std::int64_t rounds = 0, drafted = 0, accepted = 0, ahead = 0, restarts = 0, messages = 0;
  std::map<DType, std::int64_t> rows = {};  ///< that reached drafters
};

/// Several sessions over one history; every answer must be plain decoding's.
void run_seed(std::uint64_t seed, const Faults& faults, Totals* totals) {
  SCOPED_TRACE(replay(seed));
  CounterRng rng(seed * 7919);
  Simulator simulator(seed, faults, 0.7);
  constexpr int kSessions = 6;
  std::map<std::uint64_t, std::vector<TokenId>> expected;
  for (std::uint64_t number = 1; number <= kSessions; ++number) {
    std::vector<TokenId> prompt(1 + rng.below(30));
    for (TokenId& token : prompt) token = static_cast<TokenId>(rng.below(model::kVocab));
    const auto max_tokens = static_cast<std::int64_t>(60 + rng.below(200));
    expected[number] = model::generate(prompt, max_tokens);
    const auto draft_length = static_cast<std::int32_t>(rng.below(9));
    // Half of the sessions have a fixed length, most of the rest `auto`.
    const bool fixed = number % 2 == 0 || (seed + number / 2) % 5 == 0;
    const DraftPolicy policy = fixed ? DraftPolicy::kFixed : DraftPolicy::kAuto;
    simulator.request(number, prompt, max_tokens, draft_length, {}, {}, policy, some_ahead(rng));
  }
  ASSERT_EQ(unfinished(simulator), "");
  for (const auto& [number, answer] : simulator.answers()) {
    EXPECT_EQ(answer.failure, "") << "session " << number;
    EXPECT_EQ(answer.tokens, expected[number]) << "session " << number;
    totals->rounds += answer.metrics.rounds;
    totals->drafted += answer.metrics.drafted_tokens;
    totals->accepted += answer.metrics.accepted_tokens;
    totals->ahead += answer.metrics.ahead_rounds;
  }
  // Nothing stays behind, even where a Free was lost.
  simulator.run_for(std::chrono::seconds(150));
  EXPECT_EQ(simulator.coordinator_sessions(), 0);
  EXPECT_EQ(simulator.verifier_sessions(), 0u);
  EXPECT_EQ(simulator.drafter_sessions(), 0u);
  EXPECT_TRUE(simulator.violations().empty()) << simulator.violations().front();
  totals->restarts += simulator.drafter_restarts();
  totals->messages += simulator.messages();
  for (const auto& [type, count] : simulator.rows()) totals->rows[type] += count;
}

TEST(Simulation, WithoutFaultsDraftsAreUsed) {
  Totals totals;
  run_seed(1, {}, &totals);
  EXPECT_GT(totals.accepted, totals.rounds / 2);
}

TEST(Simulation, TextSurvivesEveryFault) {
  const Faults faults{
      .drop = 0.05, .repeat = 0.1, .delay_max = std::chrono::milliseconds(5), .slow = 0.03, .drafter_restart = 0.5};
  Totals totals;
  for (const std::uint64_t seed : seeds()) {
    run_seed(seed, faults, &totals);
    if (HasFatalFailure()) return;
  }
  std::printf(
      "%lld rounds, %lld with drafts made ahead, %lld of %lld drafts accepted, %lld drafter restarts, %lld messages\n",
      static_cast<long long>(totals.rounds), static_cast<long long>(totals.ahead),
      static_cast<long long>(totals.accepted), static_cast<long long>(totals.drafted),
      static_cast<long long>(totals.restarts), static_cast<long long>(totals.messages));
  if (std::getenv("OUTRIDER_SIM_SEED") != nullptr) return;
  EXPECT_GE(totals.rounds, 10'000);
  EXPECT_GT(totals.ahead, totals.rounds / 60);
  EXPECT_GT(totals.accepted, totals.rounds / 10) << "drafting hardly ever recovered";
  EXPECT_GT(totals.restarts, 100);
  for (const DType type : {DType::kI32, DType::kQ8_0, DType::kQ4_0})
    EXPECT_GT(totals.rows[type], 10'000) << "few drafters wanted rows in " << to_string(type);
}

// Token trees, chains, either with drafts from a table of half of the answers, `auto`, and plain decoding side by side:
// a greedy text, and under `match` one of a seed, is the same.
TEST(Simulation, TreesChangeNoTextWhateverFails) {
  const Faults faults{.drop = 0.05,
                      .repeat = 0.1,
                      .delay_max = std::chrono::milliseconds(5),
                      .slow = 0.03,
                      .drafter_restart = 0.5,
                      .verifier_restart = 0.1,
                      .down_max = std::chrono::seconds(1)};
  Totals trees, chains;
  std::int64_t looked_up = 0, held = 0;
  for (const std::uint64_t seed : seeds()) {
    SCOPED_TRACE(replay(seed));
    CounterRng rng(seed * 104723);
    const bool sampled = seed % 2 == 0;
    const SamplingParams sampling = sampled ? SamplingParams{.temperature = 1, .seed = seed} : SamplingParams{};
    std::map<std::uint64_t, std::vector<TokenId>> prompts, expected;
    DraftTableCounts counts(kTableOrder);
    for (std::uint64_t number = 1; number <= 6; ++number) {
      std::vector<TokenId>& prompt = prompts[number];
      prompt.resize(1 + rng.below(30));
      for (TokenId& token : prompt) token = static_cast<TokenId>(rng.below(model::kVocab));
      expected[number] = model::generate(prompt, static_cast<std::int64_t>(40 + rng.below(100)), sampling);
      std::vector<TokenId> text = prompt;
      text.insert(text.end(), expected[number].begin(), expected[number].end());
      if (number <= 3) counts.add(text, prompt.size());
    }
    const std::string file = counts.file(model::facts().backbone_fingerprint);
    const auto table = DraftTable::of(std::as_bytes(std::span(file)));
    ASSERT_TRUE(table) << table.error().message;
    Simulator simulator(seed, faults, 0.6, {.verifiers = 2, .failover = {.limit = 1000}, .table = &*table});
    for (const auto& [number, prompt] : prompts) {
      const bool added = number % 2 == 0 || number == 3;
      simulator.request(number, prompt, std::ssize(expected[number]), 1 + static_cast<std::int32_t>(rng.below(15)),
                        sampling, {},
                        number == 1       ? DraftPolicy::kAuto
                        : number % 3 == 0 ? DraftPolicy::kFixed
                                          : DraftPolicy::kTree,
                        added ? std::nullopt : some_ahead(rng), false, {.ngram = added, .table = added});
    }
    ASSERT_EQ(unfinished(simulator), "");
    for (const auto& [number, answer] : simulator.answers()) {
      EXPECT_EQ(answer.failure, "") << "session " << number;
      ASSERT_EQ(answer.tokens, expected[number]) << "session " << number;
      Totals& totals = number % 3 == 0 || number == 1 ? chains : trees;
      totals.rounds += answer.metrics.rounds;
      totals.drafted += answer.metrics.drafted_tokens;
      totals.accepted += answer.metrics.accepted_tokens;
      looked_up += answer.metrics.table.drafted_tokens;
      held += answer.metrics.table.accepted_tokens;
    }
    EXPECT_TRUE(simulator.violations().empty()) << simulator.violations().front();
  }
  EXPECT_GT(held, looked_up / 4);
  EXPECT_GT(looked_up, held) << "some follow a wrong draft, or none of the table's answers";
  EXPECT_GT(trees.accepted, trees.rounds / 10);
  EXPECT_LT(trees.accepted, trees.drafted);
}

// Under rejection with q the target's own distribution the first draft of each place holds: so do all of a path.
TEST(Simulation, TreesUnderRejectionSurviveEveryFault) {
  const Faults faults{
      .drop = 0.05, .repeat = 0.1, .delay_max = std::chrono::milliseconds(5), .slow = 0.03, .drafter_restart = 0.5};
  std::int64_t accepted = 0, rounds = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Simulator simulator(seed, faults, 0);
    for (std::int32_t nodes = 1; nodes <= 12; nodes += 3) {
      const SamplingParams sampling{.temperature = 1,
                                    .top_k = kDraftTopK,
                                    .seed = seed + static_cast<std::uint64_t>(nodes),
                                    .rule = SamplingRule::kRejection};
      simulator.request(static_cast<std::uint64_t>(nodes), {1, 2, 3}, 60, nodes, sampling, {}, DraftPolicy::kTree);
    }
    ASSERT_EQ(unfinished(simulator), "");
    for (const auto& [number, answer] : simulator.answers()) {
      EXPECT_EQ(answer.failure, "");
      EXPECT_EQ(answer.tokens.size(), 60u);
      accepted += answer.metrics.accepted_tokens;
      rounds += answer.metrics.drafting_rounds;
    }
  }
  EXPECT_GE(accepted, rounds);
}

// The rule `match`: one seed is one text, whatever the draft length, the faults and the drafters that come and go.
TEST(Simulation, SampledTextIsOneForEveryDraftLength) {
  const Faults faults{
      .drop = 0.03, .repeat = 0.1, .delay_max = std::chrono::milliseconds(5), .slow = 0.02, .drafter_restart = 1};
  constexpr std::uint64_t kSeeds = 200;
  constexpr std::int64_t kMaxTokens = 40;
  std::int64_t accepted = 0, rejected = 0, restarts = 0, stopped = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    CounterRng rng(seed * 104729);
    SamplingParams sampling{.temperature = seed % 3 == 0 ? 0.6f : 1.0f,
                            .top_k = seed % 2 == 0 ? 50 : 0,
                            .top_p = seed % 5 == 0 ? 0.9f : 1.0f,
                            .seed = seed};
    if (seed % 4 == 0) sampling.repetition_penalty = 1.2f, sampling.frequency_penalty = 0.5f;
    std::vector<TokenId> prompt(1 + rng.below(12)), stop_ids;
    for (TokenId& token : prompt) token = static_cast<TokenId>(rng.below(model::kVocab));
    // A stop that would come early if the guard did not hold it off.
    if (seed % 7 == 0) sampling.min_tokens = 15;
    if (seed % 7 < 3)
      stop_ids = {model::generate(prompt, 8, sampling).back(), static_cast<TokenId>(seed),
                  model::generate(prompt, 20, sampling).back()};
    const std::vector<TokenId> expected = model::generate(prompt, kMaxTokens, sampling, stop_ids);
    EXPECT_GE(std::ssize(expected), sampling.min_tokens);
    stopped += std::ssize(expected) < kMaxTokens;
    Simulator simulator(seed, faults, 0.9);
    for (std::int32_t draft_length = 0; draft_length <= 8; ++draft_length) {
      simulator.request(static_cast<std::uint64_t>(draft_length) + 1, prompt, kMaxTokens, draft_length, sampling,
                        stop_ids);
    }
    ASSERT_EQ(unfinished(simulator), "");
    for (const auto& [number, answer] : simulator.answers()) {
      EXPECT_EQ(answer.failure, "");
      ASSERT_EQ(answer.tokens, expected) << "draft length " << number - 1;
      accepted += answer.metrics.accepted_tokens;
      rejected += answer.metrics.drafted_tokens - answer.metrics.accepted_tokens;
    }
    restarts += simulator.drafter_restarts();
  }
  EXPECT_GT(accepted, 5000);
  EXPECT_GT(rejected, 5000);
  EXPECT_GT(restarts, 50);
  EXPECT_GT(stopped, 20);
}

// Lost and repeated distributions must not stop a text, nor let a token in twice.
TEST(Simulation, RejectionSurvivesEveryFault) {
  const Faults faults{
      .drop = 0.05, .repeat = 0.1, .delay_max = std::chrono::milliseconds(5), .slow = 0.03, .drafter_restart = 0.5};
  std::int64_t accepted = 0, drafted = 0, ahead = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Simulator simulator(seed, faults, 0);
    for (std::int32_t draft_length = 0; draft_length <= 8; ++draft_length) {
      const SamplingParams sampling{.temperature = 1,
                                    .top_k = kDraftTopK,
                                    .seed = seed + static_cast<std::uint64_t>(draft_length),
                                    .rule = SamplingRule::kRejection};
      simulator.request(static_cast<std::uint64_t>(draft_length) + 1, {1, 2, 3}, 60, draft_length, sampling, {},
                        DraftPolicy::kFixed, seed % 2 == 0 ? kDraftAheadMax : 0);
    }
    ASSERT_EQ(unfinished(simulator), "");
    for (const auto& [number, answer] : simulator.answers()) {
      EXPECT_EQ(answer.failure, "");
      EXPECT_EQ(answer.tokens.size(), 60u);
      accepted += answer.metrics.accepted_tokens;
      drafted += answer.metrics.drafted_tokens;
      ahead += answer.metrics.ahead_rounds;
    }
  }
  // The drafter's q is the target's p.
  EXPECT_GT(drafted, 0);
  EXPECT_EQ(ahead, 0) << "these would not keep the distribution";
  EXPECT_EQ(accepted, drafted);
}

// What is drafted ahead changes no text, and takes the link's round trip and the drafting off a round.
TEST(Simulation, DraftsMadeAheadHideTheLink) {
  const Duration way = std::chrono::milliseconds(5);
  for (const bool sampled : {false, true}) {
    double seconds_without = 0, seconds_ahead = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      const SamplingParams sampling = sampled ? SamplingParams{.temperature = 1, .seed = seed} : SamplingParams{};
      const std::vector<TokenId> prompt = {static_cast<TokenId>(seed), 2, 3};
      for (const std::int32_t ahead : {0, 1, kDraftAheadMax}) {
        Simulator simulator(seed, {.delay_min = way, .delay_max = way}, 0.9);
        simulator.request(1, prompt, 200, 4, sampling, {}, DraftPolicy::kFixed, ahead);
        ASSERT_TRUE(simulator.run_until_done(std::chrono::hours(1)));
        const Simulator::Answer& answer = simulator.answers().at(1);
        EXPECT_EQ(answer.tokens, model::generate(prompt, 200, sampling)) << ahead << " outcomes";
        EXPECT_TRUE(simulator.violations().empty()) << simulator.violations().front();
        if (ahead == 0) {
          EXPECT_EQ(answer.metrics.ahead_rounds, 0);
        }
        if (ahead == kDraftAheadMax) {
          EXPECT_GT(answer.metrics.ahead_rounds, 0);
        }
        if (ahead == 0) seconds_without += static_cast<double>(answer.metrics.decode_ns);
        if (ahead == kDraftAheadMax) seconds_ahead += static_cast<double>(answer.metrics.decode_ns);
      }
    }
    // Half of what is drawn at temperature 1 is not what the drafter would take: hits are rare.
    EXPECT_LT(seconds_ahead, (sampled ? 1 : 0.8) * seconds_without);
  }
}

/// nano's times on two cores. Of a draft pass the second row is what counts (kAheadStepRows): docs/lab/ahead.md.
Pair nano_times() {
  using std::chrono::microseconds;
  return {.pass = microseconds(1700),
          .further_row = microseconds(70),
          .draft = microseconds(180),
          .further_draft = microseconds(80),
          .acceptance = {0.87}};
}

/// E4B's. Its published cumulative rates are 0.84, 0.60, 0.39, 0.27; then 0.67 each.
Pair e4b_times() {
  using std::chrono::microseconds, std::chrono::milliseconds;
  return {.pass = milliseconds(60),
          .further_row = milliseconds(2),
          .draft = milliseconds(3),
          .further_draft = microseconds(600),
          .acceptance = {0.84, 0.60 / 0.84, 0.39 / 0.60, 0.27 / 0.39, 0.67}};
}

/// Tokens per second of the real session code with such a pair, in virtual time.
double rate(Pair pair, Duration round_trip, std::int32_t draft_length, std::optional<std::int32_t> ahead,
            bool governed = false, int drafters = 1) {
  pair.drafter_way = round_trip / 2;
  double tokens = 0, seconds = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const Duration way = std::chrono::microseconds(50);
    Simulator simulator(seed, {.delay_min = way, .delay_max = way}, 0,
                        {.drafters = drafters, .pair = pair, .drafters_per_sequence = drafters});
    simulator.run_for(std::chrono::milliseconds(100));  // the workers join
    simulator.request(1, {static_cast<TokenId>(seed)}, 400, draft_length, {}, {}, DraftPolicy::kFixed, ahead, governed);
    EXPECT_EQ(unfinished(simulator), "");
    const Simulator::Answer& answer = simulator.answers().at(1);
    tokens += static_cast<double>(answer.tokens.size() - 1);
    seconds += static_cast<double>(answer.metrics.decode_ns) * 1e-9;
  }
  return tokens / seconds;
}

/// Times plain decoding that `g` drafts bring at most where they are made ahead for every outcome, by the closed form
/// of docs/lab/ahead.md, "The most that it can bring".
double most_ahead(const Pair& pair, Duration round_trip, std::size_t g) {
  const Duration ways = std::chrono::microseconds(100);  // there and back, of any message
  const double plain = to_seconds(pair.pass + ways), draft = to_seconds(pair.draft), steps = static_cast<double>(g),
               pass = plain + steps * to_seconds(pair.further_row), link = to_seconds(round_trip + ways),
               asked = link + steps * draft, ahead = (2 * steps + 1) * draft, late = std::max(0.0, link + ahead - pass);
  const auto holds = [&](std::size_t depth) { return pair.at(SessionId{1}, depth); };
  const double after_all = holds(g) + (1 - holds(g)) * pair.second;
  // Chances of a round, by the depth of its first draft and whether its drafter goes along drafts that it was told of.
  std::map<std::pair<std::size_t, bool>, double> rounds = {{{0, false}, 1.0}};
  double tokens = 0, seconds = 0;
  for (int i = 0; i < 400; ++i) {
    for (const auto& [round, chance] : std::exchange(rounds, {})) {
      const auto [depth, told] = round;
      double holding = chance;
      for (std::size_t held = 0; held <= g; holding *= holds(depth + held), ++held) {
        const double ends = held < g ? holding * (1 - holds(depth + held)) : holding;
        const double hit = told && ahead > pass ? 0 : held < g ? pair.second : after_all;
        rounds[{held + 1, late == 0 || !told}] += ends * hit;
        rounds[{0, false}] += ends * (1 - hit);
        tokens += ends * static_cast<double>(held + 1);
        seconds += ends * (pass + (1 - hit) * asked + (told ? hit * late : 0));
      }
    }
  }
  return tokens / seconds * plain;
}

// docs/lab/ahead.md has what this prints.
TEST(Simulation, DraftingAheadBringsAFarDrafterNear) {
  using std::chrono::milliseconds;
  const Pair e4b = e4b_times(), nano = nano_times();
  const auto show = [](const char* name, const Pair& pair, int round_trip_ms, std::int32_t draft_length) {
    const double plain = rate(pair, Duration::zero(), 0, 0), near = rate(pair, Duration::zero(), draft_length, 0);
    std::vector<double> rates;
    for (const std::int32_t ahead : {0, 1, kDraftAheadMax})
      rates.push_back(rate(pair, milliseconds(round_trip_ms), draft_length, ahead));
    const double most = most_ahead(pair, milliseconds(round_trip_ms), static_cast<std::size_t>(draft_length));
    std::printf(
        "%s, RTT %d ms, %d drafts, times plain: beside it %.2f; asked for %.2f, one outcome ahead %.2f, eight %.2f of "
        "%.2f at most\n",
        name, round_trip_ms, draft_length, near / plain, rates[0] / plain, rates[1] / plain, rates[2] / plain, most);
    EXPECT_LT(rates[2] / plain, 1.03 * most);
    return std::array{rates[0] / near, rates[2] / near};
  };
  for (const int round_trip_ms : {0, 1, 5, 20, 50}) {
    const auto [asked, ahead] = show("E4B", e4b, round_trip_ms, 4);
    EXPECT_GT(ahead, asked * (round_trip_ms < 20 ? 0.97 : 1.07));
    if (round_trip_ms == 20) {
      EXPECT_GT(ahead, 0.88);
    }
  }
  // With any number of drafts: 0.92 of what E4B has beside the verifier, and 2.2 times plain, are beyond it.
  const auto most = [](const Pair& pair, int round_trip_ms) {
    std::pair<double, std::size_t> best;
    for (std::size_t g = 1; g <= 16; ++g)
      best = std::max(best, std::pair(most_ahead(pair, milliseconds(round_trip_ms), g), g));
    return best;
  };
  Pair instant = nano;
  instant.draft = {};
  for (const auto& [name, pair, round_trip_ms] :
       {std::tuple("E4B", e4b, 20), {"nano", nano, 5}, {"nano, drafts that take no time", instant, 5}}) {
    const auto [times, g] = most(pair, round_trip_ms);
    std::printf("%s, RTT %d ms: %.2f times plain at most, with %zu drafts\n", name, round_trip_ms, times, g);
  }
  EXPECT_LT(most(nano, 5).first, 1.7);
  for (const int round_trip_ms : {5, 20}) {
    for (const std::int32_t draft_length : {2, 4, 8}) {
      const auto [asked, ahead] = show("nano", nano, round_trip_ms, draft_length);
      EXPECT_GT(ahead, asked);
    }
  }
}

// Two drafters are asked, and the first answer is taken: the earlier of two delays. docs/lab/sources.md has what this
// prints.
TEST(Simulation, ASecondDrafterHidesTheJitterOfTheFirst) {
  using std::chrono::milliseconds;
  for (const bool is_nano : {false, true}) {
    Pair pair = is_nano ? nano_times() : e4b_times();
    const double plain = rate(pair, Duration::zero(), 0, 0);
    for (const int jitter_ms : is_nano ? std::array{0, 1, 5} : std::array{0, 10, 50}) {
      pair.drafter_jitter = milliseconds(jitter_ms);
      const Duration round_trip = milliseconds(is_nano ? 1 : 10);
      const double one = rate(pair, round_trip, 4, 0), two = rate(pair, round_trip, 4, 0, false, 2);
      std::printf("%s, jitter up to %d ms each way, 4 drafts, times plain: one drafter %.2f, two %.2f\n",
                  is_nano ? "nano" : "E4B", jitter_ms, one / plain, two / plain);
      EXPECT_GT(two, one * (jitter_ms == 0 ? 0.95 : 1.02));
    }
  }
}

// What `--draft-length 4` is: it costs what plain decoding costs where its drafts are far away, and brings what they
// bring where they are near.
TEST(Simulation, AGovernedFixedLengthIsHardlySlowerThanPlainBehindAFarLink) {
  const Pair pair = nano_times();
  const double plain = rate(pair, Duration::zero(), 0, {});
  for (const int round_trip_ms : {0, 1, 20, 100, 400}) {
    const Duration round_trip = std::chrono::milliseconds(round_trip_ms);
    const double fixed = rate(pair, round_trip, 4, {}), governed = rate(pair, round_trip, 4, {}, true);
    std::printf("RTT %d ms, times plain: 4 drafts %.2f, governed %.2f\n", round_trip_ms, fixed / plain,
                governed / plain);
    EXPECT_GT(governed, 0.95 * std::max(plain, fixed));
    if (round_trip_ms >= 100) {
      EXPECT_LT(fixed, 0.3 * plain) << "the link costs nothing: nothing was tested";
    }
  }
}

// Under a rule where drafts have a say in the text, times must not: a number stays one.
TEST(Simulation, TheGovernorLeavesDraftsAloneThatHaveASayInTheText) {
  Pair pair = nano_times();
  pair.drafter_way = std::chrono::milliseconds(50);
  for (const SamplingRule rule : {SamplingRule::kMatch, SamplingRule::kRejection}) {
    std::vector<Simulator::Answer> answers;
    for (const bool governed : {false, true}) {
      Simulator simulator(7, {}, 0, {.pair = pair});
      simulator.run_for(std::chrono::milliseconds(100));  // the workers join
      simulator.request(1, {1, 2, 3}, 200, 4, {.temperature = 1, .top_k = kDraftTopK, .seed = 5, .rule = rule}, {},
                        DraftPolicy::kFixed, 0, governed);
      EXPECT_EQ(unfinished(simulator), "");
      answers.push_back(simulator.answers().at(1));
    }
    const bool alone = rule == SamplingRule::kRejection;
    EXPECT_EQ(answers[0].metrics.drafted_tokens == answers[1].metrics.drafted_tokens, alone) << to_string(rule);
    EXPECT_EQ(answers[0].tokens, answers[1].tokens);
  }
}

// Conversations that go on, a start that all share and choices of one prompt, in memory for a few of them: every text
// is plain decoding's, and most prompt tokens are not computed twice.
TEST(Simulation, ReusedRowsChangeNoText) {
  std::int64_t prompt_tokens = 0, cached = 0, restarts = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Faults faults = seed % 3 == 0 ? Faults{}
                                        : Faults{.drop = 0.03,
                                                 .repeat = 0.1,
                                                 .delay_max = std::chrono::milliseconds(5),
                                                 .slow = 0.02,
                                                 .drafter_restart = 0.5};
    CounterRng rng(seed * 15485863);
    const auto random_tokens = [&](std::size_t count) {
      std::vector<TokenId> tokens(count);
      for (TokenId& token : tokens) token = static_cast<TokenId>(rng.below(model::kVocab));
      return tokens;
    };
    // Memory for three sessions of average length, or for many.
    Simulator simulator(seed, faults, 0.7, {.kv_bytes_max = seed % 2 == 0 ? 80'000 : 2'000'000});
    const std::vector<TokenId> system = random_tokens(rng.below(120));
    std::uint64_t number = 0;
    std::map<std::uint64_t, std::vector<TokenId>> expected, prompts;
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<std::vector<TokenId>> next;
      for (const auto& [id, prompt] : prompts) {
        if (id + 5 <= number) continue;  // of an earlier turn
        next.push_back(prompt);
        next.back().insert(next.back().end(), expected[id].begin(), expected[id].end());
      }
      for (std::size_t i = 0; i < 5; ++i) {
        std::vector<TokenId> prompt = turn == 0 || i >= 3 ? system : next.at(i);
        const std::vector<TokenId> question = random_tokens(1 + rng.below(60));
        prompt.insert(prompt.end(), question.begin(), question.end());
        if (i == 2) prompt = prompts[number];  // another choice of the one before
        const SamplingParams sampling =
            seed % 4 == 0 ? SamplingParams{.temperature = 1, .repetition_penalty = 1.3f, .seed = number}
                          : SamplingParams{};
        const auto max_tokens = static_cast<std::int64_t>(1 + rng.below(80));
        prompts[++number] = prompt;
        expected[number] = model::generate(prompt, max_tokens, sampling);
        simulator.request(number, prompt, max_tokens, static_cast<std::int32_t>(rng.below(6)), sampling);
      }
      ASSERT_EQ(unfinished(simulator), "");
    }
    for (const auto& [id, answer] : simulator.answers()) {
      EXPECT_EQ(answer.failure, "");
      ASSERT_EQ(answer.tokens, expected[id]) << "session " << id;
      prompt_tokens += std::ssize(prompts[id]);
      cached += answer.metrics.cached_prompt_tokens;
    }
    EXPECT_TRUE(simulator.violations().empty()) << simulator.violations().front();
    restarts += simulator.drafter_restarts();
  }
  std::printf("%lld of %lld prompt tokens reused\n", static_cast<long long>(cached),
              static_cast<long long>(prompt_tokens));
  EXPECT_GT(cached, prompt_tokens / 2);
  EXPECT_GT(restarts, 10);
}

// A client that goes away at any moment: within a round nothing of its session is left on either tier.
TEST(Simulation, CancellationFreesBothTiersWithinARound) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    CounterRng rng(seed * 32452843);
    const Duration way = std::chrono::microseconds(150);  // for each message: none overtakes a Free
    Simulator simulator(seed, {.delay_min = way, .delay_max = way}, 0.8);
    simulator.run_for(std::chrono::milliseconds(100));  // the workers join
    simulator.request(1, std::vector<TokenId>(1 + rng.below(200), 5), 400, static_cast<std::int32_t>(rng.below(6)));
    simulator.run_for(std::chrono::microseconds(static_cast<std::int64_t>(1 + rng.below(300'000))));
    simulator.cancel(1);
    simulator.run_for(std::chrono::milliseconds(20));  // a forward takes 5 ms at most
    EXPECT_EQ(simulator.coordinator_sessions(), 0);
    EXPECT_EQ(simulator.verifier_sessions(), 0u);
    EXPECT_EQ(simulator.drafter_sessions(), 0u);
    EXPECT_EQ(simulator.verifier_kv_bytes(), 0);
    EXPECT_TRUE(simulator.violations().empty()) << simulator.violations().front();
  }
}

TEST(Simulation, CancelledSessionsLeaveNothingWhateverTheFaults) {
  const Faults faults{
      .drop = 0.05, .repeat = 0.1, .delay_max = std::chrono::milliseconds(5), .slow = 0.03, .drafter_restart = 0.5};
  std::int64_t cancelled = 0, finished = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    CounterRng rng(seed * 49979687);
    Simulator simulator(seed, faults, 0.8,
                        {.kv_bytes_max = 120'000});  // for a few at a time: some are cancelled while they wait
    constexpr std::uint64_t kSessions = 30;
    for (std::uint64_t number = 1; number <= kSessions; ++number) {
      simulator.request(number, std::vector<TokenId>(1 + rng.below(150), static_cast<TokenId>(rng.below(3))),
                        1 + static_cast<std::int64_t>(rng.below(300)), static_cast<std::int32_t>(rng.below(6)));
      simulator.run_for(std::chrono::microseconds(static_cast<std::int64_t>(rng.below(50'000))));
    }
    for (std::uint64_t number = kSessions; number > 0; --number) {
      simulator.run_for(std::chrono::microseconds(static_cast<std::int64_t>(rng.below(150'000))));
      if (rng.below(2) == 0) simulator.cancel(1 + (number * 7 + seed) % kSessions);
    }
    ASSERT_EQ(unfinished(simulator), "");
    for (const auto& [number, answer] : simulator.answers()) {
      EXPECT_TRUE(answer.done || answer.failure == "cancelled") << answer.failure;
      ++(answer.done ? finished : cancelled);
    }
    simulator.run_for(std::chrono::seconds(150));  // as long as it takes to notice that a Free was lost
    EXPECT_EQ(simulator.coordinator_sessions(), 0);
    EXPECT_EQ(simulator.verifier_sessions(), 0u);
    EXPECT_EQ(simulator.drafter_sessions(), 0u);
    EXPECT_EQ(simulator.verifier_kv_bytes(), 0);
    for (const WorkerStatus& worker : simulator.status().workers) EXPECT_EQ(worker.kv_bytes, 0);
    EXPECT_TRUE(simulator.violations().empty()) << simulator.violations().front();
  }
  EXPECT_GT(cancelled, 100);
  EXPECT_GT(finished, 100);
}

// Their sessions fail, and no Free reaches them. What these took must be free for others as soon as they are back.
TEST(Simulation, WorkersThatWereGivenUpForgetTheirSessions) {
  const Faults faults{.drop = 0.05, .repeat = 0.1, .delay_max = std::chrono::milliseconds(5), .slow = 0.03};
  for (const std::uint64_t seed : seeds()) {
    SCOPED_TRACE(replay(seed));
    Simulator simulator(seed, faults, 0.7, {.kv_bytes_max = 30'000, .failover = {.limit = 0}});
    simulator.request(1, std::vector<TokenId>(20, 5), 230, 4);  // 269 positions at most: no room for two
    while (simulator.verifier_sessions() == 0) simulator.run_for(std::chrono::milliseconds(10));
    simulator.freeze_workers(std::chrono::milliseconds(4500));
    simulator.run_for(std::chrono::milliseconds(4500));
    EXPECT_NE(simulator.answers().at(1).failure, "");
    const std::vector<TokenId> prompt(30, 7);
    simulator.request(2, prompt, 230, 4);
    ASSERT_EQ(unfinished(simulator, std::chrono::seconds(90)), "");
    EXPECT_EQ(simulator.answers().at(2).tokens, model::generate(prompt, 230));
    simulator.run_for(std::chrono::seconds(150));
    EXPECT_EQ(simulator.verifier_sessions(), 0u);
    EXPECT_EQ(simulator.drafter_sessions(), 0u);
    EXPECT_TRUE(simulator.violations().empty()) << simulator.violations().front();
  }
}

// ---- the death of anybody ----

struct Survival {
  std::int64_t histories = 0, texts = 0, tokens = 0, rounds = 0;
  std::int64_t ahead = 0;                                                    ///< rounds with drafts made ahead
  std::int64_t verifiers = 0, drafters = 0, encoders = 0, coordinators = 0;  ///< that crashed
  std::int64_t failovers = 0, resumes = 0;  ///< to another verifier, another coordinator
  std::int64_t audits = 0;
  std::int64_t token_rows = 0;           ///< that reached drafters which need tokens alone
  std::int64_t encodes = 0;              ///< asked of encoders
  std::int64_t standbys = 0, moves = 0;  ///< histories with one; workers and clients that went to the other coordinator
  double healing_s = 0;  ///< the longest, from when everything works until the last text of a history has ended

  static void fields(auto& v, auto& m) {
    v("histories", m.histories);
    v("texts", m.texts);
    v("tokens", m.tokens);
    v("rounds", m.rounds);
    v("ahead", m.ahead);
    v("verifiers", m.verifiers);
    v("drafters", m.drafters);
    v("encoders", m.encoders);
    v("coordinators", m.coordinators);
    v("failovers", m.failovers);
    v("resumes", m.resumes);
    v("audits", m.audits);
    v("token_rows", m.token_rows);
    v("encodes", m.encodes);
    v("standbys", m.standbys);
    v("moves", m.moves);
    v("healing_s", m.healing_s);
  }
};

/// A history that a seed draws, and that can be made smaller without changing what is left of it.
struct History {
  std::uint64_t seed = 0;
  std::int64_t faulty_ms = 20'000;  ///< then everything works
  std::int64_t verifiers = 1, drafters = 1, drafters_per_sequence = 1, kv_bytes = 0;
  std::int64_t texts = 0;                    ///< a bit each
  std::int64_t encoders = 0, no_towers = 0;  ///< with encoders alone
  double pictures = 0;                       ///< share of the texts that have some
  double audit = 0;
  Faults faults = {};
  std::int64_t down_ms = 0;
  std::int64_t coordinators = 1;
  std::int64_t by_tokens = 0;  ///< of the drafters
  std::int64_t hidden_rows = 0, drafter_kv_bytes = 0;  ///< 0: without a bound

  static void fields(auto& v, auto& m) {
    v("seed", m.seed);
    v("texts", m.texts);
    v("coordinators", m.coordinators);
    v("faulty_ms", m.faulty_ms);
    v("verifiers", m.verifiers);
    v("drafters", m.drafters);
    v("drafters_per_sequence", m.drafters_per_sequence);
    v("kv_bytes", m.kv_bytes);
    v("down_ms", m.down_ms);
    v("audit", m.audit);
    v("encoders", m.encoders);
    v("no_towers", m.no_towers);
    v("pictures", m.pictures);
    v("drop", m.faults.drop);
    v("repeat", m.faults.repeat);
    v("slow", m.faults.slow);
    v("drafter_restart", m.faults.drafter_restart);
    v("verifier_restart", m.faults.verifier_restart);
    v("encoder_restart", m.faults.encoder_restart);
    v("stall", m.faults.stall);
    v("partition", m.faults.partition);
    v("mute", m.faults.mute);
    v("coordinator_restart", m.faults.coordinator_restart);
    v("client_cut", m.faults.client_cut);
    v("skew", m.faults.skew);
    v("by_tokens", m.by_tokens);
    v("hidden_rows", m.hidden_rows);
    v("drafter_kv_bytes", m.drafter_kv_bytes);
  }
};

/// Verifiers, drafters and coordinators that crash, stand still, are cut off or talk nonsense, and clients whose
/// connection is cut. Swarm testing: each history has a part of the faults only, or the frequent ones would hide the
/// others.
History drawn(std::uint64_t seed, int texts) {
  CounterRng rng(seed * 6700417);
  const auto perhaps = [&](double value) { return rng.below(2) == 0 ? value : 0; };
  History h{.seed = seed, .texts = (std::int64_t{1} << texts) - 1};
  h.faults = {.drop = perhaps(0.03),
              .repeat = perhaps(0.05),
              .slow = perhaps(0.02),
              .drafter_restart = perhaps(0.5),
              .verifier_restart = perhaps(0.5),
              .stall = perhaps(0.1),
              .partition = perhaps(0.1),
              .mute = perhaps(0.05),
              .coordinator_restart = perhaps(0.2),
              .client_cut = perhaps(0.1),
              .skew = perhaps(0.3)};
  h.down_ms = rng.below(2) == 0 ? 0 : 3000;
  h.verifiers = 1 + static_cast<std::int64_t>(rng.below(3));
  h.drafters = 1 + static_cast<std::int64_t>(rng.below(3));
  h.kv_bytes = rng.below(2) == 0 ? 200'000 : 5'000'000;
  h.audit = perhaps(1);
  h.drafters_per_sequence = 1 + static_cast<std::int64_t>(rng.below(2));
  h.encoders = static_cast<std::int64_t>(rng.below(3));
  h.no_towers = static_cast<std::int64_t>(rng.below(2));
  h.pictures = 0.5;
  h.faults.encoder_restart = perhaps(0.5);
  h.coordinators = 1 + static_cast<std::int64_t>(rng.below(2));
  // Workers stay with whom they have found: encoders perhaps here, and verifiers that see nothing without them there.
  if (h.coordinators > 1) h.no_towers = 0;
  h.by_tokens = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(h.drafters) + 1));
  h.hidden_rows = rng.below(3) == 0 ? 1 : 0;
  h.drafter_kv_bytes = rng.below(2) == 0 ? 60'000 : 0;
  return h;
}

/// In words, such as OUTRIDER_SIM_HISTORY understands; zeros are left out.
template <typename Fields>
std::string to_text(const Fields& values) {
  std::string text;
  auto print = [&](const char* name, const auto& value) {
    if (value != 0) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  };
  Fields::fields(print, values);
  return text;
}
History parse_history(const std::string& text) {
  History history{.faulty_ms = 0, .verifiers = 0, .drafters = 0, .coordinators = 1};
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t equals = std::min(word.find('='), word.size() - 1);
    const auto set = [&](const char* name, auto& value) {
      if (word.compare(0, equals, name) == 0) std::istringstream(word.substr(equals + 1)) >> value;
    };
    History::fields(set, history);
  }
  return history;
}

/// One text of a history; it does not depend on the others.
struct Text {
  std::vector<TokenId> prompt, stop_ids, expected;
  std::int64_t max_tokens = 0;
  SamplingParams sampling = {};
  DraftPolicy policy = DraftPolicy::kFixed;
  std::int32_t draft_length = 0;
  std::optional<std::int32_t> ahead = {};
  std::vector<WireMedium> media = {};
  Duration pause{};  ///< until the next
};

/// Lets a text have some pictures where its prompt has room. Its sampling is the one that asks for no prompt.
void add_pictures(Text& text, CounterRng rng) {
  std::vector<TokenId> seen = text.prompt;
  for (Position at = static_cast<Position>(rng.below(8)); text.media.size() < 3;) {
    const auto count = static_cast<std::int64_t>(1 + rng.below(4));
    if (at + count >= std::ssize(seen)) break;
    // Of few, so that some come again.
    text.media.push_back({.first = at, .content = model::picture(rng.below(5), count)});
    for (std::int64_t i = 0; i < count; ++i)
      seen[static_cast<std::size_t>(at + i)] = model::soft_token(text.media.back().content, i);
    at += count + static_cast<Position>(rng.below(8));
  }
  text.sampling = {};
  text.expected = model::generate(seen, text.max_tokens, {}, text.stop_ids);
}

Text drawn_text(std::uint64_t seed, std::uint64_t number, double pictures) {
  CounterRng rng(mix64(seed * 6700417 + number));
  Text text;
  text.prompt.resize(1 + rng.below(60));
  for (TokenId& token : text.prompt) token = static_cast<TokenId>(rng.below(model::kVocab));
  if (rng.below(4) == 0) {
    text.sampling = {
        .temperature = 1, .repetition_penalty = 1.2f, .presence_penalty = 0.5f, .min_tokens = 20, .seed = seed};
  }
  text.max_tokens = static_cast<std::int64_t>(1 + rng.below(text.sampling.greedy() ? 1000 : 100));
  if (rng.below(4) == 0) text.stop_ids = {static_cast<TokenId>(rng.below(model::kVocab))};
  text.expected = model::generate(text.prompt, text.max_tokens, text.sampling, text.stop_ids);
  text.policy = rng.below(2) == 0 || rng.below(5) == 0 ? DraftPolicy::kFixed : DraftPolicy::kAuto;
  text.draft_length = static_cast<std::int32_t>(rng.below(9));
  text.ahead = some_ahead(rng);
  if (rng.below(3) == 0) text.pause = std::chrono::milliseconds(rng.below(3000));
  CounterRng more(mix64(seed * 104729 + number));
  if (pictures > 0 && more.uniform() < pictures) add_pictures(text, more);
  if (!text.stop_ids.empty()) {  // a grammar could not end without
    CounterRng grammars(mix64(seed * 15485863 + number));
    if (grammars.below(2) == 0) text.sampling.grammar = std::to_string(grammars.below(4) * 1300);
  }
  return text;
}

/// What is left of texts, though all have ended; empty: nothing.
std::string left_behind(const Simulator& simulator) {
  const int sessions = simulator.coordinator_sessions();
  const std::size_t verifying = simulator.verifier_sessions(), drafting = simulator.drafter_sessions(),
                    encoding = simulator.encoder_sessions();
  const std::int64_t bytes = simulator.verifier_kv_bytes(), drafter_bytes = simulator.drafter_kv_bytes();
  if (sessions == 0 && verifying == 0 && drafting == 0 && encoding == 0 && bytes == 0 && drafter_bytes == 0) return "";
  return fmt::format(
      "{} sessions of the coordinator, {} of verifiers with {} bytes, {} of drafters with {} and {} of encoders stay "
      "behind",
      sessions, verifying, bytes, drafting, drafter_bytes, encoding);
}

/// Lets time pass until nothing is left, and stays so for as long as something may be under way; kForgotten at most.
void forget(Simulator& simulator) {
  constexpr Duration kStep = std::chrono::seconds(1), kQuiet = std::chrono::seconds(5);
  Duration quiet{};
  for (Duration waited{}; waited < kForgotten && quiet < kQuiet; waited += kStep) {
    simulator.run_for(kStep);
    quiet = left_behind(simulator).empty() ? quiet + kStep : Duration::zero();
  }
}

/// Every text is plain decoding's, soon after the faults have ended all texts have, and nothing stays behind.
/// @return what is wrong; empty: nothing.
std::string survive(const History& history, Survival* totals) {
  const Duration faulty = std::chrono::milliseconds(history.faulty_ms);
  Faults faults = history.faults;
  faults.until = std::chrono::seconds(1) + faulty;
  faults.down_max = std::chrono::milliseconds(history.down_ms);
  Simulator simulator(history.seed, faults, 0.7,
                      {.verifiers = static_cast<int>(history.verifiers),
                       .drafters = static_cast<int>(history.drafters),
                       .encoders = static_cast<int>(history.encoders),
                       .no_towers = history.encoders > 0 && history.no_towers > 0,
                       .kv_bytes_max = history.kv_bytes,
                       .failover = {.wait = std::chrono::hours(1), .limit = 1'000'000},
                       .client = {.failover_wait = std::chrono::hours(1),
                                  .was_there = true,
                                  .places = static_cast<int>(history.coordinators),
                                  .restarts_max = 1'000'000},
                       .audit = history.audit,
                       .by_tokens = static_cast<int>(history.by_tokens),
                       .hidden_rows = history.hidden_rows > 0,
                       .drafter_kv_bytes_max = history.drafter_kv_bytes > 0 ? history.drafter_kv_bytes
                                                                            : std::numeric_limits<std::int64_t>::max(),
                       .drafters_per_sequence = static_cast<int>(history.drafters_per_sequence),
                       .coordinators = static_cast<int>(history.coordinators)});
  std::map<std::uint64_t, Text> texts;
  for (std::uint64_t number = 1; number < 63; ++number) {
    if ((history.texts >> (number - 1) & 1) == 0) continue;
    const Text& text = texts[number] = drawn_text(history.seed, number, history.pictures);
    simulator.request(number, text.prompt, text.max_tokens, text.draft_length, text.sampling, text.stop_ids,
                      text.policy, text.ahead, false, {}, text.media);
    simulator.run_for(text.pause);
  }
  const bool ended = simulator.run_until_done(faulty + kHealing);
  if (!simulator.violations().empty()) return simulator.violations().front();
  if (!ended) return fmt::format("a text has not ended {:.0f} s after everything works again", to_seconds(kHealing));
  for (const auto& [number, answer] : simulator.answers()) {
    if (!answer.failure.empty()) return fmt::format("text {}: {}", number, answer.failure);
    if (answer.tokens != texts[number].expected) return fmt::format("text {} is not plain decoding's", number);
    if (answer.metrics.inexact_failovers != 0) return fmt::format("text {} went on inexactly", number);
    ++totals->texts;
    totals->tokens += std::ssize(answer.tokens);
    totals->rounds += answer.metrics.rounds;
    totals->failovers += answer.metrics.failovers;
    totals->ahead += answer.metrics.ahead_rounds;
    totals->resumes += answer.metrics.resumes;
    totals->encodes += answer.metrics.wire_bytes_to_encoder;  // one each: on_sent() is told so
  }
  totals->healing_s = std::max(totals->healing_s, to_seconds(simulator.healed_for()));
  forget(simulator);
  if (!simulator.violations().empty()) return simulator.violations().front();
  if (const std::string left = left_behind(simulator); !left.empty()) return left;
  for (std::size_t place = 0; place < static_cast<std::size_t>(history.coordinators); ++place) {
    const AuditCounts audits = simulator.status(place).audits;
    if (audits.different != 0) return "an audit found a difference";
    totals->audits += audits.same;
  }
  ++totals->histories;
  totals->standbys += history.coordinators > 1;
  totals->moves += simulator.moves();
  totals->token_rows += simulator.token_rows();
  totals->verifiers += simulator.verifier_restarts();
  totals->drafters += simulator.drafter_restarts();
  totals->encoders += simulator.encoder_restarts();
  totals->coordinators += simulator.coordinator_restarts();
  return "";
}

/// A visitor that makes histories with one thing less, or half of it.
struct Halve {
  const History& whole;
  std::vector<History> parts = {};

  void operator()(const char*, const std::uint64_t&) {}  // another seed is another history
  void operator()(const char* name, const std::int64_t& value) {
    const std::string_view field = name;
    for (int bit = 0; field == "texts" && bit < 62; ++bit) add(name, value & ~(std::int64_t{1} << bit), value);
    const bool may_be_none =
        field.ends_with("_ms") || field == "encoders" || field == "no_towers" || field == "by_tokens" ||
        field == "hidden_rows";
    const std::int64_t least = std::min<std::int64_t>(value, may_be_none ? 0 : 1);
    if (field == "drafter_kv_bytes") return add(name, std::int64_t{0}, value);
    if (field != "texts" && field != "kv_bytes") add(name, std::max(value / 2, least), value);
  }
  void operator()(const char* name, const double& value) { add(name, 0.0, value); }

 private:
  template <typename T>
  void add(std::string_view name, T value, T before) {
    if (value == before) return;
    History& part = parts.emplace_back(whole);
    auto set = [&](const char* other, auto& field) {
      if constexpr (std::is_same_v<std::remove_reference_t<decltype(field)>, T>) {
        if (other == name) field = value;
      }
    };
    History::fields(set, part);
  }
};

/// The smallest history that still fails, as far as `tries` go.
template <typename Fails>
History shrunk(History history, Fails fails, int tries = 400) {
  for (bool found = true; found && tries > 0;) {
    found = false;
    Halve halve{history};
    History::fields(halve, std::as_const(history));
    for (const History& part : halve.parts) {
      if (tries-- <= 0) break;
      if (part.texts == 0 || !fails(part)) continue;
      history = History(part);
      found = true;
      break;
    }
  }
  return history;
}

void expect_survival(const History& history, Survival* totals) {
  const std::string why = survive(history, totals);
  if (why.empty()) return;
  Survival ignored;
  const History smallest = shrunk(history, [&](const History& part) { return !survive(part, &ignored).empty(); });
  ADD_FAILURE() << why << "\nhistory: " << to_text(history) << "\nshrunk: " << to_text(smallest) << "\n  "
                << survive(smallest, &ignored) << "\nreplay: OUTRIDER_SIM_HISTORY='" << to_text(smallest)
                << "' build/tests/simulation/simulation_test --gtest_filter=*TextSurvivesTheDeathOfAnybody";
}

void print(const Survival& totals) {
  fmt::print("survived: {}\n", to_text(totals));
  std::fflush(stdout);
}

TEST(Simulation, TextSurvivesTheDeathOfAnybody) {
  Survival totals;
  if (const char* history = std::getenv("OUTRIDER_SIM_HISTORY"))
    return expect_survival(parse_history(history), &totals);
  for (const std::uint64_t seed : seeds()) {
    expect_survival(drawn(seed, 12), &totals);
    if (HasFailure()) return;
  }
  print(totals);
  if (std::getenv("OUTRIDER_SIM_SEED") != nullptr) return;
  EXPECT_GT(totals.failovers, 100);
  EXPECT_GT(totals.resumes, 100);
  EXPECT_GT(totals.audits, 5);
  EXPECT_GT(totals.token_rows, 20'000);
  EXPECT_GT(totals.encodes, 50);
  EXPECT_GT(totals.moves, 100);
}

// What nights found: a prompt takes over the start of another whose next rows are in the same forward; the workers are
// at a coordinator that a text had left because it had none, and never asked again.
TEST(Simulation, HistoriesThatFailedOnce) {
  Survival totals;
  for (const char* history :
       {"seed=1056827 texts=127 faulty_ms=2500 verifiers=1 drafters=2 drafters_per_sequence=2 kv_bytes=5000000 "
        "repeat=0.05 stall=0.1 partition=0.1 client_cut=0.1 skew=0.3",
        "seed=5000310 texts=256 coordinators=2 faulty_ms=20000 verifiers=1 drafters=1 drafters_per_sequence=1 "
        "kv_bytes=200000 encoders=1 pictures=0.5 drop=0.03 repeat=0.05 mute=0.05 coordinator_restart=0.2 "
        "skew=0.3"}) {
    EXPECT_EQ(survive(parse_history(history), &totals), "") << history;
  }
}

TEST(Simulation, AFailingHistoryIsMadeSmall) {
  const History history = drawn(7, 12);
  // As if it took a verifier's restart, text 5 and three seconds.
  const auto fails = [](const History& part) {
    return part.faults.verifier_restart > 0 && (part.texts >> 4 & 1) == 1 && part.faulty_ms >= 3000;
  };
  History whole = history;
  whole.faults.verifier_restart = 0.5;
  const History smallest = shrunk(whole, fails);
  EXPECT_EQ(to_text(smallest),
            fmt::format(
                "seed=7 texts=16 coordinators=1 faulty_ms=5000 verifiers=1 drafters=1 drafters_per_sequence=1 "
                "kv_bytes={} verifier_restart=0.5",
                history.kv_bytes));
  EXPECT_EQ(to_text(parse_history(to_text(whole))), to_text(whole));
}

// ---- whom to believe ----

/// Twelve texts at once, three drafters, and more of them for so long.
void keep_busy(Simulator& simulator, Duration duration) {
  simulator.run_for(std::chrono::milliseconds(100));  // the workers join
  std::uint64_t number = 0;
  for (const int end = static_cast<int>(to_seconds(duration)); end > static_cast<int>(number / 12);) {
    for (int i = 0; i < 12; ++i) {
      ++number;
      simulator.request(number, {static_cast<TokenId>(number)}, 200, 4);
    }
    ASSERT_EQ(unfinished(simulator), "");
  }
  for (const auto& [id, answer] : simulator.answers())
    ASSERT_EQ(answer.tokens, model::generate({static_cast<TokenId>(id)}, 200));
}

TEST(Simulation, ADrafterThatLiesGetsFewerTextsAndThenNone) {
  Simulator simulator(3, {}, 0.7, {.drafters = 3, .liars = 1});
  ASSERT_NO_FATAL_FAILURE(keep_busy(simulator, std::chrono::seconds(20)));
  EXPECT_LT(10 * simulator.drafts_of(0), simulator.drafts_of(1));
  EXPECT_GT(simulator.drafts_of(0), Reputation::kTrial - 1);
  const Status status = simulator.status();
  std::int64_t paused = 0;
  for (const WorkerStatus& worker : status.workers) {
    paused += worker.paused;
    if (worker.role == Role::kDrafter) {
      EXPECT_EQ(worker.name.starts_with("key0"), worker.paused);
      EXPECT_EQ(worker.yield < 0.25, worker.paused) << worker.yield;
    }
  }
  EXPECT_EQ(paused, 1);
}

TEST(Simulation, ADrafterThatIsAlwaysLateGetsNoTexts) {
  Simulator simulator(4, {}, 0.7, {.drafters = 3, .laggards = 1});
  ASSERT_NO_FATAL_FAILURE(keep_busy(simulator, std::chrono::seconds(20)));
  EXPECT_LT(10 * simulator.drafts_of(0), simulator.drafts_of(1));
  for (const WorkerStatus& worker : simulator.status().workers) {
    if (worker.role == Role::kDrafter) {
      EXPECT_EQ(worker.late_rounds > 10, worker.name.starts_with("key0")) << worker.name;
    }
  }
}

TEST(Simulation, AuditsFindAVerifierThatForges) {
  for (const bool forges : {false, true}) {
    Simulator simulator(
        5, {}, 0.7, {.verifiers = 2, .drafters = 0, .audit = 1, .forger = forges ? std::optional(0) : std::nullopt});
    simulator.run_for(std::chrono::milliseconds(100));
    for (std::uint64_t number = 1; number <= 12; ++number) {
      const SamplingParams sampling =
          number % 2 == 0 ? SamplingParams{.temperature = 1, .seed = number} : SamplingParams{};
      simulator.request(number, std::vector<TokenId>(number, 3), 100, 0, sampling);
    }
    ASSERT_TRUE(simulator.run_until_done(std::chrono::minutes(5)));
    simulator.run_for(std::chrono::seconds(30));
    const AuditCounts audits = simulator.status().audits;
    EXPECT_EQ(audits.same + audits.different + audits.skipped, 12);
    EXPECT_EQ(audits.skipped, 0);
    EXPECT_EQ(audits.different > 0, forges);
    const auto named = std::ranges::count_if(simulator.notices(), [](const std::string& text) {
      return text.starts_with("audit: token") && text.find("verifier-0") != text.npos &&
             text.find("verifier-1") != text.npos;
    });
    EXPECT_EQ(named, audits.different);
    if (!forges) {
      EXPECT_EQ(audits.tokens, 1200);
    }
    EXPECT_EQ(simulator.coordinator_sessions(), 0);
    EXPECT_EQ(simulator.verifier_kv_bytes(), 0);
  }
}

TEST(Simulation, WithoutASecondVerifierNothingIsAuditedAndItIsSaidOnce) {
  Simulator simulator(6, {}, 0.7, {.audit = 1});
  for (std::uint64_t number = 1; number <= 5; ++number) simulator.request(number, {1, 2}, 20, 2);
  ASSERT_TRUE(simulator.run_until_done(std::chrono::minutes(1)));
  simulator.run_for(std::chrono::seconds(1));
  EXPECT_EQ(simulator.status().audits.skipped, 5);
  EXPECT_EQ(std::ranges::count_if(simulator.notices(), [](const auto& text) { return text.starts_with("audit: "); }),
            1);
}

// At each length of the answer: the verifier that has the text dies, and the other goes on.
TEST(Simulation, AVerifierMayDieAtEachSingleToken) {
  const std::vector<TokenId> prompt = {3, 1, 4, 1, 5, 9, 2, 6};
  constexpr std::int64_t kTokens = 200;
  for (const SamplingParams& sampling :
       {SamplingParams{}, SamplingParams{.temperature = 1, .frequency_penalty = 0.5f, .seed = 7}}) {
    const std::vector<TokenId> expected = model::generate(prompt, kTokens, sampling);
    std::int64_t failovers = 0;
    for (std::size_t length = 0; length < kTokens; ++length) {
      SCOPED_TRACE(testing::Message() << "after " << length << " tokens");
      Simulator simulator(length + 1, {}, 0.7, {.verifiers = 2});
      simulator.run_for(std::chrono::milliseconds(50));  // the workers join
      simulator.request(1, prompt, kTokens, 4, sampling);
      while (simulator.answers().at(1).tokens.size() < length) simulator.run_for(std::chrono::microseconds(100));
      simulator.kill_verifier_of(1, std::chrono::seconds(5));
      ASSERT_TRUE(simulator.run_until_done(std::chrono::seconds(60)));
      ASSERT_EQ(simulator.answers().at(1).failure, "");
      ASSERT_EQ(simulator.answers().at(1).tokens, expected);
      failovers += simulator.answers().at(1).metrics.failovers;
      ASSERT_TRUE(simulator.violations().empty()) << simulator.violations().front();
    }
    EXPECT_GT(failovers, kTokens / 2) << "most of them died in mid-text";
  }
}

// At each length of the answer: the coordinator dies, and its client goes on with the next one. The verifier still has
// the text's K/V.
TEST(Simulation, ACoordinatorMayDieAtEachSingleToken) {
  const std::vector<TokenId> prompt(40, 6);
  constexpr std::int64_t kTokens = 120;
  for (const SamplingParams& sampling :
       {SamplingParams{}, SamplingParams{.temperature = 1, .frequency_penalty = 0.5f, .min_tokens = 110, .seed = 7}}) {
    const std::vector<TokenId> expected = model::generate(prompt, kTokens, sampling);
    const std::vector<TokenId> stop_ids = {expected[100], expected[115]};
    const std::vector<TokenId> stopped = model::generate(prompt, kTokens, sampling, stop_ids);
    std::int64_t resumes = 0;
    for (std::size_t length = 0; length < stopped.size(); ++length) {
      SCOPED_TRACE(testing::Message() << "after " << length << " tokens");
      Simulator simulator(length + 1, {}, 0.7, {.verifiers = 2});
      simulator.run_for(std::chrono::milliseconds(50));  // the workers join
      simulator.request(1, prompt, kTokens, 4, sampling, stop_ids);
      while (simulator.answers().at(1).tokens.size() < length) simulator.run_for(std::chrono::microseconds(100));
      simulator.kill_coordinator(length % 2 == 0 ? std::chrono::seconds(0) : std::chrono::seconds(5));
      ASSERT_TRUE(simulator.run_until_done(std::chrono::seconds(60)));
      const Simulator::Answer& answer = simulator.answers().at(1);
      ASSERT_EQ(answer.failure, "");
      ASSERT_EQ(answer.tokens, stopped);
      ASSERT_TRUE(simulator.violations().empty()) << simulator.violations().front();
      EXPECT_EQ(answer.metrics.failovers, 0);
      if (answer.metrics.resumes == 0 || answer.metrics.rounds == 0)
        continue;  // it had its answer, but for Done perhaps
      ++resumes;
      EXPECT_TRUE(length == 0 || answer.metrics.cached_prompt_tokens > 0);
    }
    EXPECT_GT(resumes, std::ssize(stopped) / 2);
  }
}

// At each length of the answer: the first coordinator dies, the stand-by goes on with it, and the first one comes back,
// without a worker, to whoever asks next.
TEST(Simulation, AStandbyGoesOnWhereverTheFirstCoordinatorDies) {
  const std::vector<TokenId> prompt(40, 6);
  constexpr std::int64_t kTokens = 60;
  const std::vector<TokenId> expected = model::generate(prompt, kTokens);
  std::int64_t resumes = 0;
  for (std::size_t length = 0; length < kTokens; ++length) {
    SCOPED_TRACE(testing::Message() << "after " << length << " tokens");
    Simulator simulator(length + 1, {}, 0.7, {.verifiers = 2, .client = {.places = 2}, .coordinators = 2});
    simulator.run_for(std::chrono::milliseconds(50));  // the workers join
    simulator.request(1, prompt, kTokens, 4);
    while (simulator.answers().at(1).tokens.size() < length) simulator.run_for(std::chrono::microseconds(100));
    simulator.kill_coordinator(std::chrono::seconds(10));
    ASSERT_TRUE(simulator.run_until_done(std::chrono::seconds(60)));
    resumes += simulator.answers().at(1).metrics.resumes;
    simulator.run_for(std::chrono::seconds(15));
    EXPECT_EQ(simulator.status(0).verifiers, 0);
    EXPECT_EQ(simulator.status(1).verifiers, 2);
    simulator.request(2, prompt, kTokens, 4);
    ASSERT_TRUE(simulator.run_until_done(std::chrono::seconds(5)));
    for (const auto& [number, answer] : simulator.answers()) {
      ASSERT_EQ(answer.failure, "") << "text " << number;
      ASSERT_EQ(answer.tokens, expected) << "text " << number;
    }
    ASSERT_TRUE(simulator.violations().empty()) << simulator.violations().front();
  }
  EXPECT_GT(resumes, kTokens / 2) << "most of them were under way";
}

TEST(Simulation, WithoutAnotherCoordinatorAnAnswerFailsInTime) {
  Simulator simulator(1, {}, 0.7, {});
  simulator.request(1, {1, 2, 3}, 200, 4);
  while (simulator.answers().at(1).tokens.size() < 20) simulator.run_for(std::chrono::milliseconds(1));
  simulator.kill_coordinator(std::chrono::hours(1));
  ASSERT_TRUE(simulator.run_until_done(ClientConfig().failover_wait + std::chrono::seconds(1)));
  EXPECT_EQ(simulator.answers().at(1).failure, "has not answered for 30 s");
}

// Not run unless asked for: OUTRIDER_SIM_ROUNDS=1000000, or for the histories of so many seeds by
// OUTRIDER_SIM_SEEDS=FIRST:COUNT (tests/simulation/night.py).
TEST(Simulation, AsManyRoundsAsWanted) {
  const char *const rounds = std::getenv("OUTRIDER_SIM_ROUNDS"), *const seeds = std::getenv("OUTRIDER_SIM_SEEDS");
  if (rounds == nullptr && seeds == nullptr) GTEST_SKIP() << "OUTRIDER_SIM_ROUNDS says how many";
  std::uint64_t first = 1000, count = std::numeric_limits<std::uint64_t>::max();
  char colon = 0;
  if (seeds != nullptr && !(std::istringstream(seeds) >> first >> colon >> count && colon == ':'))
    FAIL() << "OUTRIDER_SIM_SEEDS=" << seeds << ", wanted FIRST:COUNT";
  const std::int64_t most =
      rounds != nullptr ? std::strtoll(rounds, nullptr, 10) : std::numeric_limits<std::int64_t>::max();
  Survival totals;
  // A night goes on after a failure, and says what it was.
  for (std::uint64_t i = 0; i < count && totals.rounds < most && !(HasFailure() && seeds == nullptr); ++i)
    expect_survival(drawn(first + i, 12), &totals);
  print(totals);
}

TEST(Simulation, OneSeedIsOneHistory) {
  const Faults faults{.drop = 0.1, .repeat = 0.1, .slow = 0.05, .drafter_restart = 1};
  Totals first, second;
  run_seed(5, faults, &first);
  run_seed(5, faults, &second);
  EXPECT_EQ(first.messages, second.messages);
  EXPECT_EQ(first.accepted, second.accepted);
}

}  // namespace
}  // namespace outrider::simulation
