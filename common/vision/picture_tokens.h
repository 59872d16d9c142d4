#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/vision/vision_config.h"

namespace outrider {

/// A prompt that has room for its pictures' soft tokens.
struct PicturePrompt {
  std::vector<TokenId> tokens;
  std::vector<Position> firsts;  ///< of each picture's soft tokens
};

/// Each image token of a rendered chat becomes the picture's opening, so many image tokens, and its end, as Hugging
/// Face's processor writes them (gemma4.md 8.3).
/// @param soft_tokens  of each picture, in the prompt's order
/// @return kInvalidArgument unless there are as many image tokens as pictures.
Result<PicturePrompt> make_room_for_pictures(std::span<const TokenId> prompt, const VisionConfig& config,
                                             std::span<const std::int64_t> soft_tokens);

}  // namespace outrider
