#include <algorithm>
#include <utility>
#include <vector>

#include "common/model/block_drafter/eagle3_drafter.h"
#include "common/pair/pair_files.h"
#include "drafter-node/hidden_rows.h"

namespace outrider {
namespace {

/// For the rows of a pass.
struct Eagle3Scratch {
  Buffer rows, joined, known;
};

class Eagle3Sequence final : public DraftSequence {
 public:
  explicit Eagle3Sequence(KvCache cache) : cache_(std::move(cache)) {}
  void extend(const KvRows& rows) override {
    tokens_.insert(tokens_.end(), rows.tokens.begin() + (length() - rows.from), rows.tokens.end());
    waiting_.add(rows);
  }
  Position length() const override { return std::ssize(tokens_); }
  std::int64_t behind() const override { return length() - joined(); }
  std::int64_t waiting_bytes() const override { return waiting_.bytes(); }
  KvCache& cache() { return cache_; }
  /// Eagle3Drafter::join() of the last joined row, whose K/V need the token behind it.
  std::span<const float> state() const { return state_; }

  /// Computes K/V of the next rows, at most Eagle3Drafter::kRowsMax. @return true if there were any
  bool catch_up(Eagle3Drafter& drafter, Eagle3Scratch& scratch) {
    const auto rows = waiting_.take(joined(), Eagle3Drafter::kRowsMax - 1, scratch.rows);
    if (!rows) return false;
    const std::int64_t count = rows->size(0), before = state_.empty() ? 0 : 1;
    const Matrix<float> hidden = scratch.joined.view(count, drafter.config().hidden_size);
    drafter.join(*rows, hidden);
    const std::int64_t with_next = before + count - 1;
    if (with_next > 0) {
      const Matrix<float> known = scratch.known.view(with_next, hidden.size(1));
      for (std::int64_t r = 0; r < with_next; ++r)
        std::ranges::copy(r < before ? std::span<const float>(state_) : hidden[r - before].span(), known[r].data());
      drafter.add_rows(cache_, known,
                       std::span(tokens_).subspan(static_cast<std::size_t>(cache_.length() + 1),
                                                  static_cast<std::size_t>(with_next)));
    }
    state_.assign(hidden[count - 1].span().begin(), hidden[count - 1].span().end());
    waiting_.drop(joined());
    return true;
  }

 private:
  Position joined() const { return cache_.length() + (state_.empty() ? 0 : 1); }

  WaitingRows waiting_;
  std::vector<TokenId> tokens_;  ///< of all rows
  std::vector<float> state_;
  KvCache cache_;
};

class Eagle3Model final : public DraftModel {
 public:
  explicit Eagle3Model(std::unique_ptr<Eagle3Drafter> drafter) : drafter_(std::move(drafter)) {}
  DraftTraits traits() const override { return {.block = kDraftLengthMax}; }
  std::int64_t vocab_size() const override { return drafter_->config().vocab_size; }
  std::unique_ptr<DraftSequence> open() const override {
    return std::make_unique<Eagle3Sequence>(drafter_->make_cache());
  }
  KvCost kv_cost() const override { return kv_cost_of(drafter_->make_cache()); }
  bool step_each(std::span<const DraftPoint> points, const VisitPoint& visit, const std::function<void()>&) override {
    bool passed = false;
    std::vector<std::size_t> visited;
    std::vector<Eagle3Drafter::Step> steps;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const DraftPoint& point = points[i];
      auto& sequence = static_cast<Eagle3Sequence&>(*point.sequence);
      passed |= sequence.catch_up(*drafter_, scratch_);
      if (point.path.empty() || sequence.behind() > 0 || std::ssize(steps) == Eagle3Drafter::kRowsMax) continue;
      visited.push_back(i);
      steps.push_back({&sequence.cache(), point.path.back(), point.path.size() == 1 ? sequence.state() : point.state});
    }
    if (steps.empty()) return passed;
    const Matrix<const float> scores = drafter_->step(steps);
    for (std::size_t i = 0; i < visited.size(); ++i)
      visit(visited[i], drafter_->vocabulary(), scores[static_cast<std::int64_t>(i)].span(), drafter_->state(i));
    return true;
  }

 private:
  std::unique_ptr<Eagle3Drafter> drafter_;
  Eagle3Scratch scratch_;
};

}  // namespace

std::unique_ptr<DraftModel> make_draft_model(std::unique_ptr<Eagle3Drafter> drafter) {
  return std::make_unique<Eagle3Model>(std::move(drafter));
}

Result<LoadedDrafter> load_eagle3_drafter(const DrafterOptions& options) {
  return load_with_hidden_rows<Eagle3Drafter>(options);
}

}  // namespace outrider
