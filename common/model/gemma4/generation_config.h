#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/model/checkpoint/model_files.h"

namespace outrider {

/// Generation settings by a checkpoint's makers.
struct GenerationConfig {
  /// Tokens that end an answer: from generation_config.json, else config.json (text_config, then top level), else {1}.
  std::vector<TokenId> eos_token_ids;
  /// Tokens that must never be sampled.
  std::vector<TokenId> suppress_tokens;
  // Recommended sampling parameters, if given.
  std::optional<float> temperature, top_p;
  std::optional<std::int32_t> top_k;
};

/// A missing file counts as one without keys.
/// @return kMalformed for an invalid value; the message names file, key, value seen and wanted
Result<GenerationConfig> load_generation_config(const ModelFiles& files);

}  // namespace outrider
