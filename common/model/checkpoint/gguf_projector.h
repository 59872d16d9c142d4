#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/result.h"
#include "common/model/checkpoint/gguf.h"

namespace outrider {

// Private to this room: a GGUF's towers, which llama.cpp's converter writes into a separate file.

/// Returns the choose_projector() of the folder of the text model's file; none without one.
std::optional<std::filesystem::path> find_projector(const std::filesystem::path& text_model);

/// Returns a config.json for both files: `vision_config`, `audio_config` for an audio tower of E2B or E4B, the tokens
/// that stand for a picture and a sound, and bidirectional attention to pictures; the text model's `config` becomes its
/// `text_config`.
/// @return kUnsupported for another kind of vision tower than Gemma 4's; kNotFound, kMalformed or kMismatch for a key
/// or tensor that is missing, wrong, or does not fit the text model
Result<nlohmann::json> add_projector(nlohmann::json config, const GgufModel& text, const GgufModel& projector);

/// The projector's tensors under their Hugging Face names, unsorted; others are omitted.
struct ProjectorTensors {
  std::vector<TensorEntry> tensors;
  std::shared_ptr<const void> made;  ///< owns the converted tensors
};
/// @pre add_projector() accepted it
ProjectorTensors projector_tensors(const GgufModel& projector);

}  // namespace outrider
