#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/compute/tensor/tensor.h"
#include "common/model/audio/sound_encoder.h"
#include "common/model/vision/picture_encoder.h"
#include "common/wire/messages/soft_tokens.h"

namespace outrider {

/// A model sees and hears with these; or they say why it does not.
struct Towers {
  Result<std::unique_ptr<PictureEncoder>> vision;
  Result<std::unique_ptr<SoundEncoder>> audio;

  static Towers load(const ModelFiles& files, WeightType type) {
    return {PictureEncoder::load(files, type), SoundEncoder::load(files, type)};
  }
  /// There are none, for this reason.
  static Towers none(const std::string& why) {
    return {Error{Errc::kUnsupported, why}, Error{Errc::kUnsupported, why}};
  }

  /// Their soft tokens' bits depend on it, as on numeric_class(): it has a hash of what they make of a small picture
  /// and a short sound; "" without any. @param fingerprint  of the model's weights
  std::string encoding_class(WeightType type, std::uint64_t fingerprint);

  /// @return kUnsupported without a tower for it; kInvalidArgument or kOutOfRange for what is no picture in a size that
  ///   resize_for_tower() makes, and no sound that decode_sound() makes.
  Result<SoftTokens> soft_tokens(const WireMedium& medium) const;

  /// The soft tokens of one that soft_tokens() lets in: [count, text_hidden_size].
  /// @param between_steps  as the towers' encode()
  Tensor encode(const WireMedium& medium, const std::function<void()>& between_steps);
};

}  // namespace outrider
