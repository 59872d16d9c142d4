// Pictures and sounds in prompts, through coordinator, verifier and drafter: tests/goldens/multimodal-e4b, with the
// random assistant of e4b, whose shape it has.
#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/model/audio/sound_encoder.h"
#include "common/model/checkpoint/checkpoint.h"
#include "common/model/gemma4/backbone.h"
#include "common/model/vision/picture_encoder.h"
#include "common/os/files.h"
#include "tests/support/cluster_fixtures.h"
#include "tests/support/model_at.h"

namespace outrider {
namespace {

std::filesystem::path goldens() { return source_dir() / "tests/goldens"; }

/// Bytes that count up by `step`; 37 are the picture of picture.json.
WireTensor picture(int step, std::int64_t height = 24, std::int64_t width = 36) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(3 * height * width));
  for (std::size_t i = 0; i < bytes->size(); ++i)
    (*bytes)[i] = static_cast<std::byte>(i * static_cast<std::size_t>(step) + 11);
  return {.dtype = DType::kU8, .shape = {height, width, 3}, .data = SharedBytes(bytes, *bytes)};
}

/// Samples that count up by `step`, as sound.json's do.
WireTensor sound(std::int64_t count, int step) {
  const auto samples = std::make_shared<std::vector<float>>();
  for (std::int64_t i = 0; i < count; ++i) samples->push_back(static_cast<float>(i * step % 256 - 128) / 256);
  return {.dtype = DType::kF32, .shape = {count}, .data = SharedBytes(samples, std::as_bytes(std::span(*samples)))};
}

struct Pictures : testing::Test {
  Pictures() : notes(nlohmann::json::parse(read_text(goldens() / "multimodal-e4b/picture.json").value())) {
    options.verifier.core.reuse_min = 2;  // the prompt is short
  }
  Client start(const ClusterOptions& wanted) {
    cluster.reset();
    cluster = start_threads(context, wanted).value();
    return connect_when_joined(context, *cluster);
  }
  Generate request(WireTensor pixels, std::int32_t draft_length) const {
    return {.prompt = notes["prompt"].get<std::vector<TokenId>>(),
            .max_tokens = 24,
            .draft_length = draft_length,
            .media = {{.first = 3, .content = std::move(pixels)}}};
  }
  std::string refusal(Client& client, const Generate& wanted) {
    const Result<Generation> generation = client.generate(wanted, [](std::span<const TokenId>) {});
    return generation ? "answered" : generation.error().message;
  }

  nlohmann::json notes;
  ClusterOptions options{.pair = {goldens() / "multimodal-e4b/backbone", goldens() / "e4b/assistant"},
                         .weight_type = WeightType::kF32};
  TransportContext context;
  std::unique_ptr<Cluster> cluster;
};

TEST_F(Pictures, TheTextIsTheReferencesWithAndWithoutDrafts) {
  Client client = start(options);
  for (const std::int32_t draft_length : {0, 4}) {
    const Generation generation = answer(client, request(picture(37), draft_length));
    EXPECT_EQ(generation.tokens, notes["greedy_of_bytes"].get<std::vector<TokenId>>());
    EXPECT_EQ(generation.metrics.drafted_tokens > 0, draft_length > 0);
  }
}

// A portrait, a panorama, and two pictures in one text: with chains and trees of drafts, and under matched noise.
TEST_F(Pictures, OtherSizesAndTwoInOneText) {
  Client client = start(options);
  for (const auto& text : notes["texts"]) {
    SCOPED_TRACE(text["name"].get<std::string>());
    Generate wanted{.prompt = text["prompt"].get<std::vector<TokenId>>(), .max_tokens = 24};
    for (const auto& at : text["pictures"])
      wanted.media.push_back(
          {.first = at["first"].get<Position>(), .content = picture(at["step"].get<int>(), at["height"], at["width"])});
    for (const auto& [policy, draft_length] :
         {std::pair(DraftPolicy::kFixed, 0), {DraftPolicy::kFixed, 4}, {DraftPolicy::kTree, 8}}) {
      wanted.policy = policy, wanted.draft_length = draft_length;
      EXPECT_EQ(answer(client, wanted).tokens, text["greedy"].get<std::vector<TokenId>>()) << draft_length;
    }
    wanted.sampling = {.rule = SamplingRule::kRejection};
    wanted.policy = DraftPolicy::kFixed, wanted.draft_length = 4;
    EXPECT_EQ(answer(client, wanted).tokens, text["greedy"].get<std::vector<TokenId>>())
        << "rejection at temperature 0";
    wanted.sampling = {.temperature = 0.8F, .seed = 7};
    std::vector<std::vector<TokenId>> drawn;
    for (const std::int32_t draft_length : {0, 4}) {
      wanted.policy = DraftPolicy::kFixed, wanted.draft_length = draft_length;
      drawn.push_back(answer(client, wanted).tokens);
    }
    EXPECT_EQ(drawn[1], drawn[0]) << "noise belongs to the text, not to the drafts";
    EXPECT_NE(drawn[0], text["greedy"].get<std::vector<TokenId>>());
  }
}

struct Sounds : Pictures {
  Sounds() : texts(nlohmann::json::parse(read_text(goldens() / "multimodal-e4b/sound.json").value())["texts"]) {}
  /// Of a sound alone, of a picture and a sound, or of a sound between two pictures.
  Generate request(std::size_t i, const WireTensor& samples) const {
    Generate wanted{.prompt = texts[i]["prompt"].get<std::vector<TokenId>>(), .max_tokens = 24, .draft_length = 0};
    const auto firsts = texts[i]["firsts"].get<std::vector<Position>>();
    const std::vector<WireTensor> media =
        i == 0 ? std::vector{samples} : std::vector{picture(37), samples, picture(53, 36, 12)};
    for (std::size_t m = 0; m < firsts.size(); ++m) wanted.media.push_back({.first = firsts[m], .content = media[m]});
    return wanted;
  }
  nlohmann::json texts;
};

// With chains and trees of drafts, and with the sound's soft tokens in several forward passes.
TEST_F(Sounds, TheTextIsTheReferences) {
  for (const std::int64_t rows : {256, 9}) {
    options.verifier.core.rows_max = rows;
    Client client = start(options);
    for (const std::size_t i : {0u, 1u, 2u}) {
      Generate wanted = request(i, i == 0 ? sound(6000, 37) : sound(2000, 11));
      for (const auto& [policy, draft_length] :
           {std::pair(DraftPolicy::kFixed, 0), {DraftPolicy::kFixed, 4}, {DraftPolicy::kTree, 8}}) {
        wanted.policy = policy, wanted.draft_length = draft_length;
        EXPECT_EQ(answer(client, wanted).tokens, texts[i]["greedy"].get<std::vector<TokenId>>())
            << i << " " << draft_length;
      }
    }
  }
}

TEST_F(Sounds, ThePrefixCacheTellsThemApart) {
  Client client = start(options);
  const Generation first = answer(client, request(0, sound(6000, 37))),
                   again = answer(client, request(0, sound(6000, 37))),
                   other = answer(client, request(0, sound(6000, 5)));
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.metrics.cached_prompt_tokens, std::ssize(texts[0]["prompt"]) - 1);
  EXPECT_EQ(other.metrics.cached_prompt_tokens, 3);
  EXPECT_NE(other.tokens, first.tokens) << "the sound counts for nothing";
}

TEST_F(Sounds, WhatIsNoneIsRefusedByName) {
  Client client = start(options);
  const auto refused = [&](WireTensor samples) { return refusal(client, request(0, std::move(samples))); };
  const std::string wanted = "a sound of F32 [{}], wanted one axis of 161 to 480000 samples";
  for (const int count : {160, 480'001}) EXPECT_EQ(refused(sound(count, 3)), fmt::format(fmt::runtime(wanted), count));
  WireTensor broken = sound(6000, 3);
  const auto bytes = std::make_shared<std::vector<float>>(6000, std::numeric_limits<float>::quiet_NaN());
  broken.data = SharedBytes(bytes, std::as_bytes(std::span(*bytes)));
  EXPECT_EQ(refused(broken), "a sound with samples that are not finite numbers");
  WireTensor folded = sound(6000, 3);
  folded.shape = {2, 3000};
  EXPECT_NE(refused(folded).find("bytes of F32 [2, 3000] are no picture"), std::string::npos);
  EXPECT_NE(refused(sound(12000, 3)).find("a sound of 19 soft tokens at position 3, wanted between 0 and"),
            std::string::npos);
  options.pair.backbone = goldens() / "e4b/backbone";
  Client deaf = start(options);
  EXPECT_EQ(refusal(deaf, request(0, sound(6000, 37))), "this model has no audio tower, and cannot hear sounds");
}

TEST_F(Pictures, ATextWithAPictureIsTheSameBesideOthers) {
  Client client = start(options);
  std::vector<Generate> together;
  for (const int seed : {1, 2}) {
    for (const int step : {37, 5}) {
      together.push_back(request(picture(step), 4));
      together.back().sampling = {.temperature = 0.8F, .seed = static_cast<std::uint64_t>(seed)};
      together.back().cache_scope = fmt::format("{} {}", seed, step);  // each computes its own
    }
  }
  together.push_back(request(picture(37), 0));
  const auto all = client.generate_all(together, {.on_tokens = [](std::size_t, std::span<const TokenId>) {}});
  ASSERT_TRUE(all) << all.error().message;
  for (std::size_t i = 0; i < together.size(); ++i) {
    Client anew = start(options);
    EXPECT_EQ((*all)[i].tokens, answer(anew, together[i]).tokens) << i;
  }
}

// A prefix is shared up to the first picture that differs, whatever the tokens say.
TEST_F(Pictures, ThePrefixCacheTellsPicturesApart) {
  Client client = start(options);
  const Generation first = answer(client, request(picture(37), 0)), again = answer(client, request(picture(37), 0)),
                   other = answer(client, request(picture(5), 0));
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.metrics.cached_prompt_tokens, std::ssize(request(picture(37), 0).prompt) - 1);
  EXPECT_EQ(other.metrics.cached_prompt_tokens, 3);
  EXPECT_NE(other.tokens, first.tokens) << "the picture counts for nothing";
  Client anew = start(options);
  EXPECT_EQ(answer(anew, request(picture(5), 0)).tokens, other.tokens);
}

TEST_F(Pictures, APromptInChunksGivesTheSameTextAlsoWherePicturesAreSeenBothWays) {
  const TemporaryDir both_ways;
  nlohmann::json config = nlohmann::json::parse(read_text(options.pair.backbone / "config.json").value());
  config["text_config"]["use_bidirectional_attention"] = "vision";
  both_ways.write("config.json", config.dump());
  std::filesystem::copy(options.pair.backbone / "model.safetensors", both_ways.path());
  std::vector<std::vector<TokenId>> texts;
  for (const std::filesystem::path& backbone : {options.pair.backbone, both_ways.path()}) {
    options.pair.backbone = backbone;
    for (const std::int64_t rows : {256, 7, 6}) {
      options.verifier.core.rows_max = rows;
      Client client = start(options);
      texts.push_back(answer(client, request(picture(37), 4)).tokens);
    }
  }
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
  EXPECT_EQ(texts[4], texts[3]);
  EXPECT_EQ(texts[5], texts[3]);
  EXPECT_NE(texts[3], texts[0]) << "seen both ways it is another text";
}

TEST_F(Pictures, WhatDoesNotFitIsRefusedByName) {
  Client client = start(options);
  EXPECT_NE(refusal(client, request(picture(37, 25), 0)).find("a picture of U8 [25, 36, 3], wanted"),
            std::string::npos);
  Generate late = request(picture(37), 0);
  late.media[0].first = 8;
  EXPECT_NE(refusal(client, late).find("a picture of 6 soft tokens at position 8, wanted between 0 and the prompt's"),
            std::string::npos);
  Generate twice = request(picture(37), 0);
  twice.media.push_back(twice.media[0]);
  EXPECT_NE(refusal(client, twice).find("wanted between 9 and"), std::string::npos);
  options.pair.backbone = goldens() / "e4b/backbone";
  Client blind = start(options);
  EXPECT_EQ(refusal(blind, request(picture(37), 0)), "this model has no vision tower, and cannot see pictures");
}

/// A 12B of random weights, which has no towers: the text model of unified-12b, what unified-media has in their place,
/// and dense-31b's assistant, whose shape is the same.
struct WithoutTowers : testing::Test {
  WithoutTowers() {
    namespace fs = std::filesystem;
    fs::copy(goldens() / "unified-12b/backbone/model.safetensors", dir / "model.safetensors");
    fs::copy(goldens() / "unified-media/backbone/model.safetensors", dir / "vision.safetensors");
    fs::copy(goldens() / "unified-media/backbone/config.json", dir / "config.json");
    const TensorEntry& ids = *golden.find("input_ids");
    std::vector<std::int64_t> values(static_cast<std::size_t>(ids.element_count()));
    EXPECT_TRUE(read_i64(ids, values));
    request.prompt.assign(values.begin(), values.end());
    request.media = {{.first = 3, .content = picture(37, 12, 18)}, {.first = 12, .content = sound(230, 7)}};
  }

  /// The most likely tokens, by the models alone: a cache, a forward pass for each token, and no cluster.
  std::vector<TokenId> greedy() {
    const auto backbone = Backbone::load(model_at(dir.path()), WeightType::kF32, 64).value();
    const auto seeing = PictureEncoder::load(model_at(dir.path()), WeightType::kF32).value();
    const auto hearing = SoundEncoder::load(model_at(dir.path()), WeightType::kF32).value();
    const auto pixels = request.media[0].content.data.bytes();
    Picture seen{.height = 12, .width = 18, .rgb = {}};
    for (const std::byte value : pixels) seen.rgb.push_back(std::to_integer<std::uint8_t>(value));
    std::vector<float> heard(230);
    std::memcpy(heard.data(), request.media[1].content.data.bytes().data(), heard.size() * sizeof(float));
    std::vector<SoftRows> soft = {
        {.first = 3, .values = seeing->encode(cut_into_patches(seen, seeing->config()).value()), .both_ways = true},
        {.first = 12, .values = hearing->encode(heard), .both_ways = false}};
    KvCache cache = backbone->make_cache();
    std::vector<TokenId> tokens, next = request.prompt;
    while (std::ssize(tokens) < request.max_tokens) {
      const Segment segment{&cache, next, 1, soft};
      const auto logits = backbone->forward({&segment, 1}).logits[0].span();
      tokens.push_back(static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin()));
      next = {tokens.back()};
      soft.clear();  // they are in the cache
    }
    return tokens;
  }

  TemporaryDir dir;
  Checkpoint golden = Checkpoint::open(goldens() / "unified-media/golden.safetensors").value();
  Generate request{.prompt = {}, .max_tokens = 24};
};

TEST_F(WithoutTowers, TheTextIsTheModelsInOneProcessAndInThree) {
  const ClusterOptions options{.pair = {dir.path(), goldens() / "dense-31b/assistant"},
                               .weight_type = WeightType::kF32,
                               .program = OUTRIDER_PROGRAM};
  const std::vector<TokenId> expected = greedy();
  for (const bool processes : {false, true}) {
    TransportContext context;
    const auto cluster = (processes ? start_processes(options) : start_threads(context, options)).value();
    Client client = connect_when_joined(context, *cluster);
    for (const std::int32_t draft_length : {0, 4}) {
      request.draft_length = draft_length;
      const Generation generation = answer(client, request);
      EXPECT_EQ(generation.tokens, expected) << processes << " " << draft_length;
      EXPECT_EQ(generation.metrics.drafted_tokens > 0, draft_length > 0);
    }
    Generate other = request;
    other.draft_length = 0;
    other.media[1].content = sound(230, 11);
    EXPECT_NE(answer(client, other).tokens, expected) << "the sound counts for nothing";
    other = request;
    other.media[0].content = picture(5, 12, 18);
    EXPECT_NE(answer(client, other).tokens, expected) << "the picture counts for nothing";
  }
}

}  // namespace
}  // namespace outrider
