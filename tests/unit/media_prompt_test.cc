// Pictures and sounds in a rendered prompt.
#include "common/media/media_prompt.h"

#include <gtest/gtest.h>

#include "common/model/audio/audio_features.h"

namespace outrider {
namespace {

constexpr const char* kConfig = R"({"vision_config": {}, "audio_config": {}, "text_config": {}})";
const Result<VisionConfig> vision = parse_vision_config(kConfig, "config.json");  // 255999, 258880, 258882
const Result<AudioConfig> audio = parse_audio_config(kConfig, "config.json");     // 256000, 258881, 258883

WireMedium medium(DType dtype, std::vector<std::int64_t> shape) {
  return {.content = {.dtype = dtype, .shape = std::move(shape), .data = {}}};
}

TEST(MediaPrompt, EachPlaceBecomesWhatHuggingFacesProcessorWrites) {
  const std::vector<TokenId> rendered = {2, 258880, 7, 258881, 258880};
  const WireMedium wide = medium(DType::kU8, {48, 144, 3}), small = medium(DType::kU8, {48, 48, 3}),
                   sound = medium(DType::kF32, {1000});
  ASSERT_EQ(audio_soft_tokens(1000), 2);
  std::vector<WireMedium> media = {wide, sound, small};
  EXPECT_EQ(place_media(rendered, vision, audio, media).value(),
            (std::vector<TokenId>{2, 255999, 258880, 258880, 258880, 258882, 7, 256000, 258881, 258881, 258883, 255999,
                                  258880, 258882}));
  EXPECT_EQ(media[0].first, 2);
  EXPECT_EQ(media[1].first, 8);
  EXPECT_EQ(media[2].first, 12);
  for (std::vector<WireMedium> others :
       {std::vector{wide, sound}, {wide, small, sound}, {wide, sound, small, small}, {sound, sound, sound}, {}}) {
    const auto placed = place_media(rendered, vision, audio, others);
    ASSERT_FALSE(placed);
    EXPECT_TRUE(placed.error().message.starts_with("3 places for pictures and sounds in the prompt, and "))
        << placed.error().message;
  }
}

// A frame is a picture, whose token says that it is a video's.
TEST(MediaPrompt, AFrameIsAPictureOfItsOwnToken) {
  std::vector<WireMedium> media(2, medium(DType::kU8, {48, 48, 3}));
  EXPECT_EQ(place_media(std::vector<TokenId>{2, 258884, 7, 258880}, vision, audio, media).value(),
            (std::vector<TokenId>{2, 255999, 258884, 258882, 7, 255999, 258880, 258882}));
}

TEST(MediaPrompt, OfManyPicturesAVideoIsThirtyTwoEvenlySpaced) {
  const auto seen = load_video(100, "pictures", [](std::int64_t i) -> Result<WireMedium> {
                      return medium(DType::kU8, {48, 48 * (i + 1), 3});
                    }).value();
  ASSERT_EQ(seen.frames.size(), 32u);
  EXPECT_EQ(seen.part.frame_seconds.front(), 0);
  EXPECT_EQ(seen.part.frame_seconds[1], 3);
  EXPECT_EQ(seen.part.frame_seconds.back(), 96);
  EXPECT_EQ(seen.frames.back().content.shape[1], 48 * 97);
  EXPECT_NE(load_video(0, "none", {}).error().message.find("none: a video of no pictures"), std::string::npos);
}

// To a model without a tower its token is one like others.
TEST(MediaPrompt, WhatAModelDoesNotHearHasNoPlace) {
  const Result<AudioConfig> deaf = Error{Errc::kNotFound, "deaf"};
  std::vector<WireMedium> none;
  EXPECT_EQ(place_media(std::vector<TokenId>{2, 258881}, vision, deaf, none).value(),
            (std::vector<TokenId>{2, 258881}));
}

}  // namespace
}  // namespace outrider
