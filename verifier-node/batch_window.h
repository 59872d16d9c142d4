#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "common/base/ids.h"
#include "common/base/time.h"
#include "common/decoding/drafting/fading.h"

namespace outrider {

/// Decides how long a forward that could begin should wait for rounds that are about to arrive. A forward's time hardly
/// depends on its rows, but rounds with drafts arrive one by one: each sequence drafts for a while after its verdict.
/// Two sequences whose drafts take less than a forward would alternate for ever, each waiting for the other's, at half
/// the speed of both in one. (Plain rounds stay in step: they come back at once.)
///
/// A wait of w for J sequences pays if the sum of the times at which rounds are done falls. k sequences are present,
/// with M rows; the others have M' rows. Without the wait, k are done after T(M), J after T(M) + T(M'), and each of the
/// k, back meanwhile, then waits for the rest of that second forward. With it all are done after w + T(M + M'). A
/// sequence that arrives after the forward's end loses nothing by it, and is not waited for.
///
/// A sequence's return is forecast from its earlier absences, as TCP forecasts an acknowledgement (RFC 6298): mean +
/// deviation, given up after mean + 4 deviations.
class BatchWindow {
 public:
  /// @param rows_max  of one forward
  explicit BatchWindow(std::int64_t rows_max) : rows_max_(rows_max) {}
  /// Records that the sequence's verdict was sent.
  void left(SessionId id, TimePoint now);
  /// Records the sequence's next round, with its rows.
  void returned(SessionId id, std::int64_t rows, TimePoint now);
  void forget(SessionId id) { sequences_.erase(id); }
  /// Records a forward without prompts.
  void observe_forward(std::int64_t rows, Duration took);

  /// Returns how long the forward should wait; zero: not at all.
  /// @param requests, rows  that could begin now; may be more than fit
  Duration wait(std::int64_t requests, std::int64_t rows, TimePoint now) const;

 private:
  struct Away {
    bool known = false;  ///< it has returned in this way before
    double mean_s = 0, deviation_s = 0;
  };
  struct Sequence {
    std::optional<TimePoint> away_since;
    std::int64_t rows = 1;  ///< of its last round
    /// Absences before rounds without drafts, and with some. The next round is assumed to be like the last one.
    std::array<Away, 2> away = {};
    std::size_t drafts() const { return rows > 1 ? 1 : 0; }
  };
  /// Returns the seconds until the sequence's probable return; none if unknown, or if the sequence is later than ever.
  static std::optional<double> returns_in(const Sequence& sequence, TimePoint now);
  double forward_s(std::int64_t rows) const;

  std::int64_t rows_max_;
  std::map<SessionId, Sequence> sequences_;
  FadingLine forward_;  ///< seconds by rows
};

}  // namespace outrider
