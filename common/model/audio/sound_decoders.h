#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/model/audio/sound.h"

namespace outrider {

/// Private to this room: readers of files, each the only one that includes its library. Errors are those of
/// decode_sound().
struct DecodedSound {
  std::vector<float> mono;  ///< the mean of the channels
  int rate = 0;             ///< of them in a second
};
Result<DecodedSound> decode_wav_flac_ogg(std::span<const std::byte> file, const std::string& name,
                                         const AdmitSound& admit);
Result<DecodedSound> decode_mp3(std::span<const std::byte> file, const std::string& name, const AdmitSound& admit);

/// kOutOfRange beyond the limits of channels and rate, else as `admit` says of so many samples (after the mean) and
/// what comes of them; a sound of more is cut off.
Result<void> admit_sound(int channels, int rate, std::int64_t samples, const std::string& name,
                         const AdmitSound& admit);
/// That it is longer than can be heard.
Error too_long(const std::string& name, const std::string& seconds);
/// Adds the mean of the channels of samples [frames, channels].
void append_mean(std::span<const float> samples, int channels, std::vector<float>& mono);

}  // namespace outrider
