#pragma once

#include <cstdint>

#include "common/compute/tensor/tensor.h"

namespace outrider {

/// Measures how fast memory is read. Holds a block of 1 GiB, larger than any cache.
class ReadBandwidth {
 public:
  ReadBandwidth();
  /// Bytes per second that the caller's team reads in one pass over the block, in GB/s (10^9). Of several passes the
  /// best counts. Measure right beside the compared pass, because a shared host's memory changes its speed from one
  /// second to the next.
  double pass_gb_s() const;

 private:
  AlignedArray<std::uint64_t> block_;
};

/// The best of several passes of all cores, on threads that end. Takes about a second.
double measure_read_bandwidth_gb_s();

}  // namespace outrider
