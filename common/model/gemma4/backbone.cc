#include "common/model/gemma4/backbone.h"

#include <algorithm>
#include <cmath>

#include "common/base/time.h"
#include "common/base/token_tree.h"
#include "common/compute/kernels/team.h"
#include "common/os/files.h"
#include "common/os/progress.h"

namespace outrider {
namespace {

/// Token for the per-layer table at positions without one.
constexpr TokenId kPadToken = 0;

/// Returns the end of a sliding layer row's visible positions: after its own, or after the soft tokens around it.
Position visible_end(const Segment& segment, std::int64_t row, Position position) {
  for (const SoftRows& soft : segment.soft) {
    if (soft.both_ways && soft.first <= row && row < soft.end()) return position + soft.end() - row;
  }
  return position + 1;
}

TokenTree tree_of(const Segment& segment) { return {std::ssize(segment.tokens) - 1, segment.depths}; }

}  // namespace

std::vector<SoftRows> soft_rows_within(std::span<const SoftRows> soft, std::int64_t begin, std::int64_t end) {
  std::vector<SoftRows> within;
  for (const SoftRows& rows : soft) {
    const std::int64_t from = std::max(begin, rows.first), to = std::min(end, rows.end());
    if (from < to) within.push_back({from - begin, rows.values.rows(from - rows.first, to - from), rows.both_ways});
  }
  return within;
}

Result<void> check_donors(const TextConfig& config, const std::string& name) {
  for (const AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
    if (config.last_owner(kind) >= 0) continue;
    return file_error(Errc::kUnsupported, name, "no {} layer owns its K/V, wanted one of each kind",
                      kind == AttentionKind::kSliding ? "sliding" : "full");
  }
  return {};
}

Result<std::unique_ptr<Backbone>> Backbone::load(const ModelFiles& files, WeightType type, std::int64_t rows_max,
                                                 Shards* shards) {
  ASSIGN_OR_RETURN(TextConfig config, load_text_config(files));
  ASSIGN_OR_RETURN(std::shared_ptr<const WeightSource> weights, open_weights(files, type));
  return load(std::move(config), std::move(weights), rows_max, shards);
}

Result<std::unique_ptr<Backbone>> Backbone::load(TextConfig text_config, std::shared_ptr<const WeightSource> source,
                                                 std::int64_t rows_max, Shards* shards) {
  std::unique_ptr<Backbone> model(new Backbone());
  model->config_ = std::move(text_config);
  model->weights_ = std::move(source);
  model->rows_max_ = rows_max;
  model->shards_ = shards;
  const TextConfig& config = model->config_;
  const std::string name = model->weights_->path().string();
  RETURN_IF_ERROR(check_donors(config, name));
  model->rope_.emplace(config);

  Progress progress(loading(model->weights_->path()), config.num_hidden_layers);
  const WeightReader weights(*model->weights_, text_prefix(*model->weights_), shards);
  const WeightType type = model->weight_type();
  const std::int64_t hidden = config.hidden_size, ple = config.hidden_size_per_layer_input;
  ASSIGN_OR_RETURN(RowTable table, weights.table("embed_tokens.weight", config.vocab_size, hidden));
  model->embedding_.emplace(std::move(table), hidden, type);
  ASSIGN_OR_RETURN(model->head_, weights.split(hidden, {{"embed_tokens", config.vocab_size}}));
  ASSIGN_OR_RETURN(model->norm_, weights.vector("norm.weight", hidden));
  if (ple > 0) {
    const std::int64_t all = config.num_hidden_layers * ple;
    ASSIGN_OR_RETURN(RowTable per_layer,
                     weights.table("embed_tokens_per_layer.weight", config.vocab_size_per_layer_input, all));
    model->per_layer_embedding_.emplace(std::move(per_layer), ple, type);
    ASSIGN_OR_RETURN(model->per_layer_model_projection_, weights.split(hidden, {{"per_layer_model_projection", all}}));
    ASSIGN_OR_RETURN(model->per_layer_projection_norm_, weights.vector("per_layer_projection_norm.weight", ple));
  }
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    const LayerConfig& layer_config = config.layers[static_cast<std::size_t>(i)];
    ASSIGN_OR_RETURN(DecoderLayer layer,
                     DecoderLayer::load(weights.under(fmt::format("layers.{}", i)), config, layer_config, ple));
    model->layers_.push_back(std::move(layer));
    progress.step();
  }
  return model;
}

std::vector<KvCache::LayerShape> kv_layer_shapes(const TextConfig& config, const ShardPlace& place) {
  std::vector<KvCache::LayerShape> shapes;
  for (int i = 0; i < config.first_shared; ++i) {
    const LayerConfig& layer = config.layers[static_cast<std::size_t>(i)];
    shapes.push_back({head_share(place, config, layer).kv_kept.count, layer.head_dim,
                      layer.kind == AttentionKind::kSliding ? config.sliding_window : 0});
  }
  return shapes;
}

KvCache Backbone::make_cache() const {
  std::vector<KvCache::LayerShape> shapes = kv_layer_shapes(config_, place_of(shards_));
  if (!hidden_layers_.empty())
    shapes.push_back({std::ssize(hidden_layers_), config_.hidden_size / 2, /*sliding_window=*/0});
  return KvCache(activation_dtype(weight_type()), shapes, rows_max_);
}

std::size_t Backbone::donor_cache(AttentionKind kind) const {
  return static_cast<std::size_t>(config_.last_owner(kind));
}

std::vector<Backbone::Donor> Backbone::donors() const {
  if (!hidden_layers_.empty()) return {{static_cast<std::size_t>(config_.first_shared), false}};
  return {{donor_cache(AttentionKind::kSliding), true}, {donor_cache(AttentionKind::kFull), false}};
}

std::size_t Backbone::weight_bytes() const {
  std::size_t bytes = head_.weight_bytes() + per_layer_model_projection_.weight_bytes();
  for (const DecoderLayer& layer : layers_) bytes += layer.weight_bytes();
  return bytes;
}

void Backbone::embed(std::span<const Segment> segments, Matrix<float> x) const {
  std::int64_t r = 0;
  for (const Segment& segment : segments) {
    const std::int64_t first = r;
    for (const TokenId token : segment.tokens) embedding_->lookup(token, x[r++].span());
    for (const SoftRows& soft : segment.soft) {
      for (std::int64_t i = 0; i < soft.values.size(0); ++i)
        std::ranges::copy(soft.values[i].span(), x[first + soft.first + i].data());
    }
  }
}

Matrix<float> Backbone::per_layer_inputs(std::span<const Segment> segments, Matrix<const float> x) {
  const std::int64_t ple = config_.hidden_size_per_layer_input, all = config_.num_hidden_layers * ple;
  const Matrix<float> context = scratch_.ple.view(x.size(0), all);
  per_layer_model_projection_.forward(x, context);
  scale_in_place(context, static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.hidden_size))));
  rms_norm_heads(context, ple, per_layer_projection_norm_, config_.rms_norm_eps);
  const Matrix<float> token_rows = workspace_.product.view(x.size(0), all);
  std::int64_t r = 0;
  for (const Segment& segment : segments) {
    const std::int64_t first = r;
    for (const TokenId token : segment.tokens) per_layer_embedding_->lookup(token, token_rows[r++].span());
    for (const SoftRows& soft : segment.soft) {
      for (std::int64_t i = soft.first; i < soft.end(); ++i)
        per_layer_embedding_->lookup(kPadToken, token_rows[first + i].span());
    }
  }
  add_in_place(context, token_rows);
  scale_in_place(context, static_cast<float>(1.0 / std::sqrt(2.0)));
  return context;
}

std::vector<RowContext> Backbone::contexts(std::span<const Segment> segments, AttentionKind kind) const {
  std::vector<RowContext> rows;
  for (const Segment& segment : segments) {
    const TokenTree tree = tree_of(segment);
    const auto ok = tree.check();
    CHECK(ok, "{}", ok.error().message);
    for (std::int64_t i = 0; i < tree.rows(); ++i) {
      const Position position = segment.cache->length() + tree.depth(i);
      RowContext& row = rows.emplace_back(RowContext{position, {}});
      row.branch.begins = i > 0 && tree.depth(i) <= tree.depth(i - 1);
    }
  }
  team_for(std::ssize(rows), 1, [&](std::int64_t r) {
    RowContext& row = rows[static_cast<std::size_t>(r)];
    row.angles = rope_->angles(kind, row.position);
  });
  return rows;
}

void Backbone::point_at_layer(std::span<const Segment> segments, const LayerConfig& layer,
                              std::vector<RowContext>& rows) {
  const auto donor = static_cast<std::size_t>(layer.donor);
  std::int64_t r = 0;
  for (const Segment& segment : segments) {
    LayerKv& kv = segment.cache->layer(donor);
    const bool branches = !segment.depths.empty();
    if (branches && layer.owns_kv) branches_.reserve(donor, std::ssize(rows), kv.row_bytes());
    const std::int64_t begin = r;
    for (const std::int64_t end = r + std::ssize(segment.tokens); r < end; ++r) {
      RowContext& row = rows[static_cast<std::size_t>(r)];
      // A sliding row sees W keys, including its own (gemma4.md 3.7), and those of its picture after it (8.3).
      const bool sliding = layer.kind == AttentionKind::kSliding;
      const Position first = sliding ? std::max<Position>(0, row.position - config_.sliding_window + 1) : 0;
      const Position last = sliding ? visible_end(segment, r - begin, row.position) : row.position + 1;
      row.write_to = layer.owns_kv ? &kv : nullptr;
      row.keys = {kv.view(), first, last - first};
      if (branches) row.branch = {&kv, branches_.k(donor, r), branches_.v(donor, r), row.branch.begins};
    }
  }
}

void Backbone::collect_hidden(std::size_t l, Matrix<const float> x) {
  const auto at = std::ranges::find(hidden_layers_, static_cast<int>(l));
  if (at == hidden_layers_.end()) return;
  const std::int64_t width = config_.hidden_size;
  const Matrix<float> part = scratch_.kept.view(x.size(0), std::ssize(hidden_layers_) * width)
                                 .columns((at - hidden_layers_.begin()) * width, width);
  for (std::int64_t r = 0; r < x.size(0); ++r) std::ranges::copy(x[r].span(), part[r].data());
}

void Backbone::store_hidden(std::span<const Segment> segments, std::span<const RowContext> rows) {
  if (hidden_layers_.empty()) return;
  const std::size_t place = donors().front().cache, count = rows.size();
  const std::int64_t half = std::ssize(hidden_layers_) * config_.hidden_size / 2;
  const Matrix<float> kept = scratch_.kept.view(std::ssize(rows), 2 * half);
  std::size_t r = 0;
  for (const Segment& segment : segments) {
    LayerKv& layer = segment.cache->layer(place);
    if (!segment.depths.empty()) branches_.reserve(place, static_cast<std::int64_t>(count), layer.row_bytes());
    for (const std::size_t end = r + segment.tokens.size(); r < end; ++r) {
      const auto row = static_cast<std::int64_t>(r);
      const Position position = rows[r].position;
      layer.write(position, kept.columns(0, half)[row].span(), kept.columns(half, half)[row].span());
      if (!segment.depths.empty()) layer.read_raw(position, 1, branches_.k(place, row), branches_.v(place, row));
    }
  }
}

void Backbone::keep_path(std::span<const Segment> segments, std::size_t segment, std::int64_t row) {
  const TokenTree tree = tree_of(segments[segment]);
  KvCache& cache = *segments[segment].cache;
  const Position base = cache.length() - tree.height() - 1;
  cache.truncate(base + tree.depth(row) + 1);
  if (segments[segment].depths.empty()) return;
  std::int64_t first = 0;
  for (const Segment& before : segments.first(segment)) first += std::ssize(before.tokens);
  const std::vector<std::int64_t> path = tree.path(row);
  for (std::size_t l = 0; l < cache.layer_count(); ++l) {
    for (std::size_t depth = 0; depth < path.size(); ++depth) {
      const std::int64_t from = first + path[depth];
      cache.layer(l).write_raw(base + static_cast<Position>(depth), 1, branches_.k(l, from), branches_.v(l, from));
    }
  }
}

Backbone::Output Backbone::forward(std::span<const Segment> segments, const Trace& trace,
                                   const std::function<void()>* between_layers) {
  std::int64_t count = 0, output_count = 0;
  for (const Segment& segment : segments) {
    count += static_cast<std::int64_t>(segment.tokens.size());
    output_count += segment.output_rows;
  }
  CHECK(0 < count && count <= rows_max_, "{} rows, at most {}", count, rows_max_);

  const Matrix<float> x = scratch_.x.view(count, config_.hidden_size);
  embed(segments, x);
  trace.note("embedding", x);
  std::optional<Matrix<float>> ple;
  if (config_.hidden_size_per_layer_input > 0) {
    ple = per_layer_inputs(segments, x);
    trace.note("ple", *ple);
  }

  std::vector<RowContext> sliding_rows = contexts(segments, AttentionKind::kSliding),
                          full_rows = contexts(segments, AttentionKind::kFull);
  for (const Segment& segment : segments) segment.cache->extend(tree_of(segment).height() + 1);

  for (std::size_t l = 0; l < layers_.size(); ++l) {
    std::vector<RowContext>& rows = layers_[l].config().kind == AttentionKind::kSliding ? sliding_rows : full_rows;
    point_at_layer(segments, layers_[l].config(), rows);
    std::optional<Matrix<const float>> layer_ple;
    if (ple) {
      const std::int64_t width = config_.hidden_size_per_layer_input;
      layer_ple = ple->columns(static_cast<std::int64_t>(l) * width, width);
    }
    if (sizer_ != nullptr) set_team_size(sizer_->next(count, l));
    const TimePoint start = now();
    layers_[l].forward(rows, x, layer_ple, workspace_, trace.under("layers").under(std::to_string(l)));
    if (sizer_ != nullptr) sizer_->took(now() - start);
    collect_hidden(l, x);
    if (between_layers != nullptr) (*between_layers)();
  }

  store_hidden(segments, full_rows);
  if (sizer_ != nullptr) set_team_size(sizer_->chosen(count));
  // Only requested rows go through the head.
  const Matrix<float> selected = scratch_.selected.view(output_count, config_.hidden_size);
  std::int64_t r = 0, out = 0;
  for (const Segment& segment : segments) {
    r += static_cast<std::int64_t>(segment.tokens.size());
    for (std::int64_t i = segment.output_rows; i > 0; --i) {
      const auto from = x[r - i].span();
      std::copy(from.begin(), from.end(), selected[out++].data());
    }
  }
  const Matrix<float> hidden = scratch_.hidden.view(output_count, config_.hidden_size);
  const Matrix<float> logits = scratch_.logits.view(output_count, config_.vocab_size);
  if (output_count > 0) {
    rms_norm(selected, norm_, config_.rms_norm_eps, hidden);
    trace.note("final_normed", hidden);
    head_.forward(hidden, logits);
    trace.note("logits", logits);
  }
  return {hidden, logits};
}

}  // namespace outrider
