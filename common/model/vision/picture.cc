#include "common/model/vision/picture.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "common/model/vision/decoders.h"
#include "common/os/files.h"

namespace outrider {
namespace {

/// Reads numbers of a TIFF file, in its byte order; nullopt past its end.
class Tiff {
 public:
  explicit Tiff(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::optional<std::uint32_t> number(std::size_t at, std::size_t size) const {
    if (at > bytes_.size() || bytes_.size() - at < size) return std::nullopt;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t from_high = little_endian() ? size - 1 - i : i;
      value = value << 8 | std::to_integer<std::uint32_t>(bytes_[at + from_high]);
    }
    return value;
  }

 private:
  bool little_endian() const { return !bytes_.empty() && bytes_[0] == std::byte{'I'}; }

  std::span<const std::byte> bytes_;
};

}  // namespace

Picture turned(Picture from, int orientation) {
  if (orientation == 1) return from;
  const bool transposed = orientation >= 5;
  const bool rows_back = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool columns_back = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  Picture to{.height = transposed ? from.width : from.height,
             .width = transposed ? from.height : from.width,
             .rgb = std::vector<std::uint8_t>(from.rgb.size())};
  std::uint8_t* pixel = to.rgb.data();
  for (std::int64_t r = 0; r < to.height; ++r) {
    for (std::int64_t c = 0; c < to.width; ++c, pixel += 3) {
      const std::int64_t row = transposed ? c : r, column = transposed ? r : c;
      const std::int64_t at =
          (rows_back ? from.height - 1 - row : row) * from.width + (columns_back ? from.width - 1 - column : column);
      std::copy_n(from.rgb.data() + 3 * at, 3, pixel);
    }
  }
  return to;
}

int orientation_of(std::span<const std::byte> exif) {
  constexpr std::string_view kPrefix("Exif\0\0", 6);
  const std::string_view text(reinterpret_cast<const char*>(exif.data()), exif.size());
  const Tiff tiff(text.starts_with(kPrefix) ? exif.subspan(kPrefix.size()) : exif);
  constexpr std::uint32_t kOrientation = 0x0112, kShort = 3;
  if (tiff.number(2, 2) != 42u) return 1;
  const std::size_t directory = tiff.number(4, 4).value_or(0);
  const std::uint32_t entries = tiff.number(directory, 2).value_or(0);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + 12 * i;
    if (tiff.number(entry, 2) != kOrientation || tiff.number(entry + 2, 2) != kShort) continue;
    const std::uint32_t value = tiff.number(entry + 8, 2).value_or(1);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Result<Picture> make_picture(std::int64_t height, std::int64_t width, std::int64_t format_bytes, bool turned,
                             const std::string& name, const AdmitPicture& admit) {
  if (height < 1 || width < 1 || height > kPicturePixelsMax / width || !is_tower_shaped(height, width)) {
    return file_error(Errc::kOutOfRange, name,
                      "a picture of {} x {} pixels, wanted 1 to {}, and no side longer than {} times the other", width,
                      height, kPicturePixelsMax, kPictureAspectMax);
  }
  if (admit) {
    constexpr std::int64_t kReaderBytes = 1 << 20, kRowBytes = 16;  // tables, and pointers to rows
    const std::int64_t pixels = 3 * height * width;
    const std::int64_t besides = std::max(format_bytes, turned ? pixels : 0);  // the reader is gone when it is turned
    RETURN_IF_ERROR(
        admit({.height = height, .width = width, .bytes = pixels + besides + kReaderBytes + kRowBytes * height}));
  }
  return Picture{
      .height = height, .width = width, .rgb = std::vector<std::uint8_t>(static_cast<std::size_t>(3 * height * width))};
}

Result<Picture> decode_picture(std::span<const std::byte> file, const std::string& name, const AdmitPicture& admit) {
  if (file.size() > kPictureBytesMax) {
    return file_error(Errc::kOutOfRange, name, "a picture of {} bytes, wanted at most {}", file.size(),
                      kPictureBytesMax);
  }
  const std::string_view head(reinterpret_cast<const char*>(file.data()), std::min<std::size_t>(file.size(), 12));
  const bool png = head.starts_with("\x89PNG"), jpeg = head.starts_with("\xff\xd8");
  const bool webp = head.starts_with("RIFF") && head.substr(std::min<std::size_t>(head.size(), 8)) == "WEBP";
  if (!png && !jpeg && !webp)
    return file_error(Errc::kUnsupported, name, "not a picture that can be read, wanted PNG, JPEG or WebP");
  ASSIGN_OR_RETURN(Decoded decoded, (png ? decode_png : jpeg ? decode_jpeg : decode_webp)(file, name, admit));
  return turned(std::move(decoded.picture), orientation_of(decoded.exif));
}

}  // namespace outrider
