#include "common/model/vision/video.h"

#include <algorithm>

namespace outrider {

std::vector<std::int64_t> sampled_frames(std::int64_t count) {
  std::vector<std::int64_t> frames;
  const std::int64_t wanted = std::min(count, kVideoFramesMax);
  for (std::int64_t i = 0; i < wanted; ++i) frames.push_back(i * count / wanted);
  return frames;
}

}  // namespace outrider
