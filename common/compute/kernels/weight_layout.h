#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace outrider {

/// Memory layout of a matrix [in, out]: element (i, o) is at offsets(0)[i] + offsets(1)[o]. Named like oneDNN's format
/// tags, a for inputs and b for outputs: "BA16a64b4a" is rows of blocks of 64 inputs x 64 outputs, inputs innermost, 4
/// by 4. "rows" (oneDNN's "ba") is [out, in] row-major. Dimensions are padded with zeros to whole blocks.
class WeightLayout {
 public:
  /// @return kMalformed if the name is invalid, or in or out are not in [1, 2^30]; all may come from a file
  static Result<WeightLayout> parse(std::string_view name, std::int64_t in, std::int64_t out);

  const std::string& name() const { return name_; }
  /// Size of the whole matrix with elements of `element` bytes. Every offset is inside.
  std::size_t bytes(std::size_t element) const;
  /// Size of axis 0 (in) or 1 (out) with padding.
  std::int64_t padded(int axis) const { return outer_count_[axis] * block_[axis]; }
  /// Elements from one block of an axis to the next.
  std::int64_t outer_stride(int axis) const { return outer_stride_[axis]; }
  std::int64_t outer_count(int axis) const { return outer_count_[axis]; }
  /// Contribution of each index of an axis to an element's offset, in elements.
  std::vector<std::int64_t> offsets(int axis) const;

 private:
  struct Inner {
    int axis;
    std::int64_t size;
  };
  std::string name_;
  std::array<std::int64_t, 2> size_{}, block_{1, 1}, outer_count_{}, outer_stride_{};
  std::vector<Inner> inner_;  ///< outermost first
};

}  // namespace outrider
