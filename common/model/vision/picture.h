#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace outrider {

/// RGB pixels of 8 bits per colour, row by row.
struct Picture {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint8_t> rgb;  ///< [height, width, 3]
};

// Limits of a picture's file, checked before anything is decoded. Within them a picture takes less than 1 GB of memory
// while it is decoded and resized.
inline constexpr std::size_t kPictureBytesMax = 32 << 20;
inline constexpr std::int64_t kPicturePixelsMax = 1 << 26;
/// Limit of the longer side over the shorter: one row of the most soft tokens. A tiny file may contain a strip of a
/// million pixels, which takes seconds to resize.
inline constexpr std::int64_t kPictureAspectMax = 1120;
/// Returns true for a picture within that limit. @pre it has pixels
constexpr bool is_tower_shaped(std::int64_t height, std::int64_t width) {
  return std::max(height, width) <= kPictureAspectMax * std::min(height, width);
}

/// A picture's size, read before anything is decoded.
struct PictureHeader {
  std::int64_t height = 0, width = 0;  ///< as stored: the picture may still be turned
  std::int64_t bytes = 0;              ///< upper bound of the memory for decoding, result included
};
/// Returns an error if there is no memory for it; decode_picture() passes it on.
using AdmitPicture = std::function<Result<void>(const PictureHeader& header)>;

/// Decodes a PNG, JPEG or WebP file as Hugging Face's image processor does through Pillow: turned by its Exif block,
/// grey as RGB, alpha dropped (the colours beneath it remain), the upper 8 of 16 bits.
/// @param name  of the file, for messages
/// @param admit  called before memory for pixels is allocated; empty: always admits
/// @return kOutOfRange beyond the limits above; kUnsupported for another format, CMYK, or an animated WebP; kMalformed
/// for a broken or truncated file. Throws std::bad_alloc only.
Result<Picture> decode_picture(std::span<const std::byte> file, const std::string& name,
                               const AdmitPicture& admit = {});

}  // namespace outrider
