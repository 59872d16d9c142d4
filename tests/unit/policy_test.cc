#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/decoding/drafting/forecast.h"
#include "common/decoding/drafting/goodput.h"
#include "common/decoding/drafting/governor.h"
#include "common/decoding/drafting/ngram.h"
#include "common/decoding/drafting/policies.h"
#include "common/decoding/drafting/round_cost.h"

namespace outrider {
namespace {

std::vector<TokenId> ngram(const std::vector<TokenId>& history, std::size_t length) {
  const auto drafts = ngram_draft(history, length);
  return {drafts.begin(), drafts.end()};
}

TEST(Ngram, ProposesWhatFollowedTheLongestMatch) {
  EXPECT_EQ(ngram({1, 2, 3, 7, 2, 3, 8, 1, 2, 3}, 2), (std::vector<TokenId>{7, 2}));
  EXPECT_EQ(ngram({2, 3, 7, 2, 3, 8, 2, 3}, 1), (std::vector<TokenId>{8})) << "of equal matches the latest";
  EXPECT_EQ(ngram({5, 5, 5}, 4), (std::vector<TokenId>{5})) << "an overlapping match, as far as the text goes";
  EXPECT_EQ(ngram({2, 3, 2, 3}, 0), (std::vector<TokenId>{}));
}

TEST(Ngram, ProposesNothingWithoutAMatchOfTwo) {
  for (const std::vector<TokenId>& history : {std::vector<TokenId>{}, {1}, {1, 1}, {1, 2}, {1, 2, 1}, {1, 2, 3, 4}}) {
    EXPECT_TRUE(ngram(history, 4).empty()) << history.size() << " tokens";
  }
}

TEST(VerifyTime, OfATextAloneIsHopedToBeAStaircaseThatNeverFalls) {
  VerifyTime time;
  EXPECT_EQ(time.optimistic_s(5), 0);
  time.observe(1, 1.0);
  time.observe(17, 2.0);
  EXPECT_EQ(time.optimistic_s(16), 1.0) << "not measured: as the measured one below";
  EXPECT_EQ(time.optimistic_s(33), 2.0);
  time.observe(9, 0.8);  // noise
  for (int m = 2; m <= 33; ++m) EXPECT_GE(time.optimistic_s(m), time.optimistic_s(m - 1)) << m;
  for (int i = 0; i < 20; ++i) time.observe(9, 1.5);
  EXPECT_NEAR(time.optimistic_s(9), 1.5, 0.01) << "the last few rounds decide";
}

TEST(FadingLine, FindsRoundTripAndBandwidth) {
  FadingLine line;
  for (int i = 0; i < 50; ++i) line.observe(1000 * (i % 5), 0.02 + 1e-6 * 1000 * (i % 5));
  EXPECT_NEAR(line.intercept(), 0.02, 1e-9);
  EXPECT_NEAR(line.slope(), 1e-6, 1e-12);
  FadingLine constant;
  for (int i = 0; i < 50; ++i) constant.observe(1000, 0.02);
  EXPECT_NEAR(constant.intercept(), 0.02, 1e-9);
  EXPECT_EQ(constant.slope(), 0);
}

/// A round of a world where a row costs 1 s + 0.05 s and a draft 0.1 s.
RoundOutcome round_of(const DraftPlan& choice, int held) {
  RoundOutcome outcome{.source = choice.source, .drafted = choice.length, .accepted = std::min(held, choice.length)};
  outcome.draft_s = choice.source == DraftSource::kAssistant ? 0.1 * choice.length : 0;
  outcome.verify_s = 1 + 0.05 * choice.length;
  outcome.round_s = outcome.draft_s + outcome.verify_s;
  return outcome;
}

TEST(Policies, StayWithinTheLimits) {
  Estimates costs;
  BatchGoodput batch;
  std::vector<std::unique_ptr<DraftLengthPolicy>> policies;
  policies.push_back(std::make_unique<FixedLength>(8));
  policies.push_back(make_policy(DraftPolicy::kAuto, 0, costs, batch));
  CounterRng random(1);
  for (int i = 0; i < 2000; ++i) {
    const DraftLimits limits{.assistant = static_cast<int>(random.below(5)),
                             .ngram = static_cast<int>(random.below(3)),
                             .table = static_cast<int>(random.below(4))};
    for (std::size_t p = 0; p < policies.size(); ++p) {
      const DraftPlan choice = policies[p]->choose(limits);
      ASSERT_LE(choice.length, limits.of(choice.source)) << "policy " << p;
      ASSERT_GE(choice.length, 0);
      const RoundOutcome outcome = round_of(choice, static_cast<int>(random.below(4)));
      costs.observe(outcome, 0);
      policies[p]->observe(choice, outcome);
    }
  }
}

TEST(Forecast, IsTheClosedFormOfTheMeans) {
  Forecast forecast;
  // A pass costs 1 s and 0.05 s a draft, a draft 0.1 s, the wire 0.2 s, the rest 0.01 s; half of the first drafts hold
  // and all after them.
  for (const int length : {0, 2, 8}) {
    for (const bool held : {false, true}) {
      RoundOutcome outcome = round_of({.length = length}, held ? length : 0);
      outcome.draft_wire_s = length > 0 ? 0.2 : 0;
      outcome.round_s += outcome.draft_wire_s + 0.01;
      forecast.observe(outcome);
    }
  }
  EXPECT_DOUBLE_EQ(forecast.tau(4), 1 + 0.5 * 4);
  EXPECT_DOUBLE_EQ(forecast.tau(12), 1 + 0.5 * 12) << "never tried: as the one before";
  EXPECT_NEAR(forecast.terms(4).seconds(), 1.2 + 0.4 + 0.2 + 0.01, 1e-9) << "between 3 and 9 rows";
  EXPECT_NEAR(forecast.terms(12).seconds(), 1.6 + 1.2 + 0.2 + 0.01, 1e-9) << "beyond 9";
  EXPECT_NEAR(forecast.terms(0).seconds(), 1.01, 1e-9);
}

TEST(AheadHits, AreHopedForThenCounted) {
  AheadHits hits;
  EXPECT_DOUBLE_EQ(hits.chance(0.5, 0.8), 0.4) << "all hold, and one more would";
  for (int i = 0; i < 200; ++i) {
    hits.observe(/*all_held=*/true, i % 4 != 0, 0.01);
    hits.observe(/*all_held=*/false, i % 4 == 0, 0.01);
  }
  EXPECT_NEAR(hits.chance(1, 0), 0.75, 0.02);
  EXPECT_NEAR(hits.chance(0, 1), 0.25, 0.02);
  EXPECT_NEAR(hits.wait_s(), 0.01, 1e-9);
}

// A far drafter's drafts hold less when they were made ahead: whether that pays depends on what is hidden.
TEST(AheadHits, PayAsLongAsTheWaitIsWorthMoreThanTheTokens) {
  for (const double wire_s : {0.2, 5.0}) {
    Estimates costs;
    BatchGoodput batch;
    for (int i = 0; i < 200; ++i) {
      RoundOutcome outcome = round_of({.length = 4}, i % 2 == 0 ? 4 : 1);
      outcome.ahead = i % 2 == 1;
      outcome.draft_s = outcome.ahead ? 0 : 0.1;
      outcome.draft_wire_s = outcome.ahead ? 0 : wire_s;
      costs.observe(outcome, 0);
      costs.ahead.observe(true, outcome.ahead, 0);
      if (i == 10) {
        EXPECT_TRUE(ahead_pays(costs, 4)) << "tried first";
      }
    }
    EXPECT_EQ(ahead_pays(costs, 4), wire_s > 1) << wire_s;
  }
}

// Nobody knows yet what a further row costs: sixteen drafts may take as long as as many plain rounds. Once rows have
// proved to be nearly free, a round has as many as seem to pay.
TEST(Goodput, TheFirstTrialIsShortUntilRowsHaveACost) {
  for (const DraftLimits& limits :
       {DraftLimits{.assistant = 16}, {.ngram = 16}, {.assistant = 16, .tree = true}, {.table = 16}}) {
    Estimates costs;
    BatchGoodput batch;
    GoodputLength policy(costs, batch);
    const auto play = [&](const DraftPlan& choice) {
      RoundOutcome outcome = round_of(choice, choice.length);
      outcome.draft_s /= 100;
      costs.observe(outcome, 0);
      policy.observe(choice, outcome);
    };
    for (int i = 0; i < 3; ++i) play({});
    const DraftPlan first = policy.choose(limits);
    EXPECT_GE(first.length, 1);
    EXPECT_LE(first.length, 4);
    play(first);
    EXPECT_GT(policy.choose(limits).length, 4);
  }
}

// Drafts at hand cost no wait: rounds use them although a far drafter would not be asked.
TEST(Goodput, UsesDraftsAtHandWhereAskingDoesNotPay) {
  Estimates costs;
  BatchGoodput batch;
  GoodputLength policy(costs, batch);
  for (int i = 0; i < 50; ++i) {
    RoundOutcome outcome = round_of({.length = i % 2 == 0 ? 0 : 4}, 2);
    if (outcome.drafted > 0) outcome.draft_wire_s = 20;
    outcome.round_s += outcome.draft_wire_s;
    costs.observe(outcome, 0);
    policy.observe({}, outcome);
  }
  EXPECT_EQ(policy.choose({.assistant = 4}).length, 0);
  EXPECT_GE(policy.choose({.assistant = 4, .at_hand = true}).length, 2);
  EXPECT_TRUE(ahead_pays(costs, 4)) << "it hides twenty seconds";
}

/// Rounds of `row_ms` a row on top of 50 ms, in which a draft takes `draft_ms`, of passes with 1 to 64 rows.
Estimates costs_of(double row_ms, double draft_ms) {
  Estimates costs;
  for (int i = 0; i < 200; ++i) {
    const int drafted = i % 3 == 0 ? 0 : 4;
    RoundOutcome outcome{.drafted = drafted, .accepted = drafted / 2, .batch_rows = std::max(drafted + 1, 1 + i % 64)};
    outcome.verify_s = (50 + row_ms * outcome.batch_rows) * 1e-3;
    outcome.draft_s = drafted * draft_ms * 1e-3;
    outcome.round_s = outcome.verify_s + outcome.draft_s;
    costs.observe(outcome, 0);
  }
  return costs;
}

// A drafter says how many passes its drafts took: one each of an assistant, one for a whole block, something between
// for a cascade. What a length costs that was not tried follows from that.
TEST(Estimates, DraftsCostThePassesThatTheyTake) {
  const auto cost_ms = [](double first, double behind) {
    Estimates costs;
    for (int i = 0; i < 60; ++i) {
      const int drafted = 2 + i % 3;
      RoundOutcome outcome{.drafted = drafted, .accepted = drafted / 2, .batch_rows = drafted + 1};
      outcome.draft_passes = first + behind * (drafted - 1);
      outcome.draft_pass_rows = 1;
      outcome.draft_s = outcome.draft_passes * 2e-3;
      outcome.verify_s = 0.05;
      outcome.round_s = outcome.verify_s + outcome.draft_s;
      costs.observe(outcome, 0);
    }
    return 1e3 * round_terms(costs, DraftSource::kAssistant, 8, 2).draft_s;
  };
  EXPECT_NEAR(cost_ms(1, 1), 16, 1e-9);
  EXPECT_NEAR(cost_ms(1, 0), 2, 1e-9);
  EXPECT_NEAR(cost_ms(1, 0.5), 9, 1e-9);
}

TEST(Estimates, HasALoadThatIsEveryMs) {
  Estimates costs;
  const auto pass = [&](int rows, double seconds) {
    costs.observe({.verify_s = seconds, .batch_rows = rows, .round_s = seconds}, 0);
  };
  const auto slope = [&] { return costs.likely_verify_s(16) / costs.likely_verify_s(8); };
  for (int i = 0; i < 10; ++i) {
    pass(8, 0.050);
    pass(16, 0.060);
  }
  EXPECT_NEAR(slope(), 1.2, 0.01);
  for (int i = 0; i < 4; ++i) pass(8, 0.150);  // a neighbour
  EXPECT_NEAR(costs.load, 2.7, 0.3);
  EXPECT_GT(costs.likely_verify_s(8), 0.13);
  EXPECT_GT(slope(), 1.06) << "rows are hardly cheaper for it";
  for (int i = 0; i < 6; ++i) pass(8, 0.050);
  EXPECT_NEAR(costs.likely_verify_s(8), 0.050, 0.005);
  EXPECT_GT(slope(), 1.06);
}

// Four sequences tell of one pass, and the next passes may take as many nanoseconds.
TEST(Estimates, APassCountsOnceAndPassesOfOneDurationCountEach) {
  Estimates once, told;
  std::int64_t number = 0;
  const auto pass = [&](double seconds) {
    RoundOutcome outcome{.verify_s = seconds, .batch_rows = 4, .pass = ++number, .round_s = seconds};
    once.observe(outcome, 0);
    for (int sequence = 0; sequence < 4; ++sequence) told.observe(outcome, 0);
  };
  for (const double seconds : {0.05, 0.05, 0.05, 0.15, 0.15}) pass(seconds);
  EXPECT_EQ(told.load, once.load);
  EXPECT_EQ(told.verify_s(4), once.verify_s(4));
  EXPECT_NEAR(once.load, 2.4, 0.1) << "two passes of three times the length";
}

/// A round of four drafts of the assistant, of which `held` hold, and of what the policy wants of `at_hand` looked-up
/// ones behind them, which hold with the chance `p` each. @return how many of these there were.
int play_extended(GoodputLength& policy, Estimates& costs, int held, int at_hand, double p, CounterRng& random) {
  DraftPlan choice = policy.choose({.assistant = 4});
  RoundOutcome outcome = round_of(choice, held);
  int more = 0;
  if (choice.length > 0) {
    RoundOutcome begun = outcome;
    begun.accepted = 0;
    more = policy.extend(choice, begun, DraftSource::kNgram, at_hand);
    outcome.behind[static_cast<std::size_t>(DraftSource::kNgram)] = more;
    outcome.drafted += more;
    outcome.verify_s += 0.05 * more;
    outcome.round_s += 0.05 * more;
    while (outcome.accepted >= choice.length && outcome.accepted < outcome.drafted && random.uniform() < p)
      ++outcome.accepted;
  }
  costs.observe(outcome, 0);
  policy.observe(choice, outcome);
  return more;
}

// What is looked up behind the assistant's drafts has rows as long as it brings more than they cost.
TEST(Goodput, ExtendsDraftsByWhatIsLookedUpWhileThatPays) {
  Estimates costs;
  BatchGoodput batch;
  CounterRng random(1);
  const auto play = [&](GoodputLength& policy, double p, int rounds) {
    int drafted = 0;
    for (int i = 0; i < rounds; ++i) drafted += play_extended(policy, costs, i % 4 == 3 ? 2 : 4, 8, p, random);
    return static_cast<double>(drafted) / rounds;
  };
  {
    GoodputLength good(costs, batch);
    play(good, 0.95, 100);
    EXPECT_GT(play(good, 0.95, 100), 7) << "of eight";
  }
  {
    GoodputLength bad(costs, batch);
    play(bad, 0, 40);
    EXPECT_LT(play(bad, 0, 200), 1) << "a text of its own, whatever others are like";
  }
  GoodputLength again(costs, batch);
  play(again, 0, 300);
  EXPECT_LT(play(again, 0, 200), 0.2) << "and of all texts";
  play(again, 0.95, 600);
  EXPECT_GT(play(again, 0.95, 100), 6) << "it finds out";
}

// A row behind drafts that hardly ever all hold is worth nothing.
TEST(Goodput, ExtendsDraftsThatAreLikelyToHold) {
  Estimates costs = costs_of(3, 0.2);  // of four drafts two hold
  for (int i = 0; i < 50; ++i) {
    RoundOutcome outcome{.drafted = 6, .accepted = 6, .draft_s = 0.4e-3, .verify_s = 71e-3, .batch_rows = 7};
    outcome.behind[static_cast<std::size_t>(DraftSource::kNgram)] = 4;
    outcome.round_s = outcome.verify_s + outcome.draft_s;
    costs.observe(outcome, 0);
  }
  BatchGoodput batch;
  GoodputLength policy(costs, batch);
  DraftPlan plan = policy.choose({.assistant = 4});
  EXPECT_EQ(policy.extend(plan, {.drafted = 2}, DraftSource::kNgram, 4), 4);
  EXPECT_EQ(policy.extend(plan, {.drafted = 4}, DraftSource::kNgram, 4), 0);
}

// Drafts made ahead expect that what is looked up behind a round's drafts does not hold: where it does, that costs a
// hit, which is weighed.
TEST(Goodput, WeighsWhatIsLookedUpAgainstDraftsMadeAhead) {
  const auto more = [](double wire_s, bool ahead) {
    Estimates costs;
    BatchGoodput batch;
    for (int i = 0; i < 300; ++i) {
      const int own = i % 10 == 0 ? 0 : 4, behind = own > 0 ? i % 2 : 0;
      RoundOutcome outcome = round_of({.length = own + behind}, i % 10 < 9 ? own + behind : own);
      outcome.behind[static_cast<std::size_t>(DraftSource::kNgram)] = behind;
      outcome.draft_s = 0.005 * own;
      outcome.draft_wire_s = own > 0 ? wire_s : 0;
      costs.observe(outcome, 0);
      if (own > 0) costs.ahead.observe(/*all_held=*/true, /*hit=*/true, 0);
    }
    GoodputLength policy(costs, batch);
    DraftPlan choice = policy.choose({.assistant = 4, .ahead = ahead});
    EXPECT_EQ(choice.length, 4);
    return policy.extend(choice, {.source = choice.source, .drafted = choice.length}, DraftSource::kNgram, 1);
  };
  EXPECT_EQ(more(0.02, false), 1);
  EXPECT_EQ(more(0.02, true), 1) << "a hit spares little";
  EXPECT_EQ(more(5, true), 0) << "a hit spares more than the token brings";
}

BatchGoodput::Survives survives(double each) {
  BatchGoodput::Survives all = {};
  double together = 1;
  for (double& chance : all) chance = together *= each;
  return all;
}

// Four texts, two of them easy. What a draft costs all of them decides how many there are and who has them.
TEST(BatchGoodput, SpendsDraftsOnTheLikeliestPlacesWhileTheRateOfAllRises) {
  const std::array<int, 4> text = {};
  const auto planned = [&](const Estimates& costs) {
    BatchGoodput batch;
    for (const int& each : text) batch.update(&each, survives(&each < &text[2] ? 0.9 : 0.2), 16, 1);
    // What the others of an easy text draft, and those of a hard one.
    return std::pair(batch.others(&text[0], costs).other_work.drafts, batch.others(&text[3], costs).other_work.drafts);
  };
  const auto cheap = planned(costs_of(0.1, 0.2)), dear = planned(costs_of(3, 10)), never = planned(costs_of(50, 50));
  EXPECT_GT(cheap.second, cheap.first) << "of two texts the one whose drafts hold has more";
  EXPECT_GT(cheap.first, dear.first);
  EXPECT_GT(dear.second, 0);
  EXPECT_EQ(never.second, 0) << "a row that takes as long as a pass";
}

/// A round of 4 drafts at 10 ms each for an idle verifier, twice that beside the verifier's previous pass of 100 ms.
/// @param now  begins the round; its end on return
RoundOutcome round_of_four(double& now, bool beside, std::int64_t pass) {
  RoundOutcome outcome{.drafted = 4, .accepted = 2, .draft_s = beside ? 0.08 : 0.04, .draft_passes = 4};
  outcome.draft_pass_rows = 1;
  outcome.verify_s = 0.1;
  outcome.batch_rows = 5;
  outcome.pass = pass;
  outcome.round_s = outcome.draft_s + outcome.verify_s;
  now += outcome.round_s;
  return outcome;
}

// One pass after the other, and a drafter that works beside each, as two sequences that take turns have it; then the
// same with an idle verifier.
TEST(SharedCores, DraftsBesideAForwardPassTellHowTheySlowEachOther) {
  Estimates costs;
  double now = 0;
  std::int64_t pass = 0;
  const auto idle_ms = [&] { return 1e3 * costs.drafts[0].pass_s.intercept(); };
  const auto turn = [&] {  // another sequence's pass, and beside it the drafts of this one
    costs.observe_pass({.verify_s = 0.1, .batch_rows = 5, .pass = ++pass}, now + 0.1);
    const RoundOutcome outcome = round_of_four(now, true, ++pass);
    costs.observe(outcome, now);
  };
  for (int i = 0; i < 20; ++i) turn();
  EXPECT_EQ(costs.slowdown_beside_passes(), 2) << "assumed of a near drafter";
  EXPECT_NEAR(idle_ms(), 10, 0.5);
  for (int i = 0; i < 20; ++i) {
    const RoundOutcome outcome = round_of_four(now, false, ++pass);
    costs.observe(outcome, now);
  }
  EXPECT_NEAR(costs.slowdown_beside_passes(), 2, 0.01) << "measured";
  EXPECT_NEAR(idle_ms(), 10, 0.5);
}

TEST(SharedCores, ADrafterWithCoresOfItsOwnIsNotSlowed) {
  SharedCores cores;
  EXPECT_EQ(cores.slowdown(2), 2) << "unknown";
  cores.on_pass(1, 2);
  EXPECT_EQ(cores.beside_passes(1.5, 2.5), 0.5);
  EXPECT_EQ(cores.beside_passes(2, 3), 0);
  EXPECT_EQ(cores.beside_passes(2, 2), 0) << "no time";
  for (int i = 0; i < 20; ++i) {
    cores.observe(0, 0.01);
    cores.observe(1, 0.01);
    cores.observe(0.4, 1);  // says little of either
  }
  EXPECT_EQ(cores.slowdown(2), 1);
  for (int i = 0; i < 200; ++i) cores.observe(0.6, 0.016);
  EXPECT_NEAR(cores.slowdown(2), 2, 0.01) << "of a pass of which a part was beside no forward pass";
}

TEST(SharedCores, ADistantDrafterHasCoresOfItsOwn) {
  Estimates costs;
  RoundOutcome outcome{.drafted = 1, .accepted = 1, .draft_s = 0.01, .draft_wire_s = 0.005, .verify_s = 0.1};
  outcome.batch_rows = 2;
  outcome.round_s = 0.115;
  costs.observe(outcome, 0);
  EXPECT_EQ(costs.slowdown_beside_passes(), 1);
}

// With cores of its own a drafter works beside the other half's pass. On shared cores that gains nothing.
TEST(RoundCost, HalvesTakeTurnsOnlyIfDraftsAndPassesDoNotSlowEachOther) {
  const auto halves = [](double beside_s) {
    Estimates costs;
    double now = 0;
    for (int i = 0; i < 20; ++i) {
      RoundOutcome outcome{.drafted = 4, .accepted = 2, .draft_passes = 4};
      outcome.draft_pass_rows = 1 + i % 2;
      outcome.draft_s = 0.02 * outcome.draft_pass_rows;
      outcome.batch_rows = 10 + 10 * (i % 2);
      outcome.verify_s = 0.005 * outcome.batch_rows;
      outcome.round_s = outcome.draft_s + outcome.verify_s;
      costs.observe(outcome, now += outcome.round_s);
    }
    for (int i = 0; i < 200; ++i) {
      costs.shared_cores.observe(0, 0.02);
      costs.shared_cores.observe(1, beside_s);
    }
    const OtherWork others{.sequences = 3, .rows = 15, .drafts = 12, .longest = 4};
    return together(costs, round_terms(costs, DraftSource::kAssistant, 4, 3, others), others, 4).halves;
  };
  EXPECT_TRUE(halves(0.02));
  EXPECT_FALSE(halves(0.04));
}

// A sequence whose drafts the governor does not allow drafts nothing. While the plan counted on its drafts, those of
// the others seemed to cost less than they do.
TEST(Governor, ASequenceThatItKeepsPlainHasNoDraftsInThePlanOfTheOthers) {
  const Estimates unknown;
  Estimates costs = costs_of(1, 2);
  BatchGoodput batch;
  GoodputLength sequence(costs, batch);
  EXPECT_GT(sequence.choose({.assistant = 8}).length, 0);
  const int other = 0;
  const auto planned_beside = [&] {
    batch.update(&other, survives(0.9), 8, 1);
    return batch.others(&other, costs).other_work;
  };
  EXPECT_GT(planned_beside().drafts, 0);
  const auto kept_plain = make_policy(DraftPolicy::kAuto, 0, unknown, batch);  // of which no plain round is known yet
  const int before = planned_beside().drafts;
  EXPECT_EQ(kept_plain->choose({.assistant = 8}).length, 0);
  EXPECT_EQ(planned_beside().sequences, 2) << "its row counts";
  EXPECT_LE(planned_beside().drafts, before) << "and no drafts";
}

TEST(BatchGoodput, ProbesCostAllAndAreEarnedByAll) {
  BatchGoodput batch;
  const Estimates costs = costs_of(0.1, 0.2);
  const std::array<int, 4> text = {};
  for (const int& each : text) batch.update(&each, survives(0.5), 16, 1);
  EXPECT_FALSE(batch.spend(0.5));
  for (int i = 0; i < 199; ++i) batch.earn(1);
  EXPECT_FALSE(batch.spend(0.5)) << "1.99 tokens, and half a token of four texts";
  batch.earn(2);
  EXPECT_TRUE(batch.spend(0.5));
  EXPECT_FALSE(batch.spend(0.01));
  for (const int& each : text) batch.forget(&each);
}

TEST(VerifyTime, LiesOnLinesBetweenWhatWasMeasuredWhereManyTextsAddRows) {
  VerifyTime time;
  EXPECT_EQ(time.likely(1), 0);
  for (int i = 0; i < 5; ++i) {
    time.observe(1, 1);
    time.observe(101, 3);
    time.observe(201, 5);
  }
  EXPECT_NEAR(time.likely(26), 1.5, 1e-9) << "no row is free because nobody measured it";
  EXPECT_NEAR(time.optimistic_s(26), 1, 1e-9);
  EXPECT_NEAR(time.likely(151), 4, 1e-9);
  EXPECT_NEAR(time.optimistic_s(151), 4, 1e-9) << "more than a text alone has";
  EXPECT_NEAR(time.likely(401), 9, 1e-9) << "not known: as steep as before";
  EXPECT_NEAR(time.rows_most(), 402, 1) << "twice as many";
}

TEST(Policies, ReadDraftLengths) {
  EXPECT_EQ(parse_draft_length("0")->length, 0);
  EXPECT_EQ(parse_draft_length("32")->length, 32);
  EXPECT_EQ(parse_draft_length("auto")->policy, DraftPolicy::kAuto);
  EXPECT_EQ(parse_draft_length("auto")->length, kChosenLengthMax);
  EXPECT_EQ(parse_draft_length("8")->ahead, std::nullopt);
  EXPECT_EQ(parse_draft_length("8@0")->ahead, 0);
  EXPECT_EQ(parse_draft_length("auto@8")->ahead, 8);
  EXPECT_EQ(parse_draft_length("auto@8")->policy, DraftPolicy::kAuto);
  EXPECT_EQ(parse_draft_length("tree:12")->policy, DraftPolicy::kTree);
  EXPECT_EQ(parse_draft_length("tree:12")->length, 12);
  EXPECT_EQ(parse_draft_length("8")->added, (AddedSources{}));
  EXPECT_EQ(parse_draft_length("8+ngram")->added, (AddedSources{.ngram = true}));
  EXPECT_EQ(parse_draft_length("tree:8+table")->added, (AddedSources{.table = true}));
  EXPECT_EQ(parse_draft_length("8+ngram+table")->added, (AddedSources{.ngram = true, .table = true}));
  EXPECT_EQ(parse_draft_length("8+ngram+table")->length, 8);
  std::vector<const char*> wrong = {"tree", "tree:", "tree:0",      "tree:33", "tree:4@2", "",   "33",    "-1",  "4x",
                                    "Auto", "1.5",   "99999999999", "4@",      "4@9",      "@2", "4@2@2", "4@-1"};
  for (const char* sources : {"4+", "4+text", "4+table+ngram", "4+ngram+ngram", "4+ngramtable", "0+ngram", "auto+ngram",
                              "4@2+ngram", "4+ngram@0", "+table", "4+ngram+table+table"})
    wrong.push_back(sources);
  for (const char* text : wrong) {
    const auto length = parse_draft_length(text);
    ASSERT_FALSE(length) << text;
    EXPECT_NE(length.error().message.find(text), std::string::npos);
    EXPECT_NE(length.error().message.find("wanted auto, 0 to 32 or tree:1 to tree:32"), std::string::npos);
  }
}

// The text itself and the table cost nothing, so the one of which more holds is taken, and the assistant where it is
// better still, or where the others have nothing.
TEST(Policies, TakeTheSourceWhoseDraftsHold) {
  for (const DraftSource good : {DraftSource::kAssistant, DraftSource::kNgram, DraftSource::kTable}) {
    SCOPED_TRACE(to_string(good));
    Estimates costs;
    BatchGoodput batch;
    const auto policy = make_policy(DraftPolicy::kAuto, 0, costs, batch);
    std::array<int, kDraftSources> taken = {};
    for (int i = 0; i < 400; ++i) {
      const bool miss = i % 8 == 7;  // neither has anything
      const DraftPlan choice = policy->choose({.assistant = 8, .ngram = miss ? 0 : 8, .table = miss ? 0 : 8});
      ASSERT_TRUE(!miss || choice.length == 0 || choice.source == DraftSource::kAssistant);
      const RoundOutcome outcome = round_of(choice, choice.source == good ? 8 : i % 2);
      costs.observe(outcome, 0);
      policy->observe(choice, outcome);
      if (i >= 100 && choice.length > 0) ++taken[static_cast<std::size_t>(choice.source)];
    }
    EXPECT_GT(taken[static_cast<std::size_t>(good)], 200);
  }
}

}  // namespace
}  // namespace outrider
