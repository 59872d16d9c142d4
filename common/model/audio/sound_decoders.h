#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/model/audio/sound.h"

namespace outrider {

/// Private to this room: decoders of file formats, each in the only file that includes its library. Errors are those of
/// decode_sound().
struct DecodedSound {
  std::vector<float> mono;  ///< mean of the channels
  int rate = 0;             ///< in samples a second
};
Result<DecodedSound> decode_wav_flac_ogg(std::span<const std::byte> file, const std::string& name,
                                         const AdmitSound& admit);
Result<DecodedSound> decode_mp3(std::span<const std::byte> file, const std::string& name, const AdmitSound& admit);

/// Returns kOutOfRange beyond the limits of channels and rate, or the error of `admit` for the memory of the decoded
/// (mono) samples and their resampling; a longer sound is cut off.
Result<void> admit_sound(int channels, int rate, std::int64_t samples, const std::string& name,
                         const AdmitSound& admit);
/// Returns the error for a sound beyond the tower's length.
Error too_long(const std::string& name, const std::string& seconds);
/// Appends the channel means of samples [frames, channels].
void append_mean(std::span<const float> samples, int channels, std::vector<float>& mono);

}  // namespace outrider
