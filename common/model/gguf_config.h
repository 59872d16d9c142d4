#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/checkpoint/gguf.h"

namespace outrider {

/// Private to this room: what a GGUF model says of itself, in the words of a Hugging Face config.json.
struct GgufConfig {
  std::string json;                ///< for parse_text_config or parse_assistant_config, which check it
  std::vector<std::string> notes;  ///< metadata that the tensors' shapes overruled, one line each
};

/// Translates the metadata of a gemma4 or gemma4-assistant GGUF. Where a size can be told from the shape
/// of a tensor, the tensor is believed and a note says so; no size is assumed.
/// @return kUnsupported for another architecture and for what our layers cannot do, kNotFound or
///   kMalformed for a missing or wrong key; the message names file, key or tensor, seen and wanted.
Result<GgufConfig> gguf_config(const GgufModel& model);

}  // namespace outrider
