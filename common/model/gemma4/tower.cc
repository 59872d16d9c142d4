#include "common/model/gemma4/tower.h"

#include <cmath>

#include <fmt/format.h>

#include "common/compute/kernels/team.h"
#include "common/os/files.h"

namespace outrider {

void layer_norm(Matrix<float> x, std::span<const float> weight, std::span<const float> bias, float eps) {
  const auto n = static_cast<double>(x.size(1));
  team_for(x.size(0), 1, [&](std::int64_t r) {
    const std::span<float> row = x[r].span();
    // In double: a patch of one colour has a variance of 0, which sums of thousands of floats would not reach.
    double sum = 0, squares = 0;
    for (const float value : row) sum += value;
    const double mean = sum / n;
    for (const float value : row) squares += (value - mean) * (value - mean);
    const double factor = 1 / std::sqrt(squares / n + static_cast<double>(eps));
    for (std::size_t c = 0; c < row.size(); ++c) row[c] = static_cast<float>((row[c] - mean) * factor) * weight[c];
    for (std::size_t c = 0; c < bias.size(); ++c) row[c] += bias[c];
  });
}

Result<std::shared_ptr<const WeightSource>> open_tower_weights(const ModelFiles& files, WeightType type,
                                                               const std::string& kind, const std::string& mark) {
  ASSIGN_OR_RETURN(std::shared_ptr<const WeightSource> weights, open_weights(files, type, OffGrid::kKeep));
  if (weights->has(mark)) return weights;
  return file_error(Errc::kNotFound, files.path(),
                    "no {} tower among its weights, though its config.json has one: a pack "
                    "of an earlier release, or an export without it",
                    kind);
}

}  // namespace outrider
