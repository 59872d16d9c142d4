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

/// Why a model without a tower does not see or hear, for whoever asks it to: a tower's own error may name files of this
/// machine. @param code  of that error
std::string without_tower(Errc code, bool is_sound);

/// A model sees and hears with these; or they say why it does not.
struct Towers {
  Result<std::unique_ptr<PictureEncoder>> vision;
  Result<std::unique_ptr<SoundEncoder>> audio;

  /// Logs which of them there are not.
  static Towers load(const ModelFiles& files, WeightType type);

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
