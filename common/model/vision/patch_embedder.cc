#include "common/model/vision/patch_embedder.h"

#include <algorithm>
#include <utility>

#include "common/compute/kernels/kernel_table.h"
#include "common/compute/kernels/ops.h"

namespace outrider {
namespace {

/// Patches per matrix product: some tenths of a second of one slow core, as in the vision tower.
constexpr std::int64_t kStepPatches = 64;

}  // namespace

Result<PatchEmbedder::Norm> PatchEmbedder::Norm::load(const WeightReader& weights, const std::string& name,
                                                      std::int64_t width) {
  Norm norm;
  ASSIGN_OR_RETURN(norm.weight, weights.vector(name + ".weight", width));
  ASSIGN_OR_RETURN(norm.bias, weights.vector(name + ".bias", width));
  return norm;
}

Result<std::unique_ptr<PictureEncoder>> PatchEmbedder::load(const VisionConfig& config,
                                                            std::shared_ptr<const WeightSource> source) {
  std::unique_ptr<PatchEmbedder> ours(new PatchEmbedder(config));
  const WeightReader model = WeightReader(*source, "model.").as(tower_type(source->type()));
  const WeightReader weights = model.under("vision_embedder");
  const std::int64_t hidden = config.hidden_size;
  ASSIGN_OR_RETURN(ours->patch_norm_, Norm::load(weights, "patch_ln1", config.patch_floats()));
  ASSIGN_OR_RETURN(ours->dense_, weights.linear(config.patch_floats(), {{"patch_dense", hidden}}));
  ASSIGN_OR_RETURN(ours->dense_bias_, weights.vector("patch_dense.bias", hidden));
  ASSIGN_OR_RETURN(ours->dense_norm_, Norm::load(weights, "patch_ln2", hidden));
  ASSIGN_OR_RETURN(ours->positions_, weights.table("pos_embedding", 2 * config.position_embedding_size, hidden));
  ASSIGN_OR_RETURN(ours->position_norm_, Norm::load(weights, "pos_norm", hidden));
  ASSIGN_OR_RETURN(ours->embedding_projection_,
                   model.under("embed_vision").linear(hidden, {{"embedding_projection", config.text_hidden_size}}));
  return std::unique_ptr<PictureEncoder>(std::move(ours));
}

Matrix<const float> PatchEmbedder::encode(const Patches& picture, const Trace& trace,
                                          const std::function<void()>* between_steps) {
  steps_.begin(between_steps);
  check_fits(picture);
  const std::int64_t count = picture.rows * picture.columns, hidden = config_.hidden_size;
  const Matrix<float> pixels = pixels_.view(count, config_.patch_floats()), x = x_.view(count, hidden),
                      soft = soft_.view(count, config_.text_hidden_size);
  std::ranges::copy(picture.values, pixels.data());
  patch_norm_.apply(pixels);
  steps_.run(dense_, kStepPatches, pixels, x);
  for (std::int64_t r = 0; r < count; ++r) kernels().add(x[r].data(), dense_bias_.data(), hidden);
  dense_norm_.apply(x);
  trace.note("patch_embedding", x);
  std::vector<float> position(static_cast<std::size_t>(hidden));
  for (std::int64_t r = 0; r < count; ++r) {
    for (const std::int64_t row : {2 * (r % picture.columns), 2 * (r / picture.columns) + 1}) {
      positions_.read(row, position);
      kernels().add(x[r].data(), position.data(), hidden);
    }
  }
  position_norm_.apply(x);
  trace.note("placed", x);
  rms_norm(x, {}, config_.rms_norm_eps, x);
  steps_.run(embedding_projection_, kStepPatches, x, soft);
  trace.note("soft_tokens", soft);
  return soft;
}

}  // namespace outrider
