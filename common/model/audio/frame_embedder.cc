#include "common/model/audio/frame_embedder.h"

#include <algorithm>
#include <utility>

#include "common/compute/kernels/ops.h"

namespace outrider {
namespace {

/// Rows per matrix product: 0.6 GFLOP.
constexpr std::int64_t kEmbedderStepRows = 128;

}  // namespace

Result<std::unique_ptr<SoundEncoder>> FrameEmbedder::load(const AudioConfig& config,
                                                          std::shared_ptr<const WeightSource> source) {
  std::unique_ptr<FrameEmbedder> ours(new FrameEmbedder(config));
  const WeightReader weights = WeightReader(*source, "model.embed_audio.").as(tower_type(source->type()));
  ASSIGN_OR_RETURN(ours->embedding_projection_,
                   weights.linear(config.hidden_size, {{"embedding_projection", config.text_hidden_size}}));
  return std::unique_ptr<SoundEncoder>(std::move(ours));
}

Matrix<const float> FrameEmbedder::encode(std::span<const float> samples, const Trace& trace,
                                          const std::function<void()>* between_steps) {
  steps_.begin(between_steps);
  CHECK(!samples.empty(), "a sound without samples");
  const std::int64_t count = config_.soft_tokens(std::ssize(samples));
  const Matrix<float> frames = frames_.view(count, config_.hidden_size),
                      soft = soft_.view(count, config_.text_hidden_size);
  // Silence fills the last frame.
  std::fill(std::ranges::copy(samples, frames.data()).out, frames.data() + count * config_.hidden_size, 0.0F);
  rms_norm(frames, {}, config_.rms_norm_eps, frames);
  steps_.run(embedding_projection_, kEmbedderStepRows, frames, soft);
  trace.note("soft_tokens", soft);
  return soft;
}

}  // namespace outrider
