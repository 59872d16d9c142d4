#include "common/model/vision/vision_tower.h"

#include <algorithm>
#include <cmath>

#include "common/compute/kernels/kernel_table.h"
#include "common/compute/kernels/team.h"
#include "common/model/gemma4/rope.h"
#include "common/os/progress.h"

namespace outrider {
namespace {

/// Patches per matrix product or MLP step, and per attention step: some tenths of a second of one slow core. Larger
/// steps would delay a verifier's heartbeats, smaller ones would read the weights too often.
constexpr std::int64_t kStepRows = 256, kStepQueries = 64;

}  // namespace

Result<VisionTower::Layer> VisionTower::Layer::load(const WeightReader& weights, const VisionConfig& config) {
  Layer layer;
  const std::int64_t hidden = config.hidden_size, inner = config.intermediate_size, head = config.head_dim;
  const std::int64_t heads = config.num_attention_heads * head;
  const bool clips = config.use_clipped_linears;
  ASSIGN_OR_RETURN(layer.input_norm, weights.vector("input_layernorm.weight", hidden));
  ASSIGN_OR_RETURN(layer.post_attention_norm, weights.vector("post_attention_layernorm.weight", hidden));
  ASSIGN_OR_RETURN(layer.pre_feedforward_norm, weights.vector("pre_feedforward_layernorm.weight", hidden));
  ASSIGN_OR_RETURN(layer.post_feedforward_norm, weights.vector("post_feedforward_layernorm.weight", hidden));
  const WeightReader attention = weights.under("self_attn"), mlp = weights.under("mlp");
  ASSIGN_OR_RETURN(layer.q_norm, attention.vector("q_norm.weight", head));
  ASSIGN_OR_RETURN(layer.k_norm, attention.vector("k_norm.weight", head));
  ASSIGN_OR_RETURN(layer.q, ClippedLinear::load(attention, "q_proj", hidden, heads, clips));
  ASSIGN_OR_RETURN(layer.k, ClippedLinear::load(attention, "k_proj", hidden, heads, clips));
  ASSIGN_OR_RETURN(layer.v, ClippedLinear::load(attention, "v_proj", hidden, heads, clips));
  ASSIGN_OR_RETURN(layer.o, ClippedLinear::load(attention, "o_proj", heads, hidden, clips));
  ASSIGN_OR_RETURN(layer.gate, ClippedLinear::load(mlp, "gate_proj", hidden, inner, clips));
  ASSIGN_OR_RETURN(layer.up, ClippedLinear::load(mlp, "up_proj", hidden, inner, clips));
  ASSIGN_OR_RETURN(layer.down, ClippedLinear::load(mlp, "down_proj", inner, hidden, clips));
  return layer;
}

Result<std::unique_ptr<PictureEncoder>> VisionTower::load(const VisionConfig& config,
                                                          std::shared_ptr<const WeightSource> source) {
  std::unique_ptr<VisionTower> tower(new VisionTower(config));
  tower->type_ = tower_type(source->type());
  const WeightReader model = WeightReader(*source, "model.").as(tower->type_);
  const WeightReader weights = model.under("vision_tower"), embedder = weights.under("patch_embedder");
  const std::int64_t hidden = config.hidden_size;
  Progress progress(loading(source->path(), "the vision tower of "), config.num_hidden_layers);
  ASSIGN_OR_RETURN(tower->input_projection_, embedder.linear(config.patch_floats(), {{"input_proj", hidden}}));
  ASSIGN_OR_RETURN(tower->positions_,
                   embedder.table("position_embedding_table", 2 * config.position_embedding_size, hidden));
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    ASSIGN_OR_RETURN(Layer layer, Layer::load(weights.under(fmt::format("encoder.layers.{}", i)), config));
    tower->layers_.push_back(std::move(layer));
    progress.step();
  }
  if (config.standardize) {
    ASSIGN_OR_RETURN(tower->std_bias_, weights.vector("std_bias", hidden));
    ASSIGN_OR_RETURN(tower->std_scale_, weights.vector("std_scale", hidden));
  }
  ASSIGN_OR_RETURN(tower->embedding_projection_,
                   model.under("embed_vision").linear(hidden, {{"embedding_projection", config.text_hidden_size}}));
  return std::unique_ptr<PictureEncoder>(std::move(tower));
}

Matrix<const float> VisionTower::encode(const Patches& picture, const Trace& trace,
                                        const std::function<void()>* between_steps) {
  steps_.begin(between_steps);
  check_fits(picture);
  const std::vector<float> inv_freq = rope_inv_freq({.rope_theta = config_.rope_theta}, config_.head_dim / 2);
  while (std::ssize(angles_) < std::max(picture.rows, picture.columns))
    angles_.push_back(rope_angles(std::ssize(angles_), inv_freq));

  const Matrix<float> x = scratch_.x.view(picture.rows * picture.columns, config_.hidden_size);
  embed(picture, x);
  trace.note("patch_embedding", x);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    forward(layers_[l], picture, x);
    trace.note(fmt::format("layers.{}.output", l), x);
  }
  const Matrix<float> pooled = pool(picture, x);
  trace.note("pooled", pooled);
  rms_norm(pooled, {}, config_.rms_norm_eps, pooled);
  const Matrix<float> soft = scratch_.soft.view(pooled.size(0), config_.text_hidden_size);
  steps_.run(embedding_projection_, kStepRows, pooled, soft);
  trace.note("soft_tokens", soft);
  return soft;
}

void VisionTower::embed(const Patches& picture, Matrix<float> x) {
  const Matrix<float> pixels = scratch_.q.view(x.size(0), config_.patch_floats());
  std::ranges::transform(picture.values, pixels.data(), [](float value) { return 2 * (value - 0.5f); });
  steps_.run(input_projection_, kStepRows, pixels, x);
  std::vector<float> sum(static_cast<std::size_t>(config_.hidden_size)), row(sum.size());
  for (std::int64_t r = 0; r < x.size(0); ++r) {
    positions_.read(r % picture.columns, sum);
    positions_.read(config_.position_embedding_size + r / picture.columns, row);
    kernels().add(sum.data(), row.data(), config_.hidden_size);
    kernels().add(x[r].data(), sum.data(), config_.hidden_size);
  }
}

void VisionTower::forward(const Layer& layer, const Patches& picture, Matrix<float> x) {
  const float eps = config_.rms_norm_eps;
  const Matrix<float> h = scratch_.normed.view(x.size(0), x.size(1));
  rms_norm(x, layer.input_norm, eps, h);
  attention(layer, picture, h);
  rms_norm(h, layer.post_attention_norm, eps, h);
  add_in_place(x, h);
  rms_norm(x, layer.pre_feedforward_norm, eps, h);
  mlp(layer, h);
  rms_norm(h, layer.post_feedforward_norm, eps, h);
  add_in_place(x, h);
}

/// h := o_proj(attention of h): every patch attends to every patch.
void VisionTower::attention(const Layer& layer, const Patches& picture, Matrix<float> h) {
  const std::int64_t count = h.size(0), head = config_.head_dim, width = config_.num_attention_heads * head;
  const Matrix<float> q = scratch_.q.view(count, width), k = scratch_.k.view(count, width),
                      v = scratch_.v.view(count, width);
  layer.q.forward(steps_, kStepRows, h, q, scratch_.clipped);
  layer.k.forward(steps_, kStepRows, h, k, scratch_.clipped);
  layer.v.forward(steps_, kStepRows, h, v, scratch_.clipped);
  rms_norm_heads(q, head, layer.q_norm, config_.rms_norm_eps);
  rms_norm_heads(k, head, layer.k_norm, config_.rms_norm_eps);
  rms_norm_heads(v, head, {}, config_.rms_norm_eps);
  rotate(q, picture);
  rotate(k, picture);
  const std::vector<AttendRow> rows(static_cast<std::size_t>(count), {keys_and_values(k, v), 0, count});
  const Matrix<float> mixed = scratch_.attention.view(count, width);
  steps_.run(count, kStepQueries, [&](std::int64_t first, std::int64_t some) {
    attend(q.rows(first, some), std::span(rows).first(static_cast<std::size_t>(some)), mixed.rows(first, some));
  });
  layer.o.forward(steps_, kStepRows, mixed, h, scratch_.clipped);
}

/// h := down(gelu(gate(h)) * up(h))
void VisionTower::mlp(const Layer& layer, Matrix<float> h) {
  steps_.run(h.size(0), kStepRows, [&](std::int64_t first, std::int64_t rows) {
    const Matrix<float> some = h.rows(first, rows);
    const Matrix<float> gate = scratch_.gate.view(some.size(0), config_.intermediate_size);
    const Matrix<float> up = scratch_.up.view(some.size(0), config_.intermediate_size);
    layer.gate.forward(some, gate, scratch_.clipped);
    layer.up.forward(some, up, scratch_.clipped);
    gelu_mul(gate, up, gate);
    layer.down.forward(gate, some, scratch_.clipped);
  });
}

void VisionTower::rotate(Matrix<float> x, const Patches& picture) const {
  const std::int64_t half = config_.head_dim / 2;
  team_for(x.size(0), 1, [&](std::int64_t r) {
    const RopeAngles& across = angles_[static_cast<std::size_t>(r % picture.columns)];
    const RopeAngles& down = angles_[static_cast<std::size_t>(r / picture.columns)];
    for (float* head = x[r].data(); head < x[r].data() + x.size(1); head += 2 * half) {
      kernels().rope(head, across.cos.data(), across.sin.data(), half / 2);
      kernels().rope(head + half, down.cos.data(), down.sin.data(), half / 2);
    }
  });
}

KvView VisionTower::keys_and_values(Matrix<const float> k, Matrix<const float> v) {
  const std::int64_t count = k.size(0), width = k.size(1);
  KvView view{.dtype = activation_dtype(type_),
              .k = k.data(),
              .v = v.data(),
              .capacity = count,
              .num_key_value_heads = config_.num_attention_heads,
              .head_dim = config_.head_dim};
  if (view.dtype == DType::kF32) return view;
  const auto elements = static_cast<std::size_t>(count * width);
  if (scratch_.kv.size() < 2 * elements) scratch_.kv = AlignedArray<Bf16>(2 * elements);
  Bf16* const values = scratch_.kv.data() + elements;
  team_for(count, 1, [&](std::int64_t r) {
    kernels().to_bf16(k[r].data(), width, scratch_.kv.data() + r * width);
    kernels().to_bf16(v[r].data(), width, values + r * width);
  });
  view.k = scratch_.kv.data(), view.v = values;
  return view;
}

/// Returns the mean of each square of patches, times sqrt(hidden_size), standardized if the tower does so.
Matrix<float> VisionTower::pool(const Patches& picture, Matrix<const float> x) {
  const std::int64_t size = config_.pooling_kernel_size, columns = picture.columns / size;
  const auto share = 1 / static_cast<float>(size * size);
  const float factor = std::sqrt(static_cast<float>(config_.hidden_size));
  const Matrix<float> pooled = scratch_.pooled.view(picture.rows / size * columns, config_.hidden_size);
  for (std::int64_t r = 0; r < pooled.size(0); ++r) {
    const std::span<float> to = pooled[r].span();
    std::ranges::fill(to, 0.0f);
    const std::int64_t corner = r / columns * size * picture.columns + r % columns * size;
    for (std::int64_t i = 0; i < size * size; ++i) {
      const std::span<const float> patch = x[corner + i / size * picture.columns + i % size].span();
      for (std::size_t c = 0; c < to.size(); ++c) to[c] += patch[c] * share;
    }
    for (std::size_t c = 0; c < to.size(); ++c) to[c] *= factor;
    for (std::size_t c = 0; c < std_scale_.size(); ++c) to[c] = (to[c] - std_bias_[c]) * std_scale_[c];
  }
  return pooled;
}

}  // namespace outrider
