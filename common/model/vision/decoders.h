#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/model/vision/picture.h"

namespace outrider {

/// Private to this room: one reader for each format, each the only file that includes its library. Errors are those of
/// decode_picture().
struct Decoded {
  Picture picture;              ///< as it is stored
  std::vector<std::byte> exif;  ///< the Exif block, a TIFF file that says how to turn it; empty without one
};
Result<Decoded> decode_png(std::span<const std::byte> file, const std::string& name, const AdmitPicture& admit);
Result<Decoded> decode_jpeg(std::span<const std::byte> file, const std::string& name, const AdmitPicture& admit);
Result<Decoded> decode_webp(std::span<const std::byte> file, const std::string& name, const AdmitPicture& admit);

/// A picture of that size, black; kOutOfRange beyond the limits, else as `admit` says.
/// @param format_bytes  that the format's reader holds besides the pixels, at most
/// @param turned  it will be turned, or may be
Result<Picture> make_picture(std::int64_t height, std::int64_t width, std::int64_t format_bytes, bool turned,
                             const std::string& name, const AdmitPicture& admit);
/// The picture turned as an orientation of Exif says. From 5 on rows become columns; some then run the other way.
Picture turned(Picture from, int orientation);
/// How an Exif block says that the picture is to be turned, 1 to 8; 1, as it is, where it does not say so properly.
int orientation_of(std::span<const std::byte> exif);

}  // namespace outrider
