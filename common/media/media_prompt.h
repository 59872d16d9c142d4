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

/// How closely a picture is to be looked at, in OpenAI's words.
enum class PictureDetail { kAuto, kLow, kHigh };

/// One of kSoftTokenBudgets: 70, the usual, or the most. Of a model that sees pictures both ways 140 is both of the
/// latter: the soft tokens of one have to be in one forward pass of the verifier, which takes 256 rows by default.
std::int64_t soft_tokens_for(PictureDetail detail, const VisionConfig& config);

/// The file of a picture, a video or a sound that somebody asks about.
struct MediumFile {
  enum class Kind { kPicture, kVideo, kSound };
  std::string name;      ///< for messages
  std::string url = {};  ///< http(s), where it is yet to be fetched; then no bytes
  std::string bytes;     ///< of a PNG, JPEG or WebP; of an MP4, Matroska or AVI; or of a WAV, FLAC, Ogg or MP3
  Kind kind = Kind::kPicture;
  PictureDetail detail = PictureDetail::kAuto;  ///< of a picture
  std::vector<std::string> frames = {};  ///< of a video that comes as pictures, one for every second; then no bytes

  std::int64_t size() const;  ///< bytes of all
};
inline constexpr std::size_t kMediumBytesMax = std::max(kPictureBytesMax, kSoundBytesMax);

/// A picture as a Generate carries it, in the size in which the tower sees it; place_media() says where it is.
/// Pictures and sounds are decoded one at a time in a process, so that the memory of a large one is needed once.
/// @param soft_tokens  that it may have, one of kSoftTokenBudgets
/// @param admit  asked once, before memory for pixels is taken, with all that decoding and resizing take at most
/// @return as decode_picture().
Result<WireMedium> see_picture(std::span<const std::byte> file, const std::string& name, const VisionConfig& config,
                               std::int64_t soft_tokens, const AdmitPicture& admit = {});

/// It makes a sound as a Generate carries it. @return as decode_sound().
Result<WireMedium> hear_sound(std::span<const std::byte> file, const std::string& name, const AdmitSound& admit = {});

/// A video as a Generate carries it: its frames, and when each is shown.
struct SeenVideo {
  std::vector<WireMedium> frames;
  ContentPart part;  ///< what stands for it in a message
};
/// kVideoFramesMax frames of it, of kVideoSoftTokens each. @return as decode_video().
Result<SeenVideo> see_video(std::span<const std::byte> file, const std::string& name, const VisionConfig& config,
                            const AdmitPicture& admit = {});
/// The same of pictures, of which there is one for every second. @param count  of them
/// @param frame  gives one. @return as decode_picture(), and kOutOfRange of none.
Result<SeenVideo> see_video(std::int64_t count, const std::string& name,
                            const std::function<Result<WireMedium>(std::int64_t i)>& frame);

/// The same of a file here, of whatever kind: a picture or a sound is the one frame. A video may also be a folder of
/// pictures in the order of their names, one for every second.
/// @param soft_tokens  of a picture; none: as many as one has whose detail nobody says
/// @return what is wrong with `vision` or `audio` where the model sees or hears none, too.
Result<SeenVideo> see_file(const std::filesystem::path& path, ContentPart::Kind kind,
                           const Result<VisionConfig>& vision, const Result<AudioConfig>& audio,
                           std::optional<std::int64_t> soft_tokens = {});

/// Makes room in the prompt of a rendered chat for the soft tokens of its pictures, frames and sounds, and says to each
/// where they are: each image, video or audio token becomes the opening of one, so many of that token, and its end, as
/// Hugging Face's processor writes them (gemma4.md 8.3, 9.3).
/// @param media  in the prompt's order
/// @return kInvalidArgument unless there is a place for each of its kind.
Result<std::vector<TokenId>> place_media(std::span<const TokenId> rendered, const Result<VisionConfig>& vision,
                                         const Result<AudioConfig>& audio, std::vector<WireMedium>& media);

}  // namespace outrider
