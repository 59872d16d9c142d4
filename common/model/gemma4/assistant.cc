#include "common/model/gemma4/assistant.h"

#include <algorithm>
#include <numeric>

#include "common/compute/kernels/kernel_table.h"
#include "common/os/files.h"

namespace outrider {

void DonorReplica::extend(const Backbone& backbone, const KvCache& cache, Position end) {
  const auto copy = [&](AttentionKind kind, LayerKv& to) {
    const LayerKv& from = cache.layer(backbone.donor_cache(kind));
    std::vector<std::byte> k(from.row_bytes()), v(from.row_bytes());
    for (Position p = length; p < end; ++p) {
      from.read_raw(p, 1, k.data(), v.data());
      to.write_raw(p, 1, k.data(), v.data());
    }
  };
  copy(AttentionKind::kSliding, sliding);
  copy(AttentionKind::kFull, full);
  length = end;
}

// ---- head ----

Result<DraftHead> DraftHead::load(const WeightReader& weights, const AssistantConfig& config,
                                  std::int64_t draft_vocabulary) {
  DraftHead head;
  head.vocab_size_ = config.text.vocab_size;
  head.hidden_size_ = config.text.hidden_size;
  if (!config.use_ordered_embeddings) {
    ASSIGN_OR_RETURN(head.dense_, weights.linear(head.hidden_size_, {{"model.embed_tokens", head.vocab_size_}}));
    if (draft_vocabulary > 0 && draft_vocabulary < head.vocab_size_)
      head.vocabulary_.emplace(draft_vocabulary, head.vocab_size_);
    return head;
  }
  ASSIGN_OR_RETURN(std::vector<TokenId> ordering,
                   weights.source().permutation("masked_embedding.token_ordering", head.vocab_size_));
  ASSIGN_OR_RETURN(head.rows_,
                   weights.source().ordered_rows("model.embed_tokens.weight", head.hidden_size_, ordering));
  head.ordering_ = std::move(ordering);
  ASSIGN_OR_RETURN(head.centroids_,
                   weights.linear(head.hidden_size_, {{"masked_embedding.centroids", config.num_centroids}}));
  head.top_k_ = config.centroid_intermediate_top_k;
  head.group_size_ = head.vocab_size_ / config.num_centroids;
  return head;
}

void DraftHead::score_candidates(std::span<const float> n, std::span<const float> centroid_scores) {
  std::vector<std::int64_t> best(centroid_scores.size());
  std::iota(best.begin(), best.end(), 0);
  const auto higher = [&](std::int64_t a, std::int64_t b) {
    const float sa = centroid_scores[static_cast<std::size_t>(a)], sb = centroid_scores[static_cast<std::size_t>(b)];
    return sa > sb || (sa == sb && a < b);
  };
  std::partial_sort(best.begin(), best.begin() + top_k_, best.end(), higher);

  candidate_ids_.clear();
  candidate_scores_.clear();
  const KernelTable& k = kernels();
  std::vector<Bf16> n_bf16(static_cast<std::size_t>(hidden_size_));
  if (rows_.dtype == DType::kBf16) k.to_bf16(n.data(), hidden_size_, n_bf16.data());
  const auto dot = [&](const std::byte* row) {
    switch (rows_.dtype) {
      case DType::kF32: return k.dot_f32(n.data(), reinterpret_cast<const float*>(row), hidden_size_);
      case DType::kQ8_0: return k.dot_q8_0(n.data(), row, hidden_size_);
      default: return k.dot_bf16(n_bf16.data(), reinterpret_cast<const Bf16*>(row), hidden_size_);
    }
  };
  const std::size_t row_bytes = rows_.row_bytes();
  for (std::int64_t i = 0; i < top_k_; ++i) {
    const std::int64_t first = best[static_cast<std::size_t>(i)] * group_size_;
    const std::byte* row = rows_.row(first).data();
    for (std::int64_t j = first; j < first + group_size_; ++j, row += row_bytes) {
      candidate_ids_.push_back(ordering_[static_cast<std::size_t>(j)]);
      candidate_scores_.push_back(dot(row));
    }
  }
}

TokenId best_draft(std::span<const TokenId> ids, std::span<const float> scores) {
  if (ids.empty()) return static_cast<TokenId>(argmax(scores));
  std::size_t best = 0;
  for (std::size_t i = 1; i < scores.size(); ++i) {
    if (scores[i] > scores[best] || (scores[i] == scores[best] && ids[i] < ids[best])) best = i;
  }
  return ids[best];
}

void DraftHead::score_each(
    Matrix<const float> n,
    const std::function<void(std::int64_t, std::span<const TokenId>, std::span<const float>)>& visit) {
  const bool few = vocabulary_ && vocabulary_->suffices();
  if (few && part_version_ != vocabulary_->version()) {
    part_ = dense_.select(vocabulary_->ids());
    part_version_ = vocabulary_->version();
  }
  const Linear& product = top_k_ > 0 ? centroids_ : few ? part_ : dense_;
  const Matrix<float> all = scores_.view(n.size(0), product.out_features());
  product.forward(n, all);
  for (std::int64_t r = 0; r < n.size(0); ++r) {
    if (top_k_ == 0) {
      visit(r, few ? vocabulary_->ids() : std::span<const TokenId>(), all[r].span());
    } else {
      score_candidates(n[r].span(), all[r].span());
      visit(r, candidate_ids_, candidate_scores_);
    }
  }
}

std::vector<float> DraftHead::scores(Matrix<const float> n) {
  std::vector<float> all;
  score_each(n, [&](std::int64_t, std::span<const TokenId> ids, std::span<const float> scores) {
    if (ids.empty()) return all.assign(scores.begin(), scores.end());
    all.assign(static_cast<std::size_t>(vocab_size_), *std::ranges::min_element(scores) - 1.0f);
    for (std::size_t i = 0; i < scores.size(); ++i) all[static_cast<std::size_t>(ids[i])] = scores[i];
  });
  return all;
}

std::size_t DraftHead::weight_bytes() const {
  if (top_k_ == 0) return dense_.weight_bytes();
  return centroids_.weight_bytes() + static_cast<std::size_t>(top_k_ * group_size_) * rows_.row_bytes();
}

// ---- assistant ----

Result<std::unique_ptr<Assistant>> Assistant::load(const ModelFiles& files, const TextConfig& backbone,
                                                   const WeightSource& backbone_weights, WeightType type,
                                                   std::int64_t draft_vocabulary) {
  ASSIGN_OR_RETURN(AssistantConfig config, load_assistant_config(files));
  ASSIGN_OR_RETURN(const std::optional<WeightType> packed, packed_type(files.path()));
  const bool fits = packed && activation_dtype(*packed) == activation_dtype(type);
  ASSIGN_OR_RETURN(std::shared_ptr<const WeightSource> weights,
                   open_weights(files, fits ? *packed : type, OffGrid::kKeep));
  return load(std::move(config), std::move(weights), backbone, backbone_weights, draft_vocabulary);
}

Result<std::unique_ptr<Assistant>> Assistant::load(AssistantConfig assistant_config,
                                                   std::shared_ptr<const WeightSource> source,
                                                   const TextConfig& backbone, const WeightSource& backbone_weights,
                                                   std::int64_t draft_vocabulary) {
  std::unique_ptr<Assistant> model(new Assistant());
  model->config_ = std::move(assistant_config);
  const AssistantConfig& config = model->config_;
  const WeightType type = source->type();
  const auto refuse = [&](const std::string& what, auto seen, auto wanted) {
    return file_error(Errc::kMismatch, source->path(),
                      "{} is {}, the backbone {} has {}: an assistant of another backbone", what, seen,
                      backbone_weights.path().string(), wanted);
  };
  if (config.backbone_hidden_size != backbone.hidden_size) {
    return refuse("backbone_hidden_size", config.backbone_hidden_size, backbone.hidden_size);
  }
  if (config.text.vocab_size != backbone.vocab_size)
    return refuse("vocab_size", config.text.vocab_size, backbone.vocab_size);
  if (config.text.sliding_window != backbone.sliding_window) {
    return refuse("sliding_window", config.text.sliding_window, backbone.sliding_window);
  }
  RETURN_IF_ERROR(check_donors(backbone, backbone_weights.path().string()));
  const auto donor_of = [&](AttentionKind kind) {
    return &backbone.layers[static_cast<std::size_t>(backbone.last_owner(kind))];
  };
  for (std::size_t j = 0; j < config.text.layers.size(); ++j) {
    const LayerConfig& layer = config.text.layers[j];
    const LayerConfig* donor = donor_of(layer.kind);
    if (layer.head_dim != donor->head_dim)
      return refuse(fmt::format("layer {}'s head_dim", j), layer.head_dim, donor->head_dim);
    if (layer.num_key_value_heads != donor->num_key_value_heads) {
      return refuse(fmt::format("layer {}'s num_key_value_heads", j), layer.num_key_value_heads,
                    donor->num_key_value_heads);
    }
  }
  model->sliding_donor_ = *donor_of(AttentionKind::kSliding);
  model->full_donor_ = *donor_of(AttentionKind::kFull);
  model->sliding_window_ = config.text.sliding_window;
  model->kv_dtype_ = activation_dtype(type);
  model->rope_.emplace(config.text);

  ASSIGN_OR_RETURN(RowTable table, WeightReader(backbone_weights, text_prefix(backbone_weights))
                                       .table("embed_tokens.weight", backbone.vocab_size, backbone.hidden_size));
  model->target_embedding_.emplace(std::move(table), backbone.hidden_size, type);

  const WeightReader weights(*source, "");
  const std::int64_t target_hidden = config.backbone_hidden_size, hidden = config.text.hidden_size;
  ASSIGN_OR_RETURN(model->pre_projection_, weights.linear(2 * target_hidden, {{"pre_projection", hidden}}));
  ASSIGN_OR_RETURN(model->post_projection_, weights.linear(hidden, {{"post_projection", target_hidden}}));
  ASSIGN_OR_RETURN(model->norm_, weights.vector("model.norm.weight", hidden));
  for (std::size_t j = 0; j < config.text.layers.size(); ++j) {
    ASSIGN_OR_RETURN(DecoderLayer layer, DecoderLayer::load(weights.under(fmt::format("model.layers.{}", j)),
                                                            config.text, config.text.layers[j], 0));
    model->layers_.push_back(std::move(layer));
  }
  ASSIGN_OR_RETURN(model->head_, DraftHead::load(weights, config, draft_vocabulary));
  return model;
}

DonorReplica Assistant::make_replica() const {
  const auto layer = [&](const LayerConfig& donor, std::int64_t ring) {
    return LayerKv(kv_dtype_, donor.num_key_value_heads, donor.head_dim, ring);
  };
  return {.sliding = layer(sliding_donor_, drafter_window(sliding_window_)), .full = layer(full_donor_, 0)};
}

void Assistant::add_row(Rows& rows, const DonorRows& donors, Position rope_shift) const {
  const Position position = donors.length;
  CHECK(position >= 1);
  // The last W + 1 rows, one more than the target's own window (gemma4.md 4.4).
  const std::int64_t count = std::min<std::int64_t>(position, drafter_window(sliding_window_));
  const auto row = [&](AttentionKind kind, const KvView& kv, std::int64_t seen) {
    return RowContext{
        position, rope_->angles(kind, position + rope_shift), nullptr, {kv, position - seen, seen}};
  };
  rows.sliding.push_back(row(AttentionKind::kSliding, donors.sliding, count));
  rows.full.push_back(row(AttentionKind::kFull, donors.full, position));
}

void Assistant::fill_input(TokenId token, std::span<const float> state, std::span<float> row) const {
  const auto width = static_cast<std::size_t>(config_.backbone_hidden_size);
  target_embedding_->lookup(token, row.first(width));
  std::ranges::copy(state, row.subspan(width).begin());
}

Matrix<const float> Assistant::step(Matrix<const float> input, const Rows& rows) {
  const Matrix<float> x = scratch_.x.view(input.size(0), config_.text.hidden_size);
  pre_projection_.forward(input, x);
  for (const DecoderLayer& layer : layers_) {
    const bool is_sliding = layer.config().kind == AttentionKind::kSliding;
    layer.forward(is_sliding ? rows.sliding : rows.full, x, std::nullopt, workspace_);
  }
  const Matrix<float> n = scratch_.normed.view(input.size(0), config_.text.hidden_size);
  rms_norm(x, norm_, config_.text.rms_norm_eps, n);
  return n;
}

void Assistant::step_each(std::span<const DraftNode> nodes, const VisitNode& visit) {
  const std::int64_t count = std::ssize(nodes), width = config_.backbone_hidden_size;
  const Matrix<float> input = scratch_.input.view(count, 2 * width);
  Rows rows;
  for (std::int64_t i = 0; i < count; ++i) {
    const DraftNode& node = nodes[static_cast<std::size_t>(i)];
    fill_input(node.token, node.state, input[i].span());
    add_row(rows, node.donors);
  }
  const Matrix<const float> n = step(input, rows);
  const Matrix<float> states = scratch_.state.view(count, width);
  const bool goes_on = std::ranges::any_of(nodes, &DraftNode::goes_on);
  if (goes_on) post_projection_.forward(n, states);
  head_.score_each(n, [&](std::int64_t row, std::span<const TokenId> ids, std::span<const float> scores) {
    visit(static_cast<std::size_t>(row), ids, scores, goes_on ? states[row].span() : std::span<const float>());
  });
}

std::vector<TokenId> Assistant::draft(const DraftRequest& request) {
  std::vector<float> state(request.hidden.begin(), request.hidden.end());
  std::vector<TokenId> drafts;
  for (TokenId token = request.token; std::ssize(drafts) < request.count;) {
    const DraftNode node{token, state, request.replica, std::ssize(drafts) + 1 < request.count};
    step_each({&node, 1}, [&](std::size_t, std::span<const TokenId> ids, std::span<const float> scores,
                              std::span<const float> next) {
      token = best_draft(ids, scores);
      state.assign(next.begin(), next.end());
    });
    drafts.push_back(token);
    if (std::ranges::find(request.stop_ids, token) != request.stop_ids.end()) break;
  }
  return drafts;
}

Assistant::Step Assistant::draft_step(TokenId token, std::span<const float> state, const DonorReplica& replica,
                                      const StepVariant& variant) {
  Rows rows;
  add_row(rows, replica, variant.rope_shift);
  const Matrix<float> row = scratch_.input.view(1, 2 * config_.backbone_hidden_size);
  const auto both = row[0].span();
  fill_input(token, state, both);
  if (variant.swap_halves) std::rotate(both.begin(), both.begin() + std::ssize(both) / 2, both.end());
  const Matrix<const float> n = step(row, rows);
  const Matrix<float> next = scratch_.state.view(1, config_.backbone_hidden_size);
  post_projection_.forward(n, next);
  Step drafted{.logits = head_.scores(n), .state = {next[0].span().begin(), next[0].span().end()}, .token = 0};
  drafted.token = static_cast<TokenId>(argmax(drafted.logits));
  return drafted;
}

std::size_t Assistant::weight_bytes() const {
  std::size_t bytes = pre_projection_.weight_bytes() + post_projection_.weight_bytes() + head_.weight_bytes();
  for (const DecoderLayer& layer : layers_) bytes += layer.weight_bytes();
  return bytes;
}

}  // namespace outrider
