#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/model/block_drafter/block_config.h"
#include "common/model/gemma4/embedding.h"
#include "common/model/gemma4/kv_cache.h"
#include "common/model/gemma4/weights.h"
#include "common/model/gemma4/workspace.h"

namespace outrider {

/// A block drafter (DFlash, arXiv 2602.06036; DSpark): a few decoder layers, like Qwen3's, whose K/V are made of hidden
/// rows of the target. After them stands a block, the text's last token and then mask tokens, and one pass says what
/// stands at every place. DSpark's Markov head adds what the token before a place speaks for. One pass at a time.
class BlockDrafter {
 public:
  /// Most rows of a pass: places of blocks, or rows of the target.
  static constexpr std::int64_t kRowsMax = 128;

  /// @param backbone  the target: its embedding table, and its head, count where the checkpoint has none
  static Result<std::unique_ptr<BlockDrafter>> load(const ModelFiles& files, const TextConfig& backbone,
                                                    const WeightSource& backbone_weights, WeightType type);

  /// K/V of a text: of the target's rows, all positions in every layer.
  KvCache make_cache() const;
  /// Appends rows of the target's hidden states, [rows, target_row()], kRowsMax at most, to a text.
  void add_rows(KvCache& text, Matrix<const float> rows);

  /// A block behind a text's rows.
  struct Block {
    KvCache* text;  ///< as it was, afterwards
    TokenId token;  ///< that the drafts follow
  };
  /// One pass: scores of each block's drafts() places, [blocks * drafts(), draft_vocab_size], without the Markov head.
  /// Valid until the next pass. A block gets the bits that it gets alone. @pre blocks_max() blocks at most
  Matrix<const float> draft(std::span<const Block> blocks);
  std::int64_t blocks_max() const { return kRowsMax / config_.block_size; }
  /// What the Markov head adds to the scores of a place behind each token: [tokens, draft_vocab_size], valid until the
  /// next. @pre there is one
  Matrix<const float> markov(std::span<const TokenId> tokens);

  /// The tokens whose scores those are; empty: the whole vocabulary in order.
  std::span<const TokenId> vocabulary() const { return vocabulary_; }
  const BlockConfig& config() const { return config_; }

 private:
  struct Layer {
    std::vector<float> input_norm, post_attention_norm, q_norm, k_norm;
    Linear q, kv, o, gate_up, down;  ///< kv: k, then v
  };
  /// Where a row of a pass stands.
  struct Place {
    KvCache* text;
    Position position;
  };
  BlockDrafter() = default;
  Result<void> load_layers(const WeightReader& weights);
  /// The embedding and the heads. @param files  of the drafter
  Result<void> load_vocabulary(const ModelFiles& files, const WeightReader& weights, const WeightSource& backbone);
  /// K and V that layer l makes of these rows, normed and turned, at their places.
  void write_kv(std::size_t l, Matrix<const float> x, std::span<const Place> places);
  /// h := o(attention of h), rows of blocks.
  void attention(std::size_t l, std::span<const Place> places, Matrix<float> h);
  /// h := down(activation(gate(h)) * up(h))
  void mlp(const Layer& layer, Matrix<float> h);

  BlockConfig config_{};
  DType kv_dtype_ = DType::kF32;
  std::optional<Embedding> embedding_;
  Linear fc_, head_, markov_head_;
  std::optional<Embedding> markov_rows_;
  std::vector<float> hidden_norm_, norm_, inv_freq_;
  std::vector<Layer> layers_;
  std::vector<TokenId> vocabulary_;
  Workspace workspace_;
  struct {
    Buffer x, q, kv, selected, scores, markov_rows, markov;
  } scratch_;
};

}  // namespace outrider
