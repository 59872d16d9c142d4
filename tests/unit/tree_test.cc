// Token trees: their order on the wire, how a drafter grows one, and how large a policy wants it.
#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/base/token_tree.h"
#include "common/decoding/drafting/goodput.h"
#include "common/decoding/drafting/policies.h"
#include "common/decoding/drafting/tree_gain.h"
#include "drafter-node/draft_tree.h"

namespace outrider {
namespace {

// 0 - 1 - 2 - 3
//     |   \ - 4
//     \ - 5
// \ - 6 - 7
const std::vector<std::int32_t> kDepths = {1, 2, 3, 3, 2, 1, 2};

TEST(TokenTree, DepthsSayTheTree) {
  const TokenTree tree(7, kDepths);
  EXPECT_TRUE(tree.check());
  EXPECT_EQ(tree.rows(), 8);
  EXPECT_EQ(tree.height(), 3);
  EXPECT_EQ(tree.children(0), (std::vector<std::int64_t>{1, 6}));
  EXPECT_EQ(tree.children(1), (std::vector<std::int64_t>{2, 5}));
  EXPECT_EQ(tree.children(2), (std::vector<std::int64_t>{3, 4}));
  EXPECT_TRUE(tree.children(5).empty());
  EXPECT_EQ(tree.path(4), (std::vector<std::int64_t>{0, 1, 2, 4}));
  EXPECT_EQ(tree.path(7), (std::vector<std::int64_t>{0, 6, 7}));
  EXPECT_EQ(tree.path(0), (std::vector<std::int64_t>{0}));
}

TEST(TokenTree, WithoutDepthsItIsAChain) {
  const TokenTree chain(3, {});
  EXPECT_TRUE(chain.check());
  EXPECT_EQ(chain.height(), 3);
  EXPECT_EQ(chain.children(1), (std::vector<std::int64_t>{2}));
  EXPECT_TRUE(chain.children(3).empty());
  EXPECT_EQ(chain.path(2), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(TokenTree(0, {}).path(0), (std::vector<std::int64_t>{0}));
}

TEST(TokenTree, WhatIsNoTreeIsRefused) {
  const auto message = [](std::int64_t drafts, std::vector<std::int32_t> depths) {
    const Result<void> ok = TokenTree(drafts, depths).check();
    return ok ? "" : ok.error().message;
  };
  EXPECT_EQ(message(2, {1}), "1 depths of 2 drafts, wanted as many or none");
  EXPECT_EQ(message(2, {2, 1}), "depth 2 of draft 1, wanted 1 to 1");
  EXPECT_EQ(message(3, {1, 2, 4}), "depth 4 of draft 3, wanted 1 to 3");
  EXPECT_EQ(message(2, {1, 0}), "depth 0 of draft 2, wanted 1 to 2");
  EXPECT_EQ(message(0, {1}), "1 depths of 0 drafts, wanted as many or none");
}

// ---- growing ----

constexpr TokenId kStop = 2;

/// Three children of any node: their chances, the first the greatest.
std::vector<double> chances_after(const std::vector<TokenId>& path, std::uint64_t seed) {
  std::uint64_t hash = seed;
  for (const TokenId token : path) hash = mix64(hash ^ static_cast<std::uint64_t>(token + 1));
  CounterRng rng(hash);
  const double first = 0.3 + 0.6 * rng.uniform(), second = (1 - first) * (0.5 + 0.5 * rng.uniform());
  std::vector<double> chances = {first, second, 1 - first - second};
  std::ranges::sort(chances, std::greater<>());
  return chances;
}

/// Weights of all paths down to a depth.
void enumerate(std::vector<TokenId> path, double weight, std::uint64_t seed,
               std::map<std::vector<TokenId>, double>& all) {
  if (!path.empty()) all[path] = weight;
  if (path.size() == 9 || (!path.empty() && path.back() == kStop)) return;
  const std::vector<double> chances = chances_after(path, seed);
  for (TokenId rank = 0; rank < 3; ++rank) {
    path.push_back(rank);
    enumerate(path, weight * chances[static_cast<std::size_t>(rank)], seed, all);
    path.pop_back();
  }
}

TEST(DraftTree, HasTheNodesOfTheGreatestWeightDepthFirst) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::map<std::vector<TokenId>, double> all;
    enumerate({}, 1, seed, all);
    std::vector<std::pair<double, std::vector<TokenId>>> ranked;
    for (const auto& [path, weight] : all) ranked.emplace_back(weight, path);
    std::ranges::sort(ranked, std::greater<>());
    const std::int64_t most = 1 + static_cast<std::int64_t>(seed % 9);
    const double worth = seed % 3 == 0 ? 0.1 : 0;
    std::set<std::vector<TokenId>> expected;
    for (const auto& [weight, path] : std::span(ranked).first(static_cast<std::size_t>(most)))
      if (weight >= worth) expected.insert(path);

    DraftTree tree(99, most, worth);
    int steps = 0;
    for (std::vector<std::size_t> step = tree.next(); !step.empty(); step = tree.next(), ++steps) {
      for (const std::size_t i : step)
        tree.grow(i, std::vector<TokenId>{0, 1, 2}, chances_after(tree.path(i), seed), std::vector<TokenId>{kStop});
    }
    EXPECT_LE(steps, most);
    std::set<std::vector<TokenId>> actual;
    std::vector<std::int32_t> depths;
    std::map<std::vector<TokenId>, TokenId> last;
    for (const std::size_t i : tree.finish()) {
      std::vector<TokenId> path = tree.path(i);
      depths.push_back(tree.node(i).depth);
      EXPECT_EQ(depths.back(), std::ssize(path));
      actual.insert(path);
      const TokenId rank = path.back();
      path.pop_back();
      const auto [before, is_first] = last.emplace(path, rank);
      EXPECT_EQ(rank, is_first ? 0 : before->second + 1) << "of a node's children the first ones";
      before->second = rank;
    }
    EXPECT_EQ(actual, expected);
    EXPECT_TRUE(TokenTree(std::ssize(depths), depths).check());
  }
}

TEST(DraftTree, NoTwoNodesHaveTheSameNoiseButAlongFirstChoices) {
  DraftTree tree(99, 30, 0);
  for (std::vector<std::size_t> step = tree.next(); !step.empty(); step = tree.next()) {
    for (const std::size_t i : step) tree.grow(i, std::vector<TokenId>{0, 1, 2}, chances_after(tree.path(i), 5), {});
  }
  std::set<std::uint64_t> branches;
  for (const std::size_t i : tree.finish()) {
    const std::vector<TokenId> path = tree.path(i);
    const bool first = std::ranges::all_of(path, [](TokenId rank) { return rank == 0; });
    EXPECT_EQ(tree.node(i).branch == 0, first);
    EXPECT_TRUE(first || branches.insert(tree.node(i).branch).second);
  }
  EXPECT_GT(branches.size(), 10u);
}

TEST(DraftTree, WithOneChoiceANodeItIsAChain) {
  DraftTree tree(99, 5, 0);
  int steps = 0;
  for (std::vector<std::size_t> step = tree.next(); !step.empty(); step = tree.next(), ++steps)
    for (const std::size_t i : step) tree.grow(i, std::vector<TokenId>{7}, std::vector<double>{0.5}, {});
  EXPECT_EQ(steps, 5);
  EXPECT_EQ(tree.finish().size(), 5u);
  EXPECT_EQ(tree.node(tree.finish().back()).depth, 5);
}

// ---- size ----

/// Rounds of a tree whose rows take `row_s` each on top of 10 ms, and whose drafts 0.5 ms each. @return the last choice
DraftPlan shape_trees(DraftLengthPolicy& policy, Estimates& costs, double row_s) {
  DraftPlan choice;
  for (int round = 0; round < 100; ++round) {
    choice = policy.choose({.assistant = 12});
    const RoundOutcome outcome{.drafted = choice.length,
                               .accepted = 2,
                               .draft_s = 0.0005 * choice.length,
                               .verify_s = 0.01 + row_s * (choice.length + 1),
                               .round_s = 0.03,
                               .tree = RoundOutcome::Tree{2, 2}};
    costs.observe(outcome, 0);
    policy.observe(choice, outcome);
  }
  return choice;
}

TEST(TreeShape, ANodeMustBringWhatItsRowAndItsDraftingCost) {
  Estimates costs;
  BatchGoodput batch;
  const auto policy = make_policy(DraftPolicy::kTree, 12, costs, batch);
  DraftPlan choice = policy->choose({.assistant = 12});
  EXPECT_TRUE(choice.tree);
  EXPECT_EQ(choice.length, 12);
  EXPECT_EQ(choice.worth, 0) << "before anything was measured every node is";
  EXPECT_EQ(policy->choose({.assistant = 3}).length, 3);
  // 100 tokens a second, and a row with its draft takes 1.5 ms.
  choice = shape_trees(*policy, costs, 0.001);
  EXPECT_NEAR(choice.worth, 0.15, 0.005);
  EXPECT_EQ(policy->choose({.assistant = 0}).length, 0);
  // Another text of the same verifier need not learn it again: it knows all but its own rate.
  const auto other = make_policy(DraftPolicy::kTree, 12, costs, batch);
  other->observe({}, {.drafted = 12, .accepted = 5, .round_s = 0.03});
  EXPECT_NEAR(other->choose({.assistant = 12}).worth, 0.3, 0.01);
}

TEST(TreeShape, WhereRowsCostNothingItIsTheDraftingThatANodeMustBeWorth) {
  Estimates costs;
  BatchGoodput batch;
  const auto policy = make_policy(DraftPolicy::kTree, 12, costs, batch);
  EXPECT_NEAR(shape_trees(*policy, costs, 0).worth, 0.05, 0.002);
}

// ---- gain ----

RoundOutcome kept(int drafts, int accepted, bool tree) {
  RoundOutcome outcome{.drafted = drafts, .accepted = accepted};
  if (tree) outcome.tree.emplace();
  return outcome;
}

TEST(TreeGain, IsWhatTreesKeepOverWhatChainsDo) {
  std::array<double, kDraftLengthMax> held;
  held.fill(0.5);
  TreeGain gain(0.98);
  EXPECT_GT(gain.over_chain(15), gain.over_chain(8)) << "larger trees are hoped to bring more";
  EXPECT_GT(gain.over_chain(8), 1.05);
  // A chain of two is thought to keep 3/4, and keeps 1/2; a tree of two keeps 1.
  for (int round = 0; round < 1000; ++round) {
    gain.observe(held, kept(2, round % 2, false));
    gain.observe(held, kept(2, 1, true));
  }
  EXPECT_GT(gain.over_chain(2), 1.3) << "two, but for what was hoped for at first";
  for (int round = 0; round < 1000; ++round) gain.observe(held, kept(2, 1, false));
  EXPECT_LT(gain.over_chain(2), 0.95) << "chains have become better, and trees are only hoped for again";
}

TEST(TreeGain, OfATextLeansOnThatOfAll) {
  std::array<double, kDraftLengthMax> held;
  held.fill(0.5);
  TreeGain all(0.98), text(0.9, &all);
  for (int round = 0; round < 500; ++round) all.observe(held, kept(3, 0, true));
  EXPECT_LT(all.over_chain(3), 0.3);
  EXPECT_NEAR(text.over_chain(3), all.over_chain(3), 1e-9);
  for (int round = 0; round < 100; ++round) text.observe(held, kept(3, 3, true));
  EXPECT_GT(text.over_chain(3), 1.2);
}

struct Played {
  int trees = 0, chains = 0;  ///< of the last hundred rounds
};
/// `auto` for 300 rounds of a drafter whose first choice holds in half of all cases.
Played play_auto(double row_s, double draft_s, bool may, double second) {
  Estimates costs;
  BatchGoodput batch;
  const auto policy = make_policy(DraftPolicy::kAuto, 0, costs, batch);
  CounterRng random(1);
  Played played;
  for (int round = 0; round < 300; ++round) {
    const DraftPlan choice = policy->choose({.assistant = 16, .tree = may});
    RoundOutcome outcome{.drafted = choice.length};
    if (choice.tree) {
      // A tree of two choices a node has about half of its drafts along the first ones.
      outcome.tree = {.chain = (choice.length + 1) / 2};
      const double other =
          choice.length > outcome.tree->chain ? second : 0;  // one draft has no second choice beside it
      bool first = true;
      for (int depth = 0; depth < outcome.tree->chain; ++depth) {
        const double luck = random.uniform();
        if (luck >= 0.5 + other) break;
        first = first && luck < 0.5;
        outcome.tree->accepted += first;
        ++outcome.accepted;
      }
    } else {
      while (outcome.accepted < choice.length && random.uniform() < 0.5) ++outcome.accepted;
    }
    outcome.verify_s = 0.1 + row_s * choice.length;
    outcome.draft_s = draft_s * choice.length;
    outcome.round_s = outcome.verify_s + outcome.draft_s;
    if (round >= 200 && choice.length > 0) ++(choice.tree ? played.trees : played.chains);
    costs.observe(outcome, 0);
    policy->observe(choice, outcome);
  }
  return played;
}

TEST(TreeGain, MakesAutoDraftTreesWhereRowsAndDraftsCostLittle) {
  const Played cheap = play_auto(0.0005, 0.001, true, 0.25);
  EXPECT_GT(cheap.trees, 80) << cheap.chains << " chains";
  EXPECT_EQ(play_auto(0.0005, 0.001, false, 0.25).trees, 0);
  // At 0.02 a tree of three is within 2 % of the best chain, one draft: either will do.
  EXPECT_EQ(play_auto(0.03, 0.03, true, 0.25).trees, 0) << "a draft more brings too little";
}

TEST(TreeGain, IsSoonKnownToBeNoneWhereSecondChoicesNeverHold) {
  const Played played = play_auto(0.0005, 0.001, true, 0);
  EXPECT_LT(played.trees, 10) << played.chains << " chains";
}

}  // namespace
}  // namespace outrider
