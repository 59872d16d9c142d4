#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "common/policy/bandit.h"
#include "common/policy/forecast.h"
#include "common/policy/governor.h"
#include "common/policy/ngram.h"
#include "common/policy/policies.h"

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
  EXPECT_EQ(time.hoped(5), 0);
  time.observe(1, 1.0);
  time.observe(17, 2.0);
  EXPECT_EQ(time.hoped(16), 1.0) << "not measured: as the measured one below";
  EXPECT_EQ(time.hoped(33), 2.0);
  time.observe(9, 0.8);  // noise
  for (int m = 2; m <= 33; ++m) EXPECT_GE(time.hoped(m), time.hoped(m - 1)) << m;
  for (int i = 0; i < 20; ++i) time.observe(9, 1.5);
  EXPECT_NEAR(time.hoped(9), 1.5, 0.01) << "the last few rounds decide";
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

TEST(Heuristic, IsHuggingFacesSchedule) {
  HeuristicLength policy(5);
  const DraftLimits limits{.assistant = 16};
  policy.observe({.drafted = 5, .accepted = 5});
  EXPECT_EQ(policy.choose(limits).length, 7);
  policy.observe({.drafted = 7, .accepted = 6});
  EXPECT_EQ(policy.choose(limits).length, 6);
  for (int i = 0; i < 20; ++i) policy.observe({.drafted = 1, .accepted = 0});
  EXPECT_EQ(policy.choose(limits).length, 1);
}

/// A round of a world where a row costs 1 s + 0.05 s and a draft 0.1 s.
RoundOutcome round_of(const DraftChoice& choice, int held) {
  RoundOutcome outcome{
      .source = choice.source, .arm = choice.arm, .drafted = choice.length, .accepted = std::min(held, choice.length)};
  outcome.draft_s = choice.source == DraftSource::kAssistant ? 0.1 * choice.length : 0;
  outcome.verify_s = 1 + 0.05 * choice.length;
  outcome.round_s = outcome.draft_s + outcome.verify_s;
  return outcome;
}

TEST(Policies, StayWithinTheLimits) {
  CostModel costs;
  BatchGoodput batch;
  std::vector<std::unique_ptr<DraftLengthPolicy>> policies;
  policies.push_back(std::make_unique<FixedLength>(8));
  policies.push_back(std::make_unique<HeuristicLength>());
  policies.push_back(make_auto_policy(costs, batch));
  policies.push_back(std::make_unique<Ucb1Length>(default_arms(/*table=*/true)));
  Thompson thompson(default_arms(/*table=*/true), 1);
  policies.push_back(std::make_unique<ThompsonLength>(thompson, costs));
  CounterRng random(1);
  for (int i = 0; i < 2000; ++i) {
    const DraftLimits limits{.assistant = static_cast<int>(random.below(5)),
                             .ngram = static_cast<int>(random.below(3)),
                             .table = static_cast<int>(random.below(4))};
    for (std::size_t p = 0; p < policies.size(); ++p) {
      const DraftChoice choice = policies[p]->choose(limits);
      ASSERT_LE(choice.length, limits.of(choice.source)) << "policy " << p;
      ASSERT_GE(choice.length, 0);
      const RoundOutcome outcome = round_of(choice, static_cast<int>(random.below(4)));
      costs.observe(outcome);
      policies[p]->observe(outcome);
    }
  }
}

/// The next choices of a policy in a world of its own randomness.
std::vector<int> play(DraftLengthPolicy& policy, CostModel& costs, int rounds, std::uint64_t seed) {
  CounterRng random(seed);
  std::vector<int> lengths;
  for (int i = 0; i < rounds; ++i) {
    const DraftChoice choice = policy.choose({.assistant = 16, .ngram = 8});
    lengths.push_back(choice.length + (choice.source == DraftSource::kNgram ? 100 : 0));
    const RoundOutcome outcome = round_of(choice, static_cast<int>(random.below(6)));
    costs.observe(outcome);
    policy.observe(outcome);
  }
  return lengths;
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
    CostModel costs;
    BatchGoodput batch;
    for (int i = 0; i < 200; ++i) {
      RoundOutcome outcome = round_of({.length = 4}, i % 2 == 0 ? 4 : 1);
      outcome.ahead = i % 2 == 1;
      outcome.draft_s = outcome.ahead ? 0 : 0.1;
      outcome.draft_wire_s = outcome.ahead ? 0 : wire_s;
      costs.observe(outcome);
      costs.observe_ahead(true, outcome.ahead, 0);
      if (i == 10) {
        EXPECT_TRUE(costs.ahead_pays(4)) << "tried first";
      }
    }
    EXPECT_EQ(costs.ahead_pays(4), wire_s > 1) << wire_s;
  }
}

// Drafts at hand cost no wait: rounds use them although a far drafter would not be asked.
TEST(Goodput, UsesDraftsAtHandWhereAskingDoesNotPay) {
  CostModel costs;
  BatchGoodput batch;
  GoodputLength policy(costs, batch);
  for (int i = 0; i < 50; ++i) {
    RoundOutcome outcome = round_of({.length = i % 2 == 0 ? 0 : 4}, 2);
    if (outcome.drafted > 0) outcome.draft_wire_s = 20;
    outcome.round_s += outcome.draft_wire_s;
    costs.observe(outcome);
    policy.observe(outcome);
  }
  EXPECT_EQ(policy.choose({.assistant = 4}).length, 0);
  EXPECT_GE(policy.choose({.assistant = 4, .at_hand = true}).length, 2);
  EXPECT_TRUE(costs.ahead_pays(4)) << "it hides twenty seconds";
}

/// Rounds of `row_ms` a row on top of 50 ms, in which a draft takes `draft_ms`, of passes with 1 to 64 rows.
CostModel costs_of(double row_ms, double draft_ms) {
  CostModel costs;
  for (int i = 0; i < 200; ++i) {
    const int drafted = i % 3 == 0 ? 0 : 4;
    RoundOutcome outcome{.drafted = drafted, .accepted = drafted / 2, .batch_rows = std::max(drafted + 1, 1 + i % 64)};
    outcome.verify_s = (50 + row_ms * outcome.batch_rows) * 1e-3;
    outcome.draft_s = drafted * draft_ms * 1e-3;
    outcome.round_s = outcome.verify_s + outcome.draft_s;
    costs.observe(outcome);
  }
  return costs;
}

TEST(CostModel, HasALoadThatIsEveryMs) {
  CostModel costs;
  int passes = 0;
  const auto pass = [&](int rows, double seconds) {
    seconds += ++passes * 1e-9;  // no pass is told of twice
    costs.observe({.verify_s = seconds, .batch_rows = rows, .round_s = seconds});
  };
  const auto slope = [&] { return costs.likely_verify_s(16) / costs.likely_verify_s(8); };
  for (int i = 0; i < 10; ++i) {
    pass(8, 0.050);
    pass(16, 0.060);
  }
  EXPECT_NEAR(slope(), 1.2, 0.01);
  for (int i = 0; i < 4; ++i) pass(8, 0.150);  // a neighbour
  EXPECT_NEAR(costs.load(), 2.7, 0.3);
  EXPECT_GT(costs.likely_verify_s(8), 0.13);
  EXPECT_GT(slope(), 1.08) << "rows are no cheaper for it";
  for (int i = 0; i < 6; ++i) pass(8, 0.050);
  EXPECT_NEAR(costs.likely_verify_s(8), 0.050, 0.005);
  EXPECT_GT(slope(), 1.08);
}

/// A round of four drafts of the assistant, of which `held` hold, and of what the policy wants of `at_hand` looked-up
/// ones behind them, which hold with the chance `p` each. @return how many of these there were.
int play_extended(GoodputLength& policy, CostModel& costs, int held, int at_hand, double p, CounterRng& random) {
  const DraftChoice choice = policy.choose({.assistant = 4});
  RoundOutcome outcome = round_of(choice, held);
  int more = 0;
  if (choice.length > 0) {
    RoundOutcome begun = outcome;
    begun.accepted = 0;
    more = policy.extend(begun, DraftSource::kNgram, at_hand);
    outcome.behind[static_cast<std::size_t>(DraftSource::kNgram)] = more;
    outcome.drafted += more;
    outcome.verify_s += 0.05 * more;
    outcome.round_s += 0.05 * more;
    while (outcome.accepted >= choice.length && outcome.accepted < outcome.drafted && random.uniform() < p)
      ++outcome.accepted;
  }
  costs.observe(outcome);
  policy.observe(outcome);
  return more;
}

// What is looked up behind the assistant's drafts has rows as long as it brings more than they cost.
TEST(Goodput, ExtendsDraftsByWhatIsLookedUpWhileThatPays) {
  CostModel costs;
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
  CostModel costs = costs_of(3, 0.2);  // of four drafts two hold
  for (int i = 0; i < 50; ++i) {
    RoundOutcome outcome{.drafted = 6, .accepted = 6, .draft_s = 0.4e-3, .verify_s = 71e-3, .batch_rows = 7};
    outcome.behind[static_cast<std::size_t>(DraftSource::kNgram)] = 4;
    outcome.round_s = outcome.verify_s + outcome.draft_s;
    costs.observe(outcome);
  }
  BatchGoodput batch;
  GoodputLength policy(costs, batch);
  policy.choose({.assistant = 4});
  EXPECT_EQ(policy.extend({.drafted = 2}, DraftSource::kNgram, 4), 4);
  EXPECT_EQ(policy.extend({.drafted = 4}, DraftSource::kNgram, 4), 0);
}

// Drafts made ahead expect that what is looked up behind a round's drafts does not hold: where it does, that costs a
// hit, which is weighed.
TEST(Goodput, WeighsWhatIsLookedUpAgainstDraftsMadeAhead) {
  const auto more = [](double wire_s, bool ahead) {
    CostModel costs;
    BatchGoodput batch;
    for (int i = 0; i < 300; ++i) {
      const int own = i % 10 == 0 ? 0 : 4, behind = own > 0 ? i % 2 : 0;
      RoundOutcome outcome = round_of({.length = own + behind}, i % 10 < 9 ? own + behind : own);
      outcome.behind[static_cast<std::size_t>(DraftSource::kNgram)] = behind;
      outcome.draft_s = 0.005 * own;
      outcome.draft_wire_s = own > 0 ? wire_s : 0;
      costs.observe(outcome);
      if (own > 0) costs.observe_ahead(/*all_held=*/true, /*hit=*/true, 0);
    }
    GoodputLength policy(costs, batch);
    const DraftChoice choice = policy.choose({.assistant = 4, .ahead = ahead});
    EXPECT_EQ(choice.length, 4);
    return policy.extend({.source = choice.source, .drafted = choice.length}, DraftSource::kNgram, 1);
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
  const auto planned = [&](const CostModel& costs) {
    BatchGoodput batch;
    for (const int& each : text) batch.update(&each, survives(&each < &text[2] ? 0.9 : 0.2), 16, 1);
    // What the others of an easy text draft, and those of a hard one.
    return std::pair(batch.others(&text[0], costs).company.drafts, batch.others(&text[3], costs).company.drafts);
  };
  const auto cheap = planned(costs_of(0.1, 0.2)), dear = planned(costs_of(3, 10)), never = planned(costs_of(50, 50));
  EXPECT_GT(cheap.second, cheap.first) << "of two texts the one whose drafts hold has more";
  EXPECT_GT(cheap.first, dear.first);
  EXPECT_GT(dear.second, 0);
  EXPECT_EQ(never.second, 0) << "a row that takes as long as a pass";
}

// What the first rounds of texts that came one by one took is no reason to decode plainly for ever.
TEST(BatchGoodput, TextsThatTheDragKeepsPlainTryTogetherLessAndLessOften) {
  const CostModel costs = costs_of(1, 10);
  const std::array<int, 4> text = {};
  const auto tries = [&](double seconds) {
    BatchGoodput batch;
    std::string rounds;  // of all texts: '+' where they draft
    for (int round = 0; round < 60; ++round) {
      bool drafts = true;
      for (const int& each : text) {
        batch.update(&each, survives(0.9), 4, 1);
        drafts = drafts && batch.others(&each, costs).company.drafts > 0;
      }
      rounds += drafts ? '+' : '-';
      for (int i = 0; drafts && i < 4; ++i) batch.observe(0.3, 0.1, round < 10 ? 1 : seconds);
    }
    return rounds;
  };
  const std::string dear = tries(1), cheap = tries(0.3);
  EXPECT_NE(dear.find('-'), std::string::npos) << dear;
  EXPECT_TRUE(cheap.ends_with(std::string(30, '+'))) << cheap;
  std::vector<std::size_t> waits;
  for (std::size_t end = dear.find("-+"), begin = 0; end != std::string::npos; end = dear.find("-+", begin)) {
    waits.push_back(end - dear.find('-', begin) + 1);
    begin = end + 1;
  }
  ASSERT_GE(waits.size(), 2) << dear;
  EXPECT_GT(waits[1], waits[0]) << dear;
}

TEST(BatchGoodput, TextsWhoseDraftsWouldBringLittleWithoutTheDragDoNotTry) {
  const CostModel costs = costs_of(1, 10);
  const std::array<int, 4> text = {};
  const auto drafts_of = [&](double chance) {
    BatchGoodput batch;
    for (int i = 0; i < 40; ++i) batch.observe(0.3, 0.1, 1);  // a drag
    int drafts = 0;
    for (int round = 0; round < 30; ++round) {
      for (const int& each : text) {
        batch.update(&each, survives(chance), 4, 1);
        drafts += batch.others(&each, costs).company.drafts;
      }
    }
    return drafts;
  };
  EXPECT_GT(drafts_of(0.48), 0);
  EXPECT_EQ(drafts_of(0.46), 0) << "less than 2 % more";
}

TEST(BatchGoodput, RoundsInTimeEndADragAndShorterOnesAreNone) {
  const CostModel costs = costs_of(1, 10);
  const int text = 0;
  BatchGoodput batch;
  batch.update(&text, survives(0.9), 4, 1);
  const auto drag_after = [&](int rounds, double seconds) {
    for (int i = 0; i < rounds; ++i) batch.observe(0.3, 0.1, seconds);
    return batch.others(&text, costs).company.drag;
  };
  EXPECT_GT(drag_after(50, 0.4), 1.5);
  EXPECT_NEAR(drag_after(300, 0.3), 1, 0.01);
  EXPECT_GE(drag_after(300, 0.2), 1);
}

// The last rounds of an answer have few drafts and wait for others' forward passes all the same.
TEST(BatchGoodput, ARoundTellsOfTheDragByItsShareOfDrafts) {
  const CostModel costs = costs_of(1, 10);
  const int text = 0;
  BatchGoodput batch;
  batch.update(&text, survives(0.9), 4, 1);
  for (int i = 0; i < 100; ++i) {
    batch.observe(1, 0.8, 1);
    batch.observe(1, 0.1, 1.3);
  }
  // Two rounds have 0.9 s of drafts and take 0.3 s longer. The mean of 1 and of 4 is 2.5.
  EXPECT_NEAR(batch.others(&text, costs).company.drag, 1.3, 0.05);
}

// A text that comes while the others are verified waits for them, whatever anybody drafts.
TEST(Goodput, TheFirstRoundOfATextSaysNothingOfTheDrag) {
  const CostModel costs = costs_of(1, 2);
  BatchGoodput batch;
  GoodputLength first(costs, batch), second(costs, batch);
  const auto drag_after_slow_rounds = [&] {
    for (GoodputLength* text : {&first, &second}) text->choose({.assistant = 8});
    for (GoodputLength* text : {&first, &second}) {
      const int length = text->choose({.assistant = 8}).length;
      EXPECT_GT(length, 0);
      text->observe({.drafted = length, .accepted = length, .round_s = 1});
    }
    return batch.others(&first, costs).company.drag;
  };
  EXPECT_EQ(drag_after_slow_rounds(), 1);
  EXPECT_GT(drag_after_slow_rounds(), 1.1);
}

TEST(BatchGoodput, ProbesCostAllAndAreEarnedByAll) {
  BatchGoodput batch;
  const CostModel costs = costs_of(0.1, 0.2);
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
  EXPECT_NEAR(time.hoped(26), 1, 1e-9);
  EXPECT_NEAR(time.likely(151), 4, 1e-9);
  EXPECT_NEAR(time.hoped(151), 4, 1e-9) << "more than a text alone has";
  EXPECT_NEAR(time.likely(401), 9, 1e-9) << "not known: as steep as before";
  EXPECT_NEAR(time.rows_most(), 402, 1) << "twice as many";
}

TEST(Policies, ReadDraftLengths) {
  EXPECT_EQ(parse_draft_length("0")->length, 0);
  EXPECT_EQ(parse_draft_length("32")->length, 32);
  EXPECT_EQ(parse_draft_length("auto")->policy, DraftPolicy::kAuto);
  EXPECT_EQ(parse_draft_length("ucb1")->length, kChosenLengthMax);
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
    EXPECT_NE(length.error().message.find(choosing_policies()), std::string::npos);
  }
  EXPECT_EQ(choosing_policies(), "auto, heuristic, ucb1 or thompson");
}

TEST(Policies, OfABanditServeSessionsSideBySide) {
  Policies policies(1);
  CostModel costs;
  BatchGoodput batch;
  const auto a = policies.make(DraftPolicy::kUcb1, 0, costs, batch),
             b = policies.make(DraftPolicy::kUcb1, 0, costs, batch);
  // Two sessions whose rounds overlap: what one learns serves the other. Drafts never hold, so plain decoding is best.
  int drafted = 0;
  for (int i = 0; i < 400; ++i) {
    const DraftChoice first = a->choose({.assistant = 16}), second = b->choose({.assistant = 16});
    for (const DraftChoice& choice : {second, first}) {
      const RoundOutcome outcome = round_of(choice, 0);
      costs.observe(outcome);
      (choice.arm == second.arm ? b : a)->observe(outcome);
      if (i >= 300) drafted += choice.length > 0;
    }
  }
  EXPECT_LT(drafted, 100) << "of 200 rounds";

  Policies again(2);
  ASSERT_TRUE(again.load(policies.save()));
  EXPECT_EQ(again.save(), policies.save());
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const std::string& text : {std::string(), std::string("[]"), std::string("{}"), std::string("[1,2]"),
                                  std::string("nonsense"), "[" + deep + "," + deep + "]"}) {
    EXPECT_FALSE(again.load(text)) << text.substr(0, 20);
    EXPECT_EQ(again.save(), policies.save()) << "nothing has changed";
  }
}

TEST(Bandits, GoOnFromASavedStateAsIfNothingHadHappened) {
  CostModel costs;
  BatchGoodput batch;
  Ucb1Length ucb(default_arms()), ucb_copy(default_arms());
  Thompson thompson(default_arms(), 7), thompson_copy(default_arms(), 8);
  const auto play_thompson = [](Thompson& policy, CostModel& world, int rounds, std::uint64_t seed) {
    ThompsonLength session(policy, world);
    return play(session, world, rounds, seed);
  };
  play(ucb, costs, 200, 1);
  play_thompson(thompson, costs, 200, 2);
  ASSERT_TRUE(ucb_copy.load(ucb.save()));
  ASSERT_TRUE(thompson_copy.load(thompson.save()));
  EXPECT_EQ(ucb_copy.save(), ucb.save()) << "bit for bit";
  EXPECT_EQ(thompson_copy.save(), thompson.save());
  CostModel again = costs;
  EXPECT_EQ(play(ucb, costs, 100, 3), play(ucb_copy, again, 100, 3));
  Thompson other(default_arms(), 9);
  again = costs;
  ASSERT_TRUE(other.load(thompson.save()));
  EXPECT_EQ(play_thompson(thompson, costs, 100, 4), play_thompson(other, again, 100, 4));
}

TEST(Bandits, RefuseAStateThatIsNotTheirs) {
  CostModel costs;
  BatchGoodput batch;
  Ucb1Length ucb(default_arms());
  Thompson thompson(default_arms(), 1);
  play(ucb, costs, 50, 1);
  const std::string before = ucb.save();
  Ucb1Length fewer({{}, {DraftSource::kAssistant, 4}});
  std::string negative = before;
  negative.replace(negative.find("\"stats\":[[") + 10, 1, "-1");
  for (const std::string& state :
       {std::string(), std::string("null"), std::string("[]"), std::string("{}"), std::string("{\"policy\":\"ucb1\"}"),
        std::string(1000, '['), thompson.save(), fewer.save(), negative}) {
    const auto loaded = ucb.load(state);
    ASSERT_FALSE(loaded) << state;
    EXPECT_EQ(loaded.error().code, Errc::kMalformed);
    EXPECT_EQ(ucb.save(), before);
  }
  EXPECT_FALSE(thompson.load(before));
  // A table is another source, with arms of its own; without one a state is what it was before there were tables.
  EXPECT_FALSE(Ucb1Length(default_arms(/*table=*/true)).load(before));
  EXPECT_FALSE(Thompson(default_arms(/*table=*/true), 1).load(thompson.save()));
  EXPECT_EQ(thompson.save().find("table"), std::string::npos);
  const std::string with_table = Policies(1, /*table=*/true).save();
  EXPECT_TRUE(Policies(1, /*table=*/true).load(with_table));
}

// The text itself and the table cost nothing, so the one of which more holds is taken, and the assistant where it is
// better still, or where the others have nothing.
TEST(Policies, TakeTheSourceWhoseDraftsHold) {
  for (const DraftSource good : {DraftSource::kAssistant, DraftSource::kNgram, DraftSource::kTable}) {
    SCOPED_TRACE(to_string(good));
    CostModel costs;
    BatchGoodput batch;
    const auto policy = make_auto_policy(costs, batch);
    std::array<int, kDraftSources> taken = {};
    for (int i = 0; i < 400; ++i) {
      const bool miss = i % 8 == 7;  // neither has anything
      const DraftChoice choice = policy->choose({.assistant = 8, .ngram = miss ? 0 : 8, .table = miss ? 0 : 8});
      ASSERT_TRUE(!miss || choice.length == 0 || choice.source == DraftSource::kAssistant);
      const RoundOutcome outcome = round_of(choice, choice.source == good ? 8 : i % 2);
      costs.observe(outcome);
      policy->observe(outcome);
      if (i >= 100 && choice.length > 0) ++taken[static_cast<std::size_t>(choice.source)];
    }
    EXPECT_GT(taken[static_cast<std::size_t>(good)], 200);
  }
}

}  // namespace
}  // namespace outrider
