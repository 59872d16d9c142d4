#pragma once

#include <cstdint>
#include <numeric>
#include <span>

#include "common/protocol/messages.h"

namespace outrider {

/// Bytes of the pixels of a prompt's pictures, which whoever keeps the prompt keeps too.
inline std::int64_t picture_bytes(std::span<const WirePicture> pictures) {
  return std::accumulate(pictures.begin(), pictures.end(), std::int64_t{0},
                         [](std::int64_t sum, const WirePicture& picture) {
                           return sum + static_cast<std::int64_t>(picture.pixels.data.bytes().size());
                         });
}

}  // namespace outrider
