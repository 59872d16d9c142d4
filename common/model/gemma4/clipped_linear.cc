#include "common/model/gemma4/clipped_linear.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/compute/kernels/team.h"
#include "common/os/files.h"

namespace outrider {

void clip(Matrix<const float> x, float low, float high, Matrix<float> y) {
  team_for(x.size(0), 1, [&](std::int64_t r) {
    for (std::int64_t c = 0; c < x.size(1); ++c) y[r][c] = std::min(std::max(x[r][c], low), high);
  });
}

Result<ClippedLinear::Bounds> ClippedLinear::load_bounds(const WeightReader& weights, const std::string& name) {
  ASSIGN_OR_RETURN(const std::vector<float> low, weights.vector(name + "_min", 1));
  ASSIGN_OR_RETURN(const std::vector<float> high, weights.vector(name + "_max", 1));
  if (!(low[0] < high[0])) {
    return file_error(Errc::kMalformed, weights.source().path(), "{}{}_min is {}, wanted less than {}_max, {}",
                      weights.prefix(), name, low[0], name, high[0]);
  }
  return Bounds{low[0], high[0]};
}

Result<ClippedLinear> ClippedLinear::load(const WeightReader& weights, const std::string& name,
                                          std::int64_t in_features, std::int64_t out_features, bool clips) {
  ClippedLinear clipped;
  clipped.clips_ = clips;
  ASSIGN_OR_RETURN(clipped.linear_, weights.linear(in_features, {{name + ".linear", out_features}}));
  if (clips) {
    ASSIGN_OR_RETURN(clipped.input_, load_bounds(weights, name + ".input"));
    ASSIGN_OR_RETURN(clipped.output_, load_bounds(weights, name + ".output"));
  }
  return clipped;
}

void ClippedLinear::forward(Matrix<const float> x, Matrix<float> y, Buffer& scratch) const {
  if (!clips_) return linear_.forward(x, y);
  const Matrix<float> bounded = scratch.view(x.size(0), x.size(1));
  clip(x, input_.low, input_.high, bounded);
  linear_.forward(bounded, y);
  clip(y, output_.low, output_.high, y);
}

}  // namespace outrider
