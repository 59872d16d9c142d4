#include <cstdio>  // required before libjpeg's header

#include <jpeglib.h>

#include <jerror.h>

#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "common/model/vision/decoders.h"
#include "common/model/vision/jump_guard.h"
#include "common/os/files.h"

namespace outrider {
namespace {

/// Passes of a progressive file over its pixels are unbounded in the format; real files have some ten.
constexpr int kScansMax = 100;
constexpr int kExifMarker = JPEG_APP0 + 1;

class JpegReader : public JumpGuard {
 public:
  explicit JpegReader(std::span<const std::byte> file) : file_(file) {
    jpeg_.err = jpeg_std_error(&errors_);
    jpeg_.client_data = this;
    errors_.error_exit = on_error;
    errors_.emit_message = on_message;
    progress_.progress_monitor = on_progress;
  }
  ~JpegReader() { jpeg_destroy_decompress(&jpeg_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  bool read_header() {
    return guarded([this] {
      jpeg_create_decompress(&jpeg_);
      jpeg_.progress = &progress_;
      jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(file_.data()), file_.size());
      jpeg_save_markers(&jpeg_, kExifMarker, 0xffff);
      jpeg_read_header(&jpeg_, TRUE);
    });
  }
  std::int64_t height() const { return jpeg_.image_height; }
  std::int64_t width() const { return jpeg_.image_width; }
  /// Returns the memory of formats that need all scans before the first row: 16 bits per component and pixel, in whole
  /// blocks. Less for subsampled colours.
  std::int64_t coefficient_bytes() {
    constexpr std::int64_t kBlock = 32;
    if (jpeg_has_multiple_scans(&jpeg_) == FALSE) return 0;
    return 2 * jpeg_.num_components * (height() / kBlock + 1) * (width() / kBlock + 1) * kBlock * kBlock;
  }
  bool is_cmyk() const { return jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK; }

  bool read_pixels(std::uint8_t* rgb) {
    return guarded([this, rgb] {
      jpeg_.out_color_space = JCS_RGB;
      jpeg_start_decompress(&jpeg_);
      while (jpeg_.output_scanline < jpeg_.output_height) {
        JSAMPROW row = rgb + std::size_t{3} * jpeg_.output_scanline * jpeg_.output_width;
        jpeg_read_scanlines(&jpeg_, &row, 1);
      }
      jpeg_finish_decompress(&jpeg_);
    });
  }

  std::vector<std::byte> exif() const {
    for (jpeg_saved_marker_ptr marker = jpeg_.marker_list; marker != nullptr; marker = marker->next) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(marker->data);
      // Other blocks (XMP) use this marker too.
      const std::string_view text(reinterpret_cast<const char*>(bytes), marker->data_length);
      if (marker->marker == kExifMarker && text.starts_with("Exif")) return {bytes, bytes + marker->data_length};
    }
    return {};
  }

 private:
  [[noreturn]] static void on_error(j_common_ptr jpeg) {
    auto* const reader = static_cast<JpegReader*>(jpeg->client_data);
    jpeg->err->format_message(jpeg, reader->message_);
    reader->leave(reader->message_);
  }
  /// Treats the warning (level -1) of a truncated file as an error: libjpeg would fill the rest with grey.
  static void on_message(j_common_ptr jpeg, int level) {
    if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) on_error(jpeg);
  }
  static void on_progress(j_common_ptr jpeg) {
    if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= kScansMax) return;
    static_cast<JpegReader*>(jpeg->client_data)->leave("too many scans");
  }

  std::span<const std::byte> file_;
  jpeg_decompress_struct jpeg_ = {};
  jpeg_error_mgr errors_ = {};
  jpeg_progress_mgr progress_ = {};
  static_assert(sizeof message_ >= JMSG_LENGTH_MAX);
};

}  // namespace

Result<Decoded> decode_jpeg(std::span<const std::byte> file, const std::string& name, const AdmitPicture& admit) {
  const auto reader = std::make_unique<JpegReader>(file);
  const auto broken = [&] { return file_error(Errc::kMalformed, name, "JPEG: {}", reader->message()); };
  if (!reader->read_header()) return broken();
  if (reader->is_cmyk()) return file_error(Errc::kUnsupported, name, "a JPEG in CMYK, wanted RGB or greys");
  Decoded decoded;
  decoded.exif = reader->exif();  // freed with the pixels
  ASSIGN_OR_RETURN(decoded.picture, make_picture(reader->height(), reader->width(), reader->coefficient_bytes(),
                                                 orientation_of(decoded.exif) != 1, name, admit));
  if (!reader->read_pixels(decoded.picture.rgb.data())) return broken();
  return decoded;
}

}  // namespace outrider
