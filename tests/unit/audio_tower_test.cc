// The feature extractor and the audio tower against Hugging Face's (sounds, multimodal-e4b) and the numpy reference's
// (audio-odd: no bounds, sizes that no published model has).
#include <map>

#include "tests/unit/tower_support.h"

namespace outrider {
namespace {

// Near the floor the recorded logarithms carry the noise of a transform in single precision, up to 4e-4; what they are
// of does not: so much of its largest value is a few roundings of a float.
TEST(AudioFeatures, EqualHuggingFaces) {
  const Checkpoint golden = Checkpoint::open(goldens() / "sounds/features.safetensors").value();
  std::vector<float> ours = to_vector(audio_features(floats(golden, "samples")).view());
  std::vector<float> theirs = floats(golden, "features");
  EXPECT_LT(relative_error(ours, theirs), 1e-3 / 7) << "4e-4 of up to 7";
  for (std::vector<float>* values : {&ours, &theirs})
    for (float& value : *values) value = std::exp(value);
  EXPECT_LT(relative_error(ours, theirs), 1e-6);
}

TEST(AudioFeatures, HaveAFrameForEveryTenMillisecondsThatAreThere) {
  for (const auto& [samples, frames, soft_tokens] : {std::tuple(0, 0, 0),
                                                     {160, 0, 0},
                                                     {161, 1, 1},
                                                     {320, 1, 1},
                                                     {321, 2, 1},
                                                     {32000, 199, 50},
                                                     {480000, 2999, 750}}) {
    EXPECT_EQ(frame_count(samples), frames) << samples;
    EXPECT_EQ(audio_soft_tokens(samples), soft_tokens) << samples;
  }
  EXPECT_EQ(audio_features(std::vector<float>(kSamplesMin)).view()[0][5], std::log(1e-3F)) << "silence is the floor";
}

// A frame reads samples up to 160 after its start alone.
TEST(AudioFeatures, ALongerSoundBeginsWithTheFramesOfAShorterOne) {
  const std::vector<float> samples = sound_of(5000, 37);
  const std::vector<float> all = to_vector(audio_features(samples).view()),
                           some = to_vector(audio_features(std::span(samples).first(3000)).view());
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
}

// 1e-4, as for the text models: sums in another order.
TEST(AudioTower, EqualsHuggingFaces) {
  Golden<Hearing> g("multimodal-e4b");
  std::map<std::string, std::vector<float>> heard;
  const TraceSink trace = [&](const std::string& name, Matrix<const float> value) { heard[name] = to_vector(value); };
  const std::vector<float> soft = g.encode(&trace);
  const std::vector<float> rows = floats(g.golden, "audio.last_hidden_state");  // and padding behind them
  EXPECT_LT(relative_error(heard.at("rows"), std::span(rows).first(heard.at("rows").size())), 1e-4);
  EXPECT_LT(relative_error(soft, floats(g.golden, "audio.soft_tokens")), 1e-4);
  EXPECT_EQ(soft, heard.at("soft_tokens"));
}

// A loop that has its turn every so many rows is late by so much at most.
TEST(AudioTower, GivesTheCallersLoopItsTurnWithinALayer) {
  Golden<Hearing> g("multimodal-e4b");
  const Tensor features = audio_features(sound_of(kSamplesMax, 3));
  std::int64_t turns = 0;
  const std::function<void()> between_steps = [&] { ++turns; };
  const std::vector<float> quiet = g.encode(features);
  EXPECT_EQ(std::ssize(quiet), 750 * g.tower->config().text_hidden_size);
  EXPECT_EQ(g.encode(features, nullptr, &between_steps), quiet);
  EXPECT_GT(turns, g.tower->config().num_hidden_layers * 6 * 750 / 128);
}

std::string audio_error_of(const std::string& config) {
  const auto result = parse_audio_config(config, "config.json");
  return result ? "" : result.error().message;
}

TEST(AudioConfig, ModelsWithoutAPublishedTowerAreRefusedByName) {
  EXPECT_EQ(load_audio_config(model_at(goldens() / "e4b/backbone")).error().code, Errc::kNotFound);
  EXPECT_NE(audio_error_of("{}").find("no audio tower"), std::string::npos);
  EXPECT_NE(audio_error_of(R"({"audio_config": null})").find("no audio tower"), std::string::npos);
  for (const auto& [audio, wanted] :
       {std::pair(R"("model_type": "gemma3n_audio")", "audio_config.model_type is \"gemma3n_audio\""),
        {R"("attention_context_right": 3)", "audio_config.attention_context_right is 3"},
        {R"("subsampling_conv_channels": [8])", "audio_config.subsampling_conv_channels is an array of 1, wanted two "},
        {R"("hidden_size": 12)",
         "audio_config.hidden_size is 12, wanted a multiple of twice num_attention_heads, 16"}}) {
    const std::string said = audio_error_of(fmt::format(R"({{"text_config": {{}}, "audio_config": {{{}}}}})", audio));
    EXPECT_NE(said.find(wanted), std::string::npos) << said;
  }
  EXPECT_EQ(parse_audio_config(R"({"audio_config": {}, "text_config": {}, "eoa_token_index": 9})", "c")->eoa_token_id,
            9);
}

}  // namespace
}  // namespace outrider
