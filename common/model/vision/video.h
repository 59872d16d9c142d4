#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/model/vision/picture.h"

namespace outrider {

/// Frames of a video that are looked at, and the soft tokens that each may have: as Hugging Face's video processor.
inline constexpr std::int64_t kVideoFramesMax = 32, kVideoSoftTokens = 70;

// What a video's file may be, which is known before a frame of it is decoded. The pixels decoded are those of the
// frames on the way to the ones that are looked at, too: 2^33 are some 20 s of one core (docs/vision.md).
inline constexpr std::size_t kVideoBytesMax = 1 << 30;
inline constexpr std::int64_t kVideoFramePixelsMax = 1 << 24, kVideoDecodedPixelsMax = std::int64_t{1} << 33;
inline constexpr std::int64_t kVideoFileFramesMax = 1 << 18;

/// Which of `count` frames are looked at: all, or kVideoFramesMax of them, evenly spaced from the first.
std::vector<std::int64_t> sampled_frames(std::int64_t count);

/// Takes the frames that are looked at, in their order; an error of it ends the decoding.
using OnFrame = std::function<Result<void>(double seconds, const Picture& frame)>;

/// Reads an MP4 (QuickTime), Matroska (WebM) or AVI file with H.264, H.265, VP8, VP9, AV1 or Motion JPEG, by FFmpeg's
/// libraries, where the program was built with them. Sound tracks and subtitles are not read, and nothing but these
/// bytes: no other file, no network.
/// @param name  of the file, for messages
/// @param admit  asked once, before anything is decoded, with what decoding takes at most
/// @return kUnsupported for another format, and without FFmpeg; kOutOfRange for one beyond the limits above; kMalformed
///   for one that is broken. Never throws but for memory. At most 2 x 256 MiB are taken beyond what `admit` heard.
Result<void> decode_video(std::span<const std::byte> file, const std::string& name, const AdmitPicture& admit,
                          const OnFrame& on_frame);

}  // namespace outrider
