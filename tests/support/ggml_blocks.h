#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/compute/tensor/tensor.h"

namespace outrider {

/// Nearest binary16, ties to even.
std::uint16_t to_half(float x);
/// Its value, computed with ldexp: the tests' own word on what the bits mean.
float half_value(std::uint16_t bits);

/// What one block of a ggml type stands for: element i is
///   d * scale[i / run] * (code[i] - offset)            or, with minima,
///   d * scale[i / run] * code[i] - m * minimum[i / run].
/// In the types of 32 elements there is one run, its scale is 1, and the minimum counts positive.
struct GgmlBlock {
  std::uint16_t d = 0, m = 0;  ///< binary16; m only in types with minima
  std::vector<int> scale, minimum;
  std::vector<int> code;  ///< as stored, so not negative, but for Q8_0

  /// The elements, from that definition.
  std::vector<float> values(DType type) const;
  /// The bytes, from ggml's layout.
  std::string bytes(DType type) const;
};

/// Layout facts of a block type.
struct GgmlFormat {
  int elements, run;       ///< elements of a block, and of a run of one scale
  int code_min, code_max;  ///< as stored
  int offset;              ///< subtracted from a code
  int scale_min, scale_max;
  bool has_minimum;
};
GgmlFormat ggml_format(DType type);

/// The elements in a type's bytes: exact for F32, rounded to nearest for BF16 and F16, and for block types by
/// the simplest rule that keeps every element within one step. @pre whole blocks.
std::string encode(DType type, std::span<const float> elements);

}  // namespace outrider
