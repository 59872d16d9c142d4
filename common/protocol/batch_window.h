#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "common/base/ids.h"
#include "common/base/time.h"
#include "common/policy/throughput.h"

namespace outrider {

/// How long a forward that could begin should wait for rounds that are about to arrive. A forward's time hardly
/// depends on its rows, but rounds with drafts come one by one: each text drafts for a while after its verdict. Two
/// texts whose drafts take less than a forward would alternate for ever, each waiting for the other's, at half the
/// speed of both in one. (Plain rounds keep step by themselves: they come back at once.)
///
/// What is weighed is the pace that follows, not what this forward loses: those who are there and those who come within
/// w go on as one group, the others as a second. Groups take turns, so a group of J texts has J rounds in the time of
/// both forwards, T(M) + T(M'), or in its own way and forward if that is longer, D(J) + T(M). Alone it has the latter:
/// where drafts take longer than a forward, turns are the better pace, as they hide them. D grows with the texts that
/// are drafted for at once, which is learned from how many got their verdict in the same forward.
///
/// When a text is back is forecast from how long it was away before, as TCP forecasts an acknowledgement (RFC 6298):
/// mean + deviation, given up after mean + 4 deviations.
class BatchWindow {
 public:
  /// @param rows_max  of one forward
  explicit BatchWindow(std::int64_t rows_max) : rows_max_(rows_max) {}
  /// The text's verdict went out.
  void left(SessionId id, TimePoint now);
  /// Its next round is here, with so many rows.
  void came_back(SessionId id, std::int64_t rows, TimePoint now);
  void forget(SessionId id) { texts_.erase(id); }
  /// A forward of nothing but rounds.
  void observe_forward(std::int64_t rows, Duration took);

  /// @param requests, rows  that could begin now: also more than fit. @return zero: let them.
  Duration wait(std::int64_t requests, std::int64_t rows, TimePoint now) const;

 private:
  struct Absence {
    bool known = false;  ///< it came back so once
    double mean_s = 0, deviation_s = 0;
    double company = 0;  ///< mean of the texts that drafted meanwhile, itself included
  };
  struct Text {
    bool away = false;
    TimePoint left_at{};
    std::int64_t rows = 1;  ///< of its last round
    /// Without drafts, and with some. The next round is taken to be of the last one's kind.
    std::array<Absence, 2> absences = {};
    bool drafts() const { return rows > 1; }
    const Absence& absence() const { return absences[drafts() ? 1 : 0]; }
    Absence& absence() { return absences[drafts() ? 1 : 0]; }
  };
  /// Texts that share each forward: those that got their verdicts in one.
  struct Group {
    double texts = 0, drafting = 0;
    std::int64_t rows = 0;
    double own_s = 0;  ///< away, of the one that is longest, less what company adds
    double in_s = 0;   ///< until the last of them is back
    Group operator+(const Group& other) const;
  };
  /// Seconds until it is probably back; none where that is not known, or it is later than ever.
  static std::optional<double> back_in(const Text& text, TimePoint now);
  /// Seconds of the forwards that so many rows need.
  double forward_s(std::int64_t rows) const;
  double rounds_per_s(std::span<const Group> groups) const;

  std::int64_t rows_max_;
  std::map<SessionId, Text> texts_;
  FadingLine forward_;   ///< seconds by rows
  FadingLine drafting_;  ///< seconds away by texts that draft
};

}  // namespace outrider
