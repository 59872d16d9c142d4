#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/result.h"
#include "common/model/checkpoint/gguf.h"

namespace outrider {

// Private to this room: the towers of a GGUF, which llama.cpp's converter writes into a file of its own, mmproj*.

/// The one file mmproj*.gguf in the folder of a text model's file; none without one.
/// @return kMismatch where there are several.
Result<std::optional<std::filesystem::path>> find_projector(const std::filesystem::path& text_model);

/// What the file amounts to in config.json's words: `vision_config`, `audio_config` where it has an audio tower of E2B
/// or E4B, the tokens that stand for a picture and a sound, and whether the text model sees a picture both ways, around
/// the text model's `config`, which becomes its `text_config`.
/// @return kUnsupported for another kind of vision tower than Gemma 4's; kNotFound, kMalformed or kMismatch for a key
///   or tensor that is missing, wrong, or does not fit the text model.
Result<nlohmann::json> add_projector(nlohmann::json config, const GgufModel& text, const GgufModel& projector);

/// Its tensors under their Hugging Face names, unsorted; others are left out.
struct ProjectorTensors {
  std::vector<TensorEntry> tensors;
  std::shared_ptr<const void> made;  ///< owns what is not in the file as it is
};
/// @pre add_projector() took it
ProjectorTensors projector_tensors(const GgufModel& projector);

}  // namespace outrider
