#pragma once

#include <vector>

#include "common/base/ids.h"
#include "common/compute/kernels/ops.h"
#include "common/model/gemma4/config.h"

namespace outrider {

/// Inverse frequencies of a head, [head_dim / 2] (gemma4.md 3.6). The exponent's denominator is head_dim for both
/// kinds; the proportional kind does not rotate the upper pairs.
std::vector<float> rope_inv_freq(const RopeConfig& rope, std::int64_t head_dim);

/// The two kinds of tables of a model.
class Rope {
 public:
  explicit Rope(const TextConfig& config);
  RopeAngles angles(AttentionKind kind, Position position) const {
    return rope_angles(position, kind == AttentionKind::kSliding ? sliding_ : full_);
  }

 private:
  std::vector<float> sliding_, full_;
};

}  // namespace outrider
