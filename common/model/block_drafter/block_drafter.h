#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/model/block_drafter/rows_drafter.h"

namespace outrider {

/// A block drafter (DFlash, arXiv 2602.06036; DSpark): a few decoder layers, whose K/V are computed from the target's
/// hidden rows. A block is the sequence's last token followed by mask tokens; one pass predicts all of its
/// positions. DSpark's Markov head adds scores that depend on the preceding token. One pass at a time.
class BlockDrafter final : public RowsDrafter {
 public:
  /// @param backbone  the target: its embedding table and head are used if the checkpoint has none
  static Result<std::unique_ptr<BlockDrafter>> load(const ModelFiles& files, const TextConfig& backbone,
                                                    const WeightSource& backbone_weights, WeightType type);

  /// Appends rows of the target's hidden states, [rows, target_row()], at most kRowsMax, to a sequence.
  void add_rows(KvCache& text, Matrix<const float> rows);

  /// A block after a sequence's rows.
  struct Block {
    KvCache* text;  ///< unchanged after the pass
    TokenId token;  ///< the token before the drafts
  };
  /// Runs one pass: scores of each block's drafts() positions, [blocks * drafts(), draft_vocab_size], before the Markov
  /// head. Valid until the next pass. The bits of a block do not depend on the others. @pre blocks_max() blocks at most
  Matrix<const float> draft(std::span<const Block> blocks);
  std::int64_t blocks_max() const { return kRowsMax / config_.block_size; }
  /// Returns the Markov head's scores after each token, [tokens, draft_vocab_size], to be added; valid until the next
  /// call. @pre there is a Markov head
  Matrix<const float> markov(std::span<const TokenId> tokens);

 private:
  /// Position and cache of a row in a pass.
  struct Place {
    KvCache* text;
    Position position;
  };
  BlockDrafter() = default;
  Result<void> load_markov_head(const WeightReader& weights);
  /// Writes layer l's K and V of these rows, normed and rotated, at their positions.
  void write_kv(std::size_t l, Matrix<const float> x, std::span<const Place> places);
  /// Returns attention's output for rows of blocks, valid until the next call.
  Matrix<const float> attention(std::size_t l, std::span<const Place> places, Matrix<const float> h);

  Linear markov_head_;
  std::optional<Embedding> markov_rows_;
  std::vector<float> hidden_norm_;
  struct {
    Buffer x, selected, scores, markov_rows, markov;
  } scratch_;
};

}  // namespace outrider
