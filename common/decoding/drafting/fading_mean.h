#pragma once

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

}  // namespace outrider
