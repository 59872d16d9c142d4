#pragma once

#include <algorithm>

#include "common/base/time.h"

namespace outrider {

/// Admits one event per `interval`, and up to `burst` at once after a pause. One thread.
class TokenBucket {
 public:
  TokenBucket(Duration interval, int burst) : interval_(interval), burst_(burst) {}

  bool pass(TimePoint now) {
    if (again_ > now) return false;
    again_ = std::max(again_, now - (burst_ - 1) * interval_) + interval_;
    return true;
  }

 private:
  Duration interval_;
  int burst_;
  TimePoint again_{};  ///< time of its next token
};

}  // namespace outrider
