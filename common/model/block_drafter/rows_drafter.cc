#include "common/model/block_drafter/rows_drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/model/gemma4/rope.h"

namespace outrider {
namespace {

/// y = silu(gate) * up
void silu_mul(Matrix<const float> gate, Matrix<const float> up, Matrix<float> y) {
  for_rows(y, [&](std::int64_t r) {
    const auto g = gate[r].span(), u = up[r].span();
    const auto out = y[r].span();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = g[i] / (1 + std::exp(-g[i])) * u[i];
  });
}

/// Reads the token ids of a head with a reduced vocabulary, which the checkpoint stores relative to the row's index.
Result<std::vector<TokenId>> read_vocabulary(const ModelFiles& files, const BlockConfig& config) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, files.checkpoint());
  ASSIGN_OR_RETURN(const TensorEntry* entry, checkpoint.require("d2t", {config.draft_vocab_size}));
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(config.draft_vocab_size));
  RETURN_IF_ERROR(read_i64(*entry, offsets));
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < std::ssize(offsets); ++i) {
    const std::int64_t before = tokens.empty() ? -1 : tokens.back(), offset = offsets[static_cast<std::size_t>(i)];
    if (offset < 0 || offset > config.vocab_size || i + offset >= config.vocab_size || i + offset <= before)
      return file_error(Errc::kMalformed, entry->file, "d2t[{}] is {}, wanted tokens in order below {}", i, offset,
                        config.vocab_size);
    tokens.push_back(static_cast<TokenId>(i + offset));
  }
  return tokens;
}

}  // namespace

Result<void> RowsDrafter::load_shared(const ModelFiles& files, const WeightSource& source,
                                      const WeightSource& backbone_weights) {
  const WeightReader weights(source, "");
  kv_dtype_ = activation_dtype(source.type());
  inv_freq_ = rope_inv_freq(config_.rope, config_.head_dim);
  ASSIGN_OR_RETURN(fc_, weights.linear(config_.target_row(), {{"fc", config_.hidden_size}}));
  ASSIGN_OR_RETURN(norm_, weights.vector("norm.weight", config_.hidden_size));
  RETURN_IF_ERROR(load_layers(weights));
  return load_vocabulary(files, weights, backbone_weights);
}

Result<void> RowsDrafter::load_layers(const WeightReader& weights) {
  const std::int64_t hidden = config_.hidden_size, inner = config_.intermediate_size, head = config_.head_dim;
  const std::int64_t q_size = config_.num_attention_heads * head;
  for (std::size_t i = 0; i < config_.sliding.size(); ++i) {
    const WeightReader from = weights.under(fmt::format("layers.{}", i));
    const WeightReader attention = from.under("self_attn"), mlp = from.under("mlp");
    Layer layer;
    ASSIGN_OR_RETURN(layer.input_norm, from.vector("input_layernorm.weight", hidden));
    // Gemma's norm of that name is of attention's output.
    std::vector<float>& post_attention = config_.gemma ? layer.attention_output_norm : layer.mlp_input_norm;
    ASSIGN_OR_RETURN(post_attention, from.vector("post_attention_layernorm.weight", hidden));
    if (config_.gemma) {
      ASSIGN_OR_RETURN(layer.mlp_input_norm, from.vector("pre_feedforward_layernorm.weight", hidden));
      ASSIGN_OR_RETURN(layer.mlp_output_norm, from.vector("post_feedforward_layernorm.weight", hidden));
      ASSIGN_OR_RETURN(const std::vector<float> scalar, from.vector("layer_scalar", 1));
      layer.scalar = scalar[0];
    }
    if (config_.qk_norm) {
      ASSIGN_OR_RETURN(layer.q_norm, attention.vector("q_norm.weight", head));
      ASSIGN_OR_RETURN(layer.k_norm, attention.vector("k_norm.weight", head));
    }
    // EAGLE-3's first layer attends to the embedding beside the hidden state.
    const std::int64_t in = config_.eagle3 && i == 0 ? 2 * hidden : hidden;
    ASSIGN_OR_RETURN(layer.q, attention.linear(in, {{"q_proj", q_size}}));
    std::vector<WeightReader::Part> kv = {{"k_proj", kv_size()}, {"v_proj", kv_size()}};
    if (config_.k_eq_v) kv.pop_back();
    ASSIGN_OR_RETURN(layer.kv, attention.linear(in, kv));
    ASSIGN_OR_RETURN(layer.o, attention.linear(q_size, {{"o_proj", hidden}}));
    ASSIGN_OR_RETURN(layer.gate_up, mlp.linear(hidden, {{"gate_proj", inner}, {"up_proj", inner}}));
    ASSIGN_OR_RETURN(layer.down, mlp.linear(inner, {{"down_proj", hidden}}));
    layers_.push_back(std::move(layer));
  }
  return {};
}

Result<void> RowsDrafter::load_vocabulary(const ModelFiles& files, const WeightReader& weights,
                                          const WeightSource& backbone) {
  const std::int64_t hidden = config_.hidden_size, vocab = config_.vocab_size, drafted = config_.draft_vocab_size;
  const WeightReader target(backbone, text_prefix(backbone));
  const WeightReader& with_table = weights.has("embed_tokens.weight") ? weights : target;
  ASSIGN_OR_RETURN(RowTable table, with_table.table("embed_tokens.weight", vocab, hidden));
  embedding_.emplace(std::move(table), config_.scales_embedding ? hidden : 1, backbone.type());
  if (drafted < vocab) {
    ASSIGN_OR_RETURN(vocabulary_, read_vocabulary(files, config_));
  }
  if (drafted < vocab || weights.has("lm_head.weight")) {
    ASSIGN_OR_RETURN(head_, weights.linear(hidden, {{"lm_head", drafted}}));
  } else {
    ASSIGN_OR_RETURN(head_, target.linear(hidden, {{"embed_tokens", vocab}}));
  }
  return {};
}

KvCache RowsDrafter::make_cache() const {
  const std::vector<KvCache::LayerShape> shapes(layers_.size(), {config_.num_key_value_heads, config_.head_dim, 0});
  return KvCache(kv_dtype_, shapes, kRowsMax);
}

Matrix<float> RowsDrafter::keys_and_values(std::size_t l, Matrix<const float> x, std::span<const Position> positions) {
  const std::int64_t size = kv_size();
  const Matrix<float> kv = scratch_.kv.view(x.size(0), 2 * size), k = kv.columns(0, size), v = kv.columns(size, size);
  layers_[l].kv.forward(x, config_.k_eq_v ? k : kv);
  if (config_.k_eq_v) for_rows(kv, [&](std::int64_t r) { std::ranges::copy(k[r].span(), v[r].data()); });
  if (config_.gemma) rms_norm_heads(v, config_.head_dim, {}, config_.rms_norm_eps);
  norm_and_rotate(k, layers_[l].k_norm, positions);
  return kv;
}

Matrix<float> RowsDrafter::queries(std::size_t l, Matrix<const float> x, std::span<const Position> positions) {
  const Matrix<float> q = scratch_.q.view(x.size(0), config_.num_attention_heads * config_.head_dim);
  layers_[l].q.forward(x, q);
  norm_and_rotate(q, layers_[l].q_norm, positions);
  if (!config_.gemma) scale_in_place(q, static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_dim))));
  return q;
}

void RowsDrafter::norm_and_rotate(Matrix<float> heads, std::span<const float> norm,
                                  std::span<const Position> positions) {
  if (config_.qk_norm) rms_norm_heads(heads, config_.head_dim, norm, config_.rms_norm_eps);
  for_rows(heads, [&](std::int64_t r) {
    rope_heads(heads[r].span(), config_.head_dim, rope_angles(positions[static_cast<std::size_t>(r)], inv_freq_));
  });
}

void RowsDrafter::finish_layer(const Layer& layer, Matrix<const float> mixed, Matrix<float> x) {
  const std::int64_t inner = config_.intermediate_size;
  const Matrix<float> h = workspace_.normed.view(x.size(0), config_.hidden_size);
  layer.o.forward(mixed, h);
  if (config_.gemma) rms_norm(h, layer.attention_output_norm, config_.rms_norm_eps, h);
  add_in_place(x, h);
  rms_norm(x, layer.mlp_input_norm, config_.rms_norm_eps, h);
  const Matrix<float> gate_up = workspace_.gate_up.view(h.size(0), 2 * inner);
  const Matrix<float> product = workspace_.product.view(h.size(0), inner);
  layer.gate_up.forward(h, gate_up);
  (config_.silu ? silu_mul : gelu_mul)(gate_up.columns(0, inner), gate_up.columns(inner, inner), product);
  layer.down.forward(product, h);
  if (config_.gemma) rms_norm(h, layer.mlp_output_norm, config_.rms_norm_eps, h);
  add_in_place(x, h);
  if (config_.gemma) scale_in_place(x, layer.scalar);
}

void RowsDrafter::score(Matrix<const float> normed, Matrix<float> scores) {
  head_.forward(normed, scores);
  if (config_.final_logit_softcapping > 0) softcap_in_place(scores, config_.final_logit_softcapping);
}

}  // namespace outrider
