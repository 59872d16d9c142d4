#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "common/base/check.h"
#include "common/model/audio/audio_features.h"
#include "common/model/audio/sound.h"
#include "common/os/files.h"
#include "tests/fuzz/driver.h"

namespace outrider {

/// The goldens' files.
FuzzSeeds fuzz_seeds() {
  const std::filesystem::path sounds = std::filesystem::path(OUTRIDER_SOURCE_DIR) / "tests/goldens/sounds";
  FuzzSeeds seeds;
  for (const char* const name :
       {"mono16k.wav", "float8k.wav", "stereo48k.flac", "stereo44k.ogg", "stereo48k.opus", "mono22k.mp3"})
    seeds.push_back(read_text(sounds / name).value());
  return seeds;
}

}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  std::int64_t said = 0;
  const auto admit = [&](std::int64_t bytes) {
    said = bytes;
    return Result<void>();
  };
  const auto samples = decode_sound(std::as_bytes(std::span(data, size)), "fuzz", admit);
  if (!samples) return 0;
  CHECK(kSamplesMin <= std::ssize(*samples) && std::ssize(*samples) <= kSamplesMax && said >= 4 * std::ssize(*samples),
        "{} samples, told of {} bytes", samples->size(), said);
  const Tensor features = audio_features(*samples);
  for (std::int64_t r = 0; r < features.rows(); ++r)
    for (const float value : features.view()[r].span()) CHECK(std::isfinite(value), "{}", value);
  return 0;
}
