#pragma once

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/audio/audio_tower.h"
#include "common/model/checkpoint/checkpoint.h"
#include "common/model/vision/picture_encoder.h"
#include "tests/support/model_at.h"

namespace outrider {

inline std::filesystem::path goldens() { return std::filesystem::path(OUTRIDER_SOURCE_DIR) / "tests/goldens"; }

inline std::vector<float> floats(const Checkpoint& golden, const std::string& name) {
  const TensorEntry* const entry = golden.find(name);
  CHECK(entry != nullptr, "{}", name);
  std::vector<float> values(static_cast<std::size_t>(entry->element_count()));
  EXPECT_TRUE(read_f32(*entry, values));
  return values;
}

inline std::vector<std::int64_t> integers(const TensorEntry& entry) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(entry.element_count()));
  EXPECT_TRUE(read_i64(entry, values));
  return values;
}

/// The largest difference in units of the golden's largest value.
inline double relative_error(std::span<const float> ours, std::span<const float> theirs) {
  EXPECT_EQ(ours.size(), theirs.size());
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    error = std::max(error, std::abs(static_cast<double>(ours[i]) - theirs[i]));
    largest = std::max(largest, std::abs(static_cast<double>(theirs[i])));
  }
  return error / largest;
}

inline std::vector<float> to_vector(Matrix<const float> m) {
  return {m.data(), m.data() + m.size(0) * m.size(1)};  // of an encode: contiguous
}

/// Samples that count up by `step`.
inline std::vector<float> sound_of(std::int64_t count, int step) {
  std::vector<float> samples;
  for (std::int64_t i = 0; i < count; ++i) samples.push_back(static_cast<float>(i * step % 256 - 128) / 256);
  return samples;
}

/// Bytes that count up by `step`.
inline Picture picture_of(std::int64_t height, std::int64_t width, int step) {
  Picture picture{.height = height, .width = width, .rgb = {}};
  for (std::int64_t i = 0; i < 3 * height * width; ++i) picture.rgb.push_back(static_cast<std::uint8_t>(i * step + 11));
  return picture;
}

/// A golden folder's tower and what it was given.
template <class Kind>
struct Golden {
  using Tower = typename Kind::Tower;

  explicit Golden(const char* folder, WeightType type = WeightType::kF32)
      : golden(Checkpoint::open(goldens() / folder / "golden.safetensors").value()),
        tower(Tower::load(model_at(goldens() / folder / "backbone"), type).value()),
        input(Kind::input_of(golden)) {}

  std::vector<float> encode(const Trace& trace = {}) { return encode(input, trace); }
  std::vector<float> encode(const typename Kind::Input& other, const Trace& trace = {},
                            const std::function<void()>* between_steps = nullptr) {
    return to_vector(Kind::encode(*tower, other, trace, between_steps));
  }

  Checkpoint golden;
  std::unique_ptr<Tower> tower;
  typename Kind::Input input;
};

struct Seeing {
  using Tower = PictureEncoder;
  using Input = Patches;
  static constexpr const char* kOddGolden = "vision-odd";
  static constexpr std::size_t kInputTensors = 2;

  /// The golden's picture, whose positions go through its grid row by row.
  static Patches input_of(const Checkpoint& golden) {
    const std::vector<std::int64_t> positions = integers(*golden.find("image_position_ids"));
    return {.rows = positions.back() + 1,
            .columns = positions[positions.size() - 2] + 1,
            .values = floats(golden, "pixel_values")};
  }
  /// More rows than go through a matrix together.
  static Patches large_input(const VisionConfig& config) {
    return cut_into_patches(picture_of(144, 132, 5), config).value();
  }
  static Matrix<const float> encode(PictureEncoder& tower, const Patches& input, const Trace& trace,
                                    const std::function<void()>* between_steps) {
    return tower.encode(input, trace, between_steps);
  }
  static Result<VisionConfig> config_of(const ModelFiles& files) { return load_vision_config(files); }
};

struct Hearing {
  using Tower = SoundEncoder;
  using Input = Tensor;
  static constexpr const char* kOddGolden = "audio-odd";
  static constexpr std::size_t kInputTensors = 1;

  /// [frames, kMelBins]. Behind its sound Hugging Face's has padding.
  static Tensor input_of(const Checkpoint& golden) {
    const bool huggingfaces = golden.find("input_features") != nullptr;
    const std::vector<float> values = floats(golden, huggingfaces ? "input_features" : "features");
    std::int64_t frames = std::ssize(values) / kMelBins;
    if (const TensorEntry* const mask = golden.find("input_features_mask"))
      frames = std::ranges::count(integers(*mask), 1);
    Tensor features(frames, kMelBins);
    std::copy_n(values.begin(), frames * kMelBins, features.view().data());
    return features;
  }
  /// 156 soft tokens: more than pass through a matrix together.
  static Tensor large_input(const AudioConfig&) { return audio_features(sound_of(100'000, 7)); }
  static Matrix<const float> encode(SoundEncoder& tower, const Tensor& input, const Trace& trace,
                                    const std::function<void()>* between_steps) {
    return dynamic_cast<AudioTower&>(tower).encode_features(input.view(), trace, between_steps);
  }
  static Result<AudioConfig> config_of(const ModelFiles& files) { return load_audio_config(files); }
};

}  // namespace outrider
