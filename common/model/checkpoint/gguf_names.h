#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/checkpoint/checkpoint.h"
#include "common/model/checkpoint/gguf.h"

namespace outrider {

/// What both call a tensor, or a part of its name.
struct NamePair {
  std::string_view gguf, hugging_face;
};

/// The Hugging Face name of a tensor that llama.cpp's converter calls `gguf_name`, for the architectures
/// gemma4 and gemma4-assistant; none for one that has no such name.
std::optional<std::string> hugging_face_name(std::string_view gguf_name);

/// The other way round. `hugging_face_name` has the text-only prefix `model.`.
std::optional<std::string> gguf_name(std::string_view hugging_face_name);

/// The model's tensors under their Hugging Face names, sorted; those without one keep theirs. A layer
/// without layer_output_scale gets a layer_scalar of 1, which is what leaving it out means.
/// @return kMalformed if two tensors get the same name.
Result<std::vector<TensorEntry>> hugging_face_tensors(const GgufModel& model);

}  // namespace outrider
