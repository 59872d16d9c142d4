#include "common/model/block_drafter/eagle3_drafter.h"

#include <algorithm>
#include <utility>

namespace outrider {

Result<std::unique_ptr<Eagle3Drafter>> Eagle3Drafter::load(const ModelFiles& files, const TextConfig& backbone,
                                                           const WeightSource& backbone_weights, WeightType type) {
  std::unique_ptr<Eagle3Drafter> model(new Eagle3Drafter());
  ASSIGN_OR_RETURN(model->config_, load_block_config(files, backbone));
  if (!model->config_.eagle3)
    return Error(Errc::kMismatch, "{}: a block drafter, wanted EAGLE-3", files.path().string());
  ASSIGN_OR_RETURN(const std::shared_ptr<const WeightSource> source, open_weights(files, type, OffGrid::kKeep));
  RETURN_IF_ERROR(model->load_shared(files, *source, backbone_weights));
  RETURN_IF_ERROR(model->load_norms(WeightReader(*source, "")));
  return model;
}

Result<void> Eagle3Drafter::load_norms(const WeightReader& weights) {
  ASSIGN_OR_RETURN(hidden_norm_, weights.vector("layers.0.hidden_norm.weight", config_.hidden_size));
  if (config_.norm_before_fc) {
    ASSIGN_OR_RETURN(fc_norm_, weights.vector("input_norm.weight", config_.target_row()));
  }
  for (std::size_t i = 0; config_.fc_norm && i < config_.hidden_layers.size(); ++i) {
    ASSIGN_OR_RETURN(const std::vector<float> norm,
                     weights.vector(fmt::format("fc_norm.{}.weight", i), config_.hidden_size));
    fc_norm_.insert(fc_norm_.end(), norm.begin(), norm.end());
  }
  return {};
}

void Eagle3Drafter::join(Matrix<const float> rows, Matrix<float> hidden) {
  if (fc_norm_.empty()) return fc_.forward(rows, hidden);
  const Matrix<float> normed = scratch_.rows.view(rows.size(0), rows.size(1));
  const std::int64_t part = config_.fc_norm ? config_.hidden_size : rows.size(1);
  for (std::int64_t at = 0; at < rows.size(1); at += part) {
    const auto weight = std::span(fc_norm_).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(part));
    rms_norm(rows.columns(at, part), weight, config_.rms_norm_eps, normed.columns(at, part));
  }
  fc_.forward(normed, hidden);
}

Matrix<float> Eagle3Drafter::attention_input(std::size_t l, std::span<const TokenId> tokens, Matrix<float> x) {
  const std::int64_t rows = x.size(0), width = config_.hidden_size;
  if (l > 0) {
    const Matrix<float> h = workspace_.normed.view(rows, width);
    rms_norm(x, layers_[l].input_norm, config_.rms_norm_eps, h);
    return h;
  }
  const Matrix<float> joined = scratch_.joined.view(rows, 2 * width), embedded = joined.columns(0, width),
                      hidden = joined.columns(width, width);
  for (std::int64_t r = 0; r < rows; ++r) embedding_->lookup(tokens[static_cast<std::size_t>(r)], embedded[r].span());
  rms_norm(embedded, layers_[0].input_norm, config_.rms_norm_eps, embedded);
  rms_norm(x, hidden_norm_, config_.rms_norm_eps, hidden);
  if (config_.norm_before_residual)
    for (std::int64_t r = 0; r < rows; ++r) std::ranges::copy(hidden[r].span(), x[r].data());
  return joined;
}

void Eagle3Drafter::add_rows(KvCache& text, Matrix<const float> hidden, std::span<const TokenId> next) {
  const std::int64_t count = hidden.size(0), size = kv_size();
  const Position base = text.length();
  const Matrix<float> x = scratch_.x.view(count, config_.hidden_size);
  std::vector<Position> positions;
  for (std::int64_t r = 0; r < count; ++r) {
    std::ranges::copy(hidden[r].span(), x[r].data());
    positions.push_back(base + r);
  }
  text.extend(count);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const Matrix<float> h = attention_input(l, next, x), kv = keys_and_values(l, h, positions);
    for (std::int64_t r = 0; r < count; ++r)
      text.layer(l).write(base + r, kv[r].span().first(static_cast<std::size_t>(size)),
                          kv[r].span().subspan(static_cast<std::size_t>(size)));
    if (l + 1 == layers_.size()) return;  // nobody reads what these rows say
    const Matrix<float> q = queries(l, h, positions), mixed = workspace_.attention.view(count, q.size(1));
    std::vector<AttendRow> keys;
    for (const Position position : positions) keys.push_back({text.layer(l).view(), 0, position + 1});
    attend(q, keys, mixed);
    finish_layer(layers_[l], mixed, x);
  }
}

std::int64_t Eagle3Drafter::depth(std::span<const float> state) const {
  return (std::ssize(state) - config_.hidden_size) / step_size();
}

void Eagle3Drafter::attend_step(std::size_t l, const Step& step, Matrix<const float> q, std::span<const float> kv,
                                Matrix<float> mixed) {
  const auto size = static_cast<std::size_t>(kv_size());
  const Position base = step.text->length(), before = depth(step.state);
  step.text->extend(before + 1);
  LayerKv& layer = step.text->layer(l);
  const auto write = [&](Position position, std::span<const float> both) {
    layer.write(position, both.first(size), both.subspan(size));
  };
  for (Position i = 0; i < before; ++i) {
    const std::int64_t at = config_.hidden_size + i * step_size() + static_cast<std::int64_t>(l) * 2 * kv_size();
    write(base + i, step.state.subspan(static_cast<std::size_t>(at), 2 * size));
  }
  write(base + before, kv);
  const AttendRow keys{layer.view(), 0, base + before + 1};
  attend(q, {&keys, 1}, mixed);
  step.text->truncate(base);
}

Matrix<const float> Eagle3Drafter::step(std::span<const Step> steps) {
  const std::int64_t count = std::ssize(steps), width = config_.hidden_size;
  CHECK(0 < count && count <= kRowsMax, "{} steps, at most {}", count, kRowsMax);
  const Matrix<float> x = scratch_.x.view(count, width);
  std::vector<Position> positions;
  std::vector<TokenId> tokens;
  states_.clear();
  for (std::int64_t r = 0; r < count; ++r) {
    const Step& step = steps[static_cast<std::size_t>(r)];
    const std::span<const float> hidden = step.state.first(static_cast<std::size_t>(width));
    std::ranges::copy(hidden, x[r].data());
    positions.push_back(step.text->length() + depth(step.state));
    tokens.push_back(step.token);
    states_.emplace_back(step.state.begin(), step.state.end());
  }
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const Matrix<float> h = attention_input(l, tokens, x), kv = keys_and_values(l, h, positions);
    const Matrix<float> q = queries(l, h, positions), mixed = workspace_.attention.view(count, q.size(1));
    for (std::int64_t r = 0; r < count; ++r) {
      const auto i = static_cast<std::size_t>(r);
      attend_step(l, steps[i], q.rows(r, 1), kv[r].span(), mixed.rows(r, 1));
      states_[i].insert(states_[i].end(), kv[r].span().begin(), kv[r].span().end());
    }
    finish_layer(layers_[l], mixed, x);
  }
  const Matrix<float> normed = scratch_.normed.view(count, width);
  rms_norm(x, norm_, config_.rms_norm_eps, normed);
  for (std::int64_t r = 0; r < count; ++r)
    std::ranges::copy((config_.norm_output ? normed : x)[r].span(), states_[static_cast<std::size_t>(r)].begin());
  const Matrix<float> scores = scratch_.scores.view(count, config_.draft_vocab_size);
  score(normed, scores);
  return scores;
}

}  // namespace outrider
