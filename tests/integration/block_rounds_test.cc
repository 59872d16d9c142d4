// Drafters with hidden rows in rounds, as users start them: small random ones for nano, whose drafts are mostly wrong.
#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "common/client/client.h"
#include "common/compute/tensor/decode.h"
#include "common/model/block_drafter/block_drafter.h"
#include "common/model/block_drafter/eagle3_drafter.h"
#include "common/model/gemma4/assistant.h"
#include "launch/local_cluster.h"
#include "tests/support/model_at.h"
#include "tests/support/test_pairs.h"

namespace outrider {
namespace {

const PairPaths kPair = {in_source("models/nano/backbone"), in_source("models/nano/assistant")};

std::vector<TokenId> prompt(std::uint64_t seed, std::int64_t size) {
  CounterRng rng(seed);
  std::vector<TokenId> tokens(static_cast<std::size_t>(size));
  for (TokenId& token : tokens) token = static_cast<TokenId>(200 + rng.below(7000));
  return tokens;
}

/// @param GetParam()  the drafter's folder in tests/goldens
class BlockRounds : public testing::TestWithParam<const char*> {
 protected:
  static std::filesystem::path drafter() { return in_source("tests/goldens") / GetParam(); }
  BlockRounds() {
    cluster_ = start_threads(context_, {.pair = kPair, .drafter = {.draft_model = drafter(), .wire = "exact"}}).value();
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

INSTANTIATE_TEST_SUITE_P(Families, BlockRounds, testing::Values("block/nano", "deepspec/nano", "eagle3/nano"));

// A chain that is longer than the block, and trees; and prompts whose start is in the verifier's prefix cache.
TEST_P(BlockRounds, TheTextIsThePlainOne) {
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
  explicit Alone(const std::filesystem::path& drafter) {
    const auto load = [&]<typename Drafter>(std::unique_ptr<Drafter>& model) {
      model = Drafter::load(model_at(drafter), target_->config(), target_->weights(), WeightType::kBf16).value();
      target_->keep_hidden(model->config().hidden_layers);
    };
    is_eagle3_drafter(drafter) ? load(eagle3_) : load(block_);
  }
  /// Most drafts that begin a round.
  std::int64_t most() const { return block_ ? block_->config().drafts() : 12; }
  std::vector<TokenId> drafts(std::span<const TokenId> text) {
    KvCache cache = target_->make_cache();
    prefill(*target_, cache, text.first(text.size() - 1));
    return block_ ? of_block(cache, text.back()) : of_eagle3(cache, text.subspan(1));
  }

 private:
  /// Calls function(rows) for the kept rows, 100 at most at a time.
  template <typename Function>
  void for_pieces(const KvCache& cache, Function function) {
    const LayerKv& kept = cache.layer(target_->donors().at(0).cache);
    const std::size_t half = kept.row_bytes() / size_bytes(kept.dtype());
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
      function(piece);
    }
  }
  std::vector<TokenId> of_block(const KvCache& cache, TokenId last) {
    KvCache rows = block_->make_cache();
    for_pieces(cache, [&](Matrix<float> piece) { block_->add_rows(rows, piece); });
    const BlockDrafter::Block block{&rows, last};
    const Matrix<const float> scores = block_->draft({&block, 1});
    std::vector<TokenId> best = {last};
    for (std::int64_t r = 0; r < scores.size(0); ++r) {
      std::vector<float> sum(scores[r].span().begin(), scores[r].span().end());
      if (block_->config().markov_rank > 0)
        add_in_place(Matrix<float>(sum.data(), {1, std::ssize(sum)}), block_->markov({&best.back(), 1}));
      best.push_back(static_cast<TokenId>(argmax(sum)));
    }
    best.erase(best.begin());
    return best;
  }
  /// @param next  the token behind each row
  std::vector<TokenId> of_eagle3(const KvCache& cache, std::span<const TokenId> next) {
    KvCache rows = eagle3_->make_cache();
    std::vector<float> state;
    for_pieces(cache, [&](Matrix<float> piece) {
      const Matrix<float> joined = joined_.view(piece.size(0), eagle3_->config().hidden_size);
      eagle3_->join(piece, joined);
      for (std::int64_t r = 0; r < piece.size(0); ++r) {  // the last row waits for its token, as a first step
        const Matrix<float> one = one_.view(1, joined.size(1));
        std::ranges::copy(state, one.data());
        if (!state.empty()) eagle3_->add_rows(rows, one, {&next[static_cast<std::size_t>(rows.length())], 1});
        state.assign(joined[r].span().begin(), joined[r].span().end());
      }
    });
    std::vector<TokenId> best = {next.back()};
    while (std::ssize(best) <= most()) {
      const Eagle3Drafter::Step step{&rows, best.back(), state};
      best.push_back(best_draft(eagle3_->vocabulary(), eagle3_->step({&step, 1})[0].span()));
      state.assign(eagle3_->state(0).begin(), eagle3_->state(0).end());
    }
    best.erase(best.begin());
    return best;
  }

  std::unique_ptr<Backbone> target_ = Backbone::load(model_at(kPair.backbone), WeightType::kBf16, 64).value();
  std::unique_ptr<BlockDrafter> block_;
  std::unique_ptr<Eagle3Drafter> eagle3_;
  Buffer row_, joined_, one_;
};

// After drafts that were rejected or kept, and where the verifier took the prompt's start from its cache.
TEST_P(BlockRounds, DraftsFollowTheTargetsRows) {
  Client client = connect();
  Alone alone(drafter());
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
  DrafterOptions drafter{.backbone = kPair.backbone,
                         .draft_model = in_source("tests/goldens/block/nano"),
                         .join = cluster->address()};
  drafter.core.link.exit_when_refused = true;
  const auto ended = run_drafter(context, drafter, {});
  ASSERT_FALSE(ended);
  EXPECT_NE(ended.error().message.find("hidden rows of 2 layers, 384 numbers each"), std::string::npos)
      << ended.error().message;
}

}  // namespace
}  // namespace outrider
