#include <gtest/gtest.h>

#include "tests/unit/protocol_support.h"

namespace outrider {
namespace {

// ---- pauses ----

/// A worker's core with one session that waits for a request.
void check_worker_pause(auto& core, Loop& loop) {
  ASSERT_EQ(core.session_count(), 1u);
  loop.pause(std::chrono::minutes(10));
  loop.run(core, milliseconds(20));
  EXPECT_TRUE(core.link().joined());
  EXPECT_EQ(core.session_count(), 1u);
  loop.run(core, milliseconds(3100));
  EXPECT_FALSE(core.link().joined());
}

TEST(Pause, OfAVerifierIsNotTheSilenceOfItsCoordinator) {
  Loop loop;
  VerifierCore core({.rows_max = 8}, hello(Role::kVerifier));
  core.on_message({.body = Welcome{1}}, loop.now());
  core.on_message({.session = SessionId{1}, .body = Prefill{.tokens = {1, 2, 3}}}, loop.now());
  ASSERT_EQ(core.take_batch().size(), 1u);
  core.on_batch_done({{.session = SessionId{1}, .hidden = std::nullopt, .kv = {}}}, loop.now());
  check_worker_pause(core, loop);
}

TEST(Pause, OfADrafterIsNotTheSilenceOfItsCoordinator) {
  Loop loop;
  DrafterCore core({}, hello(Role::kDrafter));
  core.on_message({.body = Welcome{1}}, loop.now());
  core.on_message({.session = SessionId{1}, .body = KvChunk{rows(0, 3)}}, loop.now());
  check_worker_pause(core, loop);
}

// ---- facts ----

TEST(PairFacts, MismatchNamesBothSides) {
  PairFacts other = small_facts();
  EXPECT_EQ(mismatch(small_facts(), other), std::nullopt);
  other.vocab_size = 99;
  EXPECT_EQ(*mismatch(small_facts(), other), "vocab_size: verifier has 100, drafter has 99");
  other = small_facts();
  other.donors[1].layer = 3;
  EXPECT_NE(mismatch(small_facts(), other)->find("layer 3"), std::string::npos);
  other = small_facts();
  other.embedding_fingerprint = 8;
  EXPECT_NE(mismatch(small_facts(), other)->find("fingerprint"), std::string::npos);
  other = small_facts();
  other.context_max = 5;  // the verifier's holds
  EXPECT_EQ(mismatch(small_facts(), other), std::nullopt);
}

TEST(PairFacts, RowsMustFitTheHandshakeAndReachTheWindow) {
  EXPECT_TRUE(check_rows(small_facts(), rows(0, 9)));
  KvRows late = rows(0, 9);
  late.donors[0] = {7, zeros({2, 1, 2}), zeros({2, 1, 2})};  // a draft at 9 sees rows 5..8
  EXPECT_FALSE(check_rows(small_facts(), late));
  KvRows wide = rows(0, 9);
  wide.donors[1].value = zeros({9, 2, 2});
  EXPECT_FALSE(check_rows(small_facts(), wide));
  KvRows one = rows(0, 9);
  one.donors.pop_back();
  EXPECT_FALSE(check_rows(small_facts(), one));
}

// ---- drafter ----

class Drafter : public testing::Test {
 protected:
  Drafter() : core_({}, hello(Role::kDrafter)) { core_.on_message({.body = Welcome{1}}, now_); }
  void draft(std::uint32_t round, Position base, KvRows kv, std::uint64_t session = 1) {
    const Message rows{.session = SessionId{session}, .round = RoundId{round}, .body = KvChunk{std::move(kv)}};
    core_.on_message(rows, now_);
    core_.on_message({.session = SessionId{session},
                      .round = RoundId{round},
                      .base = base,
                      .body = Draft{.token = 5, .draft_length = 2, .hidden = zeros({2})}},
                     now_);
  }
  DrafterCore core_;
  TimePoint now_{seconds(1)};
};

TEST_F(Drafter, AsksForRowsThatWereLost) {
  core_.on_message({.session = SessionId{1}, .body = KvChunk{rows(0, 4)}}, now_);
  draft(1, 9, rows(6, 9));
  const auto out = core_.take_outgoing();
  ASSERT_NE(find<NeedKv>(out, ""), nullptr);
  EXPECT_EQ(find<NeedKv>(out, "")->have, 4);
  draft(2, 9, rows(4, 9));
  const auto work = core_.take_work();
  ASSERT_EQ(work.back().kind, DraftWork::Kind::kDraft);
}

TEST_F(Drafter, RepeatsItsAnswerAndDropsTheLate) {
  draft(3, 4, rows(0, 4));
  const auto work = core_.take_work();
  ASSERT_EQ(work.size(), 2u);
  core_.on_drafted(work[1], {.tokens = {7, 8}, .q = {}, .draft_ns = 1});
  EXPECT_EQ(find<Candidates>(core_.take_outgoing(), "")->tokens.size(), 2u);
  draft(3, 4, rows(0, 4));
  EXPECT_TRUE(core_.take_work().empty());
  const auto repeated = core_.take_outgoing();
  ASSERT_NE(find<Candidates>(repeated, ""), nullptr);
  draft(2, 3, rows(0, 3));
  EXPECT_TRUE(core_.take_work().empty());
  EXPECT_TRUE(core_.take_outgoing().empty());
}

TEST_F(Drafter, DraftsOneAtATimeWithTheRowsOfAllFirst) {
  draft(1, 4, rows(0, 4), 1);
  draft(1, 3, rows(0, 3), 2);
  draft(1, 3, rows(0, 3), 2);  // repeated
  const auto first = core_.take_work();
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0].kv.to, 4);
  EXPECT_EQ(first[1].kv.to, 3);
  EXPECT_EQ(first[2].kind, DraftWork::Kind::kDraft);
  EXPECT_EQ(first[2].session, SessionId{1});
  const auto second = core_.take_work();
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].session, SessionId{2});
  EXPECT_TRUE(core_.take_work().empty());
}

TEST_F(Drafter, WhatNobodyWaitsForExtendsTheReplicaAndIsNotDrafted) {
  draft(1, 4, rows(0, 4));
  draft(2, 6, rows(4, 6));  // the coordinator went on without the drafts of round 1
  auto work = core_.take_work();
  ASSERT_EQ(work.size(), 3u);
  EXPECT_EQ(work[0].kind, DraftWork::Kind::kExtend);
  EXPECT_EQ(work[0].kv.to, 4);
  EXPECT_EQ(work[1].kind, DraftWork::Kind::kExtend);
  EXPECT_EQ(work[1].kv.to, 6);
  EXPECT_EQ(work[2].kind, DraftWork::Kind::kDraft);
  EXPECT_EQ(work[2].round, RoundId{2});

  draft(3, 7, rows(6, 7));
  core_.on_message({.session = SessionId{1}, .round = RoundId{4}, .body = KvChunk{rows(7, 9)}},
                   now_);  // it drafts elsewhere, or not at all
  work = core_.take_work();
  ASSERT_EQ(work.size(), 2u);
  EXPECT_EQ(work[0].kv.to, 7);
  EXPECT_EQ(work[1].kv.to, 9);
  EXPECT_EQ(work[1].kind, DraftWork::Kind::kExtend);

  draft(5, 11, rows(9, 11));
  core_.on_message({.session = SessionId{1}, .body = Free{}}, now_);
  work = core_.take_work();
  ASSERT_EQ(work.size(), 2u);
  EXPECT_EQ(work[1].kind, DraftWork::Kind::kRelease);
  EXPECT_TRUE(core_.take_outgoing().empty());
}

TEST_F(Drafter, DraftsThatCameTooLateAreNotSentForALaterRound) {
  draft(1, 4, rows(0, 4));
  const DraftWork late = core_.take_work().back();
  draft(2, 6, rows(4, 6));
  core_.on_drafted(late, {.tokens = {7}, .q = {}});
  EXPECT_TRUE(core_.take_outgoing().empty());
  const DraftWork wanted = core_.take_work().back();
  core_.on_drafted(wanted, {.tokens = {8}, .q = {}});
  EXPECT_EQ(find<Candidates>(core_.take_outgoing(), "")->tokens, std::vector<TokenId>{8});
}

TEST_F(Drafter, RefusesAHiddenRowOfAnotherModel) {
  core_.on_message({.session = SessionId{1},
                    .round = RoundId{1},
                    .base = 4,
                    .body = Draft{.token = 5, .draft_length = 2, .hidden = zeros({3})}},
                   now_);
  const auto out = core_.take_outgoing();
  ASSERT_NE(find<Failed>(out, ""), nullptr);
}

TEST(DrafterSessions, AreAsManyAsItSaysAndAFurtherOneIsRefusedAtOnce) {
  DrafterCore core({.sessions_max = 2}, hello(Role::kDrafter));
  core.on_tick(TimePoint{});
  auto out = core.take_outgoing();
  EXPECT_EQ(find<Hello>(out, "")->capacity.sessions_max, 2);
  core.on_message({.body = Welcome{1}}, TimePoint{});
  for (const std::uint64_t session : {1, 2, 3}) {
    EXPECT_TRUE(core.take_outgoing().empty());
    core.on_message({.session = SessionId{session}, .body = KvChunk{rows(0, 4)}}, TimePoint{});
    core.on_message({.session = SessionId{session},
                     .round = RoundId{1},
                     .base = 4,
                     .body = Draft{.token = 5, .draft_length = 2, .hidden = zeros({2})}},
                    TimePoint{});
  }
  Message message;
  out = core.take_outgoing();
  const Failed* failed = find<Failed>(out, "", &message);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(message.session, SessionId{3});
  EXPECT_EQ(message.round, RoundId{1});
  EXPECT_EQ(failed->code, Errc::kUnavailable);
  EXPECT_EQ(failed->message, "2 sessions, this drafter takes 2");
  EXPECT_EQ(core.session_count(), 2u);
}

TEST_F(Drafter, ForgetsSessionsOfAnEarlierCoordinator) {
  core_.on_message({.session = SessionId{1}, .body = KvChunk{rows(0, 4)}}, now_);
  EXPECT_EQ(core_.session_count(), 1u);
  core_.on_message({.body = Welcome{1}}, now_);
  EXPECT_EQ(core_.session_count(), 1u);
  core_.on_message({.body = Welcome{2}}, now_);
  EXPECT_EQ(core_.session_count(), 0u);
}

// ---- verifier ----

class Verifier : public testing::Test {
 protected:
  Verifier() : core_({.rows_max = 8, .prefill_chunk = 4}, hello(Role::kVerifier)) {
    core_.on_message({.body = Welcome{1}}, now_);
  }
  void prefill(std::uint64_t session, std::size_t tokens) {
    core_.on_message(
        {.session = SessionId{session}, .body = Prefill{.tokens = std::vector<TokenId>(tokens, 1), .want_kv = true}},
        now_);
  }
  void done(const std::vector<VerifyWork>& batch) {
    std::vector<VerifyResult> results;
    for (const VerifyWork& work : batch) {
      results.push_back(
          {.session = work.session,
           .round = work.round,
           .hidden = std::nullopt,
           .kv = rows(work.base, work.base + static_cast<Position>(work.prefill ? work.tokens.size() : 1))});
    }
    core_.on_batch_done(std::move(results), now_);
  }
  VerifierCore core_;
  TimePoint now_{seconds(1)};
};

TEST_F(Verifier, PrefillsInChunksAndStreamsTheirRows) {
  prefill(1, 10);
  std::vector<std::size_t> chunks;
  for (auto batch = core_.take_batch(); !batch.empty(); batch = core_.take_batch()) {
    chunks.push_back(batch[0].tokens.size());
    EXPECT_TRUE(core_.take_batch().empty()) << "one batch at a time";
    done(batch);
  }
  EXPECT_EQ(chunks, (std::vector<std::size_t>{4, 4, 2}));
  int streamed = 0;
  const Verdict* verdict = nullptr;
  const auto out = core_.take_outgoing();
  for (const Outgoing& o : out) streamed += std::holds_alternative<KvChunk>(o.message.body);
  verdict = find<Verdict>(out, "");
  EXPECT_EQ(streamed, 2);
  ASSERT_NE(verdict, nullptr);
  EXPECT_EQ(verdict->committed, 10);
  EXPECT_EQ(verdict->kv.from, 8);
}

TEST_F(Verifier, SharesAForwardBetweenSessionsVerifiesFirst) {
  prefill(1, 3);
  done(core_.take_batch());
  prefill(2, 9);
  core_.on_message({.session = SessionId{1}, .round = RoundId{1}, .base = 3, .body = Verify{{1, 2, 3}, std::nullopt}},
                   now_);
  const auto batch = core_.take_batch();
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_FALSE(batch[0].prefill);
  EXPECT_TRUE(batch[1].prefill);
  EXPECT_EQ(batch[0].tokens.size() + batch[1].tokens.size(), 7u);
}

TEST_F(Verifier, RepeatedRequestsGetTheSameVerdictOnce) {
  prefill(1, 3);
  prefill(1, 3);  // while it runs
  done(core_.take_batch());
  core_.take_outgoing();
  EXPECT_TRUE(core_.take_batch().empty());
  prefill(1, 3);  // after it
  const auto repeated = core_.take_outgoing();
  EXPECT_NE(find<Verdict>(repeated, ""), nullptr);
  EXPECT_TRUE(core_.take_batch().empty());
}

TEST_F(Verifier, AFreedSessionDoesNotComeBack) {
  prefill(1, 3);
  const auto batch = core_.take_batch();
  core_.on_message({.session = SessionId{1}, .body = Free{}}, now_);
  EXPECT_TRUE(core_.take_released().empty()) << "its rows are in the batch that is out";
  done(batch);
  EXPECT_EQ(core_.take_released().size(), 1u);
  prefill(1, 3);  // a late duplicate
  EXPECT_EQ(core_.session_count(), 0u);
}

TEST(VerifierSessions, AFreedOneInTheBatchThatIsOutTakesNoPlace) {
  VerifierCore core({.capacity = {.sessions_max = 1}}, hello(Role::kVerifier));
  core.on_message({.body = Welcome{1}}, TimePoint{});
  const auto prefill = [&](std::uint64_t session) {
    core.on_message({.session = SessionId{session}, .body = Prefill{.tokens = {1, 2}}}, TimePoint{});
  };
  prefill(1);
  ASSERT_EQ(core.take_batch().size(), 1u);
  core.take_outgoing();
  prefill(2);
  EXPECT_NE(find<Failed>(core.take_outgoing(), ""), nullptr);
  core.on_message({.session = SessionId{1}, .body = Free{}}, TimePoint{});
  prefill(3);
  EXPECT_EQ(find<Failed>(core.take_outgoing(), ""), nullptr);
}

TEST_F(Verifier, RefusesWhatDoesNotFit) {
  const auto failure = [&](Body body, Position base, std::uint32_t round) {
    core_.on_message({.session = SessionId{1}, .round = RoundId{round}, .base = base, .body = std::move(body)}, now_);
    const auto out = core_.take_outgoing();
    const Failed* failed = find<Failed>(out, "");
    return failed == nullptr ? std::string("taken") : failed->message;
  };
  EXPECT_EQ(failure(Verify{{1}, std::nullopt}, 3, 1), "session 1 is not known here");
  EXPECT_EQ(failure(Prefill{.tokens = {500}}, 0, 0), "token id 500, vocabulary has 100");
  EXPECT_EQ(failure(Prefill{.tokens = {1}, .stop_ids = {100}}, 0, 0), "stop token id 100, vocabulary has 100");
  EXPECT_EQ(failure(Prefill{.tokens = {1}, .sampling = {.logit_bias = {{100, 1}}}}, 0, 0),
            "logit_bias's token is 100, wanted a token id from 0 to 99");
  prefill(1, 3);
  done(core_.take_batch());
  core_.take_outgoing();
  EXPECT_EQ(failure(Verify{{1}, std::nullopt}, 4, 1), "verify at position 4, committed are 3");
  EXPECT_EQ(failure(Verify{std::vector<TokenId>(9, 1), std::nullopt}, 3, 1), "9 rows to verify, this verifier takes 8");
  EXPECT_EQ(failure(Verify{{1}, Position{9}}, 3, 1), "K/V wanted from 9, committed are 3");
}

TEST_F(Verifier, TakesDistributionsOnlyForDraftsOfARejectionSession) {
  Distribution q;
  q.add(2, 1);
  const auto failure = [&](const SamplingParams& sampling, std::uint64_t session, const Verify& verify) {
    core_.on_message({.session = SessionId{session}, .body = Prefill{.tokens = {1}, .sampling = sampling}}, now_);
    done(core_.take_batch());
    core_.take_outgoing();
    core_.on_message({.session = SessionId{session}, .round = RoundId{1}, .base = 1, .body = verify}, now_);
    const auto out = core_.take_outgoing();
    const Failed* failed = find<Failed>(out, "");
    return failed == nullptr ? std::string("taken") : failed->message;
  };
  const SamplingParams rejection{.temperature = 1, .rule = SamplingRule::kRejection};
  EXPECT_EQ(failure({.temperature = 1}, 1, {.tokens = {1, 2}, .q = {q}}),
            "1 distributions for 1 drafts, wanted none: the rule is not rejection");
  EXPECT_EQ(failure(rejection, 2, {.tokens = {1, 2, 3}, .q = {q}}),
            "1 distributions for 2 drafts, wanted as many or none");
  EXPECT_EQ(failure(rejection, 3, {.tokens = {1, 2}, .q = {q}}), "taken");
  const std::vector<VerifyWork> batch = core_.take_batch();
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].q, std::vector{q});
}

TEST_F(Verifier, ASessionWhoseTokenCannotBeChosenFailsAndIsForgotten) {
  prefill(1, 3);
  const std::vector<VerifyWork> batch = core_.take_batch();
  ASSERT_EQ(batch.size(), 1u);
  core_.on_batch_done({{.session = SessionId{1},
                        .round = batch[0].round,
                        .hidden = std::nullopt,
                        .kv = {},
                        .error = Error{Errc::kMalformed, "the logit of token 3 is nan"}}},
                      now_);
  const auto out = core_.take_outgoing();
  const Failed* failed = find<Failed>(out, "");
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->message, "the logit of token 3 is nan");
  EXPECT_EQ(core_.session_count(), 0u);
  EXPECT_EQ(core_.take_released(), std::vector{SessionId{1}});
}

TEST_F(Verifier, ALongPromptLeavesRoomForShortOnesAndForTexts) {
  prefill(1, 3);
  done(core_.take_batch());
  prefill(2, 18);
  done(core_.take_batch());
  prefill(3, 5);
  core_.on_message({.session = SessionId{1}, .round = RoundId{1}, .base = 3, .body = Verify{{1, 2}, std::nullopt}},
                   now_);
  auto batch = core_.take_batch();
  ASSERT_EQ(batch.size(), 3u) << "all get rows";
  EXPECT_EQ(batch[0].session, SessionId{1});
  done(batch);
  batch = core_.take_batch();
  ASSERT_EQ(batch.size(), 2u);
  done(batch);
  EXPECT_EQ(core_.take_batch().size(), 1u) << "the short prompt is through, the long one is not";
}

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

// One row left over in every forward is hardly better than none; and texts must not wait for ever either.
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

// ---- prefix cache ----

/// Sessions of tokens 1, 2, 3, ...; a position takes 100 bytes, and a ring has 14 rows: a window of 5, one more, and
/// rows_max.
class PrefixCache : public testing::Test {
 protected:
  PrefixCache() { start(std::numeric_limits<std::int64_t>::max()); }
  void start(std::int64_t kv_bytes_max) {
    Hello verifier = hello(Role::kVerifier);
    verifier.facts.context_max = 1000;
    core_.emplace(VerifierConfig{.rows_max = 8,
                                 .prefill_chunk = 8,
                                 .capacity = {.kv_cost = {.bytes_per_position = 100, .ring_rows = 14},
                                              .kv_bytes_max = kv_bytes_max},
                                 .reuse_min = 3},
                  verifier);
    core_->on_message({.body = Welcome{1}}, TimePoint{});
  }
  static std::vector<TokenId> count_to(TokenId last) {
    std::vector<TokenId> tokens;
    for (TokenId token = 1; token <= last; ++token) tokens.push_back(token);
    return tokens;
  }
  void prefill(std::uint64_t session, std::vector<TokenId> tokens) {
    core_->on_message({.session = SessionId{session}, .body = Prefill{.tokens = std::move(tokens)}}, TimePoint{});
  }
  void free(std::uint64_t session) { core_->on_message({.session = SessionId{session}, .body = Free{}}, TimePoint{}); }
  std::vector<VerifyWork> batch() {
    std::vector<VerifyWork> work = core_->take_batch();
    for (const SessionId id : core_->take_released()) released_.push_back(value(id));
    return work;
  }
  void done(const std::vector<VerifyWork>& work) {
    std::vector<VerifyResult> results;
    for (const VerifyWork& item : work)
      results.push_back({.session = item.session, .round = item.round, .hidden = std::nullopt, .kv = {}});
    core_->on_batch_done(std::move(results), TimePoint{});
  }
  /// Computes until nothing is due. @return all the work.
  std::vector<VerifyWork> run() {
    std::vector<VerifyWork> all;
    for (auto work = batch(); !work.empty(); work = batch()) {
      done(work);
      all.insert(all.end(), work.begin(), work.end());
    }
    return all;
  }
  std::optional<VerifierCore> core_;
  std::vector<std::uint64_t> released_;
};

TEST_F(PrefixCache, APromptThatWantsNoneReusesNothing) {
  prefill(1, count_to(20));
  run();
  free(1);
  core_->on_message({.session = SessionId{2}, .body = Prefill{.tokens = count_to(24), .compute_all = true}},
                    TimePoint{});
  for (const VerifyWork& work : run()) EXPECT_FALSE(work.reuse) << "base " << work.base;
}

TEST_F(PrefixCache, AConversationTakesItsOwnRowsAlong) {
  prefill(1, count_to(20));
  run();
  free(1);
  EXPECT_EQ(core_->kv_bytes(), 0);
  EXPECT_EQ(core_->cached_bytes(), 2000);
  prefill(2, count_to(24));
  core_->take_outgoing();
  const auto work = run();
  ASSERT_EQ(work.size(), 1u);
  ASSERT_TRUE(work[0].reuse);
  EXPECT_EQ(work[0].reuse->from, SessionId{1});
  EXPECT_EQ(work[0].reuse->tokens, count_to(20));
  EXPECT_TRUE(work[0].reuse->take);
  EXPECT_EQ(work[0].base, 20);
  EXPECT_EQ(core_->cached_bytes(), 0);
  EXPECT_TRUE(released_.empty()) << "its rows went on";
  const auto out = core_->take_outgoing();
  EXPECT_EQ(find<Verdict>(out, "")->cached_tokens, 20);
}

TEST_F(PrefixCache, ChoicesOfOnePromptWaitForItsRows) {
  for (const std::uint64_t session : {1, 2, 3}) prefill(session, count_to(20));
  std::size_t rows = 0;
  for (const VerifyWork& work : run()) {
    rows += work.tokens.size();
    if (work.session == SessionId{1}) continue;
    ASSERT_TRUE(work.reuse);
    EXPECT_EQ(work.reuse->from, SessionId{1});
    EXPECT_FALSE(work.reuse->take);
    EXPECT_EQ(work.base, 19);
  }
  EXPECT_EQ(rows, 22u) << "the last token of each is computed, for its logits";
}

TEST_F(PrefixCache, AStartThatTheRingsHaveLostIsKeptForTheThirdText) {
  const auto ask = [&](std::uint64_t session, TokenId question) {
    std::vector<TokenId> tokens = count_to(20);
    tokens.insert(tokens.end(), 30, question);
    prefill(session, tokens);
    return run();
  };
  ask(1, 50);
  auto work = ask(2, 51);  // 20 in common, but the rings hold [36, 50)
  EXPECT_FALSE(work[0].reuse);
  const auto kept = std::find_if(work.begin(), work.end(), [](const VerifyWork& w) { return w.keep_as.has_value(); });
  ASSERT_NE(kept, work.end());
  EXPECT_EQ(kept->base + std::ssize(kept->tokens), 20);
  const SessionId kept_as = *kept->keep_as;
  for (const std::uint64_t session : {3, 4}) {
    work = ask(session, static_cast<TokenId>(50 + session));
    ASSERT_TRUE(work[0].reuse);
    EXPECT_EQ(work[0].reuse->from, kept_as);
    EXPECT_EQ(work[0].base, 20);
    EXPECT_FALSE(work[0].reuse->take) << "it stays";
  }
}

TEST_F(PrefixCache, AKeptStartIsNotThereBeforeItsBatchHasRun) {
  std::vector<TokenId> tokens = count_to(20);
  tokens.insert(tokens.end(), 30, 50);
  prefill(1, tokens);
  run();
  for (const std::uint64_t session : {2, 3}) {
    tokens.back() = tokens[20] = static_cast<TokenId>(50 + session);
    prefill(session, tokens);
  }
  std::vector<SessionId> there = {SessionId{1}, SessionId{2}, SessionId{3}};
  for (auto work = batch(); !work.empty(); work = batch()) {
    for (const VerifyWork& item : work) {
      EXPECT_TRUE(!item.reuse || std::count(there.begin(), there.end(), item.reuse->from) == 1);
    }
    for (const VerifyWork& item : work) {
      if (item.keep_as) there.push_back(*item.keep_as);
    }
    done(work);
  }
  EXPECT_EQ(there.size(), 4u);
}

TEST_F(PrefixCache, GivesItsMemoryToSessionsLongestUnusedFirst) {
  start(6000);
  prefill(1, std::vector<TokenId>(20, 1));
  prefill(2, std::vector<TokenId>(20, 2));
  prefill(3, std::vector<TokenId>(20, 3));
  run();
  for (const std::uint64_t session : {1, 2, 3}) free(session);
  prefill(4, std::vector<TokenId>(14, 1));  // like 1, from which it copies: within the last 8 rows
  run();
  EXPECT_EQ(released_, std::vector<std::uint64_t>{2});
  free(4);
  prefill(5, std::vector<TokenId>(50, 3));  // all but 10 positions: 3's rows are handed over
  const auto work = run();
  EXPECT_EQ(work[0].base, 20);
  EXPECT_TRUE(work[0].reuse->take);
  EXPECT_EQ(released_, (std::vector<std::uint64_t>{2, 1, 4}));
  EXPECT_EQ(core_->kv_bytes(), 5000);
  EXPECT_EQ(core_->cached_bytes(), 0);
}

TEST_F(PrefixCache, ASourceThatHasToGoIsHandedOver) {
  start(3500);
  prefill(1, count_to(20));
  run();
  free(1);
  prefill(2, count_to(18));  // 1's first 17 rows; both do not fit
  const auto work = run();
  ASSERT_TRUE(work[0].reuse);
  EXPECT_EQ(work[0].base, 17);
  EXPECT_TRUE(work[0].reuse->take);
  EXPECT_TRUE(released_.empty());
  EXPECT_EQ(core_->cached_bytes(), 0);
}

TEST_F(PrefixCache, ACancelledPromptsRowsAreOfUseToo) {
  prefill(1, count_to(20));
  const auto first = batch();
  free(1);
  EXPECT_EQ(core_->kv_bytes(), 0) << "at once";
  done(first);
  prefill(2, count_to(20));
  EXPECT_EQ(run().front().base, 8);
}

// ---- K/V memory ----

/// A verifier with 3000 bytes for K/V; a position takes 100, and 50 more while its ring of 10 fills.
class VerifierMemory : public testing::Test {
 protected:
  VerifierMemory() { start(config()); }
  void start(const VerifierConfig& config) {
    core_.emplace(config, hello(Role::kVerifier));
    core_->on_message({.body = Welcome{1}}, TimePoint{});
  }
  static VerifierConfig config() {
    return {.capacity = {.kv_cost = {.bytes_per_position = 100, .ring_bytes_per_position = 50, .ring_rows = 10},
                         .kv_bytes_max = 3000}};
  }
  /// Why it was refused; "taken" if it was not.
  std::string send(std::uint64_t session, Body body, Position base = 0, std::uint32_t round = 0) {
    core_->on_message({.session = SessionId{session}, .round = RoundId{round}, .base = base, .body = std::move(body)},
                      TimePoint{});
    std::vector<VerifyResult> results;
    for (const VerifyWork& work : core_->take_batch()) {
      VerifyResult& result = results.emplace_back();
      result.session = work.session;
      result.round = work.round;
    }
    const auto out = core_->take_outgoing();
    const Failed* failed = find<Failed>(out, "");
    if (!results.empty()) core_->on_batch_done(std::move(results), TimePoint{});
    core_->take_outgoing();
    return failed == nullptr ? "taken" : std::string(to_string(failed->code)) + ": " + failed->message;
  }
  static Prefill prompt(std::size_t tokens, Position positions_max) {
    return {.tokens = std::vector<TokenId>(tokens, 1), .positions_max = positions_max};
  }
  std::optional<VerifierCore> core_;
};

TEST_F(VerifierMemory, IsSetAsideForTheWholeAnswerBeforeThePromptIsComputed) {
  EXPECT_EQ(send(1, prompt(2, 15)), "taken");  // 15 * 100 + 10 * 50 = 2000 of 3000
  const std::string refusal = send(2, prompt(2, 15));
  EXPECT_NE(refusal.find("15 positions need"), std::string::npos) << refusal;
  EXPECT_TRUE(refusal.starts_with(to_string(Errc::kUnavailable))) << "worth another try: " << refusal;
  EXPECT_EQ(core_->session_count(), 1u);
  EXPECT_EQ(send(3, prompt(2, 5)), "taken") << "5 * 150 fit";
}

TEST_F(VerifierMemory, ComesBackWithTheSession) {
  EXPECT_EQ(send(1, prompt(2, 15)), "taken");
  EXPECT_NE(send(2, prompt(2, 15)), "taken");
  send(1, Free{});
  EXPECT_EQ(send(3, prompt(2, 15)), "taken");
}

TEST_F(VerifierMemory, RefusalSaysThatItWillNeverFit) {
  VerifierConfig small = config();
  small.capacity.kv_bytes_max = 1 << 20;
  small.capacity.kv_cost.bytes_per_position = 1 << 20;
  start(small);
  EXPECT_EQ(send(1, prompt(2, 4)),
            std::string(to_string(Errc::kOutOfRange)) +
                ": 4 positions need 4.0 MiB of K/V, 1.0 MiB are left of this verifier's 1.0 MiB: 3.0 MiB are missing");
}

TEST_F(VerifierMemory, OfASessionThatDidNotSayGrowsRoundByRound) {
  EXPECT_EQ(send(1, prompt(10, 0)), "taken");                     // 1500
  EXPECT_EQ(send(2, prompt(9, 0)), "taken");                      // 1350
  EXPECT_EQ(send(1, Verify{{1}, std::nullopt}, 10, 1), "taken");  // 100 more
  EXPECT_NE(send(1, Verify{{1}, std::nullopt}, 11, 2), "taken") << "50 are left";
  send(2, Free{});
  EXPECT_EQ(send(1, Verify{{1}, std::nullopt}, 11, 2), "taken");
}

}  // namespace
}  // namespace outrider
