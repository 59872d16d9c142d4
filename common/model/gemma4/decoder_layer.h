#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/compute/kernels/ops.h"
#include "common/model/gemma4/config.h"
#include "common/model/gemma4/kv_cache.h"
#include "common/model/gemma4/moe.h"
#include "common/model/gemma4/trace.h"
#include "common/model/gemma4/weights.h"
#include "common/model/gemma4/workspace.h"

namespace outrider {

/// A row of a token tree shares its position, and so its cache slot, with rows of other branches. Rows are in
/// depth-first order, so that at a row's turn the slots before its own have its ancestors' K/V: it attends to exactly
/// the keys of its path as a chain, in the same order. This replaces an ancestor mask.
struct BranchRow {
  LayerKv* kv = nullptr;   ///< null: the row has a slot of its own
  std::byte* k = nullptr;  ///< buffer of its K and V, for layers that share them and for its acceptance
  std::byte* v = nullptr;
  bool begins = false;  ///< its parent is not the previous row: earlier rows must attend before it takes its slot
};

/// Inputs of one row of a forward pass at one layer.
struct RowContext {
  Position position;
  RopeAngles angles;            ///< of this position, for the layer's kind
  LayerKv* write_to = nullptr;  ///< destination of the row's K/V, if the layer owns K/V
  AttendRow keys = {};          ///< visible keys
  BranchRow branch = {};        ///< for a token tree's row
};

/// The heads of a layer that a shard computes.
struct HeadShare {
  Columns q, kv;         ///< query heads, and the K/V heads that they read
  Columns kv_kept = kv;  ///< K/V heads whose rows it caches
};
/// Shards get whole groups of query heads if each can have a K/V head; otherwise shards that share a K/V head split its
/// query heads, and each caches it. All heads are cached for a layer that a drafter or later layers read.
HeadShare head_share(const ShardPlace& place, const TextConfig& model, const LayerConfig& layer);

/// One Gemma 4 decoder layer, of the backbone or of the assistant (gemma4.md 3.3). The assistant's layers own no K/V
/// and have no per-layer input; nothing else differs. The variants (experts beside the dense MLP, shared K/V, K as V,
/// per-layer input) are facts of the layer's config, not classes.
class DecoderLayer {
 public:
  /// @param weights  under "...layers.<i>."
  /// @param ple_width  hidden_size_per_layer_input; 0 for none
  static Result<DecoderLayer> load(const WeightReader& weights, const TextConfig& model, const LayerConfig& config,
                                   std::int64_t ple_width);

  /// x [T, hidden_size] := layer(x).
  /// @param rows one per row of x; K/V rows of the batch are written before any row attends.
  /// @param ple  [T, ple_width] this layer's per-layer input; empty for none.
  void forward(std::span<const RowContext> rows, Matrix<float> x, std::optional<Matrix<const float>> ple,
               Workspace& workspace, const Trace& trace = {}) const;

  const LayerConfig& config() const { return config_; }
  /// Bytes of weights that a forward of one row reads.
  std::size_t weight_bytes() const;

 private:
  void attention(std::span<const RowContext> rows, Matrix<float> h, Workspace& workspace, const Trace& trace) const;
  /// Writes K and V of rows [first, end) of qkv into their slots.
  void place(std::span<const RowContext> rows, std::int64_t first, std::int64_t end, Matrix<float> qkv) const;
  void mlp(Matrix<float> h, Workspace& workspace, const Trace& trace) const;

  LayerConfig config_{};
  float eps_ = 0;
  Shards* shards_ = nullptr;
  std::int64_t q_size_ = 0;    ///< columns of all query heads
  Columns q_own_, inner_own_;  ///< this shard's columns of q, and of the MLP's inner ones
  std::int64_t kv_size_ = 0;   ///< columns of k or v in the stacked projection
  Columns kv_read_;            ///< heads of the cached rows that this shard's queries read
  struct {
    std::vector<float> input, post_attention, pre_feedforward, post_feedforward, q, k, post_per_layer_input;
  } norms_;
  Linear qkv_;  ///< q; k; v, or q alone if K/V are shared, or q; k if k_eq_v: this shard's heads
  Linear o_, gate_up_, down_, per_layer_input_gate_, per_layer_projection_;
  std::optional<Moe> moe_;  ///< if enable_moe_block
  float layer_scalar_ = 1;
};

}  // namespace outrider
