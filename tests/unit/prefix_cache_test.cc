#include "verifier-node/prefix_cache.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/driven_core.h"
#include "tests/unit/protocol_support.h"
#include "verifier-node/verifier_core.h"

namespace outrider {
namespace {

// ---- prefix cache ----

/// Sessions of tokens 1, 2, 3, ...; a position takes 100 bytes, and a ring has 14 rows: a window of 5, one more, and
/// rows_max.
class PromptReuse : public testing::Test {
 protected:
  PromptReuse() { start(std::numeric_limits<std::int64_t>::max()); }
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
  void prefill(std::uint64_t session, std::vector<TokenId> tokens, const std::string& scope = "") {
    core_->on_message(
        {.session = SessionId{session}, .body = Prefill{.tokens = std::move(tokens), .cache_scope = scope}},
        TimePoint{});
  }
  void free(std::uint64_t session) { core_->on_message({.session = SessionId{session}, .body = Free{}}, TimePoint{}); }
  std::vector<VerifyWork> batch() {
    std::vector<VerifyWork> work = core_->take_batch();
    for (const SessionId id : core_->take_released()) released_.push_back(value(id));
    return work;
  }
  void done(const std::vector<VerifyWork>& work) {
    std::vector<VerifyResult> results;
    for (const VerifyWork& item : work) results.push_back({.session = item.session, .round = item.round});
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
  std::optional<Driven<VerifierCore>> core_;
  std::vector<std::uint64_t> released_;
};

TEST_F(PromptReuse, AKeptStartIsNotThereBeforeItsBatchHasRun) {
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

TEST_F(PromptReuse, TextsOfAnotherScopeAreAsIfTheyWereNot) {
  const auto reused = [&](std::uint64_t session, const std::string& scope) {
    prefill(session, count_to(12), scope);
    const auto work = run();
    return work[0].reuse ? std::ssize(work[0].reuse->tokens) : 0;
  };
  EXPECT_EQ(reused(1, "alice"), 0);
  EXPECT_EQ(reused(2, "bob"), 0) << "a text that goes on";
  free(1);
  EXPECT_EQ(reused(3, ""), 0) << "one that was kept";
  EXPECT_EQ(reused(4, "alice"), 11);
  EXPECT_EQ(reused(5, "bob"), 11);
}

TEST_F(PromptReuse, GivesItsMemoryToSessionsLongestUnusedFirst) {
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

// Room for one of two; for neither, and then what is cached stays.
TEST_F(PromptReuse, KeepsNoMoreStartsThanThereIsRoomFor) {
  for (const auto& [room, kept] : {std::pair(3000, 1), {1500, 0}}) {
    start(16'000 + room);
    prefill(5, std::vector<TokenId>(10, 99));
    run();
    free(5);
    const auto begin_with = [&](std::uint64_t session, TokenId first, std::size_t size, TokenId rest) {
      std::vector<TokenId> tokens(20);
      std::iota(tokens.begin(), tokens.end(), first);
      tokens.resize(size, rest);
      prefill(session, tokens);
    };
    begin_with(1, 1, 50, 90);
    begin_with(2, 31, 50, 91);
    run();
    begin_with(3, 1, 30, 92);
    begin_with(4, 31, 30, 93);
    const auto work = run();
    EXPECT_EQ(std::ranges::count_if(work, [](const VerifyWork& item) { return item.keep_as.has_value(); }), kept);
    EXPECT_EQ(core_->cached_bytes(), kept == 1 ? 2000 : 1000);
  }
}

// 28 rows are written, of which the last eight, rejected drafts, may be rolled back (KvCache::holds).
TEST_F(PromptReuse, DraftsThatWereRejectedMoveARingOn) {
  prefill(1, count_to(20));
  run();
  core_->on_message({.session = SessionId{1},
                     .round = RoundId{1},
                     .base = 20,
                     .body = Verify{.tokens = std::vector<TokenId>(8, 60)}},
                    TimePoint{});
  run();
  for (const TokenId common : {20, 19}) {
    std::vector<TokenId> tokens = count_to(common);
    tokens.resize(30, 50 + common);
    prefill(static_cast<std::uint64_t>(common), tokens);
    EXPECT_EQ(run()[0].reuse.has_value(), common == 20) << common;
  }
}

// A verifier was silent for too long: its coordinator gives it its sequences again.
TEST_F(PromptReuse, ASessionThatComesBackFindsItsOwnRows) {
  const auto come_back = [&](std::uint32_t round) {
    core_->on_message({.body = Welcome{1 + round}}, TimePoint{});
    core_->on_message({.session = SessionId{1}, .round = RoundId{round}, .body = Prefill{.tokens = count_to(20)}},
                      TimePoint{});
  };
  prefill(1, count_to(20));
  const auto first = batch();
  come_back(1);
  EXPECT_TRUE(batch().empty()) << "its rows are in the batch";
  done(first);
  const auto rest = run();
  ASSERT_FALSE(rest.empty());
  EXPECT_EQ(rest[0].base, 8);
  come_back(2);
  const auto last = run();
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].base, 19);
  EXPECT_NE(last[0].reuse->from, last[0].session);
}

TEST(PrefixSearch, FindsTheLongestStartThatARingStillHas) {
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6}, same = {1, 2, 3, 4, 5, 9}, other = {1, 2, 9};
  PrefixSearch search(prompt, "", 4, 1);
  search.offer({SessionId{1}, "", other, 3, 3});
  EXPECT_EQ(search.best(), 2);
  search.offer({SessionId{2}, "", same, 6, 9});  // its ring has gone on
  EXPECT_EQ(search.from(), SessionId{1});
  EXPECT_EQ(search.common(), 5);
  search.offer({SessionId{3}, "", same, 1, 1, true});  // still being computed
  EXPECT_EQ(search.soon(), 5);
  search.offer({SessionId{4}, "", same, 6, 6});
  EXPECT_EQ(search.from(), SessionId{4});
  EXPECT_EQ(search.best(), 5);
}

TEST(PrefixCache, ForgetsWhatWasUsedLongestAgo) {
  PrefixCache cache({.bytes_per_position = 10});
  for (const std::uint64_t id : {1, 2, 3}) cache.keep({.id = SessionId{id}, .tokens = {1, 2}, .written = 2});
  EXPECT_FALSE(cache.use(SessionId{1}, 1)) << "its start alone: it stays, used last";
  EXPECT_EQ(cache.trim(40, 9), std::vector{SessionId{2}});
  EXPECT_TRUE(cache.use(SessionId{3}, 2)) << "all of it: it is handed over";
  EXPECT_FALSE(cache.use(SessionId{3}, 2)) << "and is gone";
  EXPECT_EQ(cache.bytes(), 20);
  EXPECT_EQ(cache.trim(1000, 0), std::vector{SessionId{1}});
  cache.keep({.id = SessionId{4}, .tokens = {1, 2}, .written = 2, .shared = true});
  EXPECT_FALSE(cache.use(SessionId{4}, 2)) << "it is others' as well";
  EXPECT_TRUE(cache.rename(SessionId{4}, SessionId{5}));
  EXPECT_FALSE(cache.rename(SessionId{4}, SessionId{6}));
  EXPECT_EQ(cache.trim(0, 9), std::vector{SessionId{5}});
  EXPECT_EQ(cache.bytes(), 0);
}

}  // namespace
}  // namespace outrider
