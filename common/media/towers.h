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

/// A model's vision and audio towers, or the reasons for their absence.
struct Towers {
  Result<std::unique_ptr<PictureEncoder>> vision;
  Result<std::unique_ptr<SoundEncoder>> audio;

  static Towers load(const ModelFiles& files, WeightType type) {
    return {PictureEncoder::load(files, type), SoundEncoder::load(files, type)};
  }
  /// Returns no towers, for this reason.
  static Towers none(const std::string& why) {
    return {Error{Errc::kUnsupported, why}, Error{Errc::kUnsupported, why}};
  }

  /// Returns everything that the bits of soft tokens depend on, like numeric_class(): includes a hash of the towers'
  /// output for a small picture and a short sound; "" without towers. @param fingerprint  of the model's weights
  std::string encoding_class(WeightType type, std::uint64_t fingerprint);

  /// @return kUnsupported without a tower for it; kInvalidArgument or kOutOfRange for a picture not in
  /// resize_for_tower()'s size, or a sound not from decode_sound()
  Result<SoftTokens> soft_tokens(const WireMedium& medium) const;

  /// Encodes a medium that soft_tokens() accepts: [count, text_hidden_size]. @param between_steps  as in the towers'
  /// encode()
  Tensor encode(const WireMedium& medium, const std::function<void()>& between_steps);
};

}  // namespace outrider
