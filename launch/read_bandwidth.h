#pragma once

namespace outrider {

/// Bytes per second that all OpenMP threads together read from memory, in GB/s (10^9): the best of
/// several passes over a block larger than any cache. Takes about a second.
double measure_read_bandwidth_gb_s();

}  // namespace outrider
