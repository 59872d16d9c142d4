#pragma once

#include <cstdint>
#include <numeric>
#include <span>

#include "common/wire/messages/messages.h"

namespace outrider {

/// Bytes of a prompt's pictures and sounds. They stay in memory for as long as the prompt does.
inline std::int64_t media_bytes(std::span<const WireMedium> media) {
  return std::accumulate(media.begin(), media.end(), std::int64_t{0}, [](std::int64_t sum, const WireMedium& medium) {
    return sum + static_cast<std::int64_t>(medium.content.data.bytes().size());
  });
}

}  // namespace outrider
