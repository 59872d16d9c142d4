// Answers that another coordinator began: what a coordinator lets in, and what a client asks for.
#include <gtest/gtest.h>

#include "common/client/client_core.h"
#include "coordinator-node/coordinator_core.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

template <typename T>
std::vector<T> all(const std::vector<Outgoing>& sent, const PeerId& to) {
  std::vector<T> found;
  for (const Outgoing& out : sent) {
    if (const auto* body = std::get_if<T>(&out.message.body); body != nullptr && out.to == to) found.push_back(*body);
  }
  return found;
}

class Resume : public testing::Test {
 protected:
  void join(const PeerId& peer, const std::string& numeric_class) {
    const PairFacts facts{.hidden_size = 2, .vocab_size = 100, .context_max = 1000};
    core_.on_message(
        peer,
        {.body =
             Hello{.role = Role::kVerifier, .name = "name of " + peer, .facts = facts, .numeric_class = numeric_class}},
        now_);
  }
  /// An answer of 9 tokens, of which 40 and 41 have come.
  static Generate request() {
    return {.prompt = {1, 2, 3, 40, 41},
            .max_tokens = 9,
            .stop_ids = {7},
            .wait_ms = 1000,
            .answered = 2,
            .numeric_class = "this",
            .verifier_name = "name of v"};
  }
  void ask(const Generate& request, const PeerId& client = "c") {
    core_.on_message(client, {.session = SessionId{9}, .body = request}, now_);
  }
  void pass(Duration time) {
    for (const TimePoint end = now_ + time; now_ < end;) {
      now_ += milliseconds(500);
      for (const auto& [peer, worker] : core_.fleet().workers()) heard_.push_back(peer);
      for (const PeerId& peer : std::exchange(heard_, {})) core_.on_message(peer, {.body = Heartbeat{}}, now_);
      core_.on_tick(now_);
    }
  }
  std::vector<Outgoing> sent() { return core_.take_output().send; }
  std::size_t prefills(const PeerId& verifier) { return all<Prefill>(sent(), verifier).size(); }

  CoordinatorCore core_{{.instance = 50}};
  TimePoint now_{seconds(100)};
  std::vector<PeerId> heard_;
};

TEST_F(Resume, GoesOnWhereItWas) {
  join("v", "this");
  sent();
  ask(request());
  const auto prefill = all<Prefill>(sent(), "v");
  ASSERT_EQ(prefill.size(), 1u);
  EXPECT_EQ(prefill[0].tokens, (std::vector<TokenId>{1, 2, 3, 40}));
  EXPECT_EQ(prefill[0].answered, 1);
  core_.on_message(
      "v", {.session = SessionId{50}, .body = Verdict{.next_token = 41, .committed = 4, .cached_tokens = 4}}, now_);
  auto out = sent();
  EXPECT_TRUE(all<Tokens>(out, "c").empty()) << "the client has it";
  ASSERT_EQ(all<Verify>(out, "v").size(), 1u);
  EXPECT_EQ(all<Verify>(out, "v")[0].tokens, std::vector<TokenId>{41});
  core_.on_message(
      "v", {.session = SessionId{50}, .round = RoundId{1}, .body = Verdict{.next_token = 7, .committed = 5}}, now_);
  out = sent();
  ASSERT_EQ(all<Tokens>(out, "c").size(), 1u);
  EXPECT_EQ(all<Tokens>(out, "c")[0], (Tokens{.index = 2, .tokens = {7}}));
  ASSERT_EQ(all<Done>(out, "c").size(), 1u);
  EXPECT_EQ(all<Done>(out, "c")[0].metrics.cached_prompt_tokens, 3);
  EXPECT_EQ(core_.status().failovers.resumed, 1);
}

TEST_F(Resume, WaitsForTheVerifierThatHasItsRowsAndNotForLong) {
  join("w", "this");
  join("x", "other");
  sent();
  ask(request());
  EXPECT_EQ(prefills("w"), 0u);
  join("v", "this");
  EXPECT_EQ(prefills("v"), 1u);
  ask(request(), "d");
  Generate homeless = request();
  homeless.verifier_name = "name of one that is gone";
  ask(homeless, "e");
  EXPECT_EQ(prefills("w"), 0u);
  pass(seconds(3));
  EXPECT_GE(prefills("w"), 1u);
}

TEST_F(Resume, AWordAgainstAVerifierFailsTheRequestAlone) {
  join("v", "this");
  ask(request());
  sent();
  core_.on_message("v", {.session = SessionId{50}, .body = Verdict{.next_token = 42, .committed = 4}}, now_);
  const auto failed = all<Failed>(sent(), "c");
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].code, Errc::kMismatch);
  EXPECT_FALSE(core_.fleet().workers().at("v").suspect);
  EXPECT_EQ(core_.status().sessions, 0);
}

TEST_F(Resume, RefusesWhatNoAnswerCanBe) {
  join("v", "this");
  sent();
  const auto refused = [&](const std::function<void(Generate&)>& change) {
    Generate generate = request();
    change(generate);
    ask(generate);
    const auto out = sent();
    return all<Failed>(out, "c").size() == 1 && all<Prefill>(out, "v").empty();
  };
  EXPECT_FALSE(refused([](Generate&) {}));
  core_.on_message("c", {.session = SessionId{9}, .body = Cancel{}}, now_);
  sent();
  EXPECT_TRUE(refused([](Generate& m) { m.answered = 5; })) << "no prompt is left";
  EXPECT_TRUE(refused([](Generate& m) { m.answered = 6; })) << "more than all of its tokens";
  EXPECT_TRUE(refused([](Generate& m) { m.answered = kPositions.max; }));
  EXPECT_TRUE(refused([](Generate& m) { m.max_tokens = 2; })) << "it has its answer";
  EXPECT_TRUE(refused([](Generate& m) { m.max_tokens = std::numeric_limits<std::int64_t>::max(); }));
  EXPECT_TRUE(refused([](Generate& m) { m.stop_ids = {40}; }));
  EXPECT_TRUE(refused([](Generate& m) { m.prompt[3] = 100; })) << "beyond the vocabulary";
}

TEST_F(Resume, AClassThatNobodyHasHoldsUpNobodyElse) {
  join("v", "this");
  sent();
  Generate stranger = request();
  stranger.numeric_class = "of another world";
  ask(stranger, "liar");
  ask({.prompt = {1, 2, 3}, .max_tokens = 5, .wait_ms = 1000}, "honest");
  EXPECT_EQ(prefills("v"), 1u);
  pass(seconds(29));
  EXPECT_TRUE(all<Failed>(sent(), "liar").empty()) << "it may yet join";
  pass(seconds(2));
  EXPECT_EQ(all<Failed>(sent(), "liar").size(), 1u);
}

TEST_F(Resume, StandsInTheLineLikeAnybody) {
  join("v", "this");
  sent();
  for (std::uint64_t number = 1; number <= 12; ++number) {
    Generate generate = request();
    generate.on_behalf_of = "one";
    core_.on_message("c", {.session = SessionId{number}, .body = generate}, now_);
  }
  EXPECT_EQ(prefills("v"), static_cast<std::size_t>(AdmissionQueue::kStartingMax)) << "without a token of ours";
}

// ---- the client ----

class Asking : public testing::Test {
 protected:
  Asking() {
    events_.on_tokens = [&](std::size_t, std::span<const TokenId> tokens) {
      tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    };
    events_.on_end = [&](std::size_t, const Generation& generation) { ended_ = generation; };
  }
  /// What it asked for since the last call.
  std::vector<Message> asked() {
    std::vector<Message> generates;
    for (Message& message : core_.take_output().send) {
      if (std::holds_alternative<Generate>(message.body)) generates.push_back(std::move(message));
    }
    return generates;
  }
  Generate ask_for() {
    const std::vector<Message> messages = asked();
    EXPECT_EQ(messages.size(), 1u);
    id_ = messages.at(0).session;
    return std::get<Generate>(messages[0].body);
  }
  void hear(Body body) { EXPECT_TRUE(core_.on_message({.session = id_, .body = std::move(body)}, now_)); }

  const std::vector<Generate> requests_ = {
      {.prompt = {1, 2}, .max_tokens = 1'000'000, .stop_ids = {7}, .shorten = true}};
  AnswerEvents events_;
  std::vector<TokenId> tokens_;
  std::optional<Generation> ended_;
  TimePoint now_{seconds(100)};
  SessionId id_{};
  ClientCore core_{{}, requests_, events_, SessionId{}, now_};
};

TEST_F(Asking, BringsTheAnswerSoFarToTheNextCoordinator) {
  EXPECT_EQ(ask_for(), requests_[0]);
  hear(Tokens{.index = 0,
              .tokens = {40},
              .numeric_class = "this",
              .verifier_name = "v",
              .max_tokens = 50,
              .encoding_class = "soft"});
  hear(Tokens{.index = 1, .tokens = {41, 42}});
  const SessionId before = id_;
  EXPECT_TRUE(core_.on_connected(now_));
  const Generate again = ask_for();
  EXPECT_NE(id_, before);
  EXPECT_EQ(again.prompt, (std::vector<TokenId>{1, 2, 40, 41, 42}));
  EXPECT_EQ(again.answered, 3);
  EXPECT_EQ(again.max_tokens, 50) << "as the first coordinator lowered it";
  EXPECT_FALSE(again.shorten);
  EXPECT_EQ(again.numeric_class, "this");
  EXPECT_EQ(again.encoding_class, "soft");
  EXPECT_EQ(again.verifier_name, "v");
  EXPECT_TRUE(core_.on_message({.session = before, .body = Tokens{.index = 3, .tokens = {43}}}, now_));
  EXPECT_EQ(tokens_.size(), 3u) << "a late word of the first one's";
  now_ += seconds(2);
  hear(Tokens{.index = 3, .tokens = {43, 7}});
  hear(Done{});
  EXPECT_EQ(tokens_, (std::vector<TokenId>{40, 41, 42, 43, 7}));
  ASSERT_TRUE(ended_);
  EXPECT_EQ(ended_->metrics.resumes, 1);
  EXPECT_EQ(Duration(ended_->metrics.resume_ns), seconds(2));
}

TEST_F(Asking, AsksForNothingWhenItsAnswerIsWhole) {
  ask_for();
  hear(Tokens{.index = 0, .tokens = {40, 7}});
  EXPECT_TRUE(core_.on_connected(now_));
  EXPECT_TRUE(asked().empty());
  ASSERT_TRUE(ended_);
  EXPECT_EQ(ended_->reason, FinishReason::kStop);
  EXPECT_EQ(core_.open(), 0u);
}

TEST_F(Asking, AsksAgainForWhatWasLostAndWhereThereIsTooMuchToDo) {
  ask_for();
  hear(Tokens{.index = 0, .tokens = {40}});
  hear(Tokens{.index = 3, .tokens = {43}});
  EXPECT_EQ(ask_for().answered, 1);
  EXPECT_EQ(tokens_.size(), 1u);
  hear(Failed{Errc::kUnavailable, "too many are waiting"});
  EXPECT_TRUE(asked().empty());
  now_ += seconds(1);
  EXPECT_TRUE(core_.on_tick(now_));
  EXPECT_EQ(ask_for().answered, 1);
  now_ += seconds(40);
  EXPECT_FALSE(core_.on_message({.session = id_, .body = Failed{Errc::kUnavailable, "too many are waiting"}}, now_));
}

TEST_F(Asking, AnAnswerThatKillsCoordinatorsEnds) {
  ask_for();
  hear(Heartbeat{});
  int lost = 0;
  while (core_.on_connected(now_) && lost < 100) ++lost;
  EXPECT_EQ(lost, ClientConfig().restarts_max);
}

TEST_F(Asking, AFirstCoordinatorHasThreeSeconds) {
  now_ += seconds(4);
  const auto silent = core_.on_tick(now_);
  ASSERT_FALSE(silent);
  EXPECT_EQ(silent.error().code, Errc::kPeerGone);
}

std::ptrdiff_t status_requests(const ClientCore::Output& output) {
  return std::ranges::count_if(output.send,
                               [](const Message& sent) { return std::holds_alternative<StatusRequest>(sent.body); });
}

// A coordinator that came back while its workers are at the stand-by.
TEST_F(Asking, ANewAnswerLeavesACoordinatorWithoutAVerifierAtOnceAndOnceAround) {
  ClientCore core({.places = 2}, requests_, events_, SessionId{}, now_);
  for (int place = 0; place < 2; ++place) {
    EXPECT_EQ(status_requests(core.take_output()), 1);
    EXPECT_TRUE(core.on_message({.body = Status{}}, now_));
    EXPECT_TRUE(core.take_output().redial);
    EXPECT_TRUE(core.on_message({.body = Status{}}, now_)) << "a late word of the one that it leaves";
    EXPECT_FALSE(core.take_output().redial);
    EXPECT_TRUE(core.on_connected(now_));
  }
  EXPECT_EQ(status_requests(core.take_output()), 0) << "all have been asked";
  EXPECT_TRUE(core.on_message({.session = core.last(), .body = Tokens{.index = 0, .tokens = {40}}}, now_));
  EXPECT_TRUE(core.on_connected(now_));
  const ClientCore::Output output = core.take_output();
  EXPECT_EQ(status_requests(output), 0) << "its verifier may be on its way";
  EXPECT_EQ(std::get<Generate>(output.send.back().body).answered, 1);
}

// Workers may have gone to a coordinator after it was left: so not once around alone.
TEST_F(Asking, LeavesACoordinatorThatHasHadNoVerifierForAWhileAsLongAsItMayWait) {
  ClientCore core({.places = 2}, requests_, events_, SessionId{}, now_);
  const auto look = [&](std::int32_t verifiers) {
    EXPECT_TRUE(core.on_message({.body = Heartbeat{}}, now_));
    core.take_output();
    now_ += milliseconds(2500);
    EXPECT_TRUE(core.on_tick(now_));
    if (status_requests(core.take_output()) == 0) return false;
    EXPECT_TRUE(core.on_message({.body = Status{.verifiers = verifiers}}, now_));
    return core.take_output().redial;
  };
  EXPECT_TRUE(core.on_message({.session = core.last(), .body = Tokens{.index = 0, .tokens = {40}}}, now_));
  EXPECT_FALSE(look(1)) << "it takes its time";
  const TimePoint token = now_ - milliseconds(2500);
  while (now_ - token + milliseconds(2500) <= ClientConfig().failover_wait) {
    EXPECT_TRUE(look(0)) << to_seconds(now_ - token) << " s after its last token";
    EXPECT_TRUE(core.on_connected(now_)) << "nothing was lost with a coordinator that had no verifier";
  }
  EXPECT_FALSE(look(0)) << "its coordinator says so in the end";
  EXPECT_TRUE(core.on_message({.session = core.last(), .body = Tokens{.index = 1, .tokens = {41}}}, now_));
  EXPECT_TRUE(look(0)) << "it lost its verifier later";
}

TEST_F(Asking, IsRefusedForGoodOnlyWhereThereIsAVerifierOrNoOtherCoordinator) {
  const Failed none{Errc::kUnavailable, "no verifier joined within 0.0 s"};
  for (const int with_verifier : {0, 1, 2, 3, 4}) {
    ClientCore core({.places = 2}, requests_, events_, SessionId{}, now_);
    for (int place = 0; place < 4; ++place) {  // at once, and again
      core.take_output();
      ASSERT_TRUE(core.on_message({.session = core.last(), .body = none}, now_));
      EXPECT_EQ(status_requests(core.take_output()), 1);
      const bool has_one = place == with_verifier;
      const Result<void> said = core.on_message({.body = Status{.verifiers = has_one ? 1 : 0}}, now_);
      EXPECT_EQ(said.has_value(), !has_one);
      if (!said) break;
      EXPECT_TRUE(core.take_output().redial);
      ASSERT_TRUE(core.on_connected(now_));
      const ClientCore::Output output = core.take_output();
      ASSERT_FALSE(output.send.empty());
      EXPECT_EQ(std::get<Generate>(output.send[0].body), requests_[0]) << "the same again";
      EXPECT_EQ(std::ssize(output.send), 1 + status_requests(output));
    }
    if (with_verifier < 4) continue;
    EXPECT_FALSE(core.on_message({.session = core.last(), .body = none}, now_)) << "twice around";
  }
}

TEST_F(Asking, ForgetsTheRefusalOfACoordinatorThatIsGone) {
  ClientCore core({.places = 2}, requests_, events_, SessionId{}, now_);
  ASSERT_TRUE(core.on_message({.session = core.last(), .body = Failed{Errc::kUnavailable, "full"}}, now_));
  ASSERT_TRUE(core.on_connected(now_)) << "before it could say whether it has a verifier";
  EXPECT_TRUE(core.on_message({.body = Status{.verifiers = 1}}, now_));
  EXPECT_EQ(core.open(), 1u);
}

TEST_F(Asking, StaysWhereThereIsNoOtherCoordinator) {
  now_ += milliseconds(2500);
  EXPECT_TRUE(core_.on_tick(now_));
  EXPECT_EQ(core_.take_output().send.size(), 1u) << "its request alone";
  hear(Status{});
  EXPECT_FALSE(core_.take_output().redial);
}

TEST_F(Asking, LooksForAnotherCoordinatorAndGivesUpInTime) {
  hear(Heartbeat{});
  core_.take_output();
  now_ += seconds(4);
  EXPECT_TRUE(core_.on_tick(now_));
  EXPECT_TRUE(core_.take_output().redial);
  EXPECT_TRUE(core_.on_tick(now_));
  EXPECT_FALSE(core_.take_output().redial) << "it takes its time to answer";
  now_ += seconds(27);
  const auto given_up = core_.on_tick(now_);
  ASSERT_FALSE(given_up);
  EXPECT_EQ(given_up.error().code, Errc::kPeerGone);
}

}  // namespace
}  // namespace outrider
