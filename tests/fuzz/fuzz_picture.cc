#include <cstddef>
#include <cstdint>
#include <span>

#include "common/vision/patches.h"
#include "common/vision/picture.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  const Result<Picture> picture = decode_picture(std::as_bytes(std::span(data, size)), "fuzz");
  if (!picture) return 0;
  static const VisionConfig config = parse_vision_config(R"({"vision_config": {}, "text_config": {}})", "fuzz").value();
  (void)cut_into_patches(resize_for_tower(*picture, config, kSoftTokenBudgets[0]), config);
  return 0;
}
