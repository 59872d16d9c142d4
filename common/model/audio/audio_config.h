#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/model/checkpoint/model_files.h"

namespace outrider {

/// The audio part of a config.json: audio_config, and the tokens that stand for sounds (gemma4.md 9). Every value has
/// been checked against bounds that keep sizes computed from it well inside 64 bits.
struct AudioConfig {
  std::int64_t hidden_size;
  int num_hidden_layers;
  std::int64_t num_attention_heads;
  std::int64_t subsampling_conv_channels[2];
  std::int64_t conv_kernel_size;  ///< in frames, including the present one
  std::int64_t attention_past;    ///< frames that a frame attends to, including itself: attention_context_left - 1
  float attention_logit_cap;      ///< softcap of scores
  float gradient_clipping;        ///< bound of values at some places in every layer
  float residual_weight;          ///< of the two feed-forward parts of a layer
  std::int64_t output_proj_dims;  ///< width of the tower's output
  float rms_norm_eps;
  bool use_clipped_linears;
  bool without_tower;  ///< 12B: a soft token is hidden_size samples, and there are no layers
  std::int64_t text_hidden_size;
  TokenId audio_token_id, boa_token_id, eoa_token_id;

  std::int64_t head_dim() const { return hidden_size / num_attention_heads; }
  /// Returns the number of soft tokens of a sound.
  std::int64_t soft_tokens(std::int64_t samples) const;
};

/// @return kNotFound for a model without an audio tower; kUnsupported for another kind of model, or a value that
/// another implementation might accept; kMalformed for an invalid value. The message names file and key.
Result<AudioConfig> load_audio_config(const ModelFiles& files);
/// Parses the text of a config.json; `file` is its name in messages.
Result<AudioConfig> parse_audio_config(std::string_view json, std::string_view file);

}  // namespace outrider
