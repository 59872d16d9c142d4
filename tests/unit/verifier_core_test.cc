#include "verifier-node/verifier_core.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/driven_core.h"
#include "tests/unit/protocol_support.h"

namespace outrider {
namespace {

TEST(Pause, OfAVerifierIsNotTheSilenceOfItsCoordinator) {
  Loop loop;
  Driven<VerifierCore> core({.rows_max = 8}, hello(Role::kVerifier));
  core.on_message({.body = Welcome{1}}, loop.now());
  core.on_message({.session = SessionId{1}, .body = Prefill{.tokens = {1, 2, 3}}}, loop.now());
  ASSERT_EQ(core.take_batch().size(), 1u);
  core.on_batch_done({{.session = SessionId{1}}}, loop.now());
  check_worker_pause(core, loop);
}

class Verifier : public testing::Test {
 protected:
  Verifier() : core_({.rows_max = 8, .prefill_chunk = 4}, hello(Role::kVerifier)) {
    core_.on_message({.body = Welcome{1}}, now_);
  }
  void prefill(std::uint64_t session, std::size_t tokens) {
    core_.on_message(
        {.session = SessionId{session}, .body = Prefill{.tokens = std::vector<TokenId>(tokens, 1), .kv_from = 0}},
        now_);
  }
  void done(const std::vector<VerifyWork>& batch) {
    std::vector<VerifyResult> results;
    for (const VerifyWork& work : batch) {
      const Position to = work.base + (work.prefill ? std::ssize(work.tokens) : 1);
      results.push_back({.session = work.session, .round = work.round, .verdict = {.kv = rows(work.base, to)}});
    }
    core_.on_batch_done(std::move(results), now_);
  }
  Driven<VerifierCore> core_;
  TimePoint now_{std::chrono::seconds(1)};
};

TEST_F(Verifier, TextsThatFillEveryForwardDoNotKeepAPromptOut) {
  for (const std::uint64_t session : {1, 2}) {
    prefill(session, 3);
    done(core_.take_batch());
  }
  prefill(3, 4);
  int without = 0;
  for (std::uint32_t round = 1; round < 6; ++round) {
    for (const std::uint64_t session : {1, 2}) {
      core_.on_message({.session = SessionId{session},
                        .round = RoundId{round},
                        .base = 2 + Position{round},
                        .body = Verify{std::vector<TokenId>(4, 1), std::nullopt}},
                       now_);
    }
    const auto batch = core_.take_batch();
    const bool prompt = std::any_of(batch.begin(), batch.end(), [](const VerifyWork& work) { return work.prefill; });
    done(batch);
    if (prompt) break;
    ++without;
  }
  EXPECT_EQ(without, 1);
}

// From the first of them: the policy takes what is missing for a cost of every round.
TEST_F(Verifier, TellsHowLongARequestWaitedHoweverOftenItWasRepeated) {
  prefill(1, 3);
  done(core_.take_batch());
  prefill(2, 8);
  const auto ahead = core_.take_batch();
  const Message verify{.session = SessionId{1}, .round = RoundId{1}, .base = 3, .body = Verify{{1}}};
  core_.on_message(verify, now_);
  for (int repeats = 0; repeats < 2; ++repeats) core_.on_message(verify, now_ += seconds(2));
  done(ahead);
  core_.take_outgoing();
  done(core_.take_batch());
  Message message;
  const auto out = core_.take_outgoing();
  const Verdict* verdict = find<Verdict>(out, "", &message);
  ASSERT_NE(verdict, nullptr);
  EXPECT_EQ(message.session, SessionId{1});
  EXPECT_EQ(verdict->waited_ns, Duration(seconds(4)).count());
}

// Once might be lost, and a coordinator that has lost this verifier forgets it.
TEST_F(Verifier, SaysAgainAndAgainThatItDrains) {
  core_.drain();
  std::ptrdiff_t times = 0;
  for (int i = 0; i < 4; ++i) {
    now_ += milliseconds(500);
    core_.on_tick(now_);
    for (const Outgoing& out : core_.take_outgoing()) times += std::holds_alternative<Drain>(out.message.body);
  }
  EXPECT_EQ(times, 5);
}

TEST(VerifierScores, APromptsTokensAreScoredAFewAtATimeAndNoneIsTakenFromTheCache) {
  VerifierCore core({.rows_max = 64, .prefill_chunk = 64, .scored_rows_max = 4, .reuse_min = 1},
                    hello(Role::kVerifier));
  const TimePoint now{seconds(1)};
  core.on_message({.body = Welcome{1}}, now);
  std::vector<TokenId> prompt(10);
  std::iota(prompt.begin(), prompt.end(), 1);
  for (const std::uint64_t session : {1, 2}) {
    Prefill body{.tokens = prompt};
    body.sampling.prompt_logprobs = 0;
    core.on_message({.session = SessionId{session}, .body = std::move(body)}, now);
  }
  std::map<SessionId, std::vector<TokenId>> scored;
  std::map<SessionId, Position> told;
  while (true) {
    core.on_tick(now);
    auto output = core.take_output();
    for (const Outgoing& outgoing : output.send) {
      const auto* scores = std::get_if<PromptScores>(&outgoing.message.body);
      if (scores == nullptr) continue;
      Position& end = told.try_emplace(outgoing.message.session, 1).first->second;
      EXPECT_EQ(scores->first, end);
      end += std::ssize(scores->logprobs);
    }
    if (output.batch.empty()) break;
    std::int64_t rows = 0;
    std::vector<VerifyResult> results;
    for (const VerifyWork& work : output.batch) {
      EXPECT_FALSE(work.reuse) << "K/V that are there have no logits";
      rows += std::ssize(work.tokens);
      std::ranges::copy(work.scored, std::back_inserter(scored[work.session]));
      results.push_back({.session = work.session, .round = work.round, .verdict = {}});
      results.back().scores.resize(work.scored.size(), {.logprob = -1, .top = {}});
    }
    EXPECT_LE(rows, 4) << "of both together";
    core.on_batch_done(std::move(results), now);
  }
  const std::vector<TokenId> all_but_the_first(prompt.begin() + 1, prompt.end());
  for (const std::uint64_t session : {1, 2}) {
    EXPECT_EQ(scored[SessionId{session}], all_but_the_first);
    EXPECT_EQ(told[SessionId{session}], 10) << "each once, in their order";
  }
}

TEST(VerifierGrammar, APromptWaitsForItsGrammarAndOthersDoNot) {
  std::map<std::string, Result<std::shared_ptr<const Grammar>>> ready;
  std::map<std::string, std::weak_ptr<int>> waiting;
  std::string client;
  const auto want = [&](const std::string& text, const std::string& who) -> VerifierConfig::GrammarWait {
    client = who;
    const auto waits = std::make_shared<int>();
    waiting[text] = waits;
    return [&, text, waits] { return ready.at(text); };
  };
  VerifierCore core({.rows_max = 8, .want_grammar = want}, hello(Role::kVerifier));
  const std::shared_ptr<const Grammar> grammar(std::make_shared<int>(), reinterpret_cast<const Grammar*>(&ready));
  const TimePoint now{seconds(1)};
  ready.emplace("slow", std::shared_ptr<const Grammar>());
  ready.emplace("broken", Error{Errc::kInvalidArgument, "no grammar"});
  // What comes of a Prefill, after one turn of the loop.
  const auto prefill = [&](std::uint64_t session, const std::string& text) {
    Prefill body{.tokens = {1, 2, 3}, .cache_scope = "theirs"};
    body.sampling.grammar = text;
    core.on_message({.session = SessionId{session}, .body = std::move(body)}, now);
    core.on_tick(now);
    return core.take_output();
  };
  core.on_message({.body = Welcome{1}}, now);
  core.on_tick(now);
  core.take_output();
  EXPECT_NE(find<Heartbeat>(prefill(1, "slow").send, ""), nullptr) << "it is in work";
  EXPECT_EQ(core.session_count(), 1u) << "a node that drains does not end without it";
  const auto other = prefill(2, "");
  ASSERT_EQ(other.batch.size(), 1u);
  EXPECT_EQ(other.batch[0].session, SessionId{2});
  core.on_batch_done({{.session = SessionId{2}}}, now);
  core.take_output();
  core.on_tick(now);
  EXPECT_TRUE(core.take_output().send.empty()) << "nothing is said again and again";
  EXPECT_NE(find<Heartbeat>(prefill(1, "slow").send, ""), nullptr) << "but to whoever asks again";
  const auto refused = prefill(3, "broken").send;
  ASSERT_NE(find<Failed>(refused, ""), nullptr);
  EXPECT_EQ(find<Failed>(refused, "")->message, "no grammar");
  EXPECT_EQ(client, "theirs");
  ready.emplace("dropped", std::shared_ptr<const Grammar>());
  prefill(4, "dropped");
  EXPECT_FALSE(waiting["dropped"].expired());
  core.on_message({.session = SessionId{4}, .body = Free{}}, now);
  EXPECT_TRUE(waiting["dropped"].expired()) << "nobody waits for it any more";
  ready.insert_or_assign("slow", grammar);
  core.on_tick(now);
  const auto begun = core.take_output().batch;
  ASSERT_EQ(begun.size(), 1u) << "the one that was freed does not come back";
  EXPECT_EQ(begun[0].session, SessionId{1});
  EXPECT_EQ(begun[0].sampling.grammar, "slow");
  EXPECT_EQ(begun[0].grammar, grammar) << "nobody drives it out in between";
}

TEST(VerifierGrammar, IsRefusedWhereNoneCanBeFollowed) {
  Driven<VerifierCore> core({.rows_max = 8}, hello(Role::kVerifier));
  core.on_message({.body = Welcome{1}}, TimePoint{seconds(1)});
  Prefill body{.tokens = {1}};
  body.sampling.grammar = "root ::= \"a\"";
  core.on_message({.session = SessionId{1}, .body = std::move(body)}, TimePoint{seconds(1)});
  const auto sent = core.take_outgoing();
  ASSERT_NE(find<Failed>(sent, ""), nullptr);
  EXPECT_EQ(find<Failed>(sent, "")->code, Errc::kUnsupported);
}

// One row left over in every forward is hardly better than none; and texts must not wait for ever either.
TEST_F(Verifier, VerdictsOfOnePassHaveItsNumberAndNoOthers) {
  std::map<std::int64_t, int> told;  // verdicts by their passes' numbers
  for (const std::uint64_t session : {1, 2}) prefill(session, 2);
  done(core_.take_batch());
  for (std::uint32_t round = 1; round < 4; ++round) {
    for (const std::uint64_t session : {1, 2}) {
      core_.on_message({.session = SessionId{session},
                        .round = RoundId{round},
                        .base = 1 + Position{round},
                        .body = Verify{{1}, std::nullopt}},
                       now_);
    }
    const auto batch = core_.take_batch();
    ASSERT_EQ(batch.size(), 2u);
    done(batch);
    for (const Outgoing& outgoing : core_.take_outgoing()) {
      if (const auto* verdict = std::get_if<Verdict>(&outgoing.message.body)) ++told[verdict->pass];
    }
  }
  EXPECT_EQ(told.size(), 4u) << "the prompts' and three rounds'";
  for (const auto& [pass, verdicts] : told) {
    EXPECT_GT(pass, 0);
    EXPECT_EQ(verdicts, 2) << pass;
  }
}

TEST_F(Verifier, TextsThatNearlyFillEveryForwardShareItWithPrompts) {
  const auto verify = [&](std::uint64_t session, std::uint32_t round, Position base) {
    core_.on_message({.session = SessionId{session},
                      .round = RoundId{round},
                      .base = base,
                      .body = Verify{std::vector<TokenId>(7, 1), std::nullopt}},
                     now_);
  };
  prefill(1, 1);
  done(core_.take_batch());
  verify(1, 1, 1);  // 7 of the forward's 8 rows, always
  prefill(2, 12);
  prefill(3, 13);
  std::vector<std::int64_t> prompt_rows;
  std::uint32_t verified = 0;
  for (int forward = 0; forward < 6; ++forward) {
    const auto batch = core_.take_batch();
    std::int64_t count = 0;
    for (const VerifyWork& work : batch) count += work.prefill ? std::ssize(work.tokens) : 0;
    prompt_rows.push_back(count);
    done(batch);
    if (std::none_of(batch.begin(), batch.end(), [](const VerifyWork& work) { return !work.prefill; })) continue;
    ++verified;
    verify(1, verified + 1, 1 + Position{verified});
  }
  EXPECT_EQ(prompt_rows, (std::vector<std::int64_t>{1, 8, 1, 8, 1, 6}));
  EXPECT_EQ(verified, 3u);
}

// Two prompts begin alike and go on with other pictures, which have to be whole in a forward pass. While others' rounds
// leave too little room for one, it neither waits for ever nor loses the K/V that it takes from the first.
TEST(VerifierPictures, HaveRoomAndWhatTheyReuseInTheEnd) {
  const std::int64_t rows = 6;
  TimePoint now{std::chrono::seconds(1)};
  VerifierConfig config{.rows_max = 8, .prefill_chunk = 4, .reuse_min = 4};
  config.soft_tokens = [&](const WireMedium&) -> Result<SoftTokens> { return SoftTokens{rows, /*together=*/true}; };
  Driven<VerifierCore> core(config, hello(Role::kVerifier));
  core.on_message({.body = Welcome{1}}, now);
  const auto done = [&](const std::vector<VerifyWork>& batch) {
    std::vector<VerifyResult> results;
    for (const VerifyWork& work : batch) results.push_back({.session = work.session, .round = work.round});
    core.on_batch_done(std::move(results), now);
  };
  const auto ask = [&](std::uint64_t session, std::uint8_t color) {
    Prefill prefill{.tokens = std::vector<TokenId>(12, 1)};
    const auto pixels = std::make_shared<const std::vector<std::uint8_t>>(3, color);
    const SharedBytes bytes(pixels, std::as_bytes(std::span(*pixels)));
    prefill.media.push_back({.first = 4, .content = {.dtype = DType::kU8, .shape = {1, 1, 3}, .data = bytes}});
    core.on_message({.session = SessionId{session}, .body = std::move(prefill)}, now);
  };
  ask(1, 1);
  for (auto batch = core.take_batch(); !batch.empty(); batch = core.take_batch()) done(batch);
  core.on_message({.session = SessionId{9}, .body = Prefill{.tokens = {7}}}, now);
  done(core.take_batch());
  ask(2, 2);
  core.on_message({.session = SessionId{3}, .body = Prefill{.tokens = std::vector<TokenId>(100, 3)}}, now);
  std::optional<VerifyWork> first;
  for (std::uint32_t round = 1; round <= 4 && !first; ++round) {
    core.on_message({.session = SessionId{9},
                     .round = RoundId{round},
                     .base = Position{round},
                     .body = Verify{std::vector<TokenId>(4, 1), std::nullopt}},
                    now);
    const auto batch = core.take_batch();
    for (const VerifyWork& work : batch)
      if (work.session == SessionId{2}) first = work;
    done(batch);
  }
  ASSERT_TRUE(first) << "the rounds of a sequence and a long prompt kept it out";
  EXPECT_EQ(first->base, 4);
  EXPECT_EQ(std::ssize(first->tokens), rows);
  ASSERT_TRUE(first->reuse);
  EXPECT_EQ(first->reuse->from, SessionId{1});
}

}  // namespace
}  // namespace outrider
