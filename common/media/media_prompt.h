#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/model/audio/audio_config.h"
#include "common/model/audio/sound.h"
#include "common/model/tokenizer/chat.h"
#include "common/model/vision/patches.h"
#include "common/model/vision/picture.h"
#include "common/model/vision/video.h"
#include "common/model/vision/vision_config.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// Level of detail of a picture, in OpenAI's words.
enum class PictureDetail { kAuto, kLow, kHigh };

/// Returns one of kSoftTokenBudgets: 70, the default, or the largest. For a model with bidirectional attention to
/// pictures the latter two are 140: a picture must fit one forward pass of the verifier, of 256 rows by default.
std::int64_t soft_tokens_for(PictureDetail detail, const VisionConfig& config);

/// The file of a picture, a video or a sound in a request.
struct MediumFile {
  enum class Kind { kPicture, kVideo, kSound };
  std::string name;      ///< for messages
  std::string url = {};  ///< http(s), if it is still to be fetched; then without bytes
  std::string bytes;     ///< of a PNG, JPEG or WebP; of an MP4, Matroska or AVI; or of a WAV, FLAC, Ogg or MP3
  Kind kind = Kind::kPicture;
  PictureDetail detail = PictureDetail::kAuto;  ///< pictures only
  std::vector<std::string> frames = {};         ///< of a video given as pictures, one per second; then without bytes

  std::int64_t size() const;  ///< total bytes
};
inline constexpr std::size_t kMediumBytesMax = std::max(kPictureBytesMax, kSoundBytesMax);

/// Converts a picture for a Generate, in the tower's input size; place_media() sets its position. Pictures and sounds
/// are decoded one at a time in a process, so that only one large one is in memory.
/// @param soft_tokens  limit, one of kSoftTokenBudgets
/// @param admit  called once, before memory for pixels is allocated, with an upper bound for decoding and resizing
/// @return errors as decode_picture()
Result<WireMedium> load_picture(std::span<const std::byte> file, const std::string& name, const VisionConfig& config,
                                std::int64_t soft_tokens, const AdmitPicture& admit = {});

/// Converts a sound for a Generate. @return errors as decode_sound()
Result<WireMedium> load_sound(std::span<const std::byte> file, const std::string& name, const AdmitSound& admit = {});

/// A file for a Generate: the frames of a video and their times, or one picture or sound.
struct LoadedMedia {
  std::vector<WireMedium> frames;
  ContentPart part;  ///< its placeholder in a message
};
/// Samples kVideoFramesMax frames, of kVideoSoftTokens each. @return errors as decode_video()
Result<LoadedMedia> load_video(std::span<const std::byte> file, const std::string& name, const VisionConfig& config,
                               const AdmitPicture& admit = {});
/// The same for pictures, one per second. @param count  number of pictures @param frame  returns picture i
/// @return errors as decode_picture(), and kOutOfRange without pictures
Result<LoadedMedia> load_video(std::int64_t count, const std::string& name,
                               const std::function<Result<WireMedium>(std::int64_t i)>& frame);

/// The same for a local file of any kind: a picture or a sound is the only frame. A video may also be a folder of
/// pictures in the order of their names, one per second.
/// @param soft_tokens  limit of a picture; none: the default without a given detail
/// @return also the error in `vision` or `audio` if the model lacks it
Result<LoadedMedia> load_medium_file(const std::filesystem::path& path, ContentPart::Kind kind,
                                     const Result<VisionConfig>& vision, const Result<AudioConfig>& audio,
                                     std::optional<std::int64_t> soft_tokens = {});

/// Expands the placeholders of pictures, frames and sounds in a rendered chat, and sets the media's positions: each
/// image, video or audio token becomes a start token, a medium's number of that token, and an end token, as in Hugging
/// Face's processor (gemma4.md 8.3, 9.3).
/// @param media  in the prompt's order
/// @return kInvalidArgument unless there is a placeholder of its kind for each
Result<std::vector<TokenId>> place_media(std::span<const TokenId> rendered, const Result<VisionConfig>& vision,
                                         const Result<AudioConfig>& audio, std::vector<WireMedium>& media);

}  // namespace outrider
