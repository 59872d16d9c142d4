#pragma once

namespace outrider {

/// What a line of least squares is made of: sums over pairs that forget.
struct FadingSums {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0, yy = 0;

  /// @param keep  weight of the past
  void observe(double new_x, double new_y, double keep) {
    n = keep * n + 1;
    x = keep * x + new_x;
    y = keep * y + new_y;
    xx = keep * xx + new_x * new_x;
    xy = keep * xy + new_x * new_y;
    yy = keep * yy + new_y * new_y;
  }
  // n times the variances and the covariance. @pre n > 0
  double variance_x() const { return xx - x * x / n; }
  double variance_y() const { return yy - y * y / n; }
  double covariance() const { return xy - x * y / n; }
};

}  // namespace outrider
