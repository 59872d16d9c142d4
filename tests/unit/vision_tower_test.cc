// The vision tower against Hugging Face's (multimodal-e4b) and the numpy reference's (vision-odd: standardized, no
// bounds, sizes that no published model has).
#include <map>

#include "tests/unit/tower_support.h"

namespace outrider {
namespace {

// 1e-4, as for the text models: sums in another order.
TEST(VisionTower, EqualsHuggingFaces) {
  Golden<Seeing> g("multimodal-e4b");
  std::map<std::string, std::vector<float>> seen;
  const TraceSink trace = [&](const std::string& name, Matrix<const float> value) { seen[name] = to_vector(value); };
  const std::vector<float> soft = g.encode(&trace);
  EXPECT_LT(relative_error(seen.at("pooled"), floats(g.golden, "vision.last_hidden_state")), 1e-4);
  EXPECT_LT(relative_error(soft, floats(g.golden, "vision.soft_tokens")), 1e-4);
  EXPECT_EQ(soft, seen.at("soft_tokens"));
}

TEST(VisionTower, APortraitAndAPanoramaAreTheReferences) {
  Golden<Seeing> g("multimodal-e4b");
  const Checkpoint reference = Checkpoint::open(goldens() / "multimodal-e4b/pictures.safetensors").value();
  for (const auto& [name, picture] :
       {std::pair("portrait", picture_of(48, 24, 7)), {"panorama", picture_of(12, 96, 101)}}) {
    const Patches patches = cut_into_patches(picture, g.tower->config()).value();
    EXPECT_LT(relative_error(g.encode(patches), floats(reference, name)), 1e-4) << name;
  }
}

// A loop that has its turn every so many rows and queries is late by so much at most.
TEST(VisionTower, GivesTheCallersLoopItsTurnWithinALayer) {
  Golden<Seeing> g("multimodal-e4b");
  const Patches patches = cut_into_patches(picture_of(240, 240, 3), g.tower->config()).value();  // 3,600 patches
  std::int64_t turns = 0;
  const std::function<void()> between_steps = [&] { ++turns; };
  const std::vector<float> quiet = g.encode(patches);
  EXPECT_EQ(g.encode(patches, nullptr, &between_steps), quiet);
  EXPECT_GT(turns, g.tower->config().num_hidden_layers * 3600 / 64);
}

std::string vision_error_of(const std::string& config) {
  const auto result = parse_vision_config(config, "config.json");
  return result ? "" : result.error().message;
}

TEST(VisionConfig, ModelsWithoutAPublishedTowerAreRefusedByName) {
  EXPECT_EQ(load_vision_config(model_at(goldens() / "e4b/backbone")).error().code, Errc::kNotFound);
  EXPECT_NE(vision_error_of("{}").find("no vision tower"), std::string::npos);
  EXPECT_NE(vision_error_of(R"({"vision_config": null})").find("no vision tower"), std::string::npos);
  const std::string gemma3 =
      vision_error_of(R"({"text_config": {}, "vision_config": {"model_type": "siglip_vision_model"}})");
  EXPECT_NE(gemma3.find("vision_config.model_type is \"siglip_vision_model\""), std::string::npos) << gemma3;
  const std::string head = vision_error_of(R"({"text_config": {}, "vision_config": {"head_dim": 66}})");
  EXPECT_NE(head.find("vision_config.head_dim is 66, wanted a multiple of 4"), std::string::npos) << head;
  const std::string shared =
      vision_error_of(R"({"text_config": {}, "vision_config": {"num_attention_heads": 8, "num_key_value_heads": 4}})");
  EXPECT_NE(shared.find("vision_config.num_key_value_heads is 4"), std::string::npos) << shared;
}

}  // namespace
}  // namespace outrider
