// 12B, which has no towers: what stands in their place against the numpy reference (unified-media), alone and in a
// text.
#include "common/compute/kernels/ops.h"
#include "common/compute/kernels/team.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/backbone.h"
#include "common/os/files.h"
#include "tests/support/temporary_dir.h"
#include "tests/unit/tower_support.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

fs::path media() { return goldens() / "unified-media/backbone"; }

/// The picture and the sound of the golden, and what encodes them.
struct Unified {
  explicit Unified(WeightType type = WeightType::kF32, const fs::path& path = media())
      : seeing(PictureEncoder::load(model_at(path), type).value()),
        hearing(SoundEncoder::load(model_at(path), type).value()) {}

  std::vector<float> see(const Patches& picture, const Trace& trace = {}) {
    return to_vector(seeing->encode(picture, trace));
  }
  std::vector<float> see() { return see(patches); }
  std::vector<float> hear() { return to_vector(hearing->encode(samples)); }

  Checkpoint golden = Checkpoint::open(goldens() / "unified-media/golden.safetensors").value();
  std::unique_ptr<PictureEncoder> seeing;
  std::unique_ptr<SoundEncoder> hearing;
  Patches patches = cut_into_patches(picture_of(12, 18, 37), seeing->config()).value();
  std::vector<float> samples = sound_of(230, 7);
};

// 1e-4, as for the text models: sums in another order.
TEST(Unified, SoftTokensAreTheReferences) {
  Unified g;
  EXPECT_EQ(relative_error(g.patches.values, floats(g.golden, "pixel_values")), 0) << "patches are merged";
  std::size_t compared = 0;
  const TraceSink trace = [&](const std::string& name, Matrix<const float> value) {
    EXPECT_LT(relative_error(to_vector(value), floats(g.golden, "vision." + name)), 1e-4) << name;
    ++compared;
  };
  g.see(g.patches, &trace);
  EXPECT_EQ(compared, 3u);
  EXPECT_EQ(relative_error(g.samples, floats(g.golden, "samples")), 0);
  EXPECT_LT(relative_error(g.hear(), floats(g.golden, "audio.soft_tokens")), 1e-4);
}

// What the types round to is what `outrider parity` allows them; a wrong term would be off by more.
TEST(Unified, OtherTypesAreNear) {
  Unified exact;
  for (const auto& [type, bound] : {std::pair(WeightType::kBf16, 0.1), std::pair(WeightType::kInt8, 0.4)}) {
    Unified rounded(type);
    for (const double error :
         {relative_error(rounded.see(), exact.see()), relative_error(rounded.hear(), exact.hear())}) {
      EXPECT_LT(error, bound) << to_string(type);
      EXPECT_GT(error, 0) << "nothing was rounded";
    }
  }
  EXPECT_EQ(Unified(WeightType::kInt4).see(), Unified(WeightType::kInt8).see());
}

TEST(Unified, RowsDependOnTheirInputAlone) {
  Unified g(WeightType::kInt8);
  const Patches larger = cut_into_patches(picture_of(54, 54, 5), g.seeing->config()).value();
  const std::vector<float> alone = g.see(), heard = g.hear(), larger_alone = g.see(larger);
  EXPECT_EQ(g.see(), alone);
  const int threads = team_size();
  set_team_size(threads == 1 ? 2 : 1);
  EXPECT_EQ(g.see(), alone);
  EXPECT_EQ(g.see(larger), larger_alone);
  EXPECT_EQ(g.hear(), heard);
  set_team_size(threads);
}

// A picture of one colour: its variance is 0, and what is divided by its root is the epsilon's.
TEST(Unified, APlainPictureIsFinite) {
  Unified g;
  Picture plain = picture_of(12, 18, 0);
  std::ranges::fill(plain.rgb, std::uint8_t{179});
  const std::vector<float> soft = g.see(cut_into_patches(plain, g.seeing->config()).value());
  EXPECT_TRUE(std::ranges::all_of(soft, [](float v) { return std::isfinite(v); }));
}

TEST(Unified, OfAPackHasTheSameBits) {
  const TemporaryDir dir;
  {
    const std::unique_ptr<PackWriter> writer = PackWriter::create(dir / "pack").value();
    ASSERT_TRUE(writer->add_file("config.json", read_text(media() / "config.json").value()));
    const auto weights = packing_weights(open_weights(model_at(media()), WeightType::kInt8).value(), *writer);
    ASSERT_TRUE(PictureEncoder::load(load_vision_config(model_at(media())).value(), weights));
    ASSERT_TRUE(SoundEncoder::load(load_audio_config(model_at(media())).value(), weights));
    ASSERT_TRUE(writer->finish({.dtype = "int8", .source = "", .fingerprint = 1, .embedding_fingerprint = 1}));
  }
  Unified packed(WeightType::kInt8, dir / "pack"), plain(WeightType::kInt8);
  EXPECT_EQ(packed.see(), plain.see());
  EXPECT_EQ(packed.hear(), plain.hear());
}

TEST(Unified, TheConfigIsHuggingFaces) {
  const auto parsed = [](const std::string& vision, const std::string& text = "") {
    return parse_vision_config(R"({"text_config": {)" + text + R"(}, "vision_config": {"model_type": )" +
                                   R"("gemma4_unified_vision")" + vision + "}}",
                               "c");
  };
  const VisionConfig published = parsed("").value();
  EXPECT_EQ(published.soft_token_side(), 48);
  EXPECT_EQ(published.patch_floats(), 6912);
  EXPECT_EQ(published.hidden_size, 3840);
  EXPECT_TRUE(published.both_ways) << "unless it says otherwise";
  EXPECT_FALSE(parsed("", R"("use_bidirectional_attention": null)")->both_ways);
  EXPECT_NE(parsed(R"(, "model_patch_size": 32)").error().message.find("vision_config.model_patch_size is 32"),
            std::string::npos);
  EXPECT_NE(parsed(R"(, "output_proj_dims": 8)").error().message.find("vision_config.output_proj_dims is 8"),
            std::string::npos);
  const AudioConfig audio =
      parse_audio_config(R"({"text_config": {}, "audio_config": {"model_type": "gemma4_unified_audio"}})", "c").value();
  EXPECT_EQ(audio.soft_tokens(640), 1);
  EXPECT_EQ(audio.soft_tokens(641), 2);
  EXPECT_EQ(audio.soft_tokens(kSamplesMax), 750);
}

// In the text of a 12B, whose sliding layers see the picture both ways and its full ones do not.
TEST(Unified, LogitsOfATextWithBothAreTheReferences) {
  const TemporaryDir dir;
  fs::copy(goldens() / "unified-12b/backbone/model.safetensors", dir / "model.safetensors");
  fs::copy(media() / "model.safetensors", dir / "vision.safetensors");
  fs::copy(media() / "config.json", dir / "config.json");
  Unified g(WeightType::kF32, dir.path());
  const auto backbone = Backbone::load(model_at(dir.path()), WeightType::kF32, 64).value();
  std::vector<TokenId> prompt;
  for (const std::int64_t id : integers(*g.golden.find("input_ids"))) prompt.push_back(static_cast<TokenId>(id));
  const auto error = [&](bool both_ways) {
    const std::vector<SoftRows> soft = {{.first = 3, .values = g.seeing->encode(g.patches), .both_ways = both_ways},
                                        {.first = 12, .values = g.hearing->encode(g.samples), .both_ways = false}};
    KvCache cache = backbone->make_cache();
    const Segment segment{&cache, prompt, std::ssize(prompt), soft};
    const Matrix<const float> seen = backbone->forward({&segment, 1}).logits;
    Tensor logits(seen.size(0), seen.size(1));
    std::copy_n(seen.data(), seen.size(0) * seen.size(1), logits.view().data());
    softcap_in_place(logits.view(), backbone->config().final_logit_softcapping);
    return relative_error(to_vector(logits.view()), floats(g.golden, "logits"));
  };
  EXPECT_LT(error(g.seeing->config().both_ways), 1e-4);
  EXPECT_GT(error(false), 1e-2) << "the golden would not tell";
}

}  // namespace
}  // namespace outrider
