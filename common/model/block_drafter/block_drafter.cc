#include "common/model/block_drafter/block_drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/compute/kernels/ops.h"
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

Result<std::unique_ptr<BlockDrafter>> BlockDrafter::load(const ModelFiles& files, const TextConfig& backbone,
                                                         const WeightSource& backbone_weights, WeightType type) {
  std::unique_ptr<BlockDrafter> model(new BlockDrafter());
  ASSIGN_OR_RETURN(model->config_, load_block_config(files, backbone));
  ASSIGN_OR_RETURN(const std::shared_ptr<const WeightSource> source, open_weights(files, type, OffGrid::kKeep));
  const BlockConfig& config = model->config_;
  const WeightReader weights(*source, "");
  model->kv_dtype_ = activation_dtype(source->type());
  model->inv_freq_ = rope_inv_freq({.rope_theta = config.rope_theta}, config.head_dim);
  ASSIGN_OR_RETURN(model->fc_, weights.linear(config.target_row(), {{"fc", config.hidden_size}}));
  ASSIGN_OR_RETURN(model->hidden_norm_, weights.vector("hidden_norm.weight", config.hidden_size));
  ASSIGN_OR_RETURN(model->norm_, weights.vector("norm.weight", config.hidden_size));
  RETURN_IF_ERROR(model->load_layers(weights));
  RETURN_IF_ERROR(model->load_vocabulary(files, weights, backbone_weights));
  return model;
}

Result<void> BlockDrafter::load_layers(const WeightReader& weights) {
  const std::int64_t hidden = config_.hidden_size, inner = config_.intermediate_size, head = config_.head_dim;
  const std::int64_t q_size = config_.num_attention_heads * head, kv_size = config_.num_key_value_heads * head;
  for (std::size_t i = 0; i < config_.sliding.size(); ++i) {
    const WeightReader from = weights.under(fmt::format("layers.{}", i));
    const WeightReader attention = from.under("self_attn"), mlp = from.under("mlp");
    Layer layer;
    ASSIGN_OR_RETURN(layer.input_norm, from.vector("input_layernorm.weight", hidden));
    ASSIGN_OR_RETURN(layer.post_attention_norm, from.vector("post_attention_layernorm.weight", hidden));
    ASSIGN_OR_RETURN(layer.q_norm, attention.vector("q_norm.weight", head));
    ASSIGN_OR_RETURN(layer.k_norm, attention.vector("k_norm.weight", head));
    ASSIGN_OR_RETURN(layer.q, attention.linear(hidden, {{"q_proj", q_size}}));
    ASSIGN_OR_RETURN(layer.kv, attention.linear(hidden, {{"k_proj", kv_size}, {"v_proj", kv_size}}));
    ASSIGN_OR_RETURN(layer.o, attention.linear(q_size, {{"o_proj", hidden}}));
    ASSIGN_OR_RETURN(layer.gate_up, mlp.linear(hidden, {{"gate_proj", inner}, {"up_proj", inner}}));
    ASSIGN_OR_RETURN(layer.down, mlp.linear(inner, {{"down_proj", hidden}}));
    layers_.push_back(std::move(layer));
  }
  return {};
}

Result<void> BlockDrafter::load_vocabulary(const ModelFiles& files, const WeightReader& weights,
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
  if (config_.markov_rank == 0) return {};
  const WeightReader markov = weights.under("markov_head");
  ASSIGN_OR_RETURN(RowTable rows, markov.table("markov_w1.weight", vocab, config_.markov_rank));
  markov_rows_.emplace(std::move(rows), 1, WeightType::kF32);
  ASSIGN_OR_RETURN(markov_head_, markov.linear(config_.markov_rank, {{"markov_w2", drafted}}));
  return {};
}

KvCache BlockDrafter::make_cache() const {
  const std::vector<KvCache::LayerShape> shapes(layers_.size(), {config_.num_key_value_heads, config_.head_dim, 0});
  return KvCache(kv_dtype_, shapes, kRowsMax);
}

void BlockDrafter::write_kv(std::size_t l, Matrix<const float> x, std::span<const Place> places) {
  const std::int64_t size = config_.num_key_value_heads * config_.head_dim;
  const Matrix<float> kv = scratch_.kv.view(x.size(0), 2 * size), k = kv.columns(0, size), v = kv.columns(size, size);
  layers_[l].kv.forward(x, kv);
  rms_norm_heads(k, config_.head_dim, layers_[l].k_norm, config_.rms_norm_eps);
  for_rows(k, [&](std::int64_t r) {
    const auto& [text, position] = places[static_cast<std::size_t>(r)];
    rope_heads(k[r].span(), config_.head_dim, rope_angles(position, inv_freq_));
    text->layer(l).write(position, k[r].span(), v[r].span());
  });
}

void BlockDrafter::add_rows(KvCache& text, Matrix<const float> rows) {
  const Matrix<float> context = scratch_.x.view(rows.size(0), config_.hidden_size);
  fc_.forward(rows, context);
  rms_norm(context, hidden_norm_, config_.rms_norm_eps, context);
  std::vector<Place> places;
  for (std::int64_t r = 0; r < rows.size(0); ++r) places.push_back({&text, text.length() + r});
  text.extend(rows.size(0));
  for (std::size_t l = 0; l < layers_.size(); ++l) write_kv(l, context, places);
}

void BlockDrafter::attention(std::size_t l, std::span<const Place> places, Matrix<float> h) {
  const Layer& layer = layers_[l];
  const std::int64_t head = config_.head_dim, size = config_.block_size;
  write_kv(l, h, places);
  const Matrix<float> q = scratch_.q.view(h.size(0), config_.num_attention_heads * head);
  layer.q.forward(h, q);
  rms_norm_heads(q, head, layer.q_norm, config_.rms_norm_eps);
  std::vector<AttendRow> keys(places.size());
  for_rows(q, [&](std::int64_t r) {
    const auto& [text, position] = places[static_cast<std::size_t>(r)];
    rope_heads(q[r].span(), head, rope_angles(position, inv_freq_));
    // All positions share the window of the sequence; in a causal layer they differ in the visible part of the block.
    const Position base = text->length() - size;
    const bool slides = config_.sliding[l];
    const Position first = slides ? std::max<Position>(0, base - config_.sliding_window) : 0;
    const Position end = slides && config_.sliding_causal ? position + 1 : base + size;
    keys[static_cast<std::size_t>(r)] = {text->layer(l).view(), first, end - first};
  });
  scale_in_place(q, static_cast<float>(1 / std::sqrt(static_cast<double>(head))));
  const Matrix<float> mixed = workspace_.attention.view(h.size(0), q.size(1));
  attend(q, keys, mixed);
  layer.o.forward(mixed, h);
}

void BlockDrafter::mlp(const Layer& layer, Matrix<float> h) {
  const std::int64_t inner = config_.intermediate_size;
  const Matrix<float> gate_up = workspace_.gate_up.view(h.size(0), 2 * inner);
  const Matrix<float> product = workspace_.product.view(h.size(0), inner);
  layer.gate_up.forward(h, gate_up);
  (config_.silu ? silu_mul : gelu_mul)(gate_up.columns(0, inner), gate_up.columns(inner, inner), product);
  layer.down.forward(product, h);
}

Matrix<const float> BlockDrafter::draft(std::span<const Block> blocks) {
  const std::int64_t size = config_.block_size, count = std::ssize(blocks) * size;
  CHECK(0 < count && count <= kRowsMax, "{} rows, at most {}", count, kRowsMax);
  const Matrix<float> x = scratch_.x.view(count, config_.hidden_size);
  for (std::int64_t r = 0; r < count; ++r) {
    const TokenId anchor = blocks[static_cast<std::size_t>(r / size)].token;
    embedding_->lookup(r % size == 0 ? anchor : config_.mask_token_id, x[r].span());
  }
  std::vector<Place> places;
  for (const Block& block : blocks) {
    for (std::int64_t i = 0; i < size; ++i) places.push_back({block.text, block.text->length() + i});
    block.text->extend(size);
  }
  const Matrix<float> h = workspace_.normed.view(count, config_.hidden_size);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    rms_norm(x, layers_[l].input_norm, config_.rms_norm_eps, h);
    attention(l, places, h);
    add_in_place(x, h);
    rms_norm(x, layers_[l].post_attention_norm, config_.rms_norm_eps, h);
    mlp(layers_[l], h);
    add_in_place(x, h);
  }
  for (const Block& block : blocks) block.text->truncate(block.text->length() - size);
  const std::int64_t drafts = config_.drafts(), out = std::ssize(blocks) * drafts;
  const Matrix<float> selected = scratch_.selected.view(out, config_.hidden_size);
  for (std::int64_t r = 0; r < out; ++r) {
    const auto from = x[r / drafts * size + (size - drafts) + r % drafts].span();
    std::ranges::copy(from, selected[r].data());
  }
  rms_norm(selected, norm_, config_.rms_norm_eps, selected);
  const Matrix<float> scores = scratch_.scores.view(out, config_.draft_vocab_size);
  head_.forward(selected, scores);
  if (config_.final_logit_softcapping > 0) softcap_in_place(scores, config_.final_logit_softcapping);
  return scores;
}

Matrix<const float> BlockDrafter::markov(std::span<const TokenId> tokens) {
  const Matrix<float> rows = scratch_.markov_rows.view(std::ssize(tokens), config_.markov_rank);
  for (std::int64_t r = 0; r < std::ssize(tokens); ++r)
    markov_rows_->lookup(tokens[static_cast<std::size_t>(r)], rows[r].span());
  const Matrix<float> scores = scratch_.markov.view(std::ssize(tokens), config_.draft_vocab_size);
  markov_head_.forward(rows, scores);
  return scores;
}

}  // namespace outrider
