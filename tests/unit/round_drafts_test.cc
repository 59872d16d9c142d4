// The union of what the sources of a round's drafts say.
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "coordinator-node/round_drafts.h"

namespace outrider {
namespace {

constexpr DraftSource kAssistant = DraftSource::kAssistant, kNgram = DraftSource::kNgram, kTable = DraftSource::kTable;

Distribution some(std::vector<TokenId> ids) {
  Distribution q;
  for (const TokenId id : ids) q.add(id, 0.5f);
  return q;
}

TEST(RoundDrafts, OfOneChainAreThatChain) {
  RoundDrafts drafts;
  EXPECT_EQ(drafts.first_end(), 0);
  drafts.add(0, {.tokens = {7, 8, 9}}, kAssistant, 8);
  EXPECT_EQ(drafts.tokens, (std::vector<TokenId>{7, 8, 9}));
  EXPECT_TRUE(drafts.depths.empty());
  EXPECT_TRUE(drafts.q.empty());
  EXPECT_EQ(drafts.first_end(), 3);
}

TEST(RoundDrafts, ThatAgreeAreOneChain) {
  RoundDrafts drafts;
  drafts.add(0, {.tokens = {7, 8}}, kAssistant, 8);
  drafts.add(0, {.tokens = {7, 8, 9}}, kTable, 8);
  drafts.add(3, {.tokens = {4}}, kNgram, 8);
  EXPECT_EQ(drafts.tokens, (std::vector<TokenId>{7, 8, 9, 4}));
  EXPECT_EQ(drafts.sources, (std::vector<DraftSource>{kAssistant, kAssistant, kTable, kNgram}));
  EXPECT_TRUE(drafts.depths.empty());
  EXPECT_EQ(drafts.sources_of(3), (std::vector<DraftSource>{kAssistant, kAssistant, kTable}));
}

TEST(RoundDrafts, ThatDifferAreATreeInWhichTheFirstSourceComesFirst) {
  RoundDrafts drafts;
  drafts.add(0, {.tokens = {7, 8, 9}}, kAssistant, 8);
  drafts.add(0, {.tokens = {7, 5, 6}}, kTable, 8);
  drafts.add(0, {.tokens = {3}}, kNgram, 8);
  drafts.add(1, {.tokens = {8, 2}}, kNgram, 8);
  EXPECT_EQ(drafts.tokens, (std::vector<TokenId>{7, 8, 9, 2, 5, 6, 3}));
  EXPECT_EQ(drafts.depths, (std::vector<std::int32_t>{1, 2, 3, 3, 2, 3, 1}));
  EXPECT_EQ(drafts.first_end(), 3);
  EXPECT_EQ(drafts.path(6), (std::vector<TokenId>{7, 5, 6}));
  EXPECT_EQ(drafts.held_first(0), 0);
  EXPECT_EQ(drafts.held_first(3), 3);
  EXPECT_EQ(drafts.held_first(4), 2);
  EXPECT_EQ(drafts.held_first(6), 1);
  EXPECT_EQ(drafts.held_first(7), 0);
}

TEST(RoundDrafts, WhatFindsNoRoomIsLeftOutWithAllThatGrowsFromIt) {
  RoundDrafts drafts;
  drafts.add(0, {.tokens = {7, 8}}, kAssistant, 3);
  drafts.add(0, {.tokens = {5, 6, 7, 8}, .depths = {1, 2, 1, 2}}, kTable, 3);
  EXPECT_EQ(drafts.tokens, (std::vector<TokenId>{7, 8, 5})) << "7 and 8 are there";
  drafts.add(3, {.tokens = {1, 2}}, kNgram, 3);
  EXPECT_EQ(drafts.size(), 3);
}

TEST(RoundDrafts, ThatWereNotDrawnAreCertain) {
  RoundDrafts drafts;
  drafts.add(0, {.tokens = {7, 8}, .q = {some({7, 3}), some({8, 2})}}, kAssistant, 8);
  drafts.add(2, {.tokens = {9}}, kTable, 8);
  ASSERT_EQ(drafts.q.size(), 3u);
  EXPECT_EQ(drafts.q[0], some({7, 3}));
  EXPECT_EQ(drafts.q[2].probability(9), 1);
  RoundDrafts later;
  later.add(0, {.tokens = {9}}, kTable, 8);
  later.add(1, {.tokens = {7}, .q = {some({7, 3})}}, kAssistant, 8);
  ASSERT_EQ(later.q.size(), 2u);
  EXPECT_EQ(later.q[0].probability(9), 1);
  EXPECT_EQ(later.q[1], some({7, 3}));
}

// Against a set of paths: whatever is added, in whatever order.
TEST(RoundDrafts, AreTheUnionOfThePathsThatWereAdded) {
  CounterRng rng(5);
  for (int n = 0; n < 500; ++n) {
    RoundDrafts drafts;
    std::map<std::vector<TokenId>, DraftSource> paths;
    for (int source = 0; source < 3; ++source) {
      const auto row = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(drafts.size()) + 1));
      Candidates more;
      std::vector<TokenId> path = drafts.path(row);
      const std::size_t root = path.size();
      for (std::uint64_t i = 0, count = rng.below(7); i < count; ++i) {
        const std::size_t depth = i == 0 ? 1 : 1 + rng.below(static_cast<std::uint64_t>(more.depths.back()) + 1);
        path.resize(root + depth - 1);
        path.push_back(static_cast<TokenId>(rng.below(3)));
        more.tokens.push_back(path.back());
        more.depths.push_back(static_cast<std::int32_t>(depth));
        paths.try_emplace(path, static_cast<DraftSource>(source));
      }
      drafts.add(row, more, static_cast<DraftSource>(source), kDraftLengthMax);
    }
    ASSERT_TRUE(drafts.tree().check());
    ASSERT_EQ(drafts.size(), std::ssize(paths));
    ASSERT_EQ(drafts.sources.size(), drafts.tokens.size());
    for (std::int64_t row = 1; row <= drafts.size(); ++row) {
      const auto path = paths.find(drafts.path(row));
      ASSERT_NE(path, paths.end());
      EXPECT_EQ(drafts.sources[static_cast<std::size_t>(row) - 1], path->second);
    }
  }
}

}  // namespace
}  // namespace outrider
