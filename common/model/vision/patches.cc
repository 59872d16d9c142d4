#include "common/model/vision/patches.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "common/compute/kernels/team.h"

namespace outrider {
namespace {

/// Weights of consecutive input pixels for one output pixel, with sum 2^kBits.
struct Taps {
  std::int64_t first;
  std::vector<std::int32_t> weights;
};
constexpr int kBits = 22;

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/// Computes in Pillow's order and with its roundings, so that the weights are equal.
Taps taps_of(std::int64_t output, std::int64_t from, std::int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), stretch = std::max(scale, 1.0);
  const double centre = (static_cast<double>(output) + 0.5) * scale, half = 2 * stretch, narrow = 1 / stretch;
  const std::int64_t first = std::max<std::int64_t>(static_cast<std::int64_t>(centre - half + 0.5), 0);
  const std::int64_t end = std::min(static_cast<std::int64_t>(centre + half + 0.5), from);
  std::vector<double> weights;
  double sum = 0;
  for (std::int64_t i = first; i < end; ++i) {
    weights.push_back(bicubic((static_cast<double>(i) - centre + 0.5) * narrow));
    sum += weights.back();
  }
  Taps taps{first, {}};
  for (const double weight : weights)
    taps.weights.push_back(static_cast<std::int32_t>(std::round(weight / sum * (1 << kBits))));
  return taps;
}

std::uint8_t rounded(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kBits, 0, 255)); }

Picture resize_columns(const Picture& from, std::int64_t width) {
  Picture to{from.height, width, std::vector<std::uint8_t>(static_cast<std::size_t>(3 * from.height * width))};
  std::vector<Taps> all;
  for (std::int64_t c = 0; c < width; ++c) all.push_back(taps_of(c, from.width, width));
  team_for(from.height, 1, [&](std::int64_t r) {
    std::uint8_t* out = to.rgb.data() + 3 * r * width;
    for (const Taps& taps : all) {
      std::int32_t sums[3] = {1 << (kBits - 1), 1 << (kBits - 1), 1 << (kBits - 1)};
      const std::uint8_t* pixel = from.rgb.data() + 3 * (r * from.width + taps.first);
      for (const std::int32_t weight : taps.weights) {
        for (int colour = 0; colour < 3; ++colour) sums[colour] += weight * *pixel++;
      }
      for (const std::int32_t sum : sums) *out++ = rounded(sum);
    }
  });
  return to;
}

Picture resize_rows(const Picture& from, std::int64_t height) {
  const auto row_bytes = static_cast<std::size_t>(3 * from.width);
  Picture to{height, from.width, std::vector<std::uint8_t>(static_cast<std::size_t>(height) * row_bytes)};
  team_for(height, 1, [&](std::int64_t r) {
    const Taps taps = taps_of(r, from.height, height);
    std::vector<std::int32_t> sums(row_bytes, 1 << (kBits - 1));
    const std::uint8_t* in = from.rgb.data() + static_cast<std::size_t>(taps.first) * row_bytes;
    for (const std::int32_t weight : taps.weights) {
      for (std::int32_t& sum : sums) sum += weight * *in++;
    }
    std::transform(sums.begin(), sums.end(), to.rgb.begin() + r * static_cast<std::int64_t>(row_bytes), rounded);
  });
  return to;
}

static_assert(kPictureAspectMax == kSoftTokenBudgets.back());

/// Height and width: gemma4.md 8.1, step 1.
std::pair<std::int64_t, std::int64_t> target_size(std::int64_t h, std::int64_t w, std::int64_t side,
                                                  std::int64_t soft_tokens) {
  const double factor = std::sqrt(static_cast<double>(soft_tokens * side * side) / static_cast<double>(h * w));
  const auto fitted = [&](std::int64_t edge) {
    return static_cast<std::int64_t>(factor * static_cast<double>(edge) / static_cast<double>(side)) * side;
  };
  const std::int64_t height = fitted(h), width = fitted(w);
  if (height == 0) return {side, std::min(w / h, soft_tokens) * side};
  if (width == 0) return {std::min(h / w, soft_tokens) * side, side};
  return {height, width};
}

}  // namespace

Picture resize_for_tower(const Picture& picture, const VisionConfig& config, std::int64_t soft_tokens) {
  const auto [height, width] = target_size(picture.height, picture.width, config.soft_token_side(), soft_tokens);
  if (height == picture.height && width == picture.width) return picture;
  return resize_rows(resize_columns(picture, width), height);  // as Pillow's BICUBIC does it: the same bits
}

std::int64_t resizing_bytes(std::int64_t height, std::int64_t width, const VisionConfig& config,
                            std::int64_t soft_tokens) {
  const auto [to_height, to_width] = target_size(height, width, config.soft_token_side(), soft_tokens);
  constexpr std::int64_t kTapBytes = 64;  // of an input column or row, besides its weights
  return 3 * height * to_width + 3 * to_height * to_width + kTapBytes * (height + width + to_width);
}

Result<Patches> cut_into_patches(const Picture& resized, const VisionConfig& config) {
  const std::int64_t patch = config.patch_size;
  Patches patches{.rows = resized.height / patch, .columns = resized.width / patch, .values = {}};
  if (std::max(patches.rows, patches.columns) > config.position_embedding_size) {
    return Error(Errc::kOutOfRange, "a picture of {} x {} patches, wanted at most {} in a row", patches.columns,
                 patches.rows, config.position_embedding_size);
  }
  std::array<float, 256> share;
  for (std::size_t i = 0; i < share.size(); ++i) share[i] = static_cast<float>(static_cast<double>(i) / 255);
  patches.values.reserve(resized.rgb.size());
  for (std::int64_t p = 0; p < patches.rows * patches.columns; ++p) {
    const std::int64_t top = p / patches.columns * patch, left = p % patches.columns * patch;
    for (std::int64_t row = top; row < top + patch; ++row) {
      const std::uint8_t* const from = resized.rgb.data() + 3 * (row * resized.width + left);
      std::transform(from, from + 3 * patch, std::back_inserter(patches.values),
                     [&](std::uint8_t v) { return share[v]; });
    }
  }
  return patches;
}

}  // namespace outrider
