// EAGLE-3 drafters beside the reference: what speculators or DeepSpec says in several steps behind each row of a text.
#include "common/model/block_drafter/eagle3_drafter.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "common/model/block_drafter/block_drafter.h"
#include "common/model/checkpoint/checkpoint.h"
#include "tests/support/hidden_rows.h"
#include "tests/support/model_at.h"
#include "tests/support/test_pairs.h"

namespace outrider {
namespace {

constexpr std::int64_t kSteps = 5;  // recorded

Tensor recorded(const Checkpoint& golden, const std::string& name) {
  const TensorEntry* const entry = golden.find(name);
  Tensor tensor(entry->element_count() / entry->shape.back(), entry->shape.back());
  EXPECT_TRUE(read_f32(*entry, std::span(tensor.view().data(), static_cast<std::size_t>(entry->element_count()))));
  return tensor;
}

class Eagle3Parity : public testing::TestWithParam<const char*> {
 protected:
  void load(WeightType type) {
    const std::filesystem::path dir = in_source("tests/goldens") / GetParam();
    const ModelFiles target = target_of(GetParam());
    const auto weights = open_weights(target, type).value();
    drafter_ = Eagle3Drafter::load(model_at(dir), load_text_config(target).value(), *weights, type).value();
    golden_ = Checkpoint::open(dir / "golden.safetensors").value();
    const TensorEntry* const entry = golden_->find("tokens");
    std::vector<std::int64_t> ids(static_cast<std::size_t>(entry->element_count()));
    EXPECT_TRUE(read_i64(*entry, ids));
    tokens_.assign(ids.begin(), ids.end());
    const Tensor rows = recorded(*golden_, "rows");
    hidden_ = Tensor(rows.rows(), drafter_->config().hidden_size);
    Buffer padded;
    for (std::int64_t r = 0; r < rows.rows(); ++r) {
      const Matrix<float> row = padded.view(1, rows.columns()), joined = out_.view(1, hidden_.columns());
      std::ranges::copy(rows.view()[r].span(), row.data());
      drafter_->join(row, joined);
      std::ranges::copy(joined[0].span(), hidden_.view()[r].data());
    }
  }
  /// A text with the positions before `row`, added in pieces.
  KvCache text_before(std::int64_t row, std::int64_t piece) {
    KvCache text = drafter_->make_cache();
    for (std::int64_t at = 0; at < row; at += piece) {
      const std::int64_t count = std::min(piece, row - at);
      const Matrix<float> part = out_.view(count, hidden_.columns());
      for (std::int64_t r = 0; r < count; ++r) std::ranges::copy(hidden_.view()[at + r].span(), part[r].data());
      drafter_->add_rows(text, part, std::span(tokens_).subspan(static_cast<std::size_t>(at + 1)).first(part.size(0)));
    }
    return text;
  }
  Eagle3Drafter::Step first_step(KvCache& text) {
    const Position row = text.length();
    return {&text, tokens_[static_cast<std::size_t>(row + 1)], hidden_.view()[row].span()};
  }

  std::unique_ptr<Eagle3Drafter> drafter_;
  std::optional<Checkpoint> golden_;
  std::vector<TokenId> tokens_;
  Tensor hidden_{1, 1};
  Buffer out_;
};
INSTANTIATE_TEST_SUITE_P(Layers, Eagle3Parity, testing::Values("eagle3/llama", "eagle3/qwen3", "deepspec/eagle3"));

// The bound is of the step's largest score: float32 sums in another order, through two layers and five steps.
TEST_P(Eagle3Parity, ScoresAreTheReferencesOverSeveralSteps) {
  load(WeightType::kF32);
  std::vector<KvCache> texts;
  for (std::int64_t row = 0; row < hidden_.rows(); row += 3) texts.push_back(text_before(row, 7));
  std::vector<Eagle3Drafter::Step> steps;
  for (KvCache& text : texts) steps.push_back(first_step(text));
  std::vector<std::vector<float>> states(texts.size());
  double furthest = 0;
  for (std::int64_t j = 0; j < kSteps; ++j) {
    const Tensor logits = recorded(*golden_, "logits." + std::to_string(j));
    const Matrix<const float> scores = drafter_->step(steps);
    ASSERT_EQ(scores.size(1), logits.columns());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const Position row = texts[i].length();
      const std::span<const float> seen = scores[static_cast<std::int64_t>(i)].span(), said = logits.view()[row].span();
      float most = 0, error = 0;
      for (std::size_t c = 0; c < said.size(); ++c) {
        most = std::max(most, std::abs(said[c]));
        error = std::max(error, std::abs(seen[c] - said[c]));
      }
      furthest = std::max(furthest, static_cast<double>(error / most));
      EXPECT_LT(error, 1e-4 * most) << "row " << row << ", step " << j;
      const std::span<const float> state = drafter_->state(i);
      states[i].assign(state.begin(), state.end());
      steps[i] = {&texts[i], tokens_[static_cast<std::size_t>(row + 2 + j) % tokens_.size()], states[i]};
    }
  }
  RecordProperty("furthest", std::to_string(furthest));
}

// Whoever else is in a pass, however the rows came, and whatever was drafted from the text before.
TEST_P(Eagle3Parity, AStepGetsTheBitsThatItGetsAlone) {
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8}) {
    load(type);
    KvCache alone = text_before(30, 30), other = text_before(11, 11), parts = text_before(30, 4);
    const auto twice = [&](KvCache& text, bool in_company) {
      std::vector<float> state, said;
      for (const TokenId token : {TokenId{3}, TokenId{8}}) {
        std::vector<Eagle3Drafter::Step> steps;
        if (in_company) steps = {first_step(other), {&text, 77, first_step(text).state}};
        steps.push_back({&text, token, state.empty() ? first_step(text).state : std::span<const float>(state)});
        const Matrix<const float> scores = drafter_->step(steps);
        const auto last = scores[scores.size(0) - 1].span();
        said.insert(said.end(), last.begin(), last.end());
        state.assign(drafter_->state(steps.size() - 1).begin(), drafter_->state(steps.size() - 1).end());
      }
      return said;
    };
    const std::vector<float> expected = twice(alone, false);
    EXPECT_EQ(twice(parts, true), expected) << to_string(type);
    EXPECT_EQ(twice(alone, true), expected) << to_string(type);
  }
}

TEST(Eagle3, TheVocabularyIsTheCheckpoints) {
  const ModelFiles target = model_at(in_source("tests/goldens/e4b/backbone"));
  const auto weights = open_weights(target, WeightType::kF32).value();
  const auto load = [&](const char* name) {
    return Eagle3Drafter::load(model_at(in_source("tests/goldens/eagle3") / name), load_text_config(target).value(),
                               *weights, WeightType::kF32);
  };
  EXPECT_TRUE(load("qwen3").value()->vocabulary().empty());
  const auto drafter = load("llama").value();
  ASSERT_EQ(drafter->vocabulary().size(), 256u);
  EXPECT_TRUE(std::ranges::is_sorted(drafter->vocabulary()));
  // For another target, and of another family.
  EXPECT_NE(load("nano").error().message.find("vocab_size is 8192, wanted the target's 512"), std::string::npos);
  const ModelFiles block = model_at(in_source("tests/goldens/block/dspark")),
                   eagle3 = model_at(in_source("tests/goldens/eagle3/qwen3"));
  const TextConfig config = load_text_config(target).value();
  EXPECT_NE(Eagle3Drafter::load(block, config, *weights, WeightType::kF32).error().message.find("wanted EAGLE-3"),
            std::string::npos);
  EXPECT_NE(BlockDrafter::load(eagle3, config, *weights, WeightType::kF32).error().message.find("wanted a block"),
            std::string::npos);
  EXPECT_TRUE(is_block_drafter(eagle3.path()));
  EXPECT_TRUE(is_eagle3_drafter(eagle3.path()));
  EXPECT_FALSE(is_eagle3_drafter(block.path()));
}

/// What is said of llama's config with `from` replaced.
std::string refusal(const std::string& from, const std::string& to) {
  std::string config = model_at(in_source("tests/goldens/eagle3/llama")).need_config_json().value().text;
  const std::size_t at = config.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  const auto parsed = parse_block_config(config.replace(at, from.size(), to), "config.json");
  return parsed ? "" : parsed.error().message;
}

TEST(Eagle3, OtherConfigsAreRefusedByName) {
  EXPECT_EQ(refusal("\"target_hidden_size\": null", "\"target_hidden_size\": 128"),
            "config.json: target_hidden_size is 128, wanted hidden_size = 64");
  EXPECT_EQ(refusal("\"rope_type\": \"default\"", "\"rope_type\": \"llama3\""),
            "config.json: transformer_layer_config.rope_parameters.rope_type is \"llama3\", wanted default");
  EXPECT_NE(refusal("\"rope_type\"", "\"partial_rotary_factor\": 0.25, \"rope_type\"").find("partial_rotary_factor"),
            std::string::npos);
  EXPECT_NE(refusal("\"llama\"", "\"gemma4_text\"").find("transformer_layer_config.model_type"), std::string::npos);
  EXPECT_NE(refusal("\"attention_bias\": false", "\"attention_bias\": true").find("attention_bias"), std::string::npos);
  EXPECT_NE(refusal("\"mlp_bias\": false", "\"mlp_bias\": true").find("mlp_bias"), std::string::npos);
  EXPECT_NE(refusal("\"fc_norm\": false,\n  \"norm_before_fc\": false",
                    "\"fc_norm\": true,\n  \"norm_before_fc\": true").find("fc_norm is true"), std::string::npos);
  EXPECT_NE(refusal("    4,\n    1", "    0,\n    1").find("distinct layers from 1 on"), std::string::npos);
  EXPECT_NE(refusal("\"llama\"", "\"qwen3\", \"use_sliding_window\": true, \"sliding_window\": 8, "
                                 "\"layer_types\": [\"sliding_attention\"]").find("use_sliding_window"),
            std::string::npos);
  EXPECT_EQ(refusal("speculators_version", "a"), "");
}

// speculators' and vLLM's default: hidden states 2, layers / 2 and layers - 3.
TEST(Eagle3, TheTargetsDefaultLayersAreTaken) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "eagle3_default";
  std::filesystem::create_directories(dir);
  std::string config = model_at(in_source("tests/goldens/eagle3/llama")).need_config_json().value().text;
  const std::size_t at = config.find("eagle_aux_hidden_state_layer_ids");
  std::ofstream(dir / "config.json") << config.replace(at, 5, "other");
  std::filesystem::copy_file(in_source("tests/goldens/eagle3/llama/model.safetensors"), dir / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  const TextConfig target = load_text_config(model_at(in_source("tests/goldens/e4b/backbone"))).value();
  EXPECT_EQ(load_block_config(model_at(dir), target).value().hidden_layers, (std::vector<int>{1, 3, 4}));
}

}  // namespace
}  // namespace outrider
