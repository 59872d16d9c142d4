#pragma once

#include <cmath>

namespace outrider {

/// A link as LinkEmulator makes it. All of it 0: the loopback interface as it is.
struct Link {
  double rtt_ms = 0;          ///< to the other end and back
  double jitter_ms = 0;       ///< at most so much longer; each direction's half is uniform, and order is kept
  double bandwidth_mbit = 0;  ///< Mbit/s of each direction; 0: the loopback's
  double loss = 0;            ///< chance that a segment is lost once

  static constexpr double kSegmentBytes = 1448, kRetransmitMs = 200;

  bool operator==(const Link&) const = default;
  /// Seconds that a byte takes to cross it, beside its way.
  double byte_s() const { return bandwidth_mbit > 0 ? 8e-6 / bandwidth_mbit : 0; }
  /// A lost packet comes so much later.
  double retransmit_ms() const { return kRetransmitMs + rtt_ms; }
  /// A request of so many bytes and a short answer take so much longer than over the loopback interface, on average.
  double exchange_ms(double bytes) const {
    const double segments = std::ceil(bytes / kSegmentBytes) + 1;
    return rtt_ms + jitter_ms / 2 + 1e3 * bytes * byte_s() + segments * loss * retransmit_ms();
  }
};

}  // namespace outrider
