#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/checkpoint/checkpoint.h"
#include "common/model/checkpoint/gguf.h"

namespace outrider {

/// Both names of a tensor, or parts of them.
struct NamePair {
  std::string_view gguf, hugging_face;
};

/// Returns the Hugging Face name of llama.cpp's `gguf_name`, for the architectures gemma4 and gemma4-assistant; none if
/// there is no such name.
std::optional<std::string> hugging_face_name(std::string_view gguf_name);

/// The inverse. `hugging_face_name` has the text-only prefix `model.`.
std::optional<std::string> gguf_name(std::string_view hugging_face_name);

/// The model's tensors under their Hugging Face names, sorted; others keep their names. A layer without
/// layer_output_scale gets a layer_scalar of 1, the equivalent. @return kMalformed if two tensors get the same name
Result<std::vector<TensorEntry>> hugging_face_tensors(const GgufModel& model);

}  // namespace outrider
