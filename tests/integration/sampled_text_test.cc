// The rule `match` on the nano pair: a seed's text is one text, for every draft length, in one process and in
// three, and when the drafter is killed in the middle of it.
#include <csignal>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/random.h"
#include "tests/support/cluster_fixtures.h"

namespace outrider {
namespace {
using nlohmann::json;

constexpr std::int64_t kMaxTokens = 64;

Generate sampled(const NanoGolden& golden, std::uint64_t seed, std::int32_t draft_length) {
  Generate request = request_for(golden, draft_length);
  request.max_tokens = kMaxTokens;
  request.sampling = {.temperature = 0.8f, .top_k = 64, .top_p = 0.95f, .seed = seed};
  if (seed % 2 == 0) request.sampling.repetition_penalty = 1.1f;
  if (seed % 3 == 0) request.sampling.min_tokens = 20;
  return request;
}

using Sampling = NanoCluster;

TEST_F(Sampling, ASeedsTextIsOneForEveryDraftLength) {
  Client client = connect();
  std::set<std::vector<TokenId>> texts;
  std::int64_t accepted = 0, ahead = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const NanoGolden& golden = goldens_[seed % goldens_.size()];
    const Generation plain = answer(client, sampled(golden, seed, 0));
    EXPECT_GE(std::ssize(plain.tokens), sampled(golden, seed, 0).sampling.min_tokens);
    texts.insert(plain.tokens);
    for (const std::int32_t draft_length : {1, 4, 8}) {
      Generate request = sampled(golden, seed, draft_length);
      request.draft_ahead = draft_length == 4 ? kDraftAheadMax : 0;
      const Generation drafted = answer(client, request);
      EXPECT_EQ(drafted.tokens, plain.tokens) << "seed " << seed << ", draft length " << draft_length;
      accepted += drafted.metrics.accepted_tokens;
      ahead += drafted.metrics.ahead_rounds;
    }
  }
  EXPECT_GT(ahead, 0);
  EXPECT_EQ(texts.size(), 6u);
  EXPECT_GT(accepted, 50) << "no draft survives: nothing was tested";
}

TEST_F(Sampling, ASeedsTextIsOneForEveryPolicyAndSource) {
  Client client = connect();
  std::int64_t ngram = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Generate request = sampled(goldens_[seed % goldens_.size()], seed, 0);
    request.sampling.temperature = 0.3f;  // cold enough to repeat itself
    const std::vector<TokenId> plain = answer(client, request).tokens;
    request.draft_length = kChosenLengthMax;
    for (const DraftPolicy policy : {DraftPolicy::kAuto, DraftPolicy::kFixed, DraftPolicy::kTree}) {
      request.policy = policy;
      request.added.ngram = policy != DraftPolicy::kAuto;
      const Generation generation = answer(client, request);
      EXPECT_EQ(generation.tokens, plain) << "seed " << seed << ", policy " << static_cast<int>(policy);
      ngram += generation.metrics.ngram.drafted_tokens;
    }
  }
  EXPECT_GT(ngram, 0);
}

TEST_F(Sampling, SeedsGiveOneQuestionManyAnswers) {
  Client client = connect();
  std::set<std::vector<TokenId>> texts;
  Generate request = sampled(goldens_[0], 1, 4);
  request.sampling.temperature = 1.5f;
  for (request.sampling.seed = 1; request.sampling.seed <= 8; ++request.sampling.seed)
    texts.insert(answer(client, request).tokens);
  EXPECT_GE(texts.size(), 4u);
}

// Also says what a way of drafting is worth: ctest's log has the numbers.
TEST_F(Sampling, DraftsSurviveUnderBothRules) {
  Client client = connect();
  for (const float temperature : {0.7f, 1.0f}) {
    for (const SamplingRule rule : {SamplingRule::kMatch, SamplingRule::kRejection}) {
      std::int64_t drafted = 0, accepted = 0;
      for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        Generate request = request_for(goldens_[seed % goldens_.size()], 4);
        request.max_tokens = kMaxTokens;
        request.sampling = {.temperature = temperature, .seed = seed, .rule = rule};
        const Generation generation = answer(client, request);
        drafted += generation.metrics.drafted_tokens;
        accepted += generation.metrics.accepted_tokens;
      }
      const double rate = static_cast<double>(accepted) / static_cast<double>(drafted);
      std::printf("temperature %.1f, %s: %.3f of %lld drafts accepted\n", static_cast<double>(temperature),
                  rule == SamplingRule::kMatch ? "match" : "rejection", rate, static_cast<long long>(drafted));
      EXPECT_GT(rate, 0.1);
      EXPECT_LT(rate, 1);
    }
  }
}

TEST_F(Sampling, ColdSamplingIsGreedy) {
  Client client = connect();
  for (std::size_t i = 0; i < 3; ++i) {
    Generate request = request_for(goldens_[i], 4);
    const std::vector<TokenId> greedy = answer(client, request).tokens;
    request.sampling = {.temperature = 1e-6f, .seed = i};
    EXPECT_EQ(answer(client, request).tokens, greedy);
    request.sampling = {.temperature = 1.5f, .top_k = 1, .seed = i};
    EXPECT_EQ(answer(client, request).tokens, greedy);
  }
}

TEST_F(Sampling, WhatCannotBeIsRefused) {
  Client client = connect();
  Generate request = sampled(goldens_[0], 1, 4);
  request.sampling.temperature = -1;
  Result<Generation> generation = client.generate(request, [](std::span<const TokenId>) {});
  ASSERT_FALSE(generation);
  EXPECT_EQ(generation.error().code, Errc::kInvalidArgument);
  EXPECT_EQ(generation.error().message, "temperature is -1, wanted 0 to 100");
  request.sampling.temperature = std::numeric_limits<float>::quiet_NaN();
  generation = client.generate(request, [](std::span<const TokenId>) {});
  ASSERT_FALSE(generation);
  EXPECT_EQ(generation.error().message, "temperature is nan, wanted 0 to 100");
  EXPECT_FALSE(answer(client, sampled(goldens_[0], 1, 4)).tokens.empty()) << "the next request is served";
}

TEST_F(Sampling, TextSurvivesADrafterKilledAtARandomRound) {
  Client here = connect();
  Trio trio;
  CounterRng rng(5);
  std::int64_t drafted = 0;
  for (std::uint64_t seed = 11; seed <= 14; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const NanoGolden& golden = goldens_[seed % goldens_.size()];
    Client there = trio.client(1, 1);
    std::uint64_t left = 1 + rng.below(12);  // batches of tokens until the kill
    const Result<Generation> generation = there.generate(sampled(golden, seed, 4), [&](std::span<const TokenId>) {
      if (--left == 0) trio.drafter->send(SIGKILL);
    });
    ASSERT_TRUE(generation) << generation.error().message;
    EXPECT_EQ(generation->tokens, answer(here, sampled(golden, seed, 0)).tokens);
    drafted += generation->metrics.drafted_tokens;
    trio.drafter->send(SIGKILL);  // where the text was over before
    trio.drafter->wait();
    ASSERT_TRUE(eventually([&] { return trio.status().drafters == 0; }));
    trio.start_drafter();
  }
  EXPECT_GT(drafted, 0);
}

TEST(SamplingProgram, OneSeedIsOneTextInOneProcessAndInThree) {
  const std::string prompt = nano_goldens()[1].prompt;
  std::set<std::string> texts;
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
           {"--draft-length", "0"}, {"--draft-length", "4", "--compare"}, {"--draft-length", "8", "--processes"}}) {
    std::vector<std::string> arguments = {"run", prompt,         "--sample", "--temperature", "0.7", "--seed",
                                          "42",  "--max-tokens", "40",       "--json"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    Program run(arguments);
    EXPECT_EQ(describe(run.wait()), "exit 0") << run.err();
    const json object = json::parse(run.out(), nullptr, false);
    ASSERT_TRUE(object.is_object()) << run.out();
    EXPECT_EQ(
        object["sampling"],
        (json{{"rule", "match"}, {"temperature", 0.7}, {"seed", 42}, {"top_k", 64}, {"top_p", 0.95}, {"min_p", 0.0}}));
    texts.insert(object["text"]);
  }
  EXPECT_EQ(texts.size(), 1u);
}

TEST(SamplingProgram, OptionsWithoutATemperatureAreRefused) {
  for (const std::vector<std::string>& options :
       std::vector<std::vector<std::string>>{{"--top-p", "0.9"}, {"--sample", "--temperature", "0"}}) {
    std::vector<std::string> arguments = {"run", "hello"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    Program run(arguments);
    EXPECT_EQ(describe(run.wait()), "exit 1");
    EXPECT_EQ(lines_with(run.err(), {"need a --temperature above 0"}).size(), 1u) << run.err();
    EXPECT_EQ(run.out(), "");
  }
}

}  // namespace
}  // namespace outrider
