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

/// Most sampled frames of a video, and soft tokens per frame: as in Hugging Face's video processor.
inline constexpr std::int64_t kVideoFramesMax = 32, kVideoSoftTokens = 70;

// Limits of a video's file, known before a frame is decoded. The pixel limit counts every decoded frame, also those on
// the way to the sampled ones: 2^33 are some 20 s of one core (docs/vision.md).
inline constexpr std::size_t kVideoBytesMax = 1 << 30;
inline constexpr std::int64_t kVideoFramePixelsMax = 1 << 24, kVideoDecodedPixelsMax = std::int64_t{1} << 33;
inline constexpr std::int64_t kVideoFileFramesMax = 1 << 18;

/// Returns the sampled frames of `count`: all, or kVideoFramesMax of them, evenly spaced from the first.
std::vector<std::int64_t> sampled_frames(std::int64_t count);

/// Receives the sampled frames, in order; its error ends the decoding.
using OnFrame = std::function<Result<void>(double seconds, const Picture& frame)>;

/// Decodes an MP4 (QuickTime), Matroska (WebM) or AVI file with H.264, H.265, VP8, VP9, AV1 or Motion JPEG, by FFmpeg's
/// libraries, if the program was built with them. Sound tracks and subtitles are ignored, and nothing but these bytes
/// is read: no other file, no network.
/// @param name  of the file, for messages
/// @param admit  called once, before decoding, with an upper bound of its memory
/// @return kUnsupported for another format, and without FFmpeg; kOutOfRange beyond the limits above; kMalformed for a
/// broken file. Throws std::bad_alloc only. At most 2 x 256 MiB are allocated beyond the bound passed to `admit`.
Result<void> decode_video(std::span<const std::byte> file, const std::string& name, const AdmitPicture& admit,
                          const OnFrame& on_frame);

}  // namespace outrider
