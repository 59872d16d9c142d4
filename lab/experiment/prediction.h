#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/decoding/drafting/fading.h"
#include "common/decoding/drafting/forecast.h"
#include "lab/experiment/plan.h"

namespace outrider {

/// Counts of drafts at each position, and of those accepted with all before them.
struct Acceptance {
  std::vector<std::int64_t> drafted = {}, accepted = {};

  void add(const RoundOutcome& round);
  void add(const Acceptance& other);
  std::vector<double> shares() const;
};

/// A pair's costs on this machine, measured by one client with a drafter beside it, at several draft lengths. All
/// predictions derive from it.
class Calibration {
 public:
  void observe(const RoundOutcome& outcome);
  /// To be called for the same pair at another time: see Forecast::forget_times().
  void forget_times() { forecast_.forget_times(); }
  /// Observes an answer of `tokens` tokens with the time of its first one.
  void observe_answer(double tokens, double prefill_s);

  const Forecast& forecast() const { return forecast_; }
  /// T(M), seconds.
  double verify_s(int rows) const { return forecast_.terms(rows - 1).verify_s; }
  /// Returns the bytes of a request for drafts when rounds emit `tau` tokens: a hidden row, and K/V of each token.
  double request_bytes(double tau) const;
  double tokens_per_answer() const { return answers_ > 0 ? tokens_ / answers_ : 0; }
  double prefill_s() const { return answers_ > 0 ? prefill_s_ / answers_ : 0; }

 private:
  Forecast forecast_;
  FadingSums requests_;  ///< of drafting rounds, without forgetting: bytes by rows
  double answers_ = 0, tokens_ = 0, prefill_s_ = 0;
};

/// Prediction of a cell by the closed form. Rates are of all clients together.
struct Prediction {
  double tau = 1;                                ///< tokens per round
  double plain_round_ms = 0;                     ///< T(1) and other costs of a round
  double verify_ms = 0;                          ///< T(g + 1)
  double draft_ms = 0;                           ///< t_d beside the verifier
  double remote_draft_ms = 0;                    ///< t_d of a remote drafter, with its CPU share and added time
  double wire_ms = 0;                            ///< of the drafts' exchange without a link
  double exchange_ms = 0;                        ///< added by the link
  double plain = 0, colocated = 0, remote = 0;   ///< tokens per second
  std::optional<double> break_even_rtt_ms = {};  ///< remote is as fast as plain; none: at no round trip
  /// The factor by which a saturated verifier carries more clients when its drafter is elsewhere and costs it nothing:
  /// 1 + g t_d / T(g + 1) (Speculation at a Distance), and with N clients whose rows share forward passes 1 + N g t_d /
  /// T(N (g + 1)).
  double capacity = 1, capacity_shared = 1;
  bool ahead = false;  ///< Axes::drafts_ahead(), which the closed form ignores
};

/// With the calibrated T(M), t_d, wire and acceptance, one client's round takes T(g + 1) + g t_d + wire + other. N
/// clients that share a verifier all meet in one forward pass of T(N (g + 1)). If the drafter has cores of its own, two
/// halves may take turns instead, each drafted for while the other is verified, whichever is shorter. Each pass of the
/// drafter is assumed to last as long as one sequence's. Ignores other work on the same cores, and the time saved by
/// drafting ahead (Axes::drafts_ahead): drafts are requested.
/// @return none if a policy chooses the draft length, and for an open loop
std::optional<Prediction> predict(const Calibration& calibration, const Axes& axes);

/// Returns the axes with the remote drafters' measured additional cost over the calibrated drafter, in place of the
/// axes' own: the round trip and added time with which predict() gives the measured times. Unchanged without a fixed
/// draft length above 0. @param calibration  of the drafter beside the verifier @param there  of the remote one
Axes with_seen_link(const Axes& axes, const Calibration& calibration, const Calibration& there);

/// Returns the draft lengths whose times the closed form needs for a cell, including those for N clients' rows; none if
/// it cannot predict the cell.
std::vector<int> calibrated_lengths(const Axes& axes);

/// Returns tokens per second of all clients at the fastest of a few draft lengths, plain decoding included: for
/// estimates of time if a policy chooses.
double best_rate(const Calibration& calibration, const Axes& axes);

}  // namespace outrider
