#include "common/model/audio/audio_tower.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "common/compute/kernels/kernel_table.h"
#include "common/compute/kernels/team.h"
#include "common/os/progress.h"

namespace outrider {
namespace {

/// Rows per matrix product, and frames per convolution step: some tenths of a second of one slow core, as in the vision
/// tower.
constexpr std::int64_t kStepRows = 128, kStepFrames = 16;
/// Epsilon of the layer norms after the convolutions; the config's is for the other norms.
constexpr float kLayerNormEps = 1e-6F;

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

void silu_in_place(Matrix<float> x) {
  team_for(x.size(0), 1, [&](std::int64_t r) {
    for (float& value : x[r].span()) value *= sigmoid(value);
  });
}

/// Writes the relative positions of keys as sines and cosines of many frequencies: [rows, width].
void write_distances(Matrix<float> to) {
  const std::int64_t half = to.size(1) / 2;
  const double step = std::log(10000.0) / static_cast<double>(half - 1);
  for (std::int64_t d = 0; d < to.size(0); ++d) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(d) * std::exp(-step * static_cast<double>(i));
      to[d][i] = static_cast<float>(std::sin(angle));
      to[d][half + i] = static_cast<float>(std::cos(angle));
    }
  }
}

}  // namespace

Result<AudioTower::FeedForward> AudioTower::FeedForward::load(const WeightReader& weights, const AudioConfig& config) {
  FeedForward part;
  const std::int64_t hidden = config.hidden_size;
  const bool clips = config.use_clipped_linears;
  ASSIGN_OR_RETURN(part.pre_norm, weights.vector("pre_layer_norm.weight", hidden));
  ASSIGN_OR_RETURN(part.post_norm, weights.vector("post_layer_norm.weight", hidden));
  ASSIGN_OR_RETURN(part.up, ClippedLinear::load(weights, "ffw_layer_1", hidden, 4 * hidden, clips));
  ASSIGN_OR_RETURN(part.down, ClippedLinear::load(weights, "ffw_layer_2", 4 * hidden, hidden, clips));
  return part;
}

Result<AudioTower::Layer> AudioTower::Layer::load(const WeightReader& weights, const AudioConfig& config) {
  Layer layer;
  const std::int64_t hidden = config.hidden_size, taps = config.conv_kernel_size;
  const bool clips = config.use_clipped_linears;
  ASSIGN_OR_RETURN(layer.before, FeedForward::load(weights.under("feed_forward1"), config));
  ASSIGN_OR_RETURN(layer.after, FeedForward::load(weights.under("feed_forward2"), config));
  ASSIGN_OR_RETURN(layer.pre_attention_norm, weights.vector("norm_pre_attn.weight", hidden));
  ASSIGN_OR_RETURN(layer.post_attention_norm, weights.vector("norm_post_attn.weight", hidden));
  ASSIGN_OR_RETURN(layer.out_norm, weights.vector("norm_out.weight", hidden));
  const WeightReader attention = weights.under("self_attn"), convolution = weights.under("lconv1d");
  ASSIGN_OR_RETURN(layer.q, ClippedLinear::load(attention, "q_proj", hidden, hidden, clips));
  ASSIGN_OR_RETURN(layer.k, ClippedLinear::load(attention, "k_proj", hidden, hidden, clips));
  ASSIGN_OR_RETURN(layer.v, ClippedLinear::load(attention, "v_proj", hidden, hidden, clips));
  ASSIGN_OR_RETURN(layer.post, ClippedLinear::load(attention, "post", hidden, hidden, clips));
  ASSIGN_OR_RETURN(layer.relative_k, attention.linear(hidden, {{"relative_k_proj", hidden}}));
  ASSIGN_OR_RETURN(layer.query_factors, attention.vector("per_dim_scale", config.head_dim()));
  const double scale = 1 / (std::sqrt(static_cast<double>(config.head_dim())) * std::numbers::ln2);
  for (float& factor : layer.query_factors) {
    const double softplus = factor > 20 ? factor : std::log1p(std::exp(static_cast<double>(factor)));
    factor = static_cast<float>(scale * softplus);
  }
  ASSIGN_OR_RETURN(layer.pre_convolution_norm, convolution.vector("pre_layer_norm.weight", hidden));
  ASSIGN_OR_RETURN(layer.convolution_norm, convolution.vector("conv_norm.weight", hidden));
  ASSIGN_OR_RETURN(layer.start, ClippedLinear::load(convolution, "linear_start", hidden, 2 * hidden, clips));
  ASSIGN_OR_RETURN(layer.end, ClippedLinear::load(convolution, "linear_end", hidden, hidden, clips));
  ASSIGN_OR_RETURN(const std::vector<float> stored, convolution.vector("depthwise_conv1d.weight", hidden * taps));
  for (std::int64_t tap = 0; tap < taps; ++tap)
    for (std::int64_t c = 0; c < hidden; ++c) layer.kernel.push_back(stored[static_cast<std::size_t>(c * taps + tap)]);
  return layer;
}

Result<AudioTower::Subsampling> AudioTower::Subsampling::load(const WeightReader& weights, std::int64_t in,
                                                              std::int64_t out) {
  Subsampling block;
  ASSIGN_OR_RETURN(const std::vector<float> kernel, weights.vector("conv.weight", out * in * 9));
  const auto rows = WeightRows::of(DType::kF32, std::as_bytes(std::span(kernel)).data(), out);
  block.kernel = Linear::pack(WeightType::kF32, in * 9, {&rows, 1});
  ASSIGN_OR_RETURN(block.norm, weights.vector("norm.weight", out));
  return block;
}

Result<std::unique_ptr<SoundEncoder>> AudioTower::load(const AudioConfig& config,
                                                       std::shared_ptr<const WeightSource> source) {
  std::unique_ptr<AudioTower> tower(new AudioTower(config));
  const WeightReader model = WeightReader(*source, "model.").as(tower_type(source->type()));
  const WeightReader weights = model.under("audio_tower"), convolutions = weights.under("subsample_conv_projection");
  const std::int64_t hidden = config.hidden_size, dims = config.output_proj_dims;
  const auto& channels = config.subsampling_conv_channels;
  Progress progress(loading(source->path(), "the audio tower of "), config.num_hidden_layers);
  ASSIGN_OR_RETURN(tower->subsampling_[0], Subsampling::load(convolutions.under("layer0"), 1, channels[0]));
  ASSIGN_OR_RETURN(tower->subsampling_[1], Subsampling::load(convolutions.under("layer1"), channels[0], channels[1]));
  ASSIGN_OR_RETURN(tower->input_projection_,
                   convolutions.linear(kMelBins / 4 * channels[1], {{"input_proj_linear", hidden}}));
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    ASSIGN_OR_RETURN(Layer layer, Layer::load(weights.under(fmt::format("layers.{}", i)), config));
    tower->layers_.push_back(std::move(layer));
    progress.step();
  }
  ASSIGN_OR_RETURN(tower->output_projection_, weights.linear(hidden, {{"output_proj", dims}}));
  ASSIGN_OR_RETURN(tower->output_bias_, weights.vector("output_proj.bias", dims));
  ASSIGN_OR_RETURN(tower->embedding_projection_,
                   model.under("embed_audio").linear(dims, {{"embedding_projection", config.text_hidden_size}}));
  return std::unique_ptr<SoundEncoder>(std::move(tower));
}

void AudioTower::bounded_norm(Matrix<const float> x, const std::vector<float>& weight, Matrix<float> y) const {
  clip(x, -config_.gradient_clipping, config_.gradient_clipping, y);
  rms_norm(y, weight, config_.rms_norm_eps, y);
}

Matrix<const float> AudioTower::encode_features(Matrix<const float> features, const Trace& trace,
                                                const std::function<void()>* between_steps) {
  steps_.begin(between_steps);
  CHECK(features.size(0) > 0 && features.size(1) == kMelBins, "{} x {} features", features.size(0), features.size(1));
  const Matrix<float> x = subsample(features);
  trace.note("subsampled", x);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    forward(layers_[l], x);
    trace.note(fmt::format("layers.{}.output", l), x);
  }
  const Matrix<float> output = scratch_.output.view(x.size(0), config_.output_proj_dims);
  const Matrix<float> soft = scratch_.soft.view(x.size(0), config_.text_hidden_size);
  steps_.run(x.size(0), kStepRows, [&](std::int64_t first, std::int64_t rows) {
    const Matrix<float> some = output.rows(first, rows);
    output_projection_.forward(x.rows(first, rows), some);
    for (std::int64_t r = 0; r < rows; ++r)
      kernels().add(some[r].data(), output_bias_.data(), config_.output_proj_dims);
  });
  trace.note("rows", output);
  rms_norm(output, {}, config_.rms_norm_eps, output);
  steps_.run(embedding_projection_, kStepRows, output, soft);
  trace.note("soft_tokens", soft);
  return soft;
}

Matrix<float> AudioTower::subsample(Matrix<const float> features) {
  const Matrix<const float> frames{features.data(), {features.size(0) * kMelBins, 1}};
  const Matrix<float> halved = convolve(subsampling_[0], frames, kMelBins, scratch_.halved);
  const Matrix<float> quartered = convolve(subsampling_[1], halved, kMelBins / 2, scratch_.quartered);
  constexpr std::int64_t kPitches = kMelBins / 4;
  const std::int64_t count = quartered.size(0) / kPitches;
  const Matrix<float> rows{quartered.data(), {count, kPitches * quartered.size(1)}};  // pitch outer, channel inner
  const Matrix<float> x = scratch_.x.view(count, config_.hidden_size);
  steps_.run(input_projection_, kStepRows, rows, x);
  return x;
}

Matrix<float> AudioTower::convolve(const Subsampling& block, Matrix<const float> x, std::int64_t pitches, Buffer& out) {
  const std::int64_t channels = x.size(1), frames = x.size(0) / pitches;
  const std::int64_t to_frames = (frames + 1) / 2, to_pitches = pitches / 2, to_channels = block.kernel.out_features();
  // Padded to the rows that the following matrix product needs.
  const Matrix<float> y = out.view(padded_rows(to_frames) * to_pitches, to_channels).rows(0, to_frames * to_pitches);
  steps_.run(to_frames, kStepFrames, [&](std::int64_t first, std::int64_t some) {
    const Matrix<float> columns = scratch_.columns.view(some * to_pitches, channels * 9);
    team_for(columns.size(0), 1, [&](std::int64_t r) {
      const std::int64_t frame = 2 * (first + r / to_pitches) - 1, pitch = 2 * (r % to_pitches) - 1;
      float* to = columns[r].data();
      for (std::int64_t c = 0; c < channels; ++c) {
        for (std::int64_t i = frame; i < frame + 3; ++i) {
          for (std::int64_t j = pitch; j < pitch + 3; ++j)
            *to++ = 0 <= i && i < frames && 0 <= j && j < pitches ? x.data()[(i * pitches + j) * channels + c] : 0.0F;
        }
      }
    });
    const Matrix<float> part = y.rows(first * to_pitches, some * to_pitches);
    block.kernel.forward(columns, part);
    layer_norm(part, block.norm, {}, kLayerNormEps);
    team_for(part.size(0), 1, [&](std::int64_t r) {
      for (float& value : part[r].span()) value = std::max(0.0F, value);
    });
  });
  return y;
}

void AudioTower::forward(const Layer& layer, Matrix<float> x) {
  feed_forward(layer.before, x);
  const Matrix<float> h = scratch_.normed.view(x.size(0), x.size(1));
  bounded_norm(x, layer.pre_attention_norm, h);
  attention(layer, h);
  bounded_norm(h, layer.post_attention_norm, h);
  add_in_place(x, h);
  convolution(layer, x);
  feed_forward(layer.after, x);
  bounded_norm(x, layer.out_norm, x);
}

/// x += residual_weight * norm(down(silu(up(norm(x)))))
void AudioTower::feed_forward(const FeedForward& part, Matrix<float> x) {
  const Matrix<float> h = scratch_.normed.view(x.size(0), x.size(1));
  bounded_norm(x, part.pre_norm, h);
  steps_.run(x.size(0), kStepRows, [&](std::int64_t first, std::int64_t rows) {
    const Matrix<float> some = h.rows(first, rows), inner = scratch_.inner.view(rows, 4 * x.size(1));
    part.up.forward(some, inner, scratch_.clipped);
    silu_in_place(inner);
    part.down.forward(inner, some, scratch_.clipped);
  });
  bounded_norm(h, part.post_norm, h);
  scale_in_place(h, config_.residual_weight);
  add_in_place(x, h);
}

void AudioTower::attention(const Layer& layer, Matrix<float> h) {
  const std::int64_t count = h.size(0), width = h.size(1);
  const Matrix<float> q = scratch_.q.view(count, width), k = scratch_.k.view(count, width),
                      v = scratch_.v.view(count, width);
  layer.q.forward(steps_, kStepRows, h, q, scratch_.clipped);
  layer.k.forward(steps_, kStepRows, h, k, scratch_.clipped);
  layer.v.forward(steps_, kStepRows, h, v, scratch_.clipped);
  scale_in_place(k, static_cast<float>(std::log1p(std::numbers::e) / std::numbers::ln2));
  const Matrix<float> mixed = scratch_.attention.view(count, width);
  attend_to_past(layer, q, k, v, mixed);
  layer.post.forward(steps_, kStepRows, mixed, h, scratch_.clipped);
}

/// Transformers processes queries in chunks, but the visible keys always lie within a chunk's context: the last
/// attention_past frames.
void AudioTower::attend_to_past(const Layer& layer, Matrix<const float> q, Matrix<const float> k, Matrix<const float> v,
                                Matrix<float> out) {
  const std::int64_t width = q.size(1), head = config_.head_dim(), past = config_.attention_past;
  const float cap = config_.attention_logit_cap;
  const Matrix<float> distances = scratch_.distances.view(past, width), relative = scratch_.relative.view(past, width);
  write_distances(distances);
  layer.relative_k.forward(distances, relative);
  team_for(q.size(0), 1, [&](std::int64_t r) {
    const std::int64_t seen = std::min(past, r + 1);
    std::vector<float> query(static_cast<std::size_t>(head)), weights(static_cast<std::size_t>(seen));
    for (std::int64_t at = 0; at < width; at += head) {
      for (std::int64_t d = 0; d < head; ++d)
        query[static_cast<std::size_t>(d)] = q[r][at + d] * layer.query_factors[static_cast<std::size_t>(d)];
      for (std::int64_t e = 0; e < seen; ++e) {
        const float score = kernels().dot_f32(query.data(), k[r - e].data() + at, head) +
                            kernels().dot_f32(query.data(), relative[e].data() + at, head);
        weights[static_cast<std::size_t>(e)] = cap * std::tanh(score / cap);
      }
      const float highest = *std::ranges::max_element(weights);
      float sum = 0;
      for (float& weight : weights) sum += weight = std::exp(weight - highest);
      std::fill_n(out[r].data() + at, head, 0.0F);
      for (std::int64_t e = 0; e < seen; ++e) {
        const float share = weights[static_cast<std::size_t>(e)] / sum;
        for (std::int64_t d = 0; d < head; ++d) out[r][at + d] += share * v[r - e][at + d];
      }
    }
  });
}

/// x += end(silu(norm(depthwise(gated(start(norm(x)))))))
void AudioTower::convolution(const Layer& layer, Matrix<float> x) {
  const std::int64_t count = x.size(0), width = x.size(1), taps = config_.conv_kernel_size;
  const Matrix<float> h = scratch_.normed.view(count, width), gated = scratch_.q.view(count, width),
                      mixed = scratch_.k.view(count, width);
  rms_norm(x, layer.pre_convolution_norm, config_.rms_norm_eps, h);
  steps_.run(count, kStepRows, [&](std::int64_t first, std::int64_t rows) {
    const Matrix<float> both = scratch_.gates.view(rows, 2 * width);
    layer.start.forward(h.rows(first, rows), both, scratch_.clipped);
    team_for(rows, 1, [&](std::int64_t r) {
      for (std::int64_t c = 0; c < width; ++c) gated[first + r][c] = both[r][c] * sigmoid(both[r][width + c]);
    });
  });
  team_for(count, 1, [&](std::int64_t r) {
    std::fill_n(mixed[r].data(), width, 0.0F);
    for (std::int64_t tap = std::max<std::int64_t>(0, taps - 1 - r); tap < taps; ++tap) {
      const float* const kernel = layer.kernel.data() + tap * width;
      for (std::int64_t c = 0; c < width; ++c) mixed[r][c] += gated[r - (taps - 1) + tap][c] * kernel[c];
    }
  });
  bounded_norm(mixed, layer.convolution_norm, mixed);
  silu_in_place(mixed);
  layer.end.forward(steps_, kStepRows, mixed, h, scratch_.clipped);
  add_in_place(x, h);
}

}  // namespace outrider
