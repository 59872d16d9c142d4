#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/compute/kernels/ops.h"
#include "common/compute/tensor/page_array.h"
#include "common/compute/tensor/tensor.h"

namespace outrider {

/// Cached K and V rows of one layer. Position p is in slot p mod capacity. A sliding layer's ring has a fixed capacity;
/// a full layer's grows so that every position keeps its own slot. In both only written rows take memory.
class LayerKv {
 public:
  /// @param ring_rows  capacity of a sliding layer; 0 for a layer that keeps every position
  LayerKv(DType dtype, std::int64_t num_key_value_heads, std::int64_t head_dim, std::int64_t ring_rows);

  /// Makes room for positions [0, end); to be called before write() of a full layer.
  void reserve(Position end);
  /// Stores the row of `position`, rounding to the cache's type. k, v: [num_key_value_heads * head_dim].
  void write(Position position, std::span<const float> k, std::span<const float> v);
  /// Stores rows [first, first + count), which already have the cache's type: [count, row] each.
  void write_raw(Position first, std::int64_t count, const std::byte* k, const std::byte* v);
  /// Copies rows [first, first + count) out, in the cache's type.
  void read_raw(Position first, std::int64_t count, std::byte* k, std::byte* v) const;

  /// Copies the rows of [0, length) from a layer of the same shape that has written rows up to `written`.
  void copy_from(const LayerKv& other, Position length, Position written);

  KvView view() const;
  DType dtype() const { return dtype_; }
  std::int64_t num_key_value_heads() const { return num_key_value_heads_; }
  std::int64_t head_dim() const { return head_dim_; }
  /// Bytes of one row of K (V's are as many).
  std::size_t row_bytes() const { return row_bytes_; }
  /// Rows of a sliding layer's ring; 0 for a layer that keeps every position.
  std::int64_t ring_rows() const { return grows_ ? 0 : capacity_; }
  /// Memory of K and V after positions [0, end) have been written.
  std::size_t bytes_at(Position end) const;

 private:
  std::size_t offset(Position position) const { return static_cast<std::size_t>(position % capacity_) * row_bytes_; }

  DType dtype_;
  std::int64_t num_key_value_heads_, head_dim_;
  std::size_t row_bytes_;
  bool grows_;
  std::int64_t capacity_ = 0;
  PageArray k_, v_;
};

/// The backbone's K/V of one session: one LayerKv per layer that owns its K/V.
///
/// Invariant: every owned layer has valid rows for the positions visible to a query at length() or later; length()
/// counts the committed rows and those not yet rejected.
class KvCache {
 public:
  /// Shape of a layer; kv_cache does not depend on a model.
  struct LayerShape {
    std::int64_t num_key_value_heads, head_dim;
    std::int64_t sliding_window;  ///< 0: full attention
  };
  /// @param rows_max  most rows of one forward. Also the slack of a sliding layer's ring, so that as many may be rolled
  /// back (gemma4.md 4.6, quirk 4)
  KvCache(DType dtype, std::span<const LayerShape> layers, std::int64_t rows_max);

  Position length() const { return length_; }
  std::int64_t rows_max() const { return rows_max_; }
  std::size_t layer_count() const { return layers_.size(); }
  LayerKv& layer(std::size_t i) { return layers_[i]; }
  const LayerKv& layer(std::size_t i) const { return layers_[i]; }

  /// Makes room for `rows` more positions and counts them. The caller then writes each layer's rows.
  void extend(std::int64_t rows);
  /// Returns true if the cache can be cut to `length`: the rings must still have all rows visible to a query or drafter
  /// there. True for the last rows_max lengths, and for every length until a ring has wrapped.
  bool holds(Position length) const;
  /// Drops rows from `length` on. @pre holds(length)
  void truncate(Position length);
  /// Becomes a copy of the first `length` rows of `other`.
  /// @pre this one is empty, both have the same shapes, other.holds(length)
  /// @param between_layers  as in Backbone::forward: a long sequence's rows are gigabytes
  void copy_from(const KvCache& other, Position length, const std::function<void()>* between_layers = nullptr);

 private:
  std::vector<LayerKv> layers_;
  std::int64_t rows_max_;
  Position length_ = 0;
  Position written_ = 0;  ///< greatest length so far; rows missing in the rings were overwritten by rows below it
};

}  // namespace outrider
