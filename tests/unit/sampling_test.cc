#include "common/decoding/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "common/base/token_tree.h"

namespace outrider {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// The distribution that a row gives.
Distribution distribution(std::vector<float> scores, const SamplingParams& params, const TokenCounts& counts = {}) {
  SamplingScratch scratch;
  process_scores(scores, params, {}, counts);
  Distribution result;
  make_distribution(scores, params, scratch, &result);
  return result;
}

std::vector<float> random_row(std::uint64_t seed, std::size_t size, float spread) {
  CounterRng rng(seed);
  std::vector<float> row(size);
  for (float& x : row) x = spread * static_cast<float>(rng.uniform() + rng.uniform() - rng.uniform());
  return row;
}

TEST(Distribution, IsTheSoftmaxAtItsTemperature) {
  const Distribution d = distribution({0, 1, 2}, {.temperature = 0.5f});
  const double total = 1 + std::exp(2) + std::exp(4);
  EXPECT_NEAR(d.probability(0), 1 / total, 1e-7);
  EXPECT_NEAR(d.probability(2), std::exp(4) / total, 1e-7);
  EXPECT_EQ(d.probability(3), 0);
  EXPECT_EQ(d.probability(-1), 0);
}

TEST(Distribution, TopKKeepsTheHighestAndOfEqualsTheLowestIds) {
  EXPECT_EQ(distribution({5, 7, 7, 1, 7, 7}, {.temperature = 1, .top_k = 3}).ids, (std::vector<TokenId>{1, 2, 4}));
  EXPECT_EQ(distribution({5, 7, 6, 1}, {.temperature = 1, .top_k = 2}).ids, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(distribution({5, 7, 6, 1}, {.temperature = 1, .top_k = 9}).ids.size(), 4u);
}

TEST(Distribution, TopKOfALongRowIsThatOfASort) {
  for (const std::size_t size : {31u, 32u, 33u, 1000u, 4097u}) {
    for (const std::int32_t k : {1, 5, 64, 900}) {
      // Few values, so that there are many equals.
      std::vector<float> row = random_row(size, size, 40);
      for (float& x : row) x = std::round(x);
      std::vector<TokenId> order(size);
      for (std::size_t i = 0; i < size; ++i) order[i] = static_cast<TokenId>(i);
      std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
        return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
      });
      order.resize(std::min(size, static_cast<std::size_t>(k)));
      std::sort(order.begin(), order.end());
      EXPECT_EQ(distribution(row, {.temperature = 10, .top_k = k}).ids, order) << size << ", " << k;
    }
  }
}

TEST(Distribution, TopPKeepsTheFewestTokensThatReachIt) {
  const std::vector<float> row = {std::log(0.1f), std::log(0.5f), std::log(0.15f), std::log(0.25f)};
  const auto ids = [&](float top_p) { return distribution(row, {.temperature = 1, .top_p = top_p}).ids; };
  EXPECT_EQ(ids(0.01f), (std::vector<TokenId>{1}));
  EXPECT_EQ(ids(0.49f), (std::vector<TokenId>{1}));
  EXPECT_EQ(ids(0.6f), (std::vector<TokenId>{1, 3}));
  EXPECT_EQ(ids(0.8f), (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(ids(0.95f), (std::vector<TokenId>{0, 1, 2, 3}));
  EXPECT_EQ(distribution({0, 0}, {.temperature = 1, .top_p = 0.5f}).ids, std::vector<TokenId>{0}) << "reached exactly";
}

TEST(Distribution, TopPOfALongRowIsThatOfASort) {
  for (const std::size_t size : {900u, 1025u, 5000u, 20000u}) {
    const std::vector<float> row = random_row(size, size, 3);
    std::vector<float> sorted = row;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const auto weight = [&](float x) { return static_cast<double>(std::exp(x - sorted[0])); };
    double total = 0;
    for (const float x : sorted) total += weight(x);
    for (const float top_p : {0.3f, 0.9f, 0.999f}) {
      double above = 0;
      std::size_t count = 0;
      while (above < static_cast<double>(top_p) * total) above += weight(sorted[count++]);
      const Distribution d = distribution(row, {.temperature = 1, .top_p = top_p});
      EXPECT_EQ(d.ids.size(), count) << size << ", " << top_p;
      for (const TokenId id : d.ids) EXPECT_GE(row[static_cast<std::size_t>(id)], sorted[count - 1]);
      EXPECT_TRUE(std::is_sorted(d.ids.begin(), d.ids.end()));
    }
  }
}

TEST(Distribution, MinPIsRelativeToTheMostProbable) {
  const std::vector<float> row = {std::log(0.1f), std::log(0.5f), std::log(0.15f), std::log(0.25f)};
  EXPECT_EQ(distribution(row, {.temperature = 1, .min_p = 0.25f}).ids, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(distribution(row, {.temperature = 1, .min_p = 1}).ids, (std::vector<TokenId>{1}));
}

TEST(Distribution, ExtremeScoresAndTemperaturesStaySound) {
  for (const float temperature : {1e-38f, 1e-6f, 1.0f, 100.0f}) {
    const Distribution d = distribution({3e38f, -3e38f, 3e38f, 0}, {.temperature = temperature});
    EXPECT_EQ(d.ids, (std::vector<TokenId>{0, 2})) << temperature;
    EXPECT_DOUBLE_EQ(d.probability(0), 0.5);
  }
}

TEST(Scores, PenaltiesTellPromptFromAnswer) {
  SamplingParams params{
      .temperature = 1, .repetition_penalty = 2, .presence_penalty = 0.5f, .frequency_penalty = 0.25f};
  const TokenCounts counts = {{0, 0}, {1, 3}, {2, 1}};
  std::vector<float> scores = {4, 4, -4, 4};
  process_scores(scores, params, {}, counts);
  EXPECT_EQ(scores, (std::vector<float>{2, 2 - 0.75f - 0.5f, -8 - 0.25f - 0.5f, 4}));
}

TEST(Scores, MaskedTokensStayMaskedWhateverTheBias) {
  std::vector<float> scores = {1, 2, 3};
  process_scores(scores, {.logit_bias = {{0, 5}, {1, 100}}, .suppress_tokens = {1}}, std::vector<TokenId>{2}, {});
  EXPECT_EQ(scores, (std::vector<float>{6, -kInf, -kInf}));
}

TEST(Draw, FollowsTheWeights) {
  Distribution d;
  for (const auto& [id, weight] : {std::pair(3, 1.0f), std::pair(10, 2.0f), std::pair(99, 5.0f)}) d.add(id, weight);
  std::map<TokenId, int> counts;
  constexpr int kDraws = 80000;
  for (int i = 0; i < kDraws; ++i) ++counts[draw(d, Noise(1, i, Noise::Stream::kDraw))];
  double statistic = 0;
  for (const TokenId id : d.ids) {
    const double expected = kDraws * d.probability(id);
    statistic += (counts[id] - expected) * (counts[id] - expected) / expected;
  }
  EXPECT_LT(statistic, 13.8);  // 0.999 quantile of two degrees of freedom
}

TEST(Draw, ATokensFateHangsOnItsOwnNoise) {
  // Losers may come and go without a change of the winner.
  Distribution few, many;
  const std::vector<float> row = random_row(9, 1000, 4);
  const Noise noise(4, 2, Noise::Stream::kDraw);
  for (TokenId id = 0; id < 1000; ++id) many.add(id, std::exp(row[static_cast<std::size_t>(id)]));
  const TokenId winner = draw(many, noise);
  for (TokenId id = 0; id < 1000; id += 7) {
    if (id > winner && (few.ids.empty() || few.ids.back() < winner))
      few.add(winner, many.weights[static_cast<std::size_t>(winner)]);
    if (id != winner) few.add(id, many.weights[static_cast<std::size_t>(id)]);
  }
  EXPECT_EQ(draw(few, noise), winner);
}

TEST(Noise, IsAFunctionOfSeedIndexStreamAndToken) {
  const double value = Noise(1, 2, Noise::Stream::kDraw).at(3);
  EXPECT_EQ(value, Noise(1, 2, Noise::Stream::kDraw).at(3));
  EXPECT_NE(value, Noise(2, 2, Noise::Stream::kDraw).at(3));
  EXPECT_NE(value, Noise(1, 3, Noise::Stream::kDraw).at(3));
  EXPECT_NE(value, Noise(1, 2, Noise::Stream::kAccept).at(3));
  EXPECT_NE(value, Noise(1, 2, Noise::Stream::kDraw).at(4));
  for (TokenId token = 0; token < 10000; ++token) {
    const double uniform = Noise(1, 2, Noise::Stream::kDraw).at(token);
    ASSERT_GT(uniform, 0);
    ASSERT_LT(uniform, 1);
  }
}

TEST(Rejection, ADraftThatQCannotDrawIsNeverKeptByQ) {
  Distribution p, q, scratch;
  p.add(1, 1);
  p.add(2, 1);
  q.add(5, 1);
  for (std::int64_t i = 0; i < 50; ++i)
    EXPECT_EQ(accept_or_replace(p, q, std::array<TokenId, 1>{2}, 7, i, &scratch), 1);
}

TEST(Rejection, AnEmptyResidualFallsBackToTheTarget) {
  // As after rounding: q is at least p everywhere, so that nothing is left of p.
  Distribution p, q, scratch;
  p.add(1, 1);
  q.add(1, 1);
  EXPECT_EQ(accept_or_replace(p, q, std::array<TokenId, 1>{2}, 7, 0, &scratch), 1);
  EXPECT_TRUE(scratch.ids.empty());
}

TEST(Rejection, ADraftThatIsToldAgainAndAgainIsNoSampleOfQ) {
  // It cannot be.
  Distribution p, q, scratch;
  p.add(2, 1);
  q.add(1, 9);
  q.add(2, 1);
  q.add(3, 1);
  for (std::int64_t i = 0; i < 50; ++i)
    EXPECT_EQ(accept_or_replace(p, q, std::array<TokenId, 3>{1, 1, 1}, 7, i, &scratch), 2);
}

TEST(Draw, SeveralAreTheFirstOfTheSameRace) {
  Distribution d;
  for (TokenId id = 0; id < 50; ++id) d.add(id, 1 + static_cast<float>(id % 7));
  for (std::int64_t i = 0; i < 200; ++i) {
    const Noise noise(3, i, Noise::Stream::kDraft);
    const std::vector<TokenId> drawn = draw_distinct(d, noise, 4);
    Distribution left = d;
    for (const TokenId token : drawn) {
      ASSERT_EQ(token, draw(left, noise)) << i;
      left.weights[static_cast<std::size_t>(token)] = 0;
    }
  }
}

// ---- sampler ----

Matrix<const float> rows(const std::vector<float>& logits, std::int64_t vocab) {
  return {logits.data(), {static_cast<std::int64_t>(logits.size()) / vocab, vocab}};
}

TEST(Sampler, LogitsThatAreNotNumbersAreAnErrorInEveryRow) {
  SamplingScratch scratch;
  for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    for (const float temperature : {0.0f, 1.0f}) {
      Sampler sampler({.temperature = temperature}, {}, 30);
      // Row 0 chooses token 2, which is the draft; row 1 is broken.
      const Result<VerifyOutcome> kept =
          sampler.verify(rows({0, 0, 500, 1, bad, 0}, 3), std::vector<TokenId>{0, 2}, scratch);
      ASSERT_TRUE(kept) << "the client gets the draft first";
      EXPECT_EQ(kept->accepted, 0);
      EXPECT_EQ(kept->next_token, 2);
      const std::vector<float> broken = {1, bad, 0};
      const Error errors[] = {sampler.verify(rows(broken, 3), std::vector<TokenId>{2}, scratch).error(),
                              sampler.choose(broken, scratch).error(),
                              Sampler({.prompt_logprobs = 0}, {}, 30).prompt_logprobs(broken, 2, scratch).error()};
      for (const Error& error : errors) {
        EXPECT_EQ(error.code, Errc::kMalformed);
        EXPECT_NE(error.message.find("the logit of token 1 is"), std::string::npos) << error.message;
      }
    }
  }
}

TEST(Sampler, DraftsDoNotChangeTheTextBeforeAnError) {
  // After 5 6 the bad words leave no token. Token 6 is the more probable one.
  const SamplingParams params{.allowed_tokens = {5, 6}, .bad_words = {{{6, 6}}, {{5, 5}}, {{6, 5, 6, 5, 6}}}};
  const auto decoded = [&](std::span<const TokenId> drafts, std::span<const std::int32_t> depths) {
    SamplingScratch scratch;
    std::vector<float> logits;
    for (std::size_t row = 0; row <= drafts.size(); ++row) logits.insert(logits.end(), {0, 0, 0, 0, 0, 2, 3, 0});
    Sampler sampler(params, {}, 0);
    std::vector<TokenId> text = {sampler.choose({logits.data(), 8}, scratch).value()};
    for (;;) {
      std::vector<TokenId> tokens = {text.back()};
      tokens.insert(tokens.end(), drafts.begin(), drafts.end());
      if (text.size() % 2 == 0) sampler.look_ahead(text.back());
      const auto outcome = sampler.verify(rows(logits, 8), tokens, scratch, depths);
      if (!outcome) return std::pair(text, outcome.error().message);
      const std::vector<std::int64_t> path = TokenTree(std::ssize(drafts), depths).path(outcome->row);
      EXPECT_EQ(std::ssize(path), outcome->accepted + 1);
      for (const std::int64_t row : std::span(path).subspan(1)) text.push_back(tokens[static_cast<std::size_t>(row)]);
      text.push_back(outcome->next_token);
    }
  };
  const auto plain = decoded({}, {});
  EXPECT_EQ(plain, std::pair(std::vector<TokenId>{6, 5, 6, 5}, std::string("all 8 tokens are masked at output 4")));
  EXPECT_EQ(decoded(std::vector<TokenId>{5}, {}), plain);
  EXPECT_EQ(decoded(std::vector<TokenId>{5, 6}, {}), plain);
  EXPECT_EQ(decoded(std::vector<TokenId>{5, 6, 5, 6}, {}), plain);
  EXPECT_EQ(decoded(std::vector<TokenId>{6, 5, 5, 6, 5, 1}, std::vector<std::int32_t>{1, 2, 1, 2, 3, 4}), plain);
}

TEST(Sampler, ABiasChangesTheGreedyChoiceToo) {
  SamplingScratch scratch;
  Sampler sampler({.logit_bias = {{0, 5}}}, {}, 0);
  EXPECT_EQ(sampler.choose(std::vector<float>{1, 2}, scratch).value(), 0);
}

TEST(Sampler, AVocabularyThatIsMaskedWholeIsAnError) {
  SamplingScratch scratch;
  for (const float temperature : {0.0f, 1.0f}) {
    Sampler sampler({.temperature = temperature, .suppress_tokens = {0, 1}}, {}, 0);
    EXPECT_EQ(sampler.choose(std::vector<float>{1, 2}, scratch).error().message, "all 2 tokens are masked at output 0");
  }
}

TEST(Sampler, TheSoftcapShapesProbabilitiesButNotTheGreedyChoice) {
  SamplingScratch scratch;
  // Both are 30 after the cap's rounding; greedy must see that they differ.
  const std::vector<float> row = {900, 901};
  Sampler greedy({}, {}, 30);
  EXPECT_EQ(greedy.choose(row, scratch).value(), 1);
  int zeros = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Sampler sampler({.temperature = 0.1f, .seed = seed}, {}, 30);
    zeros += sampler.choose(row, scratch).value() == 0;
  }
  EXPECT_GT(zeros, 60);
  EXPECT_LT(zeros, 140);
}

TEST(Sampler, TheEosGuardHoldsRowByRow) {
  // Every row wants the stop token, 0, then token 1.
  SamplingScratch scratch;
  const std::vector<float> logits = {9, 5, 0, 9, 5, 0, 9, 5, 0, 9, 5, 0};
  Sampler sampler({.min_tokens = 3}, {0}, 0);
  EXPECT_EQ(sampler.choose(std::vector<float>{9, 5, 0}, scratch).value(), 1);  // output 0
  // Outputs 1 and 2 are guarded; output 3 is not.
  const VerifyOutcome outcome = sampler.verify(rows(logits, 3), std::vector<TokenId>{1, 1, 1, 1}, scratch).value();
  EXPECT_EQ(outcome.accepted, 2);
  EXPECT_EQ(outcome.next_token, 0);

  // A stop token as the first draft does not survive the guard.
  Sampler other({.min_tokens = 3}, {0}, 0);
  EXPECT_EQ(other.verify(rows(logits, 3), std::vector<TokenId>{1, 0, 1, 1}, scratch).value().accepted, 0);
}

TEST(Sampler, PenaltiesCountTheRowsOwnDraftsAndNotTheRejectedOnes) {
  // Tokens 1 and 2 are equal but for a penalty on what was there before.
  SamplingScratch scratch;
  const std::vector<float> logits = {0, 5, 5, 0, 0, 5, 5, 0, 0, 5, 5, 0};
  Sampler sampler({.presence_penalty = 1}, {}, 0);
  // Output: 1 (given), then 2 as 1 is penalised, then 1 and 2 are equal again; draft 3 fails there.
  const VerifyOutcome outcome = sampler.verify(rows(logits, 4), std::vector<TokenId>{1, 2, 3}, scratch).value();
  EXPECT_EQ(outcome.accepted, 1);
  EXPECT_EQ(outcome.next_token, 1);
  // The rejected 3 is not counted: its score is whole.
  const std::vector<float> next = {0, 5, 5, 4.5f};
  EXPECT_EQ(sampler.verify(rows(next, 4), std::vector<TokenId>{1}, scratch).value().next_token, 3);
}

TEST(Typical, KeepsWhatIsAboveTheThresholdOfTheEntropy) {
  // Four tokens alike: H = log 4, and min(0.09, 0.3 / 4) = 0.075 keeps them all; a fifth of 0.05 goes.
  Distribution d = distribution({0, 0, 0, 0}, {.temperature = 1});
  keep_typical(&d);
  EXPECT_EQ(d.ids, (std::vector<TokenId>{0, 1, 2, 3}));
  const float rare = std::log(0.05f / 0.2375f);
  d = distribution({0, 0, rare, 0, 0}, {.temperature = 1});
  keep_typical(&d);
  EXPECT_EQ(d.ids, (std::vector<TokenId>{0, 1, 3, 4}));
  EXPECT_NEAR(d.probability(0), 0.25, 1e-6) << "what is left sums to one";
  // A sure row: epsilon is the threshold.
  d = distribution({std::log(0.905f), std::log(0.095f)}, {.temperature = 1});
  keep_typical(&d);
  EXPECT_EQ(d.ids.size(), 2u);
  d = distribution({std::log(0.92f), std::log(0.08f)}, {.temperature = 1});
  keep_typical(&d);
  EXPECT_EQ(d.ids, std::vector<TokenId>{0});
}

TEST(Typical, TheMostProbableTokenIsAlwaysTypical) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> row = random_row(seed, 300, seed % 2 == 0 ? 0.01f : 8);
    Distribution d = distribution(row, {.temperature = 1});
    keep_typical(&d);
    EXPECT_GT(d.probability(static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin())), 0);
  }
}

TEST(Typical, DraftsSurviveThatTheTargetWouldNotHaveDrawn) {
  SamplingScratch scratch;
  const std::vector<float> row = {2, 2, 2, -9};
  std::vector<float> rows;
  for (int i = 0; i < 3; ++i) rows.insert(rows.end(), row.begin(), row.end());
  const Matrix<const float> logits(rows.data(), {3, 4});
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Sampler typical({.temperature = 1, .seed = seed, .rule = SamplingRule::kTypical}, {}, 0);
    const VerifyOutcome outcome = typical.verify(logits, std::vector<TokenId>{0, 1, 2}, scratch).value();
    EXPECT_EQ(outcome.accepted, 2);
    EXPECT_NE(outcome.next_token, 3);
    Sampler again({.temperature = 1, .seed = seed, .rule = SamplingRule::kTypical}, {}, 0);
    EXPECT_EQ(again.verify(logits, std::vector<TokenId>{0, 3, 2}, scratch).value().accepted, 0) << "not typical";
  }
  Sampler greedy({.rule = SamplingRule::kTypical}, {}, 0);
  EXPECT_EQ(greedy.verify(logits, std::vector<TokenId>{0, 1, 2}, scratch).value().accepted, 0)
      << "no rule at temperature 0";
}

TEST(Logprobs, AreThoseOfTheWholeSoftmaxBestFirst) {
  SamplingScratch scratch;
  const std::vector<float> row = {1, 3, 2, 3};
  const double total = std::exp(-2) + 1 + std::exp(-1) + 1;
  const TokenLogprobs logprobs = logprobs_of(row, 0, 2, 3, scratch);
  EXPECT_NEAR(logprobs.logprob, -1 - std::log(total), 1e-6);
  ASSERT_EQ(logprobs.top.size(), 3u);
  EXPECT_EQ(logprobs.top[0].token, 1) << "the lower id of equals";
  EXPECT_EQ(logprobs.top[1].token, 3);
  EXPECT_EQ(logprobs.top[2], (Logprob{2, logprobs.logprob}));
  EXPECT_NEAR(logprobs.top[0].logprob, -std::log(total), 1e-6);
  EXPECT_EQ(logprobs_of(row, 0, 2, 20, scratch).top.size(), 4u) << "no more than the vocabulary";
  EXPECT_TRUE(logprobs_of(row, 0, 2, 0, scratch).top.empty());
}

TEST(Logprobs, CountTheSoftcapAndStayFinite) {
  SamplingScratch scratch;
  const TokenLogprobs capped = logprobs_of(std::vector<float>{0, 60}, 30, 0, 0, scratch);
  EXPECT_NEAR(capped.logprob, -30 * std::tanh(2.0f), 1e-4);
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(logprobs_of(std::vector<float>{-most, most}, 0, 0, 0, scratch).logprob, -most);
  EXPECT_EQ(logprobs_of(std::vector<float>{-most, most}, 0, 1, 0, scratch).logprob, 0);
}

TEST(Logprobs, OfTokensThatAreNamedAndTheirRanks) {
  SamplingScratch scratch;
  const std::vector<float> row = {1, 3, 2, 3};
  const std::vector<TokenId> ids = {2, 0};
  const TokenLogprobs logprobs = logprobs_of(row, 0, 2, ids, scratch);
  ASSERT_EQ(logprobs.top.size(), 2u);
  EXPECT_EQ(logprobs.top[0], (Logprob{2, logprobs.logprob})) << "in the order in which they were named";
  EXPECT_NEAR(logprobs.top[1].logprob, logprobs.logprob - 1, 1e-6);
  EXPECT_EQ(logprobs.rank, 3);
  EXPECT_EQ(logprobs_of(row, 0, 3, 1, scratch).rank, 1) << "equals are not above each other";
}

TEST(Masks, OnlyAllowedTokensAreChosen) {
  SamplingScratch scratch;
  const std::vector<float> row = {1, 9, 2, 3};
  Sampler greedy({.allowed_tokens = {0, 2}}, {}, 0);
  EXPECT_EQ(greedy.choose(row, scratch).value(), 2);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Sampler sampler({.temperature = 5, .seed = seed, .allowed_tokens = {0, 2}}, {}, 0);
    const TokenId token = sampler.choose(row, scratch).value();
    EXPECT_TRUE(token == 0 || token == 2) << token;
  }
  Sampler none({.suppress_tokens = {2}, .allowed_tokens = {2}}, {}, 0);
  EXPECT_EQ(none.choose(row, scratch).error().code, Errc::kInvalidArgument);
}

TEST(Masks, ABadWordIsCutOffBeforeItsLastToken) {
  SamplingScratch scratch;
  // After 1 comes 2, and after 1 2 comes 3, if nothing forbids it.
  const std::vector<float> rows = {0, 1, 9, 5, 0, 0, 1, 9};
  const Matrix<const float> logits(rows.data(), {2, 4});
  const std::vector<TokenWord> word = {{{1, 2, 3}}};
  const auto second_choice = [&](std::vector<TokenWord> words, std::vector<TokenId> before) {
    Sampler sampler({.bad_words = std::move(words)}, {}, 0);
    sampler.add_text(before, std::ssize(before));
    return sampler.verify(logits, std::vector<TokenId>{1, 2}, scratch).value();
  };
  EXPECT_EQ(second_choice({}, {}).next_token, 3);
  EXPECT_EQ(second_choice(word, {}).accepted, 1);
  EXPECT_EQ(second_choice(word, {}).next_token, 2) << "3 would complete it";
  EXPECT_EQ(second_choice({{{0, 1, 2, 3}}}, {}).next_token, 3) << "the answer does not begin with it";
  EXPECT_EQ(second_choice({{{0, 1, 2, 3}}}, {0}).next_token, 2);
  EXPECT_EQ(second_choice({{{2}}}, {}).accepted, 0) << "a word of one token never comes";
  Sampler prompt({.bad_words = word}, {}, 0);
  prompt.add_text(std::vector<TokenId>{1, 2}, 0);
  EXPECT_EQ(prompt.choose(logits[1].span(), scratch).value(), 3) << "the prompt is no part of the answer";
}

TEST(Masks, WhatIsBeyondTheVocabularyIsRefused) {
  EXPECT_FALSE(check_sampling({.allowed_tokens = {4}}, 4));
  EXPECT_FALSE(check_sampling({.logprob_token_ids = {-1}}, 4));
  EXPECT_FALSE(check_sampling({.bad_words = {{{1, 4}}}}, 4));
  EXPECT_FALSE(check_sampling({.bad_words = {{}}}, 4));
  EXPECT_FALSE(check_sampling({.prompt_logprobs = kLogprobsMax + 1}, 4));
  EXPECT_TRUE(check_sampling({.prompt_logprobs = 0, .logprob_token_ids = {3}, .allowed_tokens = {0}}, 4));
}

// The model's own distribution: what a request does to it changes which token it is, not what is said of it.
TEST(Logprobs, KnowNothingOfTheRequest) {
  SamplingScratch scratch;
  const std::vector<float> row = random_row(3, 50, 4);
  const Matrix<const float> logits(row.data(), {1, 50});
  const TokenId token = 7;
  const auto of = [&](SamplingParams params) {
    params.logprobs = 4;
    Sampler sampler(params, {1}, 0);
    sampler.add_text(std::vector<TokenId>{7, 8}, 0);
    return sampler.logprobs(logits, {&token, 1}, scratch);
  };
  const auto plain = of({});
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_EQ(of({.temperature = 0.3f,
                .top_k = 1,
                .repetition_penalty = 2,
                .logit_bias = {{7, -5}},
                .suppress_tokens = {8},
                .min_tokens = 3}),
            plain);
  EXPECT_TRUE(Sampler({}, {}, 0).logprobs(logits, {&token, 1}, scratch).empty()) << "not asked for";
}

TEST(Params, EachValueOutOfRangeIsNamed) {
  const auto message = [](const SamplingParams& params) {
    const Result<void> ok = check_sampling(params, 10);
    return ok ? std::string("fine") : ok.error().message;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(message({}), "fine");
  EXPECT_EQ(message({.temperature = 2, .top_k = 1 << 30, .top_p = 0.1f, .min_p = 1, .min_tokens = 1L << 60}), "fine");
  EXPECT_EQ(message({.temperature = nan}), "temperature is nan, wanted 0 to 100");
  EXPECT_EQ(message({.temperature = kInf}), "temperature is inf, wanted 0 to 100");
  EXPECT_EQ(message({.top_k = -1}), "top_k is -1, wanted 0 (all) or more");
  EXPECT_EQ(message({.top_p = nan}), "top_p is nan, wanted above 0 and at most 1");
  EXPECT_EQ(message({.min_p = 1.5f}), "min_p is 1.5, wanted 0 to 1");
  EXPECT_EQ(message({.repetition_penalty = 0}), "repetition_penalty is 0, wanted 0.01 to 100");
  EXPECT_EQ(message({.presence_penalty = -101}), "presence_penalty is -101, wanted -100 to 100");
  EXPECT_EQ(message({.frequency_penalty = nan}), "frequency_penalty is nan, wanted -100 to 100");
  EXPECT_EQ(message({.logit_bias = {{3, nan}}}), "logit_bias is nan, wanted -100 to 100");
  EXPECT_EQ(message({.logit_bias = {{10, 1}}}), "logit_bias's token is 10, wanted a token id from 0 to 9");
  EXPECT_EQ(message({.suppress_tokens = {-1}}), "suppress_tokens' token is -1, wanted a token id from 0 to 9");
  EXPECT_EQ(message({.suppress_tokens = std::vector<TokenId>(5000, 1)}),
            "suppress_tokens' length is 5000, wanted at most 4096 entries");
  EXPECT_EQ(message({.min_tokens = -1}), "min_tokens is -1, wanted 0 or more");
}

/// The names of what is offered.
struct OfferedNames {
  std::vector<std::string> names;
  template <typename Wire>
  void operator()(const char* name, const auto&, Offered<Wire>, auto&&...) {
    names.push_back(name);
  }
  void operator()(auto&&...) {}
};

TEST(SamplingParams, DocsOfTheApiAndPythonNameEachParameter) {
  std::ifstream file(OUTRIDER_SOURCE_DIR "/docs/http.md");
  const std::string docs((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  OfferedNames offered;
  const SamplingParams params;
  SamplingParams::fields(offered, params);
  EXPECT_EQ(offered.names.size(), 8u);
  for (const std::string& name : offered.names) EXPECT_NE(docs.find("`" + name + "`"), docs.npos) << name;
  std::ifstream of_python(OUTRIDER_SOURCE_DIR "/python/outrider/_pair.py");
  const std::string options((std::istreambuf_iterator<char>(of_python)), std::istreambuf_iterator<char>());
  for (const std::string& name : offered.names) EXPECT_NE(options.find("\n    " + name + ": "), options.npos) << name;
}

/// Sets each field named *_penalty alone to another value than the one that it has when it is left out.
struct EachPenalty {
  SamplingParams& params;
  int seen = 0;
  void operator()(const char* name, float& penalty, Offered<double>, auto&&...) {
    if (!std::string_view(name).ends_with("_penalty")) return;
    const float left_out = penalty;
    penalty = 1.5f;
    EXPECT_TRUE(params.has_penalties()) << name << " alone does nothing";
    penalty = left_out;
    ++seen;
  }
  void operator()(auto&&...) {}
};

TEST(SamplingParams, EachPenaltyIsHeeded) {
  SamplingParams params;
  EXPECT_FALSE(params.has_penalties());
  EachPenalty each{params};
  SamplingParams::fields(each, params);
  EXPECT_EQ(each.seen, 3);
}

}  // namespace
}  // namespace outrider
