#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace outrider {

/// T(M): seconds of a verifying forward pass of M rows, learned online: points that never fall (pool adjacent
/// violators). The last few rounds of an M decide its point.
class VerifyTime {
 public:
  /// rows from 1.
  void observe(int rows, double seconds);
  /// On the lines between the points, and behind the last as steep as it rose on average: were it flat there, many
  /// drafts would be planned for ever, since sequences for which so large a pass is too long take turns. 0 while
  /// nothing was measured.
  double likely(int rows) const;
  /// Of a sequence alone an M that was not measured costs what the next smaller one does that was: true inside a tile
  /// of rows, and elsewhere hopeful enough that the M is tried once. Of many sequences each would add a row that seems
  /// free.
  double hoped(int rows) const;
  /// What each of `rows` takes on average, of those beyond the fewest that were measured, if all take `seconds`.
  double row_s(int rows, double seconds) const;
  /// Whether so many rows were measured in the last 200 passes or so.
  bool knows(int rows) const;
  /// So many rows may be tried: twice the most that were.
  int rows_most() const;
  /// Whether more than one M was measured.
  bool knows_several() const { return curve_.size() > 1; }

 private:
  static constexpr int kSingle = 33;  ///< of a sequence alone
  struct Cell {
    double rows = 0, sum = 0, weight = 0;
  };
  struct Point {
    double rows, seconds;
  };
  static std::size_t cell_of(int rows);
  std::array<Cell, 64> cells_ = {};  ///< one an M, then wider
  std::vector<Point> curve_;         ///< by rows; a point where a cell is
};

}  // namespace outrider
