#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/vision/picture.h"

namespace outrider {

/// Private to this room: one reader for each format, each the only file that includes its library. Errors are those of
/// decode_picture().
struct Decoded {
  Picture picture;              ///< as it is stored
  std::vector<std::byte> exif;  ///< the Exif block, a TIFF file that says how to turn it; empty without one
};
Result<Decoded> decode_png(std::span<const std::byte> file, const std::string& name);
Result<Decoded> decode_jpeg(std::span<const std::byte> file, const std::string& name);
Result<Decoded> decode_webp(std::span<const std::byte> file, const std::string& name);

/// A picture of that size, black; kOutOfRange beyond the limits.
Result<Picture> make_picture(std::int64_t height, std::int64_t width, const std::string& name);

}  // namespace outrider
