// What a request may ask for beside tokens: an end at a text, log-probabilities, several answers.
#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/model/tokenizer/detokenizer.h"
#include "common/model/tokenizer/stop_matcher.h"
#include "common/wire/transport/endpoint.h"
#include "coordinator-node/coordinator_node.h"
#include "embed/pair.h"
#include "tests/support/cluster_fixtures.h"
#include "tests/support/model_at.h"

namespace outrider {
namespace {
using nlohmann::json;

class AnswerOptions : public NanoCluster {
 protected:
  AnswerOptions() : NanoCluster({.pair = nano_pair(), .weight_type = WeightType::kF32}) {}
};

/// What a command asks a coordinator for, which never answers it.
/// @param fixed_lengths  as Program's
Generate asked_by(std::vector<std::string> command, bool fixed_lengths) {
  TransportContext context;
  const auto bound = Endpoint::bind(context, "tcp://127.0.0.1:*").value();
  command.insert(command.end(), {"--connect", bound->address()});
  Program program(command, Program::Input::kWritten, fixed_lengths);
  if (command[0] == "chat") program.write("Hello.\n");
  std::optional<Generate> asked;
  EXPECT_TRUE(eventually([&] {
    while (const auto received = bound->receive()) {
      if (!received->message) continue;
      if (std::holds_alternative<StatusRequest>(received->message->body))
        EXPECT_TRUE(bound->send(received->from, {.body = Status{.verifiers = 1, .drafters = 1}}));
      else if (const auto* generate = std::get_if<Generate>(&received->message->body))
        asked = *generate;
    }
    return asked || !program.running();
  })) << program.err();
  EXPECT_TRUE(asked) << program.err();
  return asked.value_or(Generate());
}

// The coordinator leaves drafts out that cost time, but where somebody measures them.
TEST(DraftLength, ThatIsANumberIsUnderTheGovernorUnlessAskedOtherwise) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"run", "Hello.", "--draft-length", "3"}, {"chat", "--draft-length", "3"}}) {
    for (const bool fixed_length : {false, true}) {
      const Generate asked = asked_by(command, fixed_length);
      EXPECT_EQ(asked.draft_length, 3);
      EXPECT_EQ(asked.policy, DraftPolicy::kFixed);
      EXPECT_EQ(asked.governed, !fixed_length) << command[0];
    }
  }
}

// While the only verifier restarts, neither fails.
TEST(VerifierWait, OfANewRequestIsThatOfARunningSequence) {
  const Generate asked = asked_by({"run", "Hello."}, /*fixed_lengths=*/false);
  EXPECT_EQ(asked.wait_ms, 1000 * CoordinatorOptions().failover_wait_s);
}

struct Stopped {
  Generation generation;
  std::string text;
};

/// An answer up to the first stop string, as `outrider run` and the server write it.
Stopped answer_until(Client& client, const Generate& request, const std::vector<std::string>& stops) {
  static const Result<Tokenizer> tokenizer = Tokenizer::load(model_at(nano_pair().backbone));
  StreamingDetokenizer detokenizer(tokenizer.value(), /*skip_special=*/true);
  StopMatcher matcher = StopMatcher::create(stops).value();
  Stopped result;
  std::int64_t count = 0;
  Result<Generation> generation = client.generate(request, [&](std::span<const TokenId> tokens) {
    for (const TokenId token : tokens) {
      EXPECT_FALSE(matcher.stopped()) << "tokens after the end";
      ++count;
      result.text += matcher.push(detokenizer.push(token));
      if (matcher.stopped()) return client.end_answer(count);
    }
  });
  EXPECT_TRUE(generation) << generation.error().message;
  if (generation) result.generation = std::move(generation).value();
  result.text += matcher.push(detokenizer.finish());
  result.text += matcher.finish();
  return result;
}

TEST_F(AnswerOptions, RequestsSideBySideGetWhatEachGetsAlone) {
  Client client = connect();
  std::vector<Generate> requests;
  for (std::size_t i = 0; i < 4; ++i) requests.push_back(request_for(goldens_[i], static_cast<std::int32_t>(2 * i)));
  std::vector<std::vector<TokenId>> streamed(requests.size());
  std::set<std::size_t> ended;
  const auto on_tokens = [&](std::size_t index, std::span<const TokenId> tokens) {
    streamed[index].insert(streamed[index].end(), tokens.begin(), tokens.end());
    EXPECT_EQ(client.so_far().tokens, streamed[index]);
    if (index == 1) client.end_answer(1);
  };
  const auto on_end = [&](std::size_t index, const Generation&) { EXPECT_TRUE(ended.insert(index).second); };
  const auto generations = client.generate_all(requests, {.on_tokens = on_tokens, .on_end = on_end});
  ASSERT_TRUE(generations) << generations.error().message;
  ASSERT_EQ(generations->size(), requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::vector<TokenId> expected = i == 1 ? std::vector<TokenId>{goldens_[i].greedy[0]} : goldens_[i].greedy;
    EXPECT_EQ((*generations)[i].tokens, expected) << i;
    if (i == 1) streamed[i].resize(1);  // it was told of whole rounds
    EXPECT_EQ(streamed[i], expected) << i;
  }
  EXPECT_EQ(ended.size(), requests.size());
  EXPECT_TRUE(client.generate_all({}, {.on_tokens = on_tokens})->empty());
}

TEST_F(AnswerOptions, OneThatFailsOrACallerThatLeavesEndsAllOfThem) {
  Client client = connect();
  const Generate endless{.prompt = endless_story().prompt_ids, .max_tokens = 7000, .draft_length = 2, .stop_ids = {}};
  const auto no_sessions = [&] { return status_of(context_, cluster_->address()).sessions == 0; };
  const auto ignore = [](std::size_t, std::span<const TokenId>) {};
  Generate wrong = endless;
  wrong.max_tokens = 0;
  const auto failed = client.generate_all({endless, wrong, endless}, {.on_tokens = ignore});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Errc::kInvalidArgument);
  EXPECT_TRUE(eventually(no_sessions));
  std::set<std::size_t> begun;
  const auto left = client.generate_all(
      {endless, endless}, {.on_tokens = [&](std::size_t index, std::span<const TokenId>) { begun.insert(index); },
                           .cancelled = [&] { return begun.size() == 2; }});
  ASSERT_TRUE(left) << left.error().message;
  for (const Generation& generation : *left) EXPECT_TRUE(generation.cancelled);
  EXPECT_TRUE(eventually(no_sessions));
}

TEST_F(AnswerOptions, AStopStringEndsTextAndSessionAtEveryDraftLength) {
  Client client = connect();
  int inside = 0;
  for (const NanoGolden& golden : {goldens_[0], goldens_[1], goldens_[2], endless_story()}) {
    // Beginning and end inside words, across several tokens.
    ASSERT_GE(golden.text.size(), 50u);
    const std::string stop = golden.text.substr(21, 17);
    const std::string expected = golden.text.substr(0, golden.text.find(stop));
    std::vector<TokenId> tokens;
    for (const std::int32_t draft_length : {0, 1, 4, 8}) {
      SCOPED_TRACE(fmt::format("'{}', draft length {}", stop, draft_length));
      const Stopped stopped = answer_until(client, request_for(golden, draft_length), {"never said", stop});
      EXPECT_EQ(stopped.text, expected);
      EXPECT_EQ(stopped.generation.reason, FinishReason::kStop);
      EXPECT_FALSE(stopped.generation.cancelled);
      EXPECT_GT(stopped.generation.metrics.prefill_ns, 0) << "metrics came";
      if (draft_length == 0) tokens = stopped.generation.tokens;
      EXPECT_EQ(stopped.generation.tokens, tokens);
      // The tokens are plain decoding's, just enough for the stop string.
      ASSERT_LE(tokens.size(), golden.greedy.size());
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), golden.greedy.begin()));
      EXPECT_NE(nano_text(tokens).find(stop), std::string::npos);
      EXPECT_EQ(nano_text(std::span(tokens).first(tokens.size() - 1)).find(stop), std::string::npos);
      inside += stopped.generation.metrics.accepted_tokens + stopped.generation.metrics.rounds + 1 > std::ssize(tokens);
    }
  }
  EXPECT_GT(inside, 0) << "no stop string was inside a window";
  EXPECT_TRUE(eventually([&] { return status_of(context_, cluster_->address()).sessions == 0; })) << "one is left";
}

TEST_F(AnswerOptions, AStopStringMayBeTheWholeAnswerOrItsLastWord) {
  Client client = connect();
  const NanoGolden& golden = goldens_[0];
  EXPECT_EQ(answer_until(client, request_for(golden, 4), {golden.text.substr(0, 5)}).text, "");
  EXPECT_EQ(answer_until(client, request_for(golden, 4), {golden.text.substr(golden.text.size() - 5) + "!?"}).text,
            golden.text)
      << "held back, then shown";
}

TEST_F(AnswerOptions, LogprobsAreTheSameBitsForEveryDraftLength) {
  Client client = connect();
  std::int64_t accepted = 0;
  for (const float temperature : {0.0f, 0.8f}) {
    for (std::size_t i = 0; i < 3; ++i) {
      Generate request = request_for(goldens_[i], 0);
      request.max_tokens = 40;
      request.sampling = {.temperature = temperature, .seed = i};
      const std::vector<TokenId> without = answer(client, request).tokens;
      request.sampling.logprobs = 5;
      const Generation plain = answer(client, request);
      EXPECT_EQ(plain.tokens, without) << "asking changes nothing";
      ASSERT_EQ(plain.logprobs.size(), plain.tokens.size());
      for (std::size_t t = 0; t < plain.tokens.size(); ++t) {
        const TokenLogprobs& logprobs = plain.logprobs[t];
        ASSERT_EQ(logprobs.top.size(), 5u);
        EXPECT_TRUE(std::is_sorted(logprobs.top.begin(), logprobs.top.end(),
                                   [](const Logprob& a, const Logprob& b) { return a.logprob > b.logprob; }));
        EXPECT_LE(logprobs.logprob, logprobs.top[0].logprob);
        if (temperature == 0) {
          EXPECT_EQ(logprobs.top[0], (Logprob{plain.tokens[t], logprobs.logprob}));
        }
      }
      for (const std::int32_t draft_length : {1, 4, 8}) {
        request.draft_length = draft_length;
        const Generation drafted = answer(client, request);
        EXPECT_EQ(drafted.tokens, plain.tokens);
        EXPECT_EQ(drafted.logprobs, plain.logprobs) << "draft length " << draft_length;
        accepted += drafted.metrics.accepted_tokens;
      }
      request.policy = DraftPolicy::kTree;
      EXPECT_EQ(answer(client, request).logprobs, plain.logprobs) << "trees";
    }
  }
  EXPECT_GT(accepted, 50);
}

TEST_F(AnswerOptions, LogprobsEndWithTheAnswer) {
  Client client = connect();
  Generate request = request_for(goldens_[0], 4);
  request.sampling.logprobs = 0;
  const Stopped stopped = answer_until(client, request, {goldens_[0].text.substr(21, 17)});
  EXPECT_EQ(stopped.generation.logprobs.size(), stopped.generation.tokens.size());
  const Generation whole = answer(client, request);
  EXPECT_EQ(whole.logprobs.size(), whole.tokens.size()) << "a stop id inside a window";
  EXPECT_TRUE(whole.logprobs[0].top.empty());
}

TEST_F(AnswerOptions, ChoicesAreAnswersOfTheirOwn) {
  Client client = connect();
  Generate request = request_for(goldens_[0], 4);
  request.max_tokens = 24;
  request.sampling = {.temperature = 1.5f, .seed = ~std::uint64_t{0}};
  std::set<std::vector<TokenId>> texts;
  const std::vector<TokenId> alone = answer(client, request).tokens;
  for (std::uint64_t choice = 0; choice < 4; ++choice) {
    Generate one = request;
    one.sampling.seed = seed_of_choice(request.sampling.seed, choice);
    texts.insert(answer(client, one).tokens);
  }
  EXPECT_TRUE(texts.contains(alone)) << "the first is that of one choice";
  EXPECT_GE(texts.size(), 3u);
}

TEST_F(AnswerOptions, TypicalKeepsMoreDraftsThanRejection) {
  Client client = connect();
  std::map<SamplingRule, double> rates;
  for (const SamplingRule rule : {SamplingRule::kRejection, SamplingRule::kTypical}) {
    std::int64_t drafted = 0, accepted = 0;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      Generate request = request_for(goldens_[seed % goldens_.size()], 4);
      request.max_tokens = 48;
      request.sampling = {.temperature = 1, .seed = seed, .rule = rule};
      const Generation generation = answer(client, request);
      drafted += generation.metrics.drafted_tokens;
      accepted += generation.metrics.accepted_tokens;
    }
    rates[rule] = static_cast<double>(accepted) / static_cast<double>(drafted);
    std::printf("%s: %.3f of %lld drafts accepted\n", rule == SamplingRule::kTypical ? "typical" : "rejection",
                rates[rule], static_cast<long long>(drafted));
  }
  EXPECT_GT(rates[SamplingRule::kTypical], rates[SamplingRule::kRejection]);
}

// What the C interface is made of.
TEST(PairOptions, SuppressedTokensAreNeverChosen) {
  const NanoGolden golden = nano_goldens()[0];
  const PairCopy copy(nano_pair().backbone.parent_path());
  PairCopy mute(nano_pair().backbone.parent_path());
  mute.write("backbone/generation_config.json",
             fmt::format(R"({{"eos_token_id": [1, 106], "suppress_tokens": [{}]}})", golden.greedy[0]));
  for (const PairCopy* pair : std::initializer_list<const PairCopy*>{&copy, &mute}) {
    const auto opened =
        Pair::open_local({.pair = {.backbone = pair->dir() / "backbone", .assistant = pair->dir() / "assistant"},
                          .weight_type = WeightType::kF32,
                          .verifier = {.threads = 1}})
            .value();
    Client client = opened->connect().value();
    EXPECT_EQ(client.prefill(golden.prompt_ids, opened->text().greedy()).value() == golden.greedy[0], pair == &copy);
    const auto drafts = client.draft(4).value();
    ASSERT_TRUE(client.verify(drafts)) << "goes on";
  }
}

json output_of(Program& run) {
  EXPECT_EQ(describe(run.wait()), "exit 0") << run.err();
  json object = json::parse(run.out(), nullptr, false);
  EXPECT_TRUE(object.is_object()) << run.out();
  return object;
}

TEST(AnswerOptionsProgram, StopAndLogprobs) {
  const NanoGolden golden = nano_goldens()[0];
  const std::string stop = golden.text.substr(21, 17);
  Program run({"run", golden.prompt, "--dtype", "f32", "--stop", "never said", "--stop", stop, "--logprobs", "2",
               "--json", "--compare"});
  const json object = output_of(run);
  EXPECT_EQ(object["text"], golden.text.substr(0, golden.text.find(stop)));
  EXPECT_EQ(object["finish_reason"], "stop");
  ASSERT_EQ(object["logprobs"].size(), object["token_ids"].size());
  const json& first = object["logprobs"][0];
  EXPECT_EQ(first["id"], object["token_ids"][0]);
  EXPECT_EQ(first["top_logprobs"].size(), 2u);
  EXPECT_EQ(first["top_logprobs"][0]["token"], first["token"]);
  EXPECT_LE(first["logprob"].get<double>(), 0);
}

TEST(AnswerOptionsProgram, WhatIsNotTheTargetsTextIsLabelled) {
  Program run(
      {"run", nano_goldens()[0].prompt, "--max-tokens", "12", "--json", "--sample", "--seed", "1", "--typical"});
  const json object = output_of(run);
  EXPECT_EQ(object["lossy"], true);
  EXPECT_EQ(lines_with(run.err(), {"lossy"}).size(), 1u) << run.err();
}

TEST(AnswerOptionsProgram, LogitBiasMovesTheChoice) {
  const NanoGolden golden = nano_goldens()[0];
  Program run({"run", golden.prompt, "--dtype", "f32", "--logit-bias", fmt::format("{}:-100,7:1.5", golden.greedy[0]),
               "--max-tokens", "4", "--json", "--compare"});
  const json object = output_of(run);
  for (const json& id : object["token_ids"]) EXPECT_NE(id, golden.greedy[0]);
  for (const char* wrong : {"5", "5:", ":1", "5:x", "x:5", "5:1:2"}) {
    Program refused({"run", "hello", "--logit-bias", wrong});
    EXPECT_EQ(describe(refused.wait()), "exit 1");
    EXPECT_EQ(lines_with(refused.err(), {"wanted ID:BIAS"}).size(), 1u) << refused.err();
  }
}

TEST(AnswerOptionsProgram, WhatCanNotBeIsSaid) {
  Program empty({"run", "hello", "--stop", ""});
  EXPECT_EQ(describe(empty.wait()), "exit 1");
  EXPECT_EQ(lines_with(empty.err(), {"a stop string of 0 bytes"}).size(), 1u) << empty.err();
}

}  // namespace
}  // namespace outrider
