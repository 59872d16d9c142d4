#include "common/model/gemma4/decoder_layer.h"

#include <algorithm>

namespace outrider {

HeadShare head_share(const ShardPlace& place, const TextConfig& model, const LayerConfig& layer) {
  const std::int64_t kv_heads = layer.num_key_value_heads, group = model.num_attention_heads / kv_heads;
  const auto cut = [](std::int64_t n, std::int64_t i, std::int64_t of) {
    return Columns{n * i / of, n * (i + 1) / of - n * i / of};
  };
  HeadShare share;
  if (kv_heads >= place.count) {
    share.kv = cut(kv_heads, place.rank, place.count);
    share.q = {share.kv.begin * group, share.kv.count * group};
  } else {
    const auto head_of = [&](std::int64_t rank) { return kv_heads * rank / place.count; };
    share.kv = {head_of(place.rank), 1};
    std::int64_t first = place.rank, end = place.rank + 1;  // the shards of the same K/V head
    while (first > 0 && head_of(first - 1) == share.kv.begin) --first;
    while (end < place.count && head_of(end) == share.kv.begin) ++end;
    share.q = cut(group, place.rank - first, end - first);
    share.q.begin += share.kv.begin * group;
  }
  share.kv_kept = layer.donor == model.last_owner(layer.kind) ? Columns{0, kv_heads} : share.kv;
  return share;
}

Result<DecoderLayer> DecoderLayer::load(const WeightReader& weights, const TextConfig& model, const LayerConfig& config,
                                        std::int64_t ple_width) {
  DecoderLayer layer;
  const std::int64_t hidden = model.hidden_size, inner = config.intermediate_size, head = config.head_dim;
  layer.config_ = config;
  layer.eps_ = model.rms_norm_eps;
  layer.shards_ = weights.shards();
  const HeadShare heads = head_share(place_of(layer.shards_), model, config);
  layer.q_size_ = model.num_attention_heads * head;
  layer.q_own_ = {heads.q.begin * head, heads.q.count * head};
  layer.inner_own_ = place_of(layer.shards_).share(inner);
  layer.kv_size_ = heads.kv_kept.count * head;
  layer.kv_read_ = {heads.kv.begin - heads.kv_kept.begin, heads.kv.count};

  ASSIGN_OR_RETURN(layer.norms_.input, weights.vector("input_layernorm.weight", hidden));
  ASSIGN_OR_RETURN(layer.norms_.post_attention, weights.vector("post_attention_layernorm.weight", hidden));
  ASSIGN_OR_RETURN(layer.norms_.pre_feedforward, weights.vector("pre_feedforward_layernorm.weight", hidden));
  ASSIGN_OR_RETURN(layer.norms_.post_feedforward, weights.vector("post_feedforward_layernorm.weight", hidden));
  ASSIGN_OR_RETURN(const std::vector<float> scalar, weights.vector("layer_scalar", 1));
  layer.layer_scalar_ = scalar[0];

  const WeightReader attention = weights.under("self_attn");
  std::vector<WeightReader::Part> projections = {{"q_proj", layer.q_size_}};
  ASSIGN_OR_RETURN(layer.norms_.q, attention.vector("q_norm.weight", head));
  std::vector<Columns> own = {layer.q_own_};
  if (config.owns_kv) {
    ASSIGN_OR_RETURN(layer.norms_.k, attention.vector("k_norm.weight", head));
    const std::int64_t all = config.num_key_value_heads * head;
    for (const char* const name : {"k_proj", "v_proj"}) {
      if (config.k_eq_v && std::ssize(projections) == 2) break;
      own.push_back({layer.q_size_ + (std::ssize(projections) - 1) * all + heads.kv_kept.begin * head, layer.kv_size_});
      projections.push_back({name, all});
    }
  }
  ASSIGN_OR_RETURN(layer.qkv_, attention.part(hidden, projections, own));
  ASSIGN_OR_RETURN(layer.o_, attention.split(layer.q_size_, {{"o_proj", hidden}}));

  const WeightReader mlp = weights.under("mlp");
  const Columns gate_up[] = {layer.inner_own_, {inner + layer.inner_own_.begin, layer.inner_own_.count}};
  ASSIGN_OR_RETURN(layer.gate_up_, mlp.part(hidden, {{"gate_proj", inner}, {"up_proj", inner}}, gate_up));
  ASSIGN_OR_RETURN(layer.down_, mlp.split(inner, {{"down_proj", hidden}}));

  if (model.enable_moe_block) {
    ASSIGN_OR_RETURN(layer.moe_, Moe::load(weights, model));
  }

  if (ple_width > 0) {
    ASSIGN_OR_RETURN(layer.per_layer_input_gate_, weights.linear(hidden, {{"per_layer_input_gate", ple_width}}));
    ASSIGN_OR_RETURN(layer.per_layer_projection_, weights.linear(ple_width, {{"per_layer_projection", hidden}}));
    ASSIGN_OR_RETURN(layer.norms_.post_per_layer_input, weights.vector("post_per_layer_input_norm.weight", hidden));
  }
  return layer;
}

void DecoderLayer::forward(std::span<const RowContext> rows, Matrix<float> x, std::optional<Matrix<const float>> ple,
                           Workspace& workspace, const Trace& trace) const {
  const Matrix<float> h = workspace.normed.view(x.size(0), x.size(1));

  // x += norm(attention(norm(x)))
  rms_norm(x, norms_.input, eps_, h);
  trace.note("input_normed", h);
  attention(rows, h, workspace, trace.under("self_attn"));
  trace.note("self_attn.attention_output", h);
  rms_norm(h, norms_.post_attention, eps_, h);
  add_in_place(x, h);
  trace.note("after_attention", x);

  // x += norm(f), f = mlp(norm(x)) or, with experts, norm(mlp(norm(x))) + norm(experts(norm(x)))
  rms_norm(x, norms_.pre_feedforward, eps_, h);
  trace.note("mlp_input", h);
  mlp(h, workspace, trace.under("mlp"));
  trace.note("mlp.down", h);
  if (moe_) moe_->add_to(x, h, workspace, trace);
  rms_norm(h, norms_.post_feedforward, eps_, h);
  add_in_place(x, h);
  trace.note("after_feedforward", x);

  // x += norm(project(gelu(gate(x)) * per_layer_input)), where the model has it
  if (ple) {
    const Matrix<float> gated = workspace.ple_gate.view(x.size(0), ple->size(1));
    per_layer_input_gate_.forward(x, gated);
    gelu_mul(gated, *ple, gated);
    per_layer_projection_.forward(gated, h);
    rms_norm(h, norms_.post_per_layer_input, eps_, h);
    add_in_place(x, h);
    trace.note("after_ple", x);
  }
  scale_in_place(x, layer_scalar_);
  trace.note("output", x);
}

/// h := o_proj(attention of h), gemma4.md 3.4.
void DecoderLayer::attention(std::span<const RowContext> rows, Matrix<float> h, Workspace& workspace,
                             const Trace& trace) const {
  const std::int64_t count = h.size(0), head = config_.head_dim;
  const Matrix<float> qkv =
      workspace.qkv.view(count, qkv_.out_features() + (config_.k_eq_v && config_.owns_kv ? kv_size_ : 0));
  if (config_.k_eq_v && config_.owns_kv) {
    // V is the raw K projection: project into the left part, then copy.
    const Matrix<float> packed = workspace.product.view(count, qkv_.out_features());
    qkv_.forward(h, packed);
    for (std::int64_t r = 0; r < count; ++r) {
      const auto from = packed[r].span();
      auto to = std::copy(from.begin(), from.end(), qkv[r].data());
      std::copy(from.end() - kv_size_, from.end(), to);
    }
  } else {
    qkv_.forward(h, qkv);
  }
  trace.note("qkv", qkv);

  const Matrix<float> q = qkv.columns(0, q_own_.count);
  const auto rotate = [&](Matrix<float> x) {
    for_rows(x, [&](std::int64_t r) { rope_heads(x[r].span(), head, rows[static_cast<std::size_t>(r)].angles); });
  };
  rms_norm_heads(q, head, norms_.q, eps_);
  rotate(q);

  if (config_.owns_kv) {
    const Matrix<float> k = qkv.columns(q_own_.count, kv_size_), v = qkv.columns(q_own_.count + kv_size_, kv_size_);
    rms_norm_heads(k, head, norms_.k, eps_);
    rms_norm_heads(v, head, {}, eps_);
    rotate(k);
  }

  trace.note("q_rotated", q);

  std::vector<AttendRow> keys;
  keys.reserve(rows.size());
  for (const RowContext& row : rows) {
    keys.push_back(row.keys);
    if (shards_ != nullptr) keys.back().kv = row.keys.kv.heads(kv_read_.begin, kv_read_.count);
  }
  const Matrix<float> mixed = workspace.attention.view(count, q_size_);
  const Matrix<float> own = mixed.columns(q_own_.begin, q_own_.count);
  for (std::int64_t first = 0, end; first < count; first = end) {
    for (end = first + 1; end < count && !rows[static_cast<std::size_t>(end)].branch.begins; ++end) {
    }
    place(rows, first, end, qkv);
    const auto at = static_cast<std::size_t>(first), size = static_cast<std::size_t>(end - first);
    if (q_own_.count == 0) continue;
    attend(q.rows(first, end - first), std::span(keys).subspan(at, size), own.rows(first, end - first));
  }
  gather(shards_, mixed, q_own_);
  trace.note("attention_heads", mixed);
  o_.forward(mixed, h);
}

void DecoderLayer::place(std::span<const RowContext> rows, std::int64_t first, std::int64_t end,
                         Matrix<float> qkv) const {
  for (std::int64_t r = first; r < end; ++r) {
    const RowContext& row = rows[static_cast<std::size_t>(r)];
    const BranchRow& branch = row.branch;
    if (config_.owns_kv) {
      const Matrix<float> k = qkv.columns(q_own_.count, kv_size_), v = qkv.columns(q_own_.count + kv_size_, kv_size_);
      row.write_to->write(row.position, k[r].span(), v[r].span());
      if (branch.kv != nullptr) branch.kv->read_raw(row.position, 1, branch.k, branch.v);
    } else if (branch.kv != nullptr) {
      branch.kv->write_raw(row.position, 1, branch.k, branch.v);
    }
  }
}

/// h := down(gelu(gate(h)) * up(h))
void DecoderLayer::mlp(Matrix<float> h, Workspace& workspace, const Trace& trace) const {
  const std::int64_t own = inner_own_.count;
  const Matrix<float> gate_up = workspace.gate_up.view(h.size(0), 2 * own);
  const Matrix<float> product = workspace.product.view(h.size(0), config_.intermediate_size);
  gate_up_.forward(h, gate_up);
  trace.note("gate_up", gate_up);
  gelu_mul(gate_up.columns(0, own), gate_up.columns(own, own), product.columns(inner_own_.begin, own));
  gather(shards_, product, inner_own_);
  trace.note("product", product);
  down_.forward(product, h);
}

std::size_t DecoderLayer::weight_bytes() const {
  return qkv_.weight_bytes() + o_.weight_bytes() + gate_up_.weight_bytes() + down_.weight_bytes() +
         per_layer_input_gate_.weight_bytes() + per_layer_projection_.weight_bytes() +
         (moe_ ? moe_->weight_bytes() : 0);
}

}  // namespace outrider
