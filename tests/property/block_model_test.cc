// A block drafter in the drafter's engine: whoever else is in a pass and whatever was drafted before, a draft is the
// best of what the block's place and, with a Markov head, the token before it speak for.
#include "drafter-node/families.h"

#include <algorithm>

#include "common/model/block_drafter/block_drafter.h"
#include "drafter-node/draft_engine.h"
#include "tests/support/hidden_rows.h"
#include "tests/support/model_at.h"
#include "tests/support/test_pairs.h"

namespace outrider {
namespace {

std::unique_ptr<BlockDrafter> load(const std::string& name) {
  const ModelFiles target = target_of(name);
  return BlockDrafter::load(model_at(in_source("tests/goldens") / name), load_text_config(target).value(),
                            *open_weights(target, WeightType::kF32).value(), WeightType::kF32)
      .value();
}

/// What follows `token` behind a text of so many rows, by a drafter of its own.
std::vector<TokenId> expected(BlockDrafter& drafter, std::uint64_t text, Position length, TokenId token) {
  const BlockConfig& config = drafter.config();
  KvCache cache = drafter.make_cache();
  Buffer scratch;
  for (Position at = 0; at < length; ++at) {
    const Matrix<float> row = scratch.view(1, config.target_row());
    std::ranges::copy(row_of(text, at, config.target_row()), row.data());
    drafter.add_rows(cache, row);
  }
  const BlockDrafter::Block block{&cache, token};
  const Matrix<const float> scores = drafter.draft({&block, 1});
  std::vector<TokenId> drafts;
  for (std::int64_t place = 0; place < config.drafts(); ++place) {
    std::vector<float> sum(scores[place].span().begin(), scores[place].span().end());
    if (config.markov_rank > 0)
      add_in_place(Matrix<float>(sum.data(), {1, std::ssize(sum)}), drafter.markov({&token, 1}));
    const auto best = static_cast<std::size_t>(argmax(sum));
    token = drafter.vocabulary().empty() ? static_cast<TokenId>(best) : drafter.vocabulary()[best];
    drafts.push_back(token);
  }
  return drafts;
}

class BlockModelProperty : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, BlockModelProperty,
                         testing::Values("block/dspark", "block/dflash", "deepspec/dspark"));

// Twenty texts that share passes: more than a pass has room for, and than blocks are kept of.
TEST_P(BlockModelProperty, DraftsAreThoseOfTheTextAlone) {
  const std::unique_ptr<BlockDrafter> alone = load(GetParam());
  const BlockConfig& config = alone->config();
  DraftEngine engine(make_draft_model(load(GetParam())), {});
  CounterRng rng(7);
  constexpr std::uint64_t kTexts = 20;
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
      engine.run({.session = SessionId{text + 1}, .kv = rows_of(text, config, before, middle)});
      engine.run({.session = SessionId{text + 1}, .kv = rows_of(text, config, before, length)});
      tokens.push_back(static_cast<TokenId>(rng.below(512)));
      engine.run({.kind = DraftWork::Kind::kDraft,
                  .session = SessionId{text + 1},
                  .round = RoundId{round},
                  .base = length,
                  .draft = {.token = tokens.back(), .draft_length = 20, .ahead = 3}});
      turns.push_back({SessionId{text + 1}, RoundId{round}, length});
    }
    std::vector<DraftTurn> left = turns;
    std::int64_t waited = 0;
    for (int pass = 0; !left.empty() && pass < 1000; ++pass) {
      // As the core does: at most so many texts in a pass.
      const auto size = std::min<std::size_t>(left.size(), 16);
      std::vector<DraftTurn> next;
      std::vector<DraftProgress> progress = engine.step(std::span(left).first(size));
      for (std::size_t i = 0; i < size; ++i) {
        const std::size_t text = static_cast<std::size_t>(value(left[i].session)) - 1;
        for (const Candidates& drafts : progress[i].drafts) made[text] = drafts.tokens;
        if (progress[i].more) next.push_back(left[i]);
        waited += progress[i].waiting_bytes;
        if (!progress[i].more) {
          EXPECT_EQ(progress[i].waiting_bytes, 0) << "text " << text;
        }
      }
      next.insert(next.begin(), left.begin() + static_cast<std::ptrdiff_t>(size), left.end());
      left = std::move(next);
    }
    ASSERT_TRUE(left.empty());
    EXPECT_GT(waited, 0);
    for (std::uint64_t text = 0; text < kTexts; ++text)
      EXPECT_EQ(made[text], expected(*alone, text, lengths[text], tokens[text])) << "text " << text;
  }
}

// A node of a tree that is deeper than the block has no scores, and so no children.
TEST_P(BlockModelProperty, TreesAreNoDeeperThanTheBlock) {
  DraftEngine engine(make_draft_model(load(GetParam())), {});
  const std::unique_ptr<BlockDrafter> alone = load(GetParam());
  engine.run({.session = SessionId{1}, .kv = rows_of(1, alone->config(), 0, 12)});
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
  EXPECT_GT(tree.tokens.size(), static_cast<std::size_t>(alone->config().drafts()));
  EXPECT_LE(std::ranges::max(tree.depths), alone->config().drafts());
}

}  // namespace
}  // namespace outrider
