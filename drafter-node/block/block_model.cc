#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "common/compute/kernels/ops.h"
#include "common/model/block_drafter/block_drafter.h"
#include "common/pair/pair_files.h"
#include "drafter-node/hidden_rows.h"

namespace outrider {
namespace {

class BlockSequence final : public DraftSequence {
 public:
  /// @param changes  counts those of all the model's sequences
  BlockSequence(KvCache cache, std::shared_ptr<std::int64_t> changes)
      : cache_(std::move(cache)), changes_(std::move(changes)) {}
  void extend(const KvRows& rows) override {
    waiting_.add(rows);
    length_ = rows.to;
    version_ = ++*changes_;
  }
  Position length() const override { return length_; }
  std::int64_t behind() const override { return length_ - cache_.length(); }
  std::int64_t waiting_bytes() const override { return waiting_.bytes(); }
  KvCache& cache() { return cache_; }
  /// Unique among sequences, and new after each extension.
  std::int64_t version() const { return version_; }

  /// Computes K/V of the next rows, at most BlockDrafter::kRowsMax. @return true if there were any
  bool catch_up(BlockDrafter& drafter, Buffer& scratch) {
    const auto rows = waiting_.take(cache_.length(), BlockDrafter::kRowsMax, scratch);
    if (!rows) return false;
    drafter.add_rows(cache_, *rows);
    waiting_.drop(cache_.length());
    return true;
  }

 private:
  WaitingRows waiting_;
  Position length_ = 0;
  std::int64_t version_ = 0;
  KvCache cache_;
  std::shared_ptr<std::int64_t> changes_;
};

BlockSequence& sequence_of(const DraftPoint& point) { return static_cast<BlockSequence&>(*point.sequence); }

class BlockModel final : public DraftModel {
 public:
  explicit BlockModel(std::unique_ptr<BlockDrafter> drafter) : drafter_(std::move(drafter)) {}
  DraftTraits traits() const override { return {.block = drafter_->config().drafts()}; }
  std::int64_t vocab_size() const override { return drafter_->config().vocab_size; }
  std::unique_ptr<DraftSequence> open() const override {
    return std::make_unique<BlockSequence>(drafter_->make_cache(), changes_);
  }
  KvCost kv_cost() const override { return kv_cost_of(drafter_->make_cache()); }
  bool step_each(std::span<const DraftPoint> points, const VisitPoint& visit, const std::function<void()>&) override {
    bool passed = false;
    for (const DraftPoint& point : points) passed |= sequence_of(point).catch_up(*drafter_, rows_);
    passed |= add_blocks(points);
    std::vector<std::size_t> visited;
    std::vector<TokenId> before;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (find(points[i]) == nullptr) continue;
      visited.push_back(i);
      before.push_back(points[i].path.back());
    }
    if (visited.empty()) return passed;
    std::optional<Matrix<const float>> markov;
    if (drafter_->config().markov_rank > 0) markov = drafter_->markov(before);
    const std::int64_t width = drafter_->config().draft_vocab_size;
    for (std::size_t i = 0; i < visited.size(); ++i) {
      const DraftPoint& point = points[visited[i]];
      const bool within = std::ssize(point.path) <= drafter_->config().drafts();
      if (!within) {
        visit(visited[i], {}, {}, {});
        continue;
      }
      const auto place = find(point)->scores.begin() + (std::ssize(point.path) - 1) * width;
      scores_.assign(place, place + width);
      if (markov)
        add_in_place(Matrix<float>(scores_.data(), {1, width}), markov->rows(static_cast<std::int64_t>(i), 1));
      visit(visited[i], drafter_->vocabulary(), scores_, {});
    }
    return passed;
  }

 private:
  /// The scores of a block, before the Markov head.
  struct Prediction {
    std::int64_t version;  ///< the sequence's
    TokenId token;
    std::vector<float> scores;
  };
  /// Blocks that are kept: one per sequence of a pass of the engine. With 262,144 tokens each has 7 to 16 MB.
  static constexpr std::size_t kPredictionsMax = 16;

  /// Null if no draft is wanted, or the block's pass is still to come.
  const Prediction* find(const DraftPoint& point) const {
    if (point.path.empty() || sequence_of(point).behind() > 0) return nullptr;
    const auto at = std::ranges::find_if(predictions_, [&](const Prediction& prediction) {
      return prediction.version == sequence_of(point).version() && prediction.token == point.path.front();
    });
    return at == predictions_.end() ? nullptr : &*at;
  }
  /// Runs a pass for points whose block is missing, as far as it has room. @return true if there were any
  bool add_blocks(std::span<const DraftPoint> points) {
    std::vector<BlockDrafter::Block> blocks;
    std::vector<Prediction> fresh;
    for (const DraftPoint& point : points) {
      BlockSequence& sequence = sequence_of(point);
      const bool wanted = !point.path.empty() && sequence.behind() == 0 && find(point) == nullptr;
      const bool comes = std::ranges::find(fresh, sequence.version(), &Prediction::version) != fresh.end();
      if (!wanted || comes || std::ssize(blocks) == drafter_->blocks_max()) continue;
      blocks.push_back({&sequence.cache(), point.path.front()});
      fresh.push_back({sequence.version(), point.path.front(), {}});
    }
    if (blocks.empty()) return false;
    const Matrix<const float> scores = drafter_->draft(blocks);
    const std::int64_t drafts = drafter_->config().drafts();
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      if (predictions_.size() == kPredictionsMax) predictions_.pop_front();
      for (std::int64_t r = 0; r < drafts; ++r) {
        const auto row = scores[static_cast<std::int64_t>(i) * drafts + r].span();
        fresh[i].scores.insert(fresh[i].scores.end(), row.begin(), row.end());
      }
      predictions_.push_back(std::move(fresh[i]));
    }
    return true;
  }

  std::unique_ptr<BlockDrafter> drafter_;
  std::shared_ptr<std::int64_t> changes_ = std::make_shared<std::int64_t>(0);
  std::deque<Prediction> predictions_;  ///< the latest last
  std::vector<float> scores_;
  Buffer rows_;
};

}  // namespace

std::unique_ptr<DraftModel> make_draft_model(std::unique_ptr<BlockDrafter> drafter) {
  return std::make_unique<BlockModel>(std::move(drafter));
}

Result<LoadedDrafter> load_block_drafter(const DrafterOptions& options) {
  return load_with_hidden_rows<BlockDrafter>(options);
}

}  // namespace outrider
