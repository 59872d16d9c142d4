#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace outrider {

// Limits of a sound's file. Within them a sound takes less than 64 MB besides its file while it is decoded.
inline constexpr std::size_t kSoundBytesMax = 32 << 20;
inline constexpr int kSoundRateMin = 1000, kSoundRateMax = 192'000, kSoundChannelsMax = 8;
/// Longest sound of a file, in seconds. Samples beyond the tower's 30 s (kSamplesMax) are cut off: encoders pad at the
/// end.
inline constexpr std::int64_t kSoundSecondsMax = 31;

/// Returns an error if there is no memory for `bytes`; decode_sound() passes it on.
using AdmitSound = std::function<Result<void>(std::int64_t bytes)>;

/// Decodes a WAV, FLAC, Ogg (Vorbis, Opus) or MP3 file: averages channels, and resamples to kSampleRate.
/// @param name  of the file, for messages
/// @param admit  called before memory for samples is allocated; empty: always admits
/// @return kSamplesMin to kSamplesMax finite samples; kOutOfRange for a shorter sound, or a file beyond the limits
/// above; kUnsupported for another format; kMalformed for a file that is broken, ends before its stated length, or has
/// samples that are not finite. Throws std::bad_alloc only.
Result<std::vector<float>> decode_sound(std::span<const std::byte> file, const std::string& name,
                                        const AdmitSound& admit = {});

}  // namespace outrider
