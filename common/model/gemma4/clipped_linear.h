#pragma once

#include <cstdint>
#include <string>

#include "common/model/gemma4/tower.h"
#include "common/model/gemma4/weights.h"
#include "common/model/gemma4/workspace.h"

namespace outrider {

/// Clips every value of x to the bounds. y may be x.
void clip(Matrix<const float> x, float low, float high, Matrix<float> y);

/// y = x W^T of a tower; the towers of E2B and E4B clip the values of x and of y.
class ClippedLinear {
 public:
  /// @param weights  has `name`.linear.weight [out_features, in_features] and, if it `clips`, the scalars input_min,
  /// input_max, output_min and output_max
  /// @return errors as WeightSource; kMalformed for a lower bound that is not below the upper
  static Result<ClippedLinear> load(const WeightReader& weights, const std::string& name, std::int64_t in_features,
                                    std::int64_t out_features, bool clips);

  /// @param x, y  as in Linear::forward
  /// @param scratch  for the clipped x
  void forward(Matrix<const float> x, Matrix<float> y, Buffer& scratch) const;
  /// The same, `step_rows` rows at a time. @pre x is not y
  void forward(const Steps& steps, std::int64_t step_rows, Matrix<const float> x, Matrix<float> y,
               Buffer& scratch) const {
    steps.run(x.size(0), step_rows, [&](std::int64_t first, std::int64_t rows) {
      forward(x.rows(first, rows), y.rows(first, rows), scratch);
    });
  }

  const Linear& linear() const { return linear_; }

 private:
  struct Bounds {
    float low = 0, high = 0;
  };
  static Result<Bounds> load_bounds(const WeightReader& weights, const std::string& name);

  Linear linear_;
  bool clips_ = false;
  Bounds input_, output_;
};

}  // namespace outrider
