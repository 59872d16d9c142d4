#pragma once

#include <algorithm>

#include "common/decoding/drafting/forgetting.h"

namespace outrider {

/// An exponentially fading mean: `keep` is the weight of the past at each observation.
class FadingMean {
 public:
  explicit FadingMean(double keep) : keep_(keep) {}
  void observe(double y, double weight = 1) {
    sum_ = keep_ * sum_ + y;
    weight_ = keep_ * weight_ + weight;
  }
  bool empty() const { return weight_ <= 0; }
  /// Effective number of observations.
  double weight() const { return weight_; }
  double value() const { return empty() ? 0 : sum_ / weight_; }

 private:
  double keep_, sum_ = 0, weight_ = 0;
};

/// Learns how many times as long drafts take beside a forward pass as beside none, since both may share cores or
/// memory. The times are in seconds.
class Slowdown {
 public:
  void observe_apart(double y) { apart_s_.observe(y); }
  void observe_beside(double y) { beside_s_.observe(y); }
  const FadingMean& apart() const { return apart_s_; }
  /// Returns the factor, at least 1; `unknown` until both were observed.
  double factor(double unknown) const {
    constexpr double kMost = 4;
    if (apart_s_.empty() || beside_s_.empty()) return unknown;
    return std::clamp(beside_s_.value() / apart_s_.value(), 1.0, kMost);
  }

 private:
  FadingMean apart_s_{keeps::kLine}, beside_s_{keeps::kLine};
};

/// Fading sums over pairs, for a least-squares line.
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

/// Fits y = intercept + slope * x by fading least squares; the slope is never negative, and 0 until the xs differ.
class FadingLine {
 public:
  void observe(double x, double y) { sums_.observe(x, y, keeps::kLine); }
  /// Lowers the line slightly.
  void fade() {
    sums_.y *= keeps::kLineUnused;
    sums_.xy *= keeps::kLineUnused;
  }
  double slope() const {
    if (empty()) return 0;
    const double variance = sums_.variance_x();
    // Rounding leaves a variance near 0 when all xs are equal.
    if (variance <= 1e-9 * sums_.xx) return 0;
    return std::clamp(sums_.covariance() / variance, 0.0, sums_.y / std::max(sums_.x, 1e-300));
  }
  double intercept() const { return empty() ? 0 : (sums_.y - slope() * sums_.x) / sums_.n; }
  bool empty() const { return sums_.n <= 0; }

 private:
  FadingSums sums_;
};

}  // namespace outrider
