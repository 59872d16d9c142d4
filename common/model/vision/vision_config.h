#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/model/checkpoint/model_files.h"

namespace outrider {

/// The vision part of a config.json: vision_config, and the tokens that stand for pictures (gemma4.md 8). Every value
/// has been checked against bounds that keep sizes computed from it well inside 64 bits.
struct VisionConfig {
  std::int64_t hidden_size, intermediate_size;
  int num_hidden_layers;
  std::int64_t num_attention_heads, head_dim;
  std::int64_t patch_size;           ///< in pixels
  std::int64_t pooling_kernel_size;  ///< in patches
  std::int64_t position_embedding_size;
  float rms_norm_eps;
  double rope_theta;
  bool use_clipped_linears, standardize;
  bool without_tower;  ///< 12B: a patch is a whole soft token, and there are no layers
  bool both_ways;      ///< in sliding layers a picture's soft tokens attend to each other (gemma4.md 8.3)
  std::int64_t text_hidden_size;
  TokenId image_token_id, video_token_id, boi_token_id, eoi_token_id;

  /// Side in pixels of one soft token's square.
  std::int64_t soft_token_side() const { return patch_size * pooling_kernel_size; }
  /// Floats of a patch: rows, columns, and the three colours of a pixel.
  std::int64_t patch_floats() const { return 3 * patch_size * patch_size; }
};

/// @return kNotFound for a model without a vision tower; kUnsupported for another kind of model, or a value that
/// another implementation might accept; kMalformed for an invalid value. The message names file and key.
Result<VisionConfig> load_vision_config(const ModelFiles& files);
/// Parses the text of a config.json; `file` is its name in messages.
Result<VisionConfig> parse_vision_config(std::string_view json, std::string_view file);

}  // namespace outrider
