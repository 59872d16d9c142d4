#pragma once

namespace outrider {

/// Bytes per second that `threads` OpenMP threads (0: as many as there are cores) together read from memory,
/// in GB/s (10^9): the best of several passes over a block larger than any cache. Takes about a second.
double measure_read_bandwidth_gb_s(int threads);

}  // namespace outrider
