#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/check.h"
#include "common/model/vision/video.h"
#include "common/os/files.h"
#include "tests/fuzz/driver.h"

namespace outrider {

/// A file of each kind.
FuzzSeeds fuzz_seeds() {
  FuzzSeeds seeds;
  for (const char* name : {"short.mp4", "open_gop.mkv", "hevc.mkv", "vp8.webm", "vp9.webm", "av1.mp4", "mjpeg.avi"})
    seeds.push_back(read_text(std::string(OUTRIDER_SOURCE_DIR "/tests/goldens/videos/") + name).value());
  return seeds;
}

}  // namespace outrider

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace outrider;
  PictureHeader said;
  std::int64_t frames = 0;
  const auto admit = [&](const PictureHeader& header) -> Result<void> {
    said = header;
    // A file of some kilobytes may have frames of millions of pixels; those of a small one take as many paths.
    if (header.height * header.width > 1 << 16) return Error{Errc::kOutOfRange, "not here"};
    return {};
  };
  const Result<void> watched =
      decode_video(std::as_bytes(std::span(data, size)), "fuzz", admit, [&](double seconds, const Picture& frame) {
        CHECK(std::ssize(frame.rgb) == 3 * frame.height * frame.width && frame.height > 0 && frame.width > 0 &&
                  frame.height * frame.width <= (said.height + 64) * (said.width + 64) && seconds >= 0,
              "{} x {} pixels in {} bytes at {} s", frame.width, frame.height, frame.rgb.size(), seconds);
        return ++frames <= kVideoFramesMax ? Result<void>() : Error{Errc::kIo, "too many"};
      });
  CHECK(frames <= kVideoFramesMax && (frames == 0 || said.bytes > 0), "{} frames", frames);
  if (!watched) CHECK(!watched.error().message.empty(), "an error without words");
  return 0;
}
