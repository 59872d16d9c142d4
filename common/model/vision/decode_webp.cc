#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

#include <fmt/format.h>

#include "common/model/vision/decoders.h"
#include "common/os/files.h"

namespace outrider {
namespace {

/// Upper bound of libwebp's memory: for lossless files, colours and alpha and the input of its transforms.
constexpr std::int64_t kBytesPerPixel = 5;

std::vector<std::byte> exif_of(const WebPData& file) {
  const std::unique_ptr<WebPDemuxer, decltype(&WebPDemuxDelete)> parts(WebPDemux(&file), WebPDemuxDelete);
  WebPChunkIterator chunk;
  if (parts == nullptr || WebPDemuxGetChunk(parts.get(), "EXIF", 1, &chunk) == 0) return {};
  const auto* const first = reinterpret_cast<const std::byte*>(chunk.chunk.bytes);
  std::vector<std::byte> bytes(first, first + chunk.chunk.size);
  WebPDemuxReleaseChunkIterator(&chunk);
  return bytes;
}

const char* to_text(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA: return "the file breaks off";
    case VP8_STATUS_OUT_OF_MEMORY: return "out of memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "of a kind that libwebp does not read";
    default: return "broken";
  }
}

}  // namespace

Result<Decoded> decode_webp(std::span<const std::byte> file, const std::string& name, const AdmitPicture& admit) {
  const auto broken = [&](VP8StatusCode status) {
    return file_error(Errc::kMalformed, name, "WebP: {}", to_text(status));
  };
  const WebPData data{reinterpret_cast<const std::uint8_t*>(file.data()), file.size()};
  WebPDecoderConfig config;
  CHECK(WebPInitDecoderConfig(&config) != 0, "libwebp is not the version that this was built with");
  if (const VP8StatusCode status = WebPGetFeatures(data.bytes, data.size, &config.input); status != VP8_STATUS_OK)
    return broken(status);
  if (config.input.has_animation != 0)
    return file_error(Errc::kUnsupported, name, "an animated WebP, wanted one picture");
  // libwebp stops after the pixels; the chunk with the orientation follows them.
  const std::uint32_t riff_bytes =
      data.bytes[4] | data.bytes[5] << 8 | data.bytes[6] << 16 | std::uint32_t{data.bytes[7]} << 24;
  if (data.size < 8 + std::size_t{riff_bytes}) return broken(VP8_STATUS_NOT_ENOUGH_DATA);
  Decoded decoded;
  ASSIGN_OR_RETURN(decoded.picture, make_picture(config.input.height, config.input.width,
                                                 kBytesPerPixel * config.input.height * config.input.width,
                                                 /*turned=*/true, name, admit));
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {.rgba = decoded.picture.rgb.data(),
                          .stride = static_cast<int>(3 * decoded.picture.width),
                          .size = decoded.picture.rgb.size()};
  if (const VP8StatusCode status = WebPDecode(data.bytes, data.size, &config); status != VP8_STATUS_OK)
    return broken(status);
  decoded.exif = exif_of(data);
  return decoded;
}

}  // namespace outrider
