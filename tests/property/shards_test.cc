// A model that is split among shards gives the bits of one that is not: any number of shards, any weight type, rows,
// trees and prompts cut anywhere, and K/V that are copied, cut and sent to a drafter.
#include <array>
#include <functional>
#include <mutex>
#include <thread>

#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/weights.h"
#include "lab/random_weights.h"
#include "lab/shapes.h"
#include "tests/support/following_shards.h"
#include "tests/support/tcp_group.h"
#include "tests/support/temporary_dir.h"
#include "tests/support/test_pairs.h"

namespace outrider {
namespace {

constexpr std::int64_t kRowsMax = 40;

/// What a sequence of calls gave: rows, and the donors' K/V.
struct Outcome {
  std::vector<OutputRow> rows;
  std::vector<std::vector<std::byte>> donors;
};

/// Prompts in pieces, rounds of chains and trees of two texts in one pass, rollbacks and copies.
Outcome play(Backbone& model, std::uint64_t seed) {
  CounterRng rng(seed);
  const TextConfig& config = model.config();
  Outcome outcome;
  std::vector<KvCache> caches;
  for (int i = 0; i < 2; ++i) caches.push_back(model.make_cache());
  for (const int rows : {1, 2, 16, 40}) {
    for (KvCache& cache : caches)
      for (OutputRow& row : forward(model, cache, random_tokens(rng, rows, config)))
        outcome.rows.push_back(std::move(row));
  }
  for (std::int64_t round = 0; round < 6; ++round) {
    const std::int64_t drafts = static_cast<std::int64_t>(rng.below(16));
    const std::vector<TokenId> tokens = random_tokens(rng, drafts + 1, config), other = random_tokens(rng, 3, config);
    const std::vector<std::int32_t> depths = random_depths(rng, drafts);
    const std::vector<Segment> segments = {{&caches[0], tokens, drafts + 1, {}, depths}, {&caches[1], other, 2}};
    for (OutputRow& row : copy_rows(model.forward(segments))) outcome.rows.push_back(std::move(row));
    model.keep_path(segments, 0, static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(drafts) + 1)));
    caches[1].truncate(caches[1].length() - static_cast<Position>(rng.below(3)));
    if (round == 3) {
      KvCache copy = model.make_cache();
      copy.copy_from(caches[0], caches[0].length() - 1);
      caches[1] = std::move(copy);
    }
  }
  for (const AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull})
    outcome.donors.push_back(raw_rows(caches[0].layer(model.donor_cache(kind)), caches[0].length() - 5, 5));
  return outcome;
}

using Group = std::vector<std::unique_ptr<Shards>>;
Group in_memory(int count) {
  const Descriptor memory = SharedMemoryShards::create(count).value();
  Group group;
  for (int rank = 0; rank < count; ++rank) group.push_back(SharedMemoryShards::join(memory, {rank, count}).value());
  return group;
}
Group over_tcp(int count) { return tcp_group(count); }

/// @param load  a shard's model; null: the whole. @param connect  makes a group of so many
void expect_bits_of_a_whole(const std::function<std::unique_ptr<Backbone>(Shards*)>& load, std::span<const int> counts,
                            Group (*connect)(int) = in_memory) {
  const std::unique_ptr<Backbone> whole = load(nullptr);
  const Outcome expected = play(*whole, 1);
  for (const int count : counts) {
    const Group group = connect(count);
    std::vector<Outcome> actual(static_cast<std::size_t>(count));
    std::vector<std::thread> threads;
    std::mutex loading;
    std::size_t weight_bytes = 0;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        set_team_size(1);
        std::unique_lock lock(loading);
        const std::unique_ptr<Backbone> model = load(group[static_cast<std::size_t>(rank)].get());
        weight_bytes += model->weight_bytes();
        lock.unlock();
        actual[static_cast<std::size_t>(rank)] = play(*model, 1);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_GE(weight_bytes, whole->weight_bytes());
    EXPECT_LT(weight_bytes, static_cast<std::size_t>(count) * whole->weight_bytes() + (count == 1));
    for (const Outcome& outcome : actual) {
      ASSERT_EQ(outcome.rows.size(), expected.rows.size());
      for (std::size_t r = 0; r < expected.rows.size(); ++r)
        ASSERT_TRUE(same_bits(outcome.rows[r], expected.rows[r])) << count << " shards, row " << r;
      ASSERT_EQ(outcome.donors, expected.donors) << count << " shards";
    }
  }
}

std::vector<TestPair> tiny_pairs() {
  std::vector<TestPair> pairs = every_pair();
  std::erase_if(pairs, [](const TestPair& pair) { return pair.name == std::string("nano"); });
  return pairs;
}

class ShardsProperty : public testing::TestWithParam<TestPair> {};
INSTANTIATE_TEST_SUITE_P(Each, ShardsProperty, testing::ValuesIn(tiny_pairs()), pair_name);

TEST_P(ShardsProperty, EveryShardHasTheBitsOfAWholeModel) {
  const ModelFiles files = model_at(in_source(GetParam().backbone));
  const auto load = [&](Shards* shards) { return Backbone::load(files, GetParam().type, kRowsMax, shards).value(); };
  // Every number for each type, not for each model: gathers are slow where shards wait for cores.
  const bool moe = GetParam().name == std::string("tiny_moe");
  expect_bits_of_a_whole(load, moe ? std::array{1, 4} : std::array{2, 3});
  expect_bits_of_a_whole(load, {{2}}, over_tcp);
}

TEST(Shards, ATrainedModelInAPackIsReadInPart) {
  const TemporaryDir dir;
  const ModelFiles files = model_at(in_source("models/nano/backbone"));
  const TextConfig config = load_text_config(files).value();
  const auto writer = PackWriter::create(dir / "pack").value();
  ASSERT_TRUE(Backbone::load(config, packing_weights(open_weights(files, WeightType::kQ4).value(), *writer), 1));
  ASSERT_TRUE(writer->finish({.dtype = "q4", .source = "", .fingerprint = 1, .embedding_fingerprint = 1}));
  const auto weights = open_weights(model_at(dir / "pack"), WeightType::kQ4).value();
  const auto load = [&](Shards* shards) { return Backbone::load(config, weights, kRowsMax, shards).value(); };
  expect_bits_of_a_whole(load, {{2, 3}});
  expect_bits_of_a_whole(load, {{2, 3}}, over_tcp);
}

// More shards than K/V heads, and fewer; widths that are whole blocks for each shard, and others.
TEST(Shards, RandomShapesOfEveryTypeHaveTheBitsOfAWholeModel) {
  CounterRng rng(17);
  const auto some = [&](std::initializer_list<std::int64_t> of) { return of.begin()[rng.below(of.size())]; };
  for (int i = 0; i < 20; ++i) {
    const WeightType type = kWeightTypes[i % static_cast<int>(std::ssize(kWeightTypes))];
    const std::int64_t heads = some({4, 6, 8, 12}), inner = some({40, 64, 200, 320});
    ModelShape shape{.name = "random",
                     .model_type = "gemma4",
                     .hidden_size = some({48, 64, 160, 384}),
                     .intermediate_size = inner,
                     .use_double_wide_mlp = rng.below(2) == 0,
                     .num_hidden_layers = 6,
                     .period = 2,
                     .num_kv_shared_layers = static_cast<int>(some({0, 2})),
                     .num_attention_heads = heads,
                     .num_key_value_heads = some({1, 2, heads / 2, heads}),
                     .num_global_key_value_heads = some({1, 2}),
                     .attention_k_eq_v = rng.below(2) == 0,
                     .hidden_size_per_layer_input = some({0, 32}),
                     .sliding_window = 8,
                     .max_position_embeddings = 512,
                     .assistant = {},
                     .moe = {},
                     .vocab_size = some({97, 300, 1024}),
                     .head_dim = 16,
                     .global_head_dim = 32};
    if (rng.below(2) == 0) shape.moe = {.num_experts = 5, .top_k_experts = 2, .moe_intermediate_size = some({24, 130})};
    const std::string json = backbone_config_json(shape);
    SCOPED_TRACE(testing::Message() << to_string(type) << " " << json);
    const TextConfig config = parse_text_config(json, "random").value();
    const auto weights = random_weights(type, "random");
    const auto load = [&](Shards* shards) { return Backbone::load(config, weights, kRowsMax, shards).value(); };
    const int count = static_cast<int>(some({2, 3, 4, 5, 8}));
    expect_bits_of_a_whole(load, {{count}});
    if (testing::Test::HasFailure()) return;
  }
}

// What a sequence is made of besides tokens: soft rows, copies, other names.
TEST(Shards, SequencesAreToldToEveryShard) {
  const TestPair pair{"tiny", "tests/goldens/e4b/backbone", "", WeightType::kBf16};
  const auto load = [&](Shards* shards) { return load_backbone(pair, kRowsMax, shards); };
  FollowingShards shards(3, load);
  Sequences split(load(shards.first())), whole(load(nullptr));
  CounterRng rng(5);
  const std::vector<TokenId> tokens = random_tokens(rng, 9, whole.backbone().config());
  Tensor picture(4, whole.backbone().config().hidden_size);
  for (std::int64_t r = 0; r < picture.rows(); ++r)
    for (float& x : picture.view()[r].span()) x = static_cast<float>(rng.uniform() - 0.5);
  const SoftRows soft{.first = 2, .values = picture.view(), .both_ways = true};
  const std::vector<std::int32_t> depths = {1, 1, 2, 1, 2, 3, 4, 1};
  const SessionId text{std::uint64_t{1} << 40 | 7}, kept{8}, other{std::uint64_t{1} << 63 | 1};
  const auto play = [&](Sequences& sequences) {
    std::vector<OutputRow> rows;
    const auto pass = [&](const std::vector<Sequences::Rows>& all) {
      for (OutputRow& row : copy_rows(sequences.forward(all, nullptr))) rows.push_back(std::move(row));
    };
    sequences.open(text);
    pass({{text, tokens, 9, {&soft, 1}}});
    sequences.copy(kept, text, 7, nullptr);
    pass({{text, tokens, 9, {}, depths}, {kept, tokens, 1}});
    sequences.keep_path(0, 6);
    sequences.rename(kept, other);
    pass({{other, tokens, 2}, {text, tokens, 9, {}, depths}});
    sequences.keep_path(1, 2);
    sequences.release(other);
    sequences.open(other);
    pass({{other, tokens, 9}, {text, tokens, 9}});
    return rows;
  };
  const std::vector<OutputRow> actual = play(split), expected = play(whole);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t r = 0; r < actual.size(); ++r) ASSERT_TRUE(same_bits(actual[r], expected[r])) << "row " << r;
}

}  // namespace
}  // namespace outrider
