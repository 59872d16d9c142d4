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

/// 8 bits of red, green and blue of each pixel, row by row.
struct Picture {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint8_t> rgb;  ///< [height, width, 3]
};

// What a picture's file may say of itself before anything of it is decoded. With these a picture takes less than 1 GB
// of memory while it is decoded and resized.
inline constexpr std::size_t kPictureBytesMax = 32 << 20;
inline constexpr std::int64_t kPicturePixelsMax = 1 << 26;
/// The longer side over the shorter: a row of the most soft tokens, which a longer strip would be squeezed into. A file
/// of no size may have a strip of a million pixels, that takes seconds to resize.
inline constexpr std::int64_t kPictureAspectMax = 1120;
/// Whether a picture that has pixels is no longer than that.
constexpr bool is_tower_shaped(std::int64_t height, std::int64_t width) {
  return std::max(height, width) <= kPictureAspectMax * std::min(height, width);
}

/// What a file says of its picture, before anything of it is decoded.
struct PictureHeader {
  std::int64_t height = 0, width = 0;  ///< as it is stored: it may be turned yet
  std::int64_t bytes = 0;              ///< of memory that decoding it takes at most, what comes of it included
};
/// Whether there is memory for it; an error is decode_picture()'s.
using AdmitPicture = std::function<Result<void>(const PictureHeader& header)>;

/// Reads a PNG, JPEG or WebP file as Hugging Face's image processor sees it through Pillow: turned as its Exif block
/// says, greys as colours, alpha dropped (the colours beneath it count), of 16 bits the upper 8.
/// @param name  of the file, for messages
/// @param admit  asked before memory for pixels is taken; empty: there is enough
/// @return kOutOfRange for one beyond the limits above; kUnsupported for another format, CMYK, or an animated WebP;
///   kMalformed for one that is broken or breaks off. Never throws but for memory.
Result<Picture> decode_picture(std::span<const std::byte> file, const std::string& name,
                               const AdmitPicture& admit = {});

}  // namespace outrider
