// Pictures from files against Pillow's (tests/goldens/pictures), resized against Pillow's and Hugging Face's, and files
// that are made to do harm.
#include "common/model/vision/picture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/model/checkpoint/checkpoint.h"
#include "common/model/vision/patches.h"
#include "common/os/files.h"
#include "tests/support/png_file.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

fs::path pictures() { return fs::path(OUTRIDER_SOURCE_DIR) / "tests/goldens/pictures"; }

Result<Picture> decode(std::string_view bytes) { return decode_picture(std::as_bytes(std::span(bytes)), "picture"); }
std::string bytes_of(const std::string& file) { return read_text(pictures() / file).value(); }
Picture picture_of(const std::string& file) { return decode(bytes_of(file)).value(); }

/// What is said of bytes that are no good picture: one line that names the file. Empty for a good one.
std::string refusal(std::string_view bytes) {
  const Result<Picture> picture = decode(bytes);
  if (picture) return "";
  EXPECT_TRUE(picture.error().message.starts_with("picture: ")) << picture.error().message;
  EXPECT_EQ(picture.error().message.find('\n'), std::string::npos);
  return picture.error().message;
}

int largest_difference(std::span<const std::uint8_t> ours, std::span<const std::uint8_t> theirs) {
  EXPECT_EQ(ours.size(), theirs.size());
  int largest = 0;
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i)
    largest = std::max(largest, std::abs(ours[i] - theirs[i]));
  return largest;
}

/// The files that are read, and the golden with what Pillow reads.
const Checkpoint& decoded_golden() {
  static const Checkpoint golden = Checkpoint::open(pictures() / "decoded.safetensors").value();
  return golden;
}

// Without loss: the same. JPEG and lossy WebP leave the last bit to the library's version.
TEST(Picture, EveryKindIsReadAsPillowReadsIt) {
  ASSERT_EQ(decoded_golden().tensors().size(), 22u);
  for (const TensorEntry& entry : decoded_golden().tensors()) {
    SCOPED_TRACE(entry.name);
    const Picture picture = picture_of(entry.name);
    EXPECT_EQ((std::vector<std::int64_t>{picture.height, picture.width, 3}), entry.shape);
    const std::span theirs(reinterpret_cast<const std::uint8_t*>(entry.bytes.data()), entry.bytes.size());
    const bool lossy = entry.name.ends_with("jpeg") || entry.name == "lossy.webp";
    EXPECT_LE(largest_difference(picture.rgb, theirs), lossy ? 2 : 0);
  }
}

TEST(Picture, WhatIsNotReadIsRefusedByName) {
  EXPECT_NE(refusal(bytes_of("cmyk.jpeg")).find("a JPEG in CMYK, wanted RGB or greys"), std::string::npos);
  EXPECT_NE(refusal("GIF89a............").find("not a picture that can be read, wanted PNG, JPEG or WebP"),
            std::string::npos);
  EXPECT_NE(refusal("").find("not a picture"), std::string::npos);
  EXPECT_NE(refusal(std::string(kPictureBytesMax + 1, '\0')).find("bytes, wanted at most"), std::string::npos);
}

// ---- files that are made here

TEST(Picture, ASizeBeyondTheLimitsIsRefusedBeforeAnythingIsDecoded) {
  for (const auto& [width, height] : {std::pair{100000u, 100000u}, {1u << 30, 1u}, {8193u, 8192u}}) {
    const std::string said = refusal(png(width, height, ""));
    EXPECT_TRUE(said.find("pixels, wanted") != std::string::npos || said.find("PNG: ") != std::string::npos) << said;
  }
  EXPECT_EQ(decode(png(8193, 8192, "")).error().code, Errc::kOutOfRange);
}

TEST(Picture, OnePixelAndAStripAreReadAndALongerOneIsNot) {
  EXPECT_EQ(decode(png(1, 1, std::string("\0\1\2\3", 4))).value().rgb, (std::vector<std::uint8_t>{1, 2, 3}));
  EXPECT_EQ(decode(png(1120, 1, std::string(3361, '\0'))).value().width, 1120);
  EXPECT_EQ(decode(png(1, 1120, std::string(1120 * 4, '\0'))).value().height, 1120);
  const std::string large = png(11'200, 10, std::string(10 * 33'601, '\0'));
  EXPECT_EQ(decode(large).value().width, 11'200);
  EXPECT_NE(refusal(large.substr(0, 200'000)).find("the file breaks off"), std::string::npos);
  for (const auto& [width, height] : {std::pair{1121u, 1u}, {1u, 1121u}, {1u, 200'000u}, {22'401u, 20u}})
    EXPECT_NE(refusal(png(width, height, "")).find("no side longer than 1120 times the other"), std::string::npos);
}

TEST(Picture, AFileThatBreaksOffIsRefusedWhereverItDoes) {
  for (const TensorEntry& entry : decoded_golden().tensors()) {
    const std::string whole = bytes_of(entry.name);
    for (std::size_t size = 0; size < whole.size(); size += 1 + size / 64)
      EXPECT_NE(refusal(whole.substr(0, size)), "") << entry.name << " after " << size << " bytes";
    EXPECT_NE(refusal(whole.substr(0, whole.size() - 1)), "") << entry.name;
  }
}

TEST(Picture, AJpegOfManyScansIsRefused) {
  const std::string jpeg = bytes_of("progressive.jpeg");
  const std::size_t last = jpeg.rfind("\xff\xda");
  const std::string scan = jpeg.substr(last, jpeg.size() - 2 - last);
  std::string bomb = jpeg.substr(0, last);
  for (int i = 0; i < 200; ++i) bomb += scan;
  EXPECT_NE(refusal(bomb + "\xff\xd9").find("JPEG: too many scans"), std::string::npos);
}

// Nothing to compare: this must not crash, and what is refused is refused in a line.
TEST(Picture, ChangedBytesDoNoHarm) {
  CounterRng rng(5);
  for (const TensorEntry& entry : decoded_golden().tensors()) {
    const std::string whole = bytes_of(entry.name);
    for (int i = 0; i < 200; ++i) {
      std::string changed = whole;
      for (std::uint64_t changes = 1 + rng.below(4); changes > 0; --changes)
        changed[rng.below(changed.size())] = static_cast<char>(rng.below(256));
      refusal(changed);
    }
  }
}

// ---- resizing

VisionConfig published() {
  return parse_vision_config(R"({"vision_config": {}, "text_config": {}})", "config").value();
}

TEST(ResizeForTower, HasPillowsBits) {
  for (const auto& [name, soft_tokens, count] : {std::tuple("huggingface", 280, 273),
                                                 {"portrait", 70, 60},
                                                 {"panorama", 70, 59},
                                                 {"small", 140, 140},
                                                 {"same", 70, 70}}) {
    SCOPED_TRACE(name);
    const Picture theirs = picture_of(fmt::format("{}_{}.png", name, soft_tokens));
    const Picture ours = resize_for_tower(picture_of(fmt::format("{}.png", name)), published(), soft_tokens);
    EXPECT_EQ(std::pair(ours.height, ours.width), std::pair(theirs.height, theirs.width));
    EXPECT_EQ(largest_difference(ours.rgb, theirs.rgb), 0);
    EXPECT_EQ(soft_token_count(ours.height, ours.width, published()), count);
  }
}

TEST(ResizeForTower, EveryShapeFitsItsBudget) {
  CounterRng rng(3);
  for (int i = 0; i < 60; ++i) {
    const auto side = [&] { return 1 + static_cast<std::int64_t>(rng.below(std::uint64_t{1} << rng.below(11))); };
    Picture picture{.height = side(), .width = side(), .rgb = {}};
    picture.rgb.assign(static_cast<std::size_t>(3 * picture.height * picture.width), 200);
    const std::int64_t budget = kSoftTokenBudgets[rng.below(kSoftTokenBudgets.size())];
    const Picture resized = resize_for_tower(picture, published(), budget);
    EXPECT_EQ(resized.height % 48 + resized.width % 48, 0);
    EXPECT_GE(soft_token_count(resized.height, resized.width, published()), 1);
    EXPECT_LE(soft_token_count(resized.height, resized.width, published()), budget);
    EXPECT_TRUE(std::ranges::all_of(resized.rgb, [](int v) { return v == 200; })) << "one colour stays it";
  }
}

// The bits of Hugging Face's pixel_values: 8-bit values over 255.
TEST(Patches, GoRowByRow) {
  VisionConfig config = published();
  config.patch_size = 2, config.pooling_kernel_size = 1;
  Picture picture{.height = 2, .width = 4, .rgb = {}};
  for (std::uint8_t i = 0; i < 24; ++i) picture.rgb.push_back(i);
  const Patches patches = cut_into_patches(picture, config).value();
  EXPECT_EQ(std::pair(patches.rows, patches.columns), std::pair(std::int64_t{1}, std::int64_t{2}));
  std::vector<float> expected;
  for (const int first : {0, 12, 6, 18}) {
    for (int i = first; i < first + 6; ++i) expected.push_back(static_cast<float>(i / 255.0));
  }
  EXPECT_EQ(patches.values, expected);
  config.position_embedding_size = 1;
  EXPECT_EQ(cut_into_patches(picture, config).error().code, Errc::kOutOfRange);
}

}  // namespace
}  // namespace outrider
