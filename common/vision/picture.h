#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace outrider {

/// 8 bits of red, green and blue of each pixel, row by row.
struct Picture {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint8_t> rgb;  ///< [height, width, 3]
};

// What a picture's file may say of itself before anything of it is decoded. With these a picture takes less than 1 GB
// of memory while it is decoded and resized.
inline constexpr std::size_t kPictureBytesMax = 32 << 20;
inline constexpr std::int64_t kPicturePixelsMax = 1 << 26, kPictureSideMax = 1'000'000;

/// Reads a PNG, JPEG or WebP file as Hugging Face's image processor sees it through Pillow: turned as its Exif block
/// says, greys as colours, alpha dropped (the colours beneath it count), of 16 bits the upper 8.
/// @param name  of the file, for messages
/// @return kOutOfRange for one beyond the limits above; kUnsupported for another format, CMYK, or an animated WebP;
///   kMalformed for one that is broken or breaks off. Never throws but for memory.
Result<Picture> decode_picture(std::span<const std::byte> file, const std::string& name);

}  // namespace outrider
