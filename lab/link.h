#pragma once

#include <cmath>

namespace outrider {

/// Properties of a LinkEmulator's link. All 0: the plain loopback interface.
struct Link {
  double rtt_ms = 0;          ///< round trip
  double jitter_ms = 0;       ///< largest additional delay; each direction's half is uniform, and order is kept
  double bandwidth_mbit = 0;  ///< Mbit/s per direction; 0: the loopback's
  double loss = 0;            ///< probability that a segment is lost once

  static constexpr double kSegmentBytes = 1448, kRetransmitMs = 200;

  bool operator==(const Link&) const = default;
  /// Returns the transmission time of a byte, without the delay.
  double byte_s() const { return bandwidth_mbit > 0 ? 8e-6 / bandwidth_mbit : 0; }
  /// Returns the additional delay of a lost packet.
  double retransmit_ms() const { return kRetransmitMs + rtt_ms; }
  /// Returns the mean additional time, over the loopback interface, of a request of so many bytes and a short answer.
  double exchange_ms(double bytes) const {
    const double segments = std::ceil(bytes / kSegmentBytes) + 1;
    return rtt_ms + jitter_ms / 2 + 1e3 * bytes * byte_s() + segments * loss * retransmit_ms();
  }
};

}  // namespace outrider
