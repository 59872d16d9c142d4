// Used in builds without FFmpeg's libraries.
#include <fmt/format.h>

#include "common/model/vision/video.h"
#include "common/os/files.h"

namespace outrider {

Result<void> decode_video(std::span<const std::byte>, const std::string& name, const AdmitPicture&, const OnFrame&) {
  return file_error(Errc::kUnsupported, name,
                    "this program was built without FFmpeg's libraries (libavformat-dev, libavcodec-dev, "
                    "libswscale-dev), and reads no files of videos: send pictures, one for every second");
}

}  // namespace outrider
