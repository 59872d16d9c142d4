#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/protocol/messages.h"
#include "common/vision/patches.h"
#include "common/vision/picture.h"
#include "common/vision/vision_config.h"

namespace outrider {

/// How closely a picture is to be looked at, in OpenAI's words.
enum class PictureDetail { kAuto, kLow, kHigh };

/// One of kSoftTokenBudgets: 70, the usual, or the most. Of a model that sees pictures both ways 140 is both of the
/// latter: the soft tokens of one have to be in one forward pass of the verifier, which takes 256 rows by default.
std::int64_t soft_tokens_for(PictureDetail detail, const VisionConfig& config);

/// The file of a picture that somebody asks about.
struct PictureFile {
  std::string name;   ///< for messages
  std::string bytes;  ///< of a PNG, JPEG or WebP
  PictureDetail detail = PictureDetail::kAuto;
};

/// A picture as a Generate carries it, in the size in which the tower sees it; place_pictures() says where it is.
/// Pictures are decoded one at a time in a process, so that the memory of a large one is needed once.
/// @param soft_tokens  that it may have, one of kSoftTokenBudgets
/// @param admit  asked once, before memory for pixels is taken, with all that decoding and resizing take at most
/// @return as decode_picture().
Result<WirePicture> see_picture(std::span<const std::byte> file, const std::string& name, const VisionConfig& config,
                                std::int64_t soft_tokens, const AdmitPicture& admit = {});

/// The same of a file here.
Result<WirePicture> see_picture_file(const std::filesystem::path& path, const VisionConfig& config,
                                     std::int64_t soft_tokens);

/// Makes room in the prompt of a rendered chat for its pictures' soft tokens, and says to each picture where it is.
/// @return as make_room_for_pictures().
Result<std::vector<TokenId>> place_pictures(std::span<const TokenId> rendered, const VisionConfig& config,
                                            std::vector<WirePicture>& pictures);

}  // namespace outrider
