#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/compute/tensor/tensor.h"
#include "common/model/audio/sound_encoder.h"
#include "common/model/vision/picture_encoder.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// Returns a client's reason for a missing tower. The tower's own error may name files of this machine.
/// @param code  of that error
std::string without_tower(Errc code, bool is_sound);

/// A model's vision and audio towers, or the reasons for their absence.
struct Towers {
  Result<std::unique_ptr<PictureEncoder>> vision;
  Result<std::unique_ptr<SoundEncoder>> audio;

  /// Logs which towers are missing.
  static Towers load(const ModelFiles& files, WeightType type);

  /// Returns everything that the bits of soft tokens depend on, like numeric_class(): includes a hash of the towers'
  /// output for a small picture and a short sound; "" without towers. @param fingerprint  of the model's weights
  std::string encoding_class(WeightType type, std::uint64_t fingerprint);

  /// @return kUnsupported without a tower for it; kInvalidArgument or kOutOfRange for a picture not in
  /// resize_for_tower()'s size, or a sound not from decode_sound()
  Result<SoftTokens> soft_tokens(const WireMedium& medium) const;

  /// Encodes a medium that soft_tokens() accepts: [count, text_hidden_size].
  /// @param between_steps  as in the towers' encode()
  Tensor encode(const WireMedium& medium, const std::function<void()>& between_steps);
};

}  // namespace outrider
