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
/// Two sequences whose drafts take less than a forward would alternate for ever, each waiting for the other's forward,
/// at half the speed of a common one. (Plain rounds stay in step: they come back at once.)
///
/// A wait of w for J sequences pays if the sum of the times at which rounds are done falls. k sequences are present,
/// with M rows; the others have M' rows. Without the wait, k are done after T(M), J after T(M) + T(M'), and each of the
/// k, back meanwhile, then waits for the rest of that second forward. With it all are done after w + T(M + M'). A
/// sequence that arrives after the forward's end loses nothing by it, and is not waited for.
///
/// A sequence's return is forecast from its earlier absences, as TCP forecasts an acknowledgement (RFC 6298): mean +
/// deviation, given up after mean + 4 deviations. A new sequence begins with the absences of all.
///
/// Drafts take longer while a forward runs on the same cores or memory, and a forward that waits does not run. Absences
/// are therefore counted in time of an idle verifier: a second beside a forward counts as 1 / slowdown() of
/// one, and the forward takes longer by what the drafts take from it.
class BatchWindow {
 public:
  /// @param rows_max  of one forward
  explicit BatchWindow(std::int64_t rows_max) : rows_max_(rows_max) {}
  /// Records that the sequence's verdict was sent.
  void left(SessionId id, TimePoint now);
  /// Records the sequence's next round, with its rows.
  void returned(SessionId id, std::int64_t rows, TimePoint now);
  void forget(SessionId id) { sequences_.erase(id); }
  /// Records that a forward begins.
  void forward_began(TimePoint now) { forward_since_ = now; }
  /// Records its end. @param rows  0: it had prompts
  void forward_ended(std::int64_t rows, TimePoint now);

  /// Returns how long the forward should wait; zero: not at all.
  /// @param requests, rows  that could begin now; may be more than fit
  Duration wait(std::int64_t requests, std::int64_t rows, TimePoint now) const;

 private:
  /// Time of an absence, of which a part was beside forwards.
  struct Elapsed {
    double idle_s = 0, busy_s = 0;
  };
  struct Absences {
    bool known = false;  ///< an absence has ended
    double mean_s = 0, deviation_s = 0;
    void observe(double seconds);
  };
  struct Sequence {
    std::optional<TimePoint> away_since;
    double busy_before_s = 0;  ///< busy_s() when it left
    std::int64_t rows = 1;     ///< of its last round; of a new sequence, of any sequence's last round
    /// Absences before rounds without drafts, and with some. The next round is assumed to be like the last one.
    std::array<Absences, 2> away = {};
    std::size_t drafts() const { return rows > 1 ? 1 : 0; }
  };
  double busy_s(TimePoint now) const;
  Elapsed elapsed(const Sequence& sequence, TimePoint now) const;
  double idle_s(const Elapsed& time) const { return time.idle_s + time.busy_s / slowdown(); }
  /// Returns how many times as long drafts take beside a forward as with an idle verifier. For the first few absences
  /// twice is assumed, as on the same cores: waiting measures both times, alternating measures one.
  double slowdown() const;
  /// Returns the sequence's absences, or all sequences' if the sequence has completed none.
  const Absences& absences(const Sequence& sequence) const;
  /// Returns the seconds until the sequence's probable return; none if unknown, or if the sequence is overdue.
  std::optional<double> returns_in(const Sequence& sequence, TimePoint now) const;
  double forward_s(std::int64_t rows) const;

  std::int64_t rows_max_;
  std::map<SessionId, Sequence> sequences_;
  std::int64_t last_rows_ = 1;        ///< of any sequence's last round
  std::array<Absences, 2> all_ = {};  ///< of all sequences
  Slowdown slowdown_;                       ///< of absences with drafts
  std::int64_t drafted_ = 0;                ///< number of absences with drafts
  double forwards_s_ = 0;                   ///< total time of ended forwards
  std::optional<TimePoint> forward_since_;  ///< one is running
  FadingLine forward_;                      ///< seconds by rows
};

}  // namespace outrider
