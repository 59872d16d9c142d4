#include <mpg123.h>

#include <memory>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/model/audio/sound_decoders.h"
#include "common/os/files.h"

namespace outrider {

/// libsndfile is not used for MP3, since it lets libmpg123 write messages about a file to standard error.
Result<DecodedSound> decode_mp3(std::span<const std::byte> file, const std::string& name, const AdmitSound& admit) {
  const std::unique_ptr<mpg123_handle, decltype(&mpg123_delete)> reader(mpg123_new(nullptr, nullptr), mpg123_delete);
  CHECK(reader != nullptr, "libmpg123 has no decoder for this machine");
  mpg123_param(reader.get(), MPG123_ADD_FLAGS, MPG123_QUIET | MPG123_FORCE_FLOAT, 0);
  const auto broken = [&] { return file_error(Errc::kMalformed, name, "MP3: {}", mpg123_strerror(reader.get())); };
  if (mpg123_open_feed(reader.get()) != MPG123_OK ||
      mpg123_feed(reader.get(), reinterpret_cast<const unsigned char*>(file.data()), file.size()) != MPG123_OK)
    return broken();
  DecodedSound decoded;
  int channels = 0;
  std::vector<float> block(1 << 14);
  while (true) {
    std::size_t bytes = 0;
    const int status =
        mpg123_read(reader.get(), reinterpret_cast<unsigned char*>(block.data()), block.size() * sizeof(float), &bytes);
    if (channels > 0) append_mean(std::span(block).first(bytes / sizeof(float)), channels, decoded.mono);
    if (std::ssize(decoded.mono) > kSoundSecondsMax * decoded.rate && channels > 0)
      return too_long(name, fmt::format("more than {}", kSoundSecondsMax));
    if (status == MPG123_NEED_MORE || status == MPG123_DONE) break;
    if (status == MPG123_NEW_FORMAT && channels == 0) {
      long rate = 0;
      int encoding = 0;
      mpg123_getformat(reader.get(), &rate, &channels, &encoding);
      decoded.rate = static_cast<int>(rate);
      mpg123_frameinfo frame = {};
      mpg123_info(reader.get(), &frame);
      if (frame.layer != 3)
        return file_error(Errc::kUnsupported, name, "an MPEG sound of layer {}, wanted 3", frame.layer);
      RETURN_IF_ERROR(admit_sound(channels, decoded.rate, kSoundSecondsMax * rate, name, admit));
    } else if (status != MPG123_OK) {
      return status == MPG123_NEW_FORMAT ? file_error(Errc::kUnsupported, name, "an MP3 whose rate or channels change")
                                         : broken();
    }
  }
  if (channels == 0) return file_error(Errc::kMalformed, name, "MP3: no sound in it");
  return decoded;
}

}  // namespace outrider
