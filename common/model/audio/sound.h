#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace outrider {

// What a sound's file may be. With these a sound takes less than 64 MB of memory beside its file while it is decoded.
inline constexpr std::size_t kSoundBytesMax = 32 << 20;
inline constexpr int kSoundRateMin = 1000, kSoundRateMax = 192'000, kSoundChannelsMax = 8;
/// Seconds of a file's sound. What is beyond the 30 that are heard (kSamplesMax) is cut off: encoders pad at the end.
inline constexpr std::int64_t kSoundSecondsMax = 31;

/// Whether there is memory for so many bytes; an error is decode_sound()'s.
using AdmitSound = std::function<Result<void>(std::int64_t bytes)>;

/// Reads a WAV, FLAC, Ogg (Vorbis, Opus) or MP3 file: channels averaged, resampled to kSampleRate.
/// @param name  of the file, for messages
/// @param admit  asked before memory for samples is taken; empty: there is enough
/// @return kSamplesMin to kSamplesMax finite samples; kOutOfRange for a sound that is shorter, or a file beyond the
///   limits above; kUnsupported for another format; kMalformed for one that is broken, breaks off though it says how
///   long it is, or has samples that are no numbers. Never throws but for memory.
Result<std::vector<float>> decode_sound(std::span<const std::byte> file, const std::string& name,
                                        const AdmitSound& admit = {});

}  // namespace outrider
