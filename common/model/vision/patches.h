#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/result.h"
#include "common/model/vision/picture.h"
#include "common/model/vision/vision_config.h"

namespace outrider {

/// Selectable limits of a picture's soft tokens.
inline constexpr std::array<std::int64_t, 5> kSoftTokenBudgets = {70, 140, 280, 560, 1120};
inline constexpr std::int64_t kSoftTokensDefault = 280;

/// A picture cut into patches (gemma4.md 8.1).
struct Patches {
  std::int64_t rows = 0, columns = 0;  ///< of the grid; multiples of pooling_kernel_size
  std::vector<float> values;           ///< [rows * columns, 3 * patch_size^2], row by row; from 0 to 1
};

/// Resizes a picture to the tower's input size, with sides that are multiples of soft_token_side(): bit for bit as
/// Hugging Face.
/// @param soft_tokens  one of kSoftTokenBudgets
/// @pre the picture is within the limits of decode_picture()
Picture resize_for_tower(const Picture& picture, const VisionConfig& config, std::int64_t soft_tokens);

/// Upper bound of the memory that resizing a picture takes, besides the picture.
std::int64_t resizing_bytes(std::int64_t height, std::int64_t width, const VisionConfig& config,
                            std::int64_t soft_tokens);

/// Returns the number of soft tokens of a picture whose sides are multiples of soft_token_side().
inline std::int64_t soft_token_count(std::int64_t height, std::int64_t width, const VisionConfig& config) {
  return (height / config.soft_token_side()) * (width / config.soft_token_side());
}

/// @return kOutOfRange for a picture wider or higher than the tower's table of positions
Result<Patches> cut_into_patches(const Picture& resized, const VisionConfig& config);

}  // namespace outrider
