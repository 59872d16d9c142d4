#include <png.h>

#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "common/model/vision/decoders.h"
#include "common/model/vision/jump_guard.h"
#include "common/os/files.h"

namespace outrider {
namespace {

class PngReader : public JumpGuard {
 public:
  explicit PngReader(std::span<const std::byte> file)
      : file_(file), png_(png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning)) {
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
    CHECK(info_ != nullptr, "libpng is not the version that this was built with");
    // Bounds unused texts and profiles, each of which may expand to megabytes before the size is known.
    png_set_chunk_cache_max(png_, 8);
    png_set_read_fn(png_, this, read);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  /// Reads everything before the pixels.
  bool read_header() {
    return guarded([this] { png_read_info(png_, info_); });
  }
  std::int64_t height() const { return png_get_image_height(png_, info_); }
  std::int64_t width() const { return png_get_image_width(png_, info_); }

  /// @param rows  destination of each row
  bool read_pixels(png_bytepp rows) {
    return guarded([this, rows] {
      png_set_strip_16(png_);
      png_set_palette_to_rgb(png_);
      png_set_expand_gray_1_2_4_to_8(png_);
      png_set_gray_to_rgb(png_);
      png_set_strip_alpha(png_);
      png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
      if (png_get_rowbytes(png_, info_) != 3 * static_cast<std::size_t>(width()))
        png_error(png_, "a row has another length than its pixels");
      png_read_image(png_, rows);
      png_read_end(png_, info_);
    });
  }

  std::vector<std::byte> exif() const {
    png_uint_32 size = 0;
    png_bytep bytes = nullptr;
    if (png_get_eXIf_1(png_, info_, &size, &bytes) == 0) return {};
    const auto* const first = reinterpret_cast<const std::byte*>(bytes);
    return {first, first + size};
  }

 private:
  [[noreturn]] static void on_error(png_structp png, png_const_charp message) {
    static_cast<PngReader*>(png_get_error_ptr(png))->leave(message);
  }
  static void on_warning(png_structp, png_const_charp) {}
  static void read(png_structp png, png_bytep to, std::size_t size) {
    auto* const reader = static_cast<PngReader*>(png_get_io_ptr(png));
    if (size > reader->file_.size()) png_error(png, "the file breaks off");
    std::memcpy(to, reader->file_.data(), size);
    reader->file_ = reader->file_.subspan(size);
  }

  std::span<const std::byte> file_;  ///< the unread rest
  png_structp png_;
  png_infop info_;
};

}  // namespace

Result<Decoded> decode_png(std::span<const std::byte> file, const std::string& name, const AdmitPicture& admit) {
  const auto reader = std::make_unique<PngReader>(file);
  const auto broken = [&] { return file_error(Errc::kMalformed, name, "PNG: {}", reader->message()); };
  if (!reader->read_header()) return broken();
  Decoded decoded;
  ASSIGN_OR_RETURN(decoded.picture, make_picture(reader->height(), reader->width(), 0, /*turned=*/true, name,
                                                 admit));  // Exif may follow
  std::vector<png_bytep> rows;
  for (std::int64_t r = 0; r < decoded.picture.height; ++r)
    rows.push_back(decoded.picture.rgb.data() + 3 * r * decoded.picture.width);
  if (!reader->read_pixels(rows.data())) return broken();
  decoded.exif = reader->exif();
  return decoded;
}

}  // namespace outrider
