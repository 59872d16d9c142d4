#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace outrider {

/// T(M): seconds of a verifying forward pass of M rows, learned online as a non-decreasing curve (pool adjacent
/// violators). The last few passes of an M decide its point.
class VerifyTime {
 public:
  /// @param rows  1 or more
  void observe(int rows, double seconds);
  /// Interpolates between points; beyond the last one it continues with the mean slope. (A flat end would plan many
  /// drafts for ever, since sequences take turns when so large a pass is too long.) 0 until something was measured.
  double likely(int rows) const;
  /// For a sequence alone: an unmeasured M costs as much as the next smaller measured one. That is true inside a tile
  /// of rows, and elsewhere optimistic enough to try the M once. With many sequences, each would add a row that seems
  /// free.
  double optimistic_s(int rows) const;
  /// Returns the mean cost of each of `rows` beyond the fewest measured, if the pass takes `seconds`.
  double row_s(int rows, double seconds) const;
  /// Returns true when so many rows were measured within about 200 passes.
  bool knows(int rows) const;
  /// Most rows that may be tried: twice the most measured.
  int rows_most() const;
  /// Returns true when more than one M was measured.
  bool knows_several() const { return curve_.size() > 1; }

 private:
  static constexpr int kSingle = 33;  ///< rows with a cell each: a sequence alone
  struct Cell {
    double rows = 0, sum = 0, weight = 0;
  };
  struct Point {
    double rows, seconds;
  };
  static std::size_t cell_of(int rows);
  std::array<Cell, 64> cells_ = {};  ///< one per M, then wider
  std::vector<Point> curve_;         ///< by rows; a point per cell in use
};

}  // namespace outrider
