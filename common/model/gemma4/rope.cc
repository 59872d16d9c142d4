#include "common/model/gemma4/rope.h"

#include <cmath>

namespace outrider {

std::vector<float> rope_inv_freq(const RopeConfig& rope, std::int64_t head_dim) {
  std::vector<float> inv_freq(static_cast<std::size_t>(head_dim / 2));
  const auto rotating = rope.proportional
                            ? static_cast<std::size_t>(rope.partial_rotary_factor * static_cast<double>(head_dim) / 2)
                            : inv_freq.size();
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    const float exponent = -static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float frequency = std::pow(static_cast<float>(rope.rope_theta), exponent);
    inv_freq[i] = i < rotating ? frequency / static_cast<float>(rope.factor) : 0.0f;
  }
  return inv_freq;
}

Rope::Rope(const TextConfig& config) {
  for (const LayerConfig& layer : config.layers) {
    std::vector<float>& table = layer.kind == AttentionKind::kSliding ? sliding_ : full_;
    if (table.empty()) table = rope_inv_freq(config.rope(layer.kind), layer.head_dim);
  }
}

}  // namespace outrider
