#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "common/base/check.h"
#include "common/model/vision/patches.h"
#include "common/model/vision/picture.h"
#include "common/os/files.h"
#include "tests/fuzz/driver.h"

namespace outrider {

/// The goldens' files.
FuzzSeeds fuzz_seeds() {
  FuzzSeeds seeds;
  for (const auto& file : std::filesystem::directory_iterator(OUTRIDER_SOURCE_DIR "/tests/goldens/pictures"))
    if (file.path().extension() != ".safetensors") seeds.push_back(read_text(file.path()).value());
  std::ranges::sort(seeds);  // a seed shall mean the same inputs everywhere
  return seeds;
}

}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  PictureHeader said;
  const auto admit = [&](const PictureHeader& header) {
    said = header;
    return Result<void>();
  };
  const Result<Picture> picture = decode_picture(std::as_bytes(std::span(data, size)), "fuzz", admit);
  if (!picture) return 0;
  const std::int64_t pixels = picture->height * picture->width;
  CHECK(said.height * said.width == pixels && said.bytes >= 3 * pixels, "{} x {} pixels in {} bytes, told of {} x {}",
        picture->width, picture->height, said.bytes, said.width, said.height);
  static const VisionConfig config = parse_vision_config(R"({"vision_config": {}, "text_config": {}})", "fuzz").value();
  (void)cut_into_patches(resize_for_tower(*picture, config, kSoftTokenBudgets[0]), config);
  return 0;
}
