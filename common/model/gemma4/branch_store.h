#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace outrider {

/// K and V of token-tree rows in one forward pass, in the caches' type: rows of two branches share a cache slot
/// (BranchRow). Indexed by layer of the cache and row of the forward pass.
class BranchStore {
 public:
  /// Makes room for rows [0, rows) of a layer; previous contents are lost.
  void reserve(std::size_t layer, std::int64_t rows, std::size_t row_bytes) {
    if (layers_.size() <= layer) layers_.resize(layer + 1);
    layers_[layer].row_bytes = row_bytes;
    const std::size_t bytes = 2 * static_cast<std::size_t>(rows) * row_bytes;
    layers_[layer].bytes.resize(std::max(layers_[layer].bytes.size(), bytes));
  }
  std::byte* k(std::size_t layer, std::int64_t row) { return at(layer, 2 * row); }
  std::byte* v(std::size_t layer, std::int64_t row) { return at(layer, 2 * row + 1); }

 private:
  struct Layer {
    std::vector<std::byte> bytes = {};
    std::size_t row_bytes = 0;
  };
  std::byte* at(std::size_t layer, std::int64_t half_row) {
    return layers_[layer].bytes.data() + static_cast<std::size_t>(half_row) * layers_[layer].row_bytes;
  }

  std::vector<Layer> layers_;
};

}  // namespace outrider
