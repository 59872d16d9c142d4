#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/model/gemma4/weights.h"

namespace outrider {

// The common part of vision and audio towers, besides their matrix products (clipped_linear.h).

/// Type of a tower beside a text model of `type`: the same, except for int4, which is too coarse for it, and q4, whose
/// files have towers of 16 bits.
constexpr WeightType tower_type(WeightType type) {
  return type == WeightType::kInt4 ? WeightType::kInt8 : type == WeightType::kQ4 ? WeightType::kBf16 : type;
}

/// Opens the weights of a model whose config has a tower.
/// @param kind  "vision"
/// @param mark  a tensor of every such tower
/// @return errors as open_weights(); kNotFound if the tower is not among them
Result<std::shared_ptr<const WeightSource>> open_tower_weights(const ModelFiles& files, WeightType type,
                                                               const std::string& kind, const std::string& mark);

/// x := (x - mean) / sqrt(variance + eps) * weight + bias, per row. @param bias  empty: none
void layer_norm(Matrix<float> x, std::span<const float> weight, std::span<const float> bias, float eps);

/// Runs long work in steps, between which a caller's loop can run.
class Steps {
 public:
  /// @param between_steps  null: none. Outlives the work
  void begin(const std::function<void()>* between_steps) { between_steps_ = between_steps; }

  /// Calls part(first, rows) for `step_rows` of `count` rows at a time.
  template <typename Part>
  void run(std::int64_t count, std::int64_t step_rows, Part part) const {
    for (std::int64_t first = 0; first < count; first += step_rows) {
      part(first, std::min(step_rows, count - first));
      if (between_steps_ != nullptr) (*between_steps_)();
    }
  }
  /// y = x W^T, `step_rows` rows at a time. @pre x is not y
  void run(const Linear& linear, std::int64_t step_rows, Matrix<const float> x, Matrix<float> y) const {
    run(x.size(0), step_rows,
        [&](std::int64_t first, std::int64_t rows) { linear.forward(x.rows(first, rows), y.rows(first, rows)); });
  }

 private:
  const std::function<void()>* between_steps_ = nullptr;  ///< of the current work
};

}  // namespace outrider
