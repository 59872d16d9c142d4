#include "common/model/block_drafter/block_drafter.h"

#include <algorithm>
#include <utility>

namespace outrider {

Result<std::unique_ptr<BlockDrafter>> BlockDrafter::load(const ModelFiles& files, const TextConfig& backbone,
                                                         const WeightSource& backbone_weights, WeightType type) {
  std::unique_ptr<BlockDrafter> model(new BlockDrafter());
  ASSIGN_OR_RETURN(model->config_, load_block_config(files, backbone));
  if (model->config_.eagle3)
    return Error(Errc::kMismatch, "{}: EAGLE-3, wanted a block drafter", files.path().string());
  ASSIGN_OR_RETURN(const std::shared_ptr<const WeightSource> source, open_weights(files, type, OffGrid::kKeep));
  RETURN_IF_ERROR(model->load_shared(files, *source, backbone_weights));
  const WeightReader weights(*source, "");
  ASSIGN_OR_RETURN(model->hidden_norm_, weights.vector("hidden_norm.weight", model->config_.hidden_size));
  RETURN_IF_ERROR(model->load_markov_head(weights));
  return model;
}

Result<void> BlockDrafter::load_markov_head(const WeightReader& weights) {
  if (config_.markov_rank == 0) return {};
  const WeightReader markov = weights.under("markov_head");
  ASSIGN_OR_RETURN(RowTable rows, markov.table("markov_w1.weight", config_.vocab_size, config_.markov_rank));
  markov_rows_.emplace(std::move(rows), 1, WeightType::kF32);
  ASSIGN_OR_RETURN(markov_head_, markov.linear(config_.markov_rank, {{"markov_w2", config_.draft_vocab_size}}));
  return {};
}

void BlockDrafter::write_kv(std::size_t l, Matrix<const float> x, std::span<const Place> places) {
  std::vector<Position> positions;
  for (const Place& place : places) positions.push_back(place.position);
  const Matrix<float> kv = keys_and_values(l, x, positions), k = kv.columns(0, kv_size()),
                      v = kv.columns(kv_size(), kv_size());
  for_rows(kv, [&](std::int64_t r) {
    const auto& [text, position] = places[static_cast<std::size_t>(r)];
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

Matrix<const float> BlockDrafter::attention(std::size_t l, std::span<const Place> places, Matrix<const float> h) {
  write_kv(l, h, places);
  std::vector<Position> positions;
  std::vector<AttendRow> keys;
  for (const auto& [text, position] : places) {
    positions.push_back(position);
    // All positions share the window of the sequence; in a causal layer they differ in the visible part of the block.
    const Position base = text->length() - config_.block_size;
    const bool slides = config_.sliding[l];
    const Position first = slides ? std::max<Position>(0, base - config_.sliding_window) : 0;
    const Position end = slides && config_.sliding_causal ? position + 1 : text->length();
    keys.push_back({text->layer(l).view(), first, end - first});
  }
  const Matrix<float> q = queries(l, h, positions), mixed = workspace_.attention.view(h.size(0), q.size(1));
  attend(q, keys, mixed);
  return mixed;
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
    finish_layer(layers_[l], attention(l, places, h), x);
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
  score(selected, scores);
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
