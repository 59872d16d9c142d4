#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/gemma4/config.h"

namespace outrider {

/// The config.json of a drafter with hidden rows: a DFlash, DSpark or EAGLE-3 checkpoint of
/// github.com/vllm-project/speculators or, with Gemma's layers, of github.com/deepseek-ai/DeepSpec, or a DFlash
/// checkpoint in z-lab's format. Every value has been checked against bounds that keep sizes computed from it well
/// inside 64 bits.
struct BlockConfig {
  std::int64_t vocab_size;        ///< the target's
  std::int64_t draft_vocab_size;  ///< rows of the drafter's own head
  std::int64_t hidden_size, intermediate_size;
  std::int64_t num_attention_heads, num_key_value_heads, head_dim;
  float rms_norm_eps;
  RopeConfig rope;
  bool silu;     ///< the MLP's activation; else GELU by tanh
  bool qk_norm;  ///< Q and K have norms, as Qwen3's and Gemma's; else Llama's layers
  /// Gemma's layers: what attention and MLP add is normed first, V is normed, scores are not scaled, and a factor
  /// (layer_scalar) ends the layer.
  bool gemma;
  bool k_eq_v;                     ///< V is the raw k_proj output
  std::vector<bool> sliding;       ///< by layer: attends only to the last sliding_window rows before the block
  std::int64_t sliding_window;     ///< 0: no layer slides
  bool sliding_causal;             ///< in sliding layers a position of the block does not attend to later ones
  float final_logit_softcapping;   ///< 0: none
  std::int32_t block_size;         ///< positions of a block, of which the first is the sequence's last token
  bool drafts_from_anchor;         ///< positions predict their successors; else all but the first their own tokens
  bool scales_embedding;           ///< by sqrt(hidden_size), as the target does; speculators trains without
  TokenId mask_token_id;           ///< token of the other positions
  std::vector<int> hidden_layers;  ///< target layers whose outputs a row concatenates, in this order
  std::int64_t num_target_layers;  ///< 0: not told
  std::int64_t markov_rank;        ///< rank of DSpark's Markov head; 0: none
  // EAGLE-3, whose block_size is 0:
  bool eagle3;
  bool norm_before_residual;  ///< the first layer's residual is the normed hidden state
  bool norm_before_fc;        ///< fc's input is normed as a whole
  bool fc_norm;               ///< fc's input is normed by layer of the target
  bool norm_output;           ///< the next step continues from the state after the final norm

  /// Drafts per block.
  std::int32_t drafts() const { return block_size - (drafts_from_anchor ? 0 : 1); }
  /// Width of a row of the target's hidden states.
  std::int64_t target_row() const { return std::ssize(hidden_layers) * hidden_size; }
};

/// Returns true if the model's config.json is that of a drafter with hidden rows, of these families or similar ones.
/// False without a config.json.
bool is_block_drafter(const std::filesystem::path& model);

/// Returns true if it is that of an EAGLE-3 drafter.
bool is_eagle3_drafter(const std::filesystem::path& model);

/// @return errors as load_text_config(); kMismatch if the drafter is for another target
Result<BlockConfig> load_block_config(const ModelFiles& files, const TextConfig& target);
/// An EAGLE-3 drafter may leave hidden_layers empty: the target's default ones.
Result<BlockConfig> parse_block_config(std::string_view json, std::string_view file);

}  // namespace outrider
