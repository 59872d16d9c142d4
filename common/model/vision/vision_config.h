#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/model/checkpoint/model_files.h"

namespace outrider {

/// What a config.json says of pictures: its vision_config, and the tokens that stand for them (gemma4.md 8). Every
/// value has been checked against bounds that keep sizes computed from it well inside 64 bits.
struct VisionConfig {
  std::int64_t hidden_size, intermediate_size;
  int num_hidden_layers;
  std::int64_t num_attention_heads, head_dim;
  std::int64_t patch_size;           ///< pixels
  std::int64_t pooling_kernel_size;  ///< patches
  std::int64_t position_embedding_size;
  float rms_norm_eps;
  double rope_theta;
  bool use_clipped_linears, standardize;
  bool without_tower;  ///< 12B: a patch is the whole of a soft token, and there are no layers
  bool both_ways;      ///< sliding layers of the text model see a picture's later soft tokens too (gemma4.md 8.3)
  std::int64_t text_hidden_size;
  TokenId image_token_id, video_token_id, boi_token_id, eoi_token_id;

  /// Pixels along a side of what becomes one soft token.
  std::int64_t soft_token_side() const { return patch_size * pooling_kernel_size; }
  /// Floats of a patch: rows, columns, and the three colours of a pixel.
  std::int64_t patch_floats() const { return 3 * patch_size * patch_size; }
};

/// @return kNotFound for a model that has no vision tower; kUnsupported for another kind of model, or a value that
///   another implementation might accept; kMalformed for one that cannot be. The message names file and key.
Result<VisionConfig> load_vision_config(const ModelFiles& files);
/// The same from the text of a config.json; `file` is its name in messages.
Result<VisionConfig> parse_vision_config(std::string_view json, std::string_view file);

}  // namespace outrider
