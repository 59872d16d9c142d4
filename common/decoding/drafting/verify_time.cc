#include "common/decoding/drafting/verify_time.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/decoding/drafting/forgetting.h"

namespace outrider {
namespace {

/// Tolerance of mean rows.
constexpr double kRounding = 1e-6;

}  // namespace

std::size_t VerifyTime::cell_of(int rows) {
  if (rows <= kSingle) return static_cast<std::size_t>(rows);
  if (rows <= 128) return static_cast<std::size_t>(kSingle + 1 + (rows - kSingle - 1) / 8);
  return std::min<std::size_t>(kSingle + 13 + static_cast<std::size_t>(rows - 129) / 32, 63);
}

void VerifyTime::observe(int rows, double seconds) {
  CHECK(rows >= 1 && seconds >= 0, "{} rows in {} s", rows, seconds);
  // A forward pass of one M tells nothing about the others except that time passes: their points become stale, and
  // yield where the curve would fall.
  for (Cell& cell : cells_) {
    cell.rows *= keeps::kPassAnyRows;
    cell.sum *= keeps::kPassAnyRows;
    cell.weight *= keeps::kPassAnyRows;
  }
  Cell& seen = cells_[cell_of(rows)];
  seen.rows = keeps::kPassSameRows * seen.rows + rows;
  seen.sum = keeps::kPassSameRows * seen.sum + seconds;
  seen.weight = keeps::kPassSameRows * seen.weight + 1;

  // Pool adjacent violators: blocks of neighbouring Ms with rising means.
  struct Block {
    double sum, weight;
    std::size_t cells;
    double mean() const { return sum / weight; }
  };
  std::vector<Block> blocks;
  curve_.clear();
  for (const Cell& cell : cells_) {
    if (cell.weight < 1e-9) continue;
    curve_.push_back({cell.rows / cell.weight, 0});
    blocks.push_back({cell.sum, cell.weight, 1});
    while (blocks.size() > 1 && blocks[blocks.size() - 2].mean() >= blocks.back().mean()) {
      const Block top = blocks.back();
      blocks.pop_back();
      Block& below = blocks.back();
      below = {below.sum + top.sum, below.weight + top.weight, below.cells + top.cells};
    }
  }
  auto point = curve_.begin();
  for (const Block& block : blocks)
    for (std::size_t i = 0; i < block.cells; ++i) (point++)->seconds = block.mean();
}

double VerifyTime::likely(int rows) const {
  if (curve_.empty()) return 0;
  const auto above = std::ranges::upper_bound(curve_, rows + kRounding, {}, &Point::rows);
  if (above == curve_.begin()) return above->seconds;
  const Point& below = *(above - 1);
  if (above == curve_.end()) {
    const Point& least = curve_.front();
    const double slope = (below.seconds - least.seconds) / std::max(1.0, below.rows - least.rows);
    return below.seconds + slope * (rows - below.rows);
  }
  return below.seconds + (above->seconds - below.seconds) * (rows - below.rows) / (above->rows - below.rows);
}

double VerifyTime::optimistic_s(int rows) const {
  if (rows > kSingle) return likely(rows);
  const auto above = std::ranges::upper_bound(curve_, rows + kRounding, {}, &Point::rows);
  return above == curve_.begin() ? likely(rows) : (above - 1)->seconds;
}

double VerifyTime::row_s(int rows, double seconds) const {
  if (curve_.empty()) return 0;
  const Point& least = curve_.front();
  return (seconds - least.seconds) / std::max(1.0, rows - least.rows);
}

bool VerifyTime::knows(int rows) const { return cells_[cell_of(rows)].weight > 0.1; }

int VerifyTime::rows_most() const {
  return std::max(kSingle, curve_.empty() ? 0 : static_cast<int>(2 * curve_.back().rows));
}

}  // namespace outrider
