#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/compute/kernels/team_sizer.h"
#include "common/model/gemma4/branch_store.h"
#include "common/model/gemma4/config.h"
#include "common/model/gemma4/decoder_layer.h"
#include "common/model/gemma4/embedding.h"
#include "common/model/gemma4/kv_cache.h"
#include "common/model/gemma4/rope.h"
#include "common/model/gemma4/trace.h"

namespace outrider {

/// Soft tokens: consecutive rows of a sequence that encode a medium instead of tokens (gemma4.md 8.3).
struct SoftRows {
  std::int64_t first;          ///< their first row, in the segment or in the prompt
  Matrix<const float> values;  ///< [rows, hidden_size]
  bool both_ways;              ///< in sliding layers they attend to each other, so that one segment must have all

  std::int64_t end() const { return first + values.size(0); }
};
/// Returns the rows within [begin, end), counted from `begin`.
std::vector<SoftRows> soft_rows_within(std::span<const SoftRows> soft, std::int64_t begin, std::int64_t end);

/// Rows of one session in a forward pass, appended to its cache.
struct Segment {
  KvCache* cache;
  std::span<const TokenId> tokens;
  std::int64_t output_rows;             ///< number of rows at the end whose hidden states and logits are wanted
  std::span<const SoftRows> soft = {};  ///< replace the tokens at these rows, which may be any
  /// Of a token tree (TokenTree): depth of each row but the first. The cache grows by the tree's height plus one, and
  /// those rows are invalid until keep_path().
  std::span<const std::int32_t> depths = {};
};

/// A Gemma 4 text backbone (gemma4.md 3), loaded and packed. One forward at a time.
class Backbone {
 public:
  /// @param rows_max  most rows of one forward, over all segments
  /// @param shards  the other shards, which outlive the backbone and take part in every forward. Null: none
  static Result<std::unique_ptr<Backbone>> load(const ModelFiles& files, WeightType type, std::int64_t rows_max,
                                                Shards* shards = nullptr);
  static Result<std::unique_ptr<Backbone>> load(TextConfig config, std::shared_ptr<const WeightSource> weights,
                                                std::int64_t rows_max, Shards* shards = nullptr);

  /// Output rows of all segments, in order. Valid until the next forward.
  struct Output {
    Matrix<const float> hidden;  ///< [R, hidden_size] after the final norm: the assistant's input
    Matrix<const float> logits;  ///< [R, vocab_size] before the softcap, which does not change their order
  };
  /// Appends the segments' rows to their caches and runs them through the model together. A row's output depends on its
  /// session alone, bit for bit (docs/numerics.md).
  /// @param between_layers  called after every layer, so that a caller's loop can run during a long forward
  /// @pre token ids are below vocab_size; each cache appears once; the rows fit rows_max
  Output forward(std::span<const Segment> segments, const Trace& trace = {},
                 const std::function<void()>* between_layers = nullptr);

  /// After a forward with a token tree: keeps in the segment's cache the rows on the path to `row` alone, with the bits
  /// that a chain would have left.
  /// @param segment  index into `segments` of the last forward
  void keep_path(std::span<const Segment> segments, std::size_t segment, std::int64_t row);

  /// Each layer uses as many threads of the calling thread's team as `sizer` chooses; it learns the time taken. Null:
  /// the number of set_team_size(). The number does not change the bits.
  /// @param sizer  outlives its use
  void set_team_sizer(TeamSizer* sizer) { sizer_ = sizer; }

  /// Makes caches keep these layers' output rows of every position, concatenated in this order, as one more layer: the
  /// first half of a row is its K, the second its V.
  /// @pre 0 <= layer < num_hidden_layers; no cache has been made; the row's width is even
  void keep_hidden(std::vector<int> layers) { hidden_layers_ = std::move(layers); }

  KvCache make_cache() const;
  const TextConfig& config() const { return config_; }
  const WeightSource& weights() const { return *weights_; }
  WeightType weight_type() const { return weights_->type(); }
  Shards* shards() const { return shards_; }
  std::int64_t rows_max() const { return rows_max_; }
  /// Returns the cache index (KvCache::layer) of a kind's donor (gemma4.md 3.5).
  std::size_t donor_cache(AttentionKind kind) const;
  /// A cache layer that drafters read: the donors of both kinds or, if hidden rows are kept, these alone.
  struct Donor {
    std::size_t cache;  ///< KvCache::layer
    bool sliding;
  };
  std::vector<Donor> donors() const;
  /// Bytes of weights that a forward of one row reads, which limits plain decoding. For a mixture of experts it counts
  /// one row's experts; n rows read up to n times as many, at most all.
  std::size_t weight_bytes() const;
  /// Implementation of the largest matrix, for logs.
  const std::string& gemm_implementation() const { return head_.implementation(); }

 private:
  Backbone() = default;
  void embed(std::span<const Segment> segments, Matrix<float> x) const;
  /// The rows' positions, and each kind's angles. @post the caches have room for them.
  std::vector<RowContext> contexts(std::span<const Segment> segments, AttentionKind kind) const;
  /// Sets what the rows see at one layer, and where their K/V go.
  void point_at_layer(std::span<const Segment> segments, const LayerConfig& layer, std::vector<RowContext>& rows);
  /// Copies the rows of layer l's output if keep_hidden() selected it.
  void collect_hidden(std::size_t l, Matrix<const float> x);
  /// Stores the collected rows in the caches.
  void store_hidden(std::span<const Segment> segments, std::span<const RowContext> rows);
  /// Returns the rows' ple [T, L * P], gemma4.md 3.2.
  Matrix<float> per_layer_inputs(std::span<const Segment> segments, Matrix<const float> x);

  TextConfig config_;
  std::int64_t rows_max_ = 0;
  Shards* shards_ = nullptr;
  std::shared_ptr<const WeightSource> weights_;
  std::optional<Embedding> embedding_, per_layer_embedding_;
  std::optional<Rope> rope_;
  Linear per_layer_model_projection_, head_;
  std::vector<float> per_layer_projection_norm_, norm_;
  std::vector<DecoderLayer> layers_;
  Workspace workspace_;
  struct {
    Buffer x, ple, selected, hidden, logits, kept;
  } scratch_;                       ///< of one forward, besides the layers'
  std::vector<int> hidden_layers_;  ///< layers selected by keep_hidden()
  BranchStore branches_;
  TeamSizer* sizer_ = nullptr;
};

/// Returns the layers that own their K/V, in order, with the heads of a shard.
std::vector<KvCache::LayerShape> kv_layer_shapes(const TextConfig& config, const ShardPlace& place = {});

/// Checks that the backbone `name` has a layer of each kind whose K/V an assistant can read.
Result<void> check_donors(const TextConfig& config, const std::string& name);

}  // namespace outrider
