#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/model/checkpoint/model_files.h"

namespace outrider {

/// What a checkpoint's makers say about generating text with it.
struct GenerationConfig {
  /// Tokens that end a text: of generation_config.json, else of config.json (text_config, then top level), else {1}.
  std::vector<TokenId> eos_token_ids;
  /// Tokens that must never be sampled.
  std::vector<TokenId> suppress_tokens;
  // How they advise to sample, as far as they say.
  std::optional<float> temperature, top_p;
  std::optional<std::int32_t> top_k;
};

/// A missing file counts as one without the keys.
/// @return kMalformed for a value that cannot be; the message names file, key, value seen and wanted.
Result<GenerationConfig> load_generation_config(const ModelFiles& files);

}  // namespace outrider
