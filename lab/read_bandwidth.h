#pragma once

#include <cstdint>

#include "common/compute/tensor/tensor.h"

namespace outrider {

/// Measures read bandwidth of the memory. Owns a block of 1 GiB, larger than any cache.
class ReadBandwidth {
 public:
  ReadBandwidth();
  /// Returns the rate at which the caller's team reads the block once, in GB/s (10^9). Of several passes the best
  /// counts. To be measured next to the compared pass, because a shared host's memory changes its speed from one second
  /// to the next.
  double pass_gb_s() const;

 private:
  AlignedArray<std::uint64_t> block_;
};

/// Returns the best of several passes of all cores, on threads that end. Takes about a second.
double measure_read_bandwidth_gb_s();

}  // namespace outrider
