// Block drafters beside the reference: what speculators or DeepSpec says of blocks in a text, from the same checkpoint
// and rows.
#include "common/model/block_drafter/block_drafter.h"

#include <cmath>

#include <gtest/gtest.h>

#include "common/model/checkpoint/checkpoint.h"
#include "tests/support/hidden_rows.h"
#include "tests/support/model_at.h"
#include "tests/support/test_pairs.h"

namespace outrider {
namespace {

/// A recorded tensor, the last axis as columns.
Tensor recorded(const Checkpoint& golden, const char* name) {
  const TensorEntry* const entry = golden.find(name);
  Tensor tensor(entry->element_count() / entry->shape.back(), entry->shape.back());
  EXPECT_TRUE(read_f32(*entry, std::span(tensor.view().data(), static_cast<std::size_t>(entry->element_count()))));
  return tensor;
}

std::vector<std::int64_t> numbers(const Checkpoint& golden, const char* name) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(golden.find(name)->element_count()));
  EXPECT_TRUE(read_i64(*golden.find(name), all));
  return all;
}

struct Loaded {
  std::unique_ptr<BlockDrafter> drafter;
  Checkpoint golden;
};

Loaded load(const std::string& name, WeightType type = WeightType::kF32) {
  const std::filesystem::path dir = in_source("tests/goldens") / name;
  const ModelFiles target = target_of(name);
  const auto weights = open_weights(target, type).value();
  return {BlockDrafter::load(model_at(dir), load_text_config(target).value(), *weights, type).value(),
          Checkpoint::open(dir / "golden.safetensors").value()};
}

/// The text's rows up to an anchor, added in pieces.
KvCache text_until(BlockDrafter& drafter, Matrix<const float> rows, std::int64_t anchor, std::int64_t piece) {
  KvCache text = drafter.make_cache();
  Buffer some;
  for (std::int64_t at = 0; at < anchor; at += piece) {
    const std::int64_t count = std::min(piece, anchor - at);
    const Matrix<float> part = some.view(count, rows.size(1));
    for (std::int64_t r = 0; r < count; ++r) std::ranges::copy(rows[at + r].span(), part[r].data());
    drafter.add_rows(text, part);
  }
  return text;
}

float distance(std::span<const float> a, std::span<const float> b) {
  float most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

class BlockDrafterParity : public testing::TestWithParam<const char*> {};

TEST_P(BlockDrafterParity, ScoresAreTheReferences) {
  auto [drafter, golden] = load(GetParam());
  const BlockConfig& config = drafter->config();
  const Tensor rows = recorded(golden, "rows"), logits = recorded(golden, "logits");
  const std::vector<std::int64_t> anchors = numbers(golden, "anchors"), tokens = numbers(golden, "tokens");
  std::vector<KvCache> texts;
  std::vector<BlockDrafter::Block> blocks;
  for (const std::int64_t anchor : anchors) texts.push_back(text_until(*drafter, rows.view(), anchor, 7));
  for (std::size_t i = 0; i < anchors.size(); ++i)
    blocks.push_back({&texts[i], static_cast<TokenId>(tokens[static_cast<std::size_t>(anchors[i])])});
  const std::int64_t drafts = config.drafts(), skipped = config.block_size - drafts;
  const Matrix<const float> scores = drafter->draft(blocks);
  ASSERT_EQ(scores.size(1), logits.view().size(1));
  for (std::int64_t r = 0; r < scores.size(0); ++r) {
    const std::int64_t place = r / drafts * config.block_size + skipped + r % drafts;
    EXPECT_LT(distance(scores[r].span(), logits.view()[place].span()), 1e-4) << "row " << r;
    if (config.markov_rank == 0) continue;
    const Tensor with_markov = recorded(golden, "with_markov");
    const auto before = static_cast<TokenId>(numbers(golden, "before")[static_cast<std::size_t>(place)]);
    std::vector<float> sum(scores[r].span().begin(), scores[r].span().end());
    add_in_place(Matrix<float>(sum.data(), {1, std::ssize(sum)}), drafter->markov({&before, 1}));
    EXPECT_LT(distance(sum, with_markov.view()[place].span()), 1e-4) << "row " << r << " with the Markov head";
  }
}

// Whoever else is in a pass, however the rows came, and whatever was drafted before.
TEST_P(BlockDrafterParity, ABlockGetsTheBitsThatItGetsAlone) {
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8}) {
    auto [drafter, golden] = load(GetParam(), type);
    const Tensor rows = recorded(golden, "rows");
    const auto said = [&](std::span<const BlockDrafter::Block> blocks) {
      const Matrix<const float> scores = drafter->draft(blocks);
      std::vector<float> last;
      for (std::int64_t r = scores.size(0) - drafter->config().drafts(); r < scores.size(0); ++r)
        last.insert(last.end(), scores[r].span().begin(), scores[r].span().end());
      return last;
    };
    KvCache alone = text_until(*drafter, rows.view(), 30, 30), other = text_until(*drafter, rows.view(), 11, 11);
    KvCache parts = text_until(*drafter, rows.view(), 30, 4);
    const BlockDrafter::Block block{&alone, 3};
    const std::vector<float> expected = said({&block, 1});
    EXPECT_EQ(said(std::vector<BlockDrafter::Block>{{&other, 5}, {&parts, 3}}), expected) << to_string(type);
    EXPECT_EQ(said(std::vector<BlockDrafter::Block>{{&other, 5}, {&alone, 3}}), expected) << to_string(type);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, BlockDrafterParity,
                         testing::Values("block/dspark", "block/dflash", "deepspec/dspark", "deepspec/dflash"));

TEST(BlockDrafter, TheVocabularyIsTheCheckpoints) {
  EXPECT_TRUE(load("block/dspark").drafter->vocabulary().empty());
  EXPECT_TRUE(load("deepspec/dspark").drafter->vocabulary().empty());
  const auto [drafter, golden] = load("block/dflash");
  const std::span<const TokenId> ids = drafter->vocabulary();
  ASSERT_EQ(ids.size(), 256u);
  EXPECT_TRUE(std::ranges::is_sorted(ids));
}

/// What is said of a config with `from` replaced.
std::string refusal(const std::string& from, const std::string& to, const std::string& name = "block/dspark") {
  std::string config = model_at(in_source("tests/goldens") / name).need_config_json().value().text;
  const std::size_t at = config.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  const auto parsed = parse_block_config(config.replace(at, from.size(), to), "config.json");
  return parsed ? "" : parsed.error().message;
}

// What another implementation may accept is refused by name, and what cannot be is too.
TEST(BlockDrafter, OtherConfigsAreRefusedByName) {
  EXPECT_EQ(refusal("\"dspark\",\n  \"speculators_version", "\"peagle\",\n  \"speculators_version"),
            "config.json: speculators_model_type is \"peagle\", wanted dflash or dspark or eagle3");
  EXPECT_NE(refusal("vanilla", "gated").find("markov_head_type is \"gated\""), std::string::npos);
  EXPECT_NE(refusal("\"qwen3\"", "\"gemma4_text\"").find("transformer_layer_config.model_type"), std::string::npos);
  EXPECT_NE(refusal("\"default\"", "\"yarn\"").find("rope_parameters.rope_type"), std::string::npos);
  EXPECT_NE(refusal("\"mask_token_id\": 7", "\"mask_token_id\": 512").find("mask_token_id is 512"), std::string::npos);
  EXPECT_NE(refusal("    1,\n    3", "    0,\n    3").find("distinct layers from 1 on"), std::string::npos);
  EXPECT_NE(refusal("    1,\n    3", "    3,\n    3").find("distinct layers"), std::string::npos);
  EXPECT_NE(refusal("speculators_model_type", "other").find("speculators_model_type"), std::string::npos);
  EXPECT_EQ(refusal("\"draft_vocab_size\": 512,", ""),
            "config.json: draft_vocab_size is missing, wanted a whole number from 1 to 512");
  EXPECT_EQ(refusal("speculators_version", "a"), "");
}

TEST(BlockDrafter, OtherGemmaLayersAreRefusedByName) {
  const auto said = [](const std::string& from, const std::string& to, const std::string& name = "deepspec/dspark") {
    return refusal(from, to, name);
  };
  EXPECT_EQ(said("Gemma4DSparkModel", "Qwen3DSparkModel"),
            "config.json: architectures is \"Qwen3DSparkModel\", wanted Gemma4DSparkModel or Gemma4Eagle3Model");
  EXPECT_NE(said("vanilla", "gated").find("markov_head_type is \"gated\", wanted vanilla"), std::string::npos);
  EXPECT_NE(said("vanilla", "rnn").find("markov_head_type is \"rnn\", wanted vanilla"), std::string::npos);
  EXPECT_NE(said("\"proportional\"", "\"yarn\"").find("rope_parameters.full_attention.rope_type is \"yarn\""),
            std::string::npos);
  EXPECT_NE(said("\"full_attention\",", "\"sliding_attention\",").find("layer_types is \"sliding_attention\""),
            std::string::npos);
  EXPECT_NE(said("\"enable_moe_block\": false", "\"enable_moe_block\": true").find("enable_moe_block is true"),
            std::string::npos);
  EXPECT_NE(said("\"hidden_size_per_layer_input\": 0", "\"hidden_size_per_layer_input\": 8")
                .find("hidden_size_per_layer_input is 8, wanted 0"),
            std::string::npos);
  EXPECT_NE(said("\"num_kv_shared_layers\": 0", "\"num_kv_shared_layers\": 1").find("num_kv_shared_layers is 1"),
            std::string::npos);
  EXPECT_NE(said("\"attention_bias\": false", "\"attention_bias\": true").find("attention_bias is true"),
            std::string::npos);
  // The embedding's output is no layer's.
  EXPECT_NE(said("    1,\n    4", "    -1,\n    4").find("distinct layers from 0 on"), std::string::npos);
  EXPECT_NE(said("\"num_target_layers\": 6,", "").find("num_target_layers is missing"), std::string::npos);
  EXPECT_NE(
      said("\"num_hidden_layers\": 1",
           "\"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\", \"full_attention\"]", "deepspec/eagle3")
          .find("num_hidden_layers is 2, wanted 1"),
      std::string::npos);
  EXPECT_EQ(said("num_anchors", "a"), "");
}

// The rows that a verifier keeps for a drafter: the outputs of its layers, of a chain and of a tree's kept path.
TEST(KeptHiddenRows, AreTheLayersOutputs) {
  const TestPair pair{"tiny", "tests/goldens/e4b/backbone", "", WeightType::kF32};
  const std::unique_ptr<Backbone> backbone = load_backbone(pair, 16);
  backbone->keep_hidden({3, 1});
  const std::int64_t width = backbone->config().hidden_size;
  const auto kept = [&](const KvCache& cache) {
    const LayerKv& layer = cache.layer(backbone->donors().at(0).cache);
    Tensor rows(cache.length(), 2 * width);
    for (Position at = 0; at < cache.length(); ++at)
      layer.read_raw(at, 1, reinterpret_cast<std::byte*>(rows.view()[at].data()),
                     reinterpret_cast<std::byte*>(rows.view()[at].data() + width));
    return rows;
  };
  std::vector<float> outputs[2];
  const TraceSink sink = [&](const std::string& name, Matrix<const float> value) {
    for (const int i : {0, 1})
      if (name == (i == 0 ? "layers.3.output" : "layers.1.output"))
        for (std::int64_t r = 0; r < value.size(0); ++r)
          outputs[i].insert(outputs[i].end(), value[r].span().begin(), value[r].span().end());
  };
  const std::vector<TokenId> tokens = {5, 17, 400, 3, 99, 250};
  KvCache chain = backbone->make_cache();
  const Segment whole{&chain, tokens, 0};
  backbone->forward({&whole, 1}, &sink);
  const Tensor rows = kept(chain);
  for (std::int64_t r = 0; r < 6; ++r) {
    for (const int i : {0, 1})
      EXPECT_TRUE(same_bits(
          rows.view()[r].span().subspan(static_cast<std::size_t>(i * width), static_cast<std::size_t>(width)),
          std::span(outputs[i]).subspan(static_cast<std::size_t>(r * width), static_cast<std::size_t>(width))));
  }
  // The same text with its last rows on a branch of a tree.
  KvCache tree = backbone->make_cache();
  const Segment start{&tree, std::span(tokens).first(3), 0};
  backbone->forward({&start, 1});
  const std::vector<TokenId> nodes = {3, 7, 8, 99, 250, 6};
  const std::vector<std::int32_t> depths = {1, 2, 1, 2, 2};
  const Segment branches{&tree, nodes, 0, {}, depths};
  backbone->forward({&branches, 1});
  backbone->keep_path({&branches, 1}, 0, 4);
  ASSERT_EQ(tree.length(), 6);
  const Tensor same = kept(tree);
  for (std::int64_t r = 0; r < 6; ++r) EXPECT_TRUE(same_bits(same.view()[r].span(), rows.view()[r].span())) << r;
}

TEST(BlockDrafter, AnotherTargetIsRefused) {
  const ModelFiles drafter = model_at(in_source("tests/goldens/block/nano"));
  const TextConfig tiny = load_text_config(model_at(in_source("tests/goldens/e4b/backbone"))).value();
  const auto config = load_block_config(drafter, tiny);
  ASSERT_FALSE(config);
  EXPECT_NE(config.error().message.find("vocab_size is 8192, wanted the target's 512"), std::string::npos);
  EXPECT_TRUE(load_block_config(drafter, load_text_config(model_at(in_source("models/nano/backbone"))).value()));
  // With as many numbers in a row, and as many tokens, but fewer layers.
  TextConfig shorter = load_text_config(target_of("deepspec/dspark")).value();
  shorter.num_hidden_layers = 5;
  const auto refused = load_block_config(model_at(in_source("tests/goldens/deepspec/dspark")), shorter);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("num_target_layers is 6, wanted the target's 5"), std::string::npos);
  for (const char* name : {"dspark", "dflash", "eagle3"})
    EXPECT_TRUE(is_block_drafter(in_source("tests/goldens/deepspec") / name)) << name;
  EXPECT_TRUE(is_eagle3_drafter(in_source("tests/goldens/deepspec/eagle3")));
  EXPECT_FALSE(is_eagle3_drafter(in_source("tests/goldens/deepspec/dspark")));
  EXPECT_TRUE(is_block_drafter(drafter.path()));
  EXPECT_FALSE(is_block_drafter(in_source("models/nano/backbone")));
  EXPECT_FALSE(is_block_drafter(in_source("models/nothing")));
}

}  // namespace
}  // namespace outrider
