// A block drafter in rounds, as users start it: a small random one for nano, whose drafts are mostly wrong.
#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "common/client/client.h"
#include "common/compute/tensor/decode.h"
#include "common/model/block_drafter/block_drafter.h"
#include "launch/local_cluster.h"
#include "tests/support/model_at.h"
#include "tests/support/test_pairs.h"

namespace outrider {
namespace {

const std::filesystem::path kDrafter = in_source("tests/goldens/block/nano");
const PairPaths kPair = {in_source("models/nano/backbone"), in_source("models/nano/assistant")};

std::vector<TokenId> prompt(std::uint64_t seed, std::int64_t size) {
  CounterRng rng(seed);
  std::vector<TokenId> tokens(static_cast<std::size_t>(size));
  for (TokenId& token : tokens) token = static_cast<TokenId>(200 + rng.below(7000));
  return tokens;
}

class BlockRounds : public testing::Test {
 protected:
  BlockRounds() {
    cluster_ = start_threads(context_, {.pair = kPair, .drafter = {.draft_model = kDrafter, .wire = "exact"}}).value();
  }
  Client connect() {
    Client client = Client::connect(context_, cluster_->address()).value();
    const auto joined = client.wait_for_workers(1, 1, [&]() -> Result<void> {
      RETURN_IF_ERROR(cluster_->check());
      return cluster_->check_drafter();
    });
    EXPECT_TRUE(joined) << joined.error().message;
    return client;
  }

  TransportContext context_;
  std::unique_ptr<Cluster> cluster_;
};

// A chain that is longer than the block, and trees; and prompts whose start is in the verifier's prefix cache.
TEST_F(BlockRounds, TheTextIsThePlainOne) {
  Client client = connect();
  std::int64_t drafted = 0, cached = 0;
  for (const SamplingParams& sampling : {SamplingParams{}, SamplingParams{.temperature = 1, .seed = 9}}) {
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      const auto answer = [&](std::int32_t length, DraftPolicy policy) {
        Generate request{.prompt = prompt(seed, 40 + 200 * static_cast<std::int64_t>(seed))};
        request.sampling = sampling;
        request.max_tokens = 24;
        request.draft_length = length;
        request.policy = policy;
        auto told = client.generate(request, [](std::span<const TokenId>) {});
        EXPECT_TRUE(told) << told.error().message;
        return told ? std::move(told).value() : Generation{};
      };
      const Generation plain = answer(0, DraftPolicy::kFixed);
      for (const auto& [length, policy] :
           {std::pair{1, DraftPolicy::kFixed}, {12, DraftPolicy::kFixed}, {8, DraftPolicy::kTree}}) {
        const Generation told = answer(length, policy);
        EXPECT_EQ(told.tokens, plain.tokens) << "prompt " << seed << ", drafts " << length;
        drafted += told.metrics.drafted_tokens;
        cached += told.metrics.cached_prompt_tokens;
      }
    }
  }
  EXPECT_GT(drafted, 100);
  EXPECT_GT(cached, 200);
}

/// What the drafter says after a text, each model by itself and from the start.
class Alone {
 public:
  std::vector<TokenId> drafts(std::span<const TokenId> text) {
    KvCache cache = target_->make_cache();
    prefill(*target_, cache, text.first(text.size() - 1));
    const LayerKv& kept = cache.layer(target_->donors().at(0).cache);
    const std::size_t half = kept.row_bytes() / size_bytes(kept.dtype());
    KvCache rows = drafter_->make_cache();
    std::vector<std::byte> k(kept.row_bytes()), v(kept.row_bytes());
    constexpr Position kPiece = 100;
    for (Position at = 0; at < cache.length(); at += kPiece) {
      const Position count = std::min(kPiece, cache.length() - at);
      const Matrix<float> piece = row_.view(count, static_cast<std::int64_t>(2 * half));
      for (Position i = 0; i < count; ++i) {
        kept.read_raw(at + i, 1, k.data(), v.data());
        decode(kept.dtype(), k.data(), piece[i].span().first(half));
        decode(kept.dtype(), v.data(), piece[i].span().subspan(half));
      }
      drafter_->add_rows(rows, piece);
    }
    const BlockDrafter::Block block{&rows, text.back()};
    const Matrix<const float> scores = drafter_->draft({&block, 1});
    std::vector<TokenId> best;
    for (std::int64_t r = 0; r < scores.size(0); ++r) best.push_back(static_cast<TokenId>(argmax(scores[r].span())));
    return best;
  }

 private:
  std::unique_ptr<Backbone> target_ = [] {
    auto backbone = Backbone::load(model_at(kPair.backbone), WeightType::kBf16, 64).value();
    backbone->keep_hidden(load_block_config(model_at(kDrafter), backbone->config()).value().hidden_layers);
    return backbone;
  }();
  std::unique_ptr<BlockDrafter> drafter_ =
      BlockDrafter::load(model_at(kDrafter), target_->config(), target_->weights(), WeightType::kBf16).value();
  Buffer row_;
};

// After drafts that were rejected or kept, and where the verifier took the prompt's start from its cache.
TEST_F(BlockRounds, DraftsFollowTheTargetsRows) {
  Client client = connect();
  Alone alone;
  std::int64_t compared = 0, appended = 0, told_apart = 0;
  for (const std::int64_t size : {20, 60, 60, 150}) {
    std::vector<TokenId> text = prompt(5, size);
    const auto first = client.prefill(text);
    ASSERT_TRUE(first) << first.error().message;
    text.push_back(*first);
    for (int round = 0; round < 4; ++round) {
      const auto drafts = client.draft(12);
      ASSERT_TRUE(drafts) << drafts.error().message;
      const std::vector<TokenId> expected = alone.drafts(text);
      if (!drafts->empty()) {  // else the drafter had yet to compute what a prompt's rows make
        ASSERT_EQ(*drafts, expected) << "after " << text.size() << " tokens";
        ++compared;
        std::vector<TokenId> other = text;
        other[other.size() - 2] = 300;
        told_apart += int{alone.drafts(other) != expected};
      }
      const auto added = client.verify(*drafts);
      ASSERT_TRUE(added) << added.error().message;
      text.insert(text.end(), added->begin(), added->end());
      appended += std::ssize(*added);
    }
  }
  EXPECT_GE(compared, 8);
  EXPECT_GE(appended, 16);
  EXPECT_GE(told_apart, compared / 2) << "drafts hardly depend on the rows, and show little";
}

TEST(BlockRoundsRefused, ADrafterThatNeedsOtherRowsIsRefused) {
  TransportContext context;
  // The verifier is told of no block drafter: it has rows for an assistant.
  ClusterOptions options{.pair = kPair, .drafters = 0};
  const std::unique_ptr<Cluster> cluster = start_threads(context, options).value();
  DrafterOptions drafter{.backbone = kPair.backbone, .draft_model = kDrafter, .join = cluster->address()};
  drafter.core.link.exit_when_refused = true;
  const auto ended = run_drafter(context, drafter, {});
  ASSERT_FALSE(ended);
  EXPECT_NE(ended.error().message.find("hidden rows of 2 layers, 384 numbers each"), std::string::npos)
      << ended.error().message;
}

}  // namespace
}  // namespace outrider
