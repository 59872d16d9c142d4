#pragma once

#include "common/base/result.h"
#include "common/model/checkpoint/gguf.h"
#include "common/model/checkpoint/model_files.h"

namespace outrider {

/// Private to this room: what a GGUF says of itself in Hugging Face's words, for ModelFiles.

/// A config.json from the metadata of a gemma4 or gemma4-assistant GGUF. Where a size can be told from the shape
/// of a tensor, the tensor is believed and a note says so; no size is assumed.
/// @return kUnsupported for another architecture and for what our layers cannot do, kNotFound or
///   kMalformed for a missing or wrong key; the message names file, key or tensor, seen and wanted.
Result<ModelText> gguf_config(const GgufModel& model);

/// A generation_config.json: eos_token_id has the file's own end tokens and those that are known by their
/// texts (gemma4.md 1.2), suppress_tokens what the tokenizer says; neither where there are none.
/// @return kMalformed for what is no token id.
Result<ModelText> gguf_generation_config(const GgufMetadata& metadata);

}  // namespace outrider
