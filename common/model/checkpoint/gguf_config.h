#pragma once

#include "common/base/result.h"
#include "common/model/checkpoint/gguf.h"
#include "common/model/checkpoint/model_files.h"

namespace outrider {

/// Private to this room: converts a GGUF's metadata to Hugging Face's files, for ModelFiles.

/// Makes a config.json from the metadata of a gemma4 or gemma4-assistant GGUF. A size that follows from a tensor's
/// shape takes precedence over the metadata, with a note; no size is assumed.
/// @return kUnsupported for another architecture or a feature that our layers lack, kNotFound or kMalformed for a
/// missing or wrong key; the message names file, key or tensor, seen and wanted
Result<ModelText> gguf_config(const GgufModel& model);

/// Makes a generation_config.json: eos_token_id has the file's own end tokens and those known by their texts (gemma4.md
/// 1.2), suppress_tokens those of the tokenizer; absent if there are none. @return kMalformed for an invalid token id
Result<ModelText> gguf_generation_config(const GgufMetadata& metadata);

}  // namespace outrider
