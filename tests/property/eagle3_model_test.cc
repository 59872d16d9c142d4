// An EAGLE-3 drafter in the drafter's engine: whoever else is in a pass, whatever was drafted and rejected before, a
// draft is what the drafter says after the target's rows and the drafts before it.
#include "drafter-node/families.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "common/model/block_drafter/eagle3_drafter.h"
#include "common/model/gemma4/assistant.h"
#include "drafter-node/draft_engine.h"
#include "tests/support/hidden_rows.h"
#include "tests/support/model_at.h"
#include "tests/support/test_pairs.h"

namespace outrider {
namespace {

std::unique_ptr<Eagle3Drafter> load(const std::string& name) {
  const ModelFiles target = target_of(name);
  return Eagle3Drafter::load(model_at(in_source("tests/goldens") / name), load_text_config(target).value(),
                             *open_weights(target, WeightType::kF32).value(), WeightType::kF32)
      .value();
}

/// A drafter of its own, which begins each text anew.
class Alone {
 public:
  explicit Alone(const std::string& name) : drafter_(load(name)) {}
  const BlockConfig& config() const { return drafter_->config(); }

  /// What follows the drafts of a path, which begins with `token`, behind a text of so many rows.
  std::vector<float> scores(std::uint64_t text, Position length, std::span<const TokenId> path) {
    KvCache cache = drafter_->make_cache();
    std::vector<float> state;
    for (Position at = 0; at < length; ++at) {
      const Matrix<float> row = row_.view(1, config().target_row()), joined = joined_.view(1, config().hidden_size);
      std::ranges::copy(row_of(text, at, config().target_row()), row.data());
      drafter_->join(row, joined);
      const TokenId next = token_of(text, at + 1, config().vocab_size);
      state.assign(joined[0].span().begin(), joined[0].span().end());
      if (at + 1 < length) drafter_->add_rows(cache, joined, {&next, 1});
    }
    std::vector<float> scores;
    for (const TokenId token : path) {
      const Eagle3Drafter::Step step{&cache, token, state};
      const Matrix<const float> said = drafter_->step({&step, 1});
      scores.assign(said[0].span().begin(), said[0].span().end());
      state.assign(drafter_->state(0).begin(), drafter_->state(0).end());
    }
    return scores;
  }
  TokenId best(std::uint64_t text, Position length, std::span<const TokenId> path) {
    return best_draft(drafter_->vocabulary(), scores(text, length, path));
  }

 private:
  std::unique_ptr<Eagle3Drafter> drafter_;
  Buffer row_, joined_;
};

class Eagle3ModelProperty : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Layers, Eagle3ModelProperty,
                         testing::Values("eagle3/llama", "eagle3/qwen3", "deepspec/eagle3"));

// Each round begins with rows that the drafts of the last one did not foresee.
TEST_P(Eagle3ModelProperty, DraftsAreThoseOfTheTextAlone) {
  Alone alone(GetParam());
  DraftEngine engine(make_draft_model(load(GetParam())), {});
  CounterRng rng(7);
  constexpr std::uint64_t kTexts = 6;
  std::vector<Position> lengths(kTexts, 0);
  for (std::uint32_t round = 1; round <= 4; ++round) {
    std::vector<DraftTurn> turns;
    std::vector<TokenId> tokens;
    std::vector<std::vector<TokenId>> made(kTexts);
    for (std::uint64_t text = 0; text < kTexts; ++text) {
      Position& length = lengths[text];
      // In one message or two, of which the second begins before the first's end; sometimes more than one pass takes.
      const Position before = length, middle = before + 1 + static_cast<Position>(rng.below(4));
      length = middle + 1 + static_cast<Position>(rng.below(text == 3 ? 200 : 20));
      engine.run({.session = SessionId{text + 1}, .kv = rows_of(text, alone.config(), before, middle)});
      engine.run({.session = SessionId{text + 1}, .kv = rows_of(text, alone.config(), before, length)});
      tokens.push_back(token_of(text, length, alone.config().vocab_size));
      engine.run({.kind = DraftWork::Kind::kDraft,
                  .session = SessionId{text + 1},
                  .round = RoundId{round},
                  .base = length,
                  .draft = {.token = tokens.back(), .draft_length = 5, .ahead = 3}});
      turns.push_back({SessionId{text + 1}, RoundId{round}, length});
    }
    std::int64_t waited = 0;
    for (int pass = 0; !turns.empty() && pass < 1000; ++pass) {
      const std::vector<DraftProgress> progress = engine.step(turns);
      std::vector<DraftTurn> next;
      for (std::size_t i = 0; i < turns.size(); ++i) {
        const std::size_t text = static_cast<std::size_t>(value(turns[i].session)) - 1;
        for (const Candidates& drafts : progress[i].drafts) made[text] = drafts.tokens;
        if (progress[i].more) next.push_back(turns[i]);
        waited += progress[i].waiting_bytes;
        if (!progress[i].more) {
          EXPECT_EQ(progress[i].waiting_bytes, 0);
        }
      }
      turns = next;
    }
    ASSERT_TRUE(turns.empty());
    EXPECT_GT(waited, 0);
    for (std::uint64_t text = 0; text < kTexts; ++text) {
      ASSERT_EQ(made[text].size(), 5u);
      std::vector<TokenId> path = {tokens[text]};
      for (const TokenId draft : made[text]) {
        EXPECT_EQ(draft, alone.best(text, lengths[text], path)) << "text " << text << ", draft " << path.size();
        path.push_back(draft);
      }
    }
  }
}

// A node's children are chosen by its own path, not by its siblings'.
TEST_P(Eagle3ModelProperty, ATreesFirstChildIsTheBestBehindItsPath) {
  Alone alone(GetParam());
  DraftEngine engine(make_draft_model(load(GetParam())), {});
  engine.run({.session = SessionId{1}, .kv = rows_of(1, alone.config(), 0, 12)});
  engine.run({.kind = DraftWork::Kind::kDraft,
              .session = SessionId{1},
              .round = RoundId{1},
              .base = 12,
              .draft = {.token = 9, .draft_length = 30, .tree = true}});
  const DraftTurn turn{SessionId{1}, RoundId{1}, 12};
  std::vector<DraftProgress> progress;
  do progress = engine.step({&turn, 1});
  while (progress[0].more);
  ASSERT_EQ(progress[0].drafts.size(), 1u);
  const Candidates& tree = progress[0].drafts[0];
  std::vector<TokenId> path = {9};
  std::int64_t branches = 0;
  for (std::size_t i = 0; i < tree.tokens.size(); ++i) {
    const auto depth = static_cast<std::size_t>(tree.depths[i]);
    const bool first = path.size() == depth;  // depth-first: its parent is the node before it
    branches += int{!first};
    path.resize(depth);
    if (first) {
      EXPECT_EQ(tree.tokens[i], alone.best(1, 12, path)) << "node " << i;
    }
    path.push_back(tree.tokens[i]);
  }
  EXPECT_GT(branches, 3);
  EXPECT_GT(std::ranges::max(tree.depths), 2);
}

}  // namespace
}  // namespace outrider
