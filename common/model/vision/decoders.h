#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/model/vision/picture.h"

namespace outrider {

/// Private to this room: one decoder per format, each in the only file that includes its library. Errors are those of
/// decode_picture().
struct Decoded {
  Picture picture;              ///< as stored
  std::vector<std::byte> exif;  ///< the Exif block, a TIFF file with the orientation; empty without one
};
Result<Decoded> decode_png(std::span<const std::byte> file, const std::string& name, const AdmitPicture& admit);
Result<Decoded> decode_jpeg(std::span<const std::byte> file, const std::string& name, const AdmitPicture& admit);
Result<Decoded> decode_webp(std::span<const std::byte> file, const std::string& name, const AdmitPicture& admit);

/// Makes a black picture of that size; kOutOfRange beyond the limits, or `admit`'s error.
/// @param format_bytes  upper bound of the format reader's memory besides the pixels
/// @param turned  the picture may have to be turned
Result<Picture> make_picture(std::int64_t height, std::int64_t width, std::int64_t format_bytes, bool turned,
                             const std::string& name, const AdmitPicture& admit);
/// Turns the picture by an Exif orientation, 1 to 8. From 5 on rows become columns.
Picture turned(Picture from, int orientation);
/// Returns an Exif block's orientation, 1 to 8; 1, upright, if it is missing or invalid.
int orientation_of(std::span<const std::byte> exif);

}  // namespace outrider
