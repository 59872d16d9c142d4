#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/decoding/drafting/fading_sums.h"
#include "common/decoding/drafting/forecast.h"
#include "lab/experiment/plan.h"

namespace outrider {

/// It counts the drafts at each position, and those that held with all before them.
struct Acceptance {
  std::vector<std::int64_t> drafted = {}, accepted = {};

  void add(const RoundOutcome& round);
  void add(const Acceptance& other);
  std::vector<double> shares() const;
};

/// It holds a pair's costs on this machine, measured by one client with a drafter beside it, at several draft lengths.
/// Everything else is predicted from it.
class Calibration {
 public:
  void observe(const RoundOutcome& outcome);
  /// Call it for the same pair in another minute: see Forecast::forget_times().
  void forget_times() { forecast_.forget_times(); }
  /// An answer of `tokens` tokens whose first one took so long.
  void observe_answer(double tokens, double prefill_s);

  const Forecast& forecast() const { return forecast_; }
  /// T(M), seconds.
  double verify_s(int rows) const { return forecast_.terms(rows - 1).verify_s; }
  /// A request for drafts has so many when rounds emit `tau` tokens: a hidden row, and K/V of each token.
  double request_bytes(double tau) const;
  double tokens_per_answer() const { return answers_ > 0 ? tokens_ / answers_ : 0; }
  double prefill_s() const { return answers_ > 0 ? prefill_s_ / answers_ : 0; }

 private:
  Forecast forecast_;
  FadingSums requests_;  ///< of drafting rounds, none forgotten: bytes by rows
  double answers_ = 0, tokens_ = 0, prefill_s_ = 0;
};

/// A cell by the closed form. Rates are of all clients together.
struct Prediction {
  double tau = 1;                                ///< tokens a round
  double plain_round_ms = 0;                     ///< T(1) and what a round pays besides
  double verify_ms = 0;                          ///< T(g + 1)
  double draft_ms = 0;                           ///< t_d beside the verifier
  double remote_draft_ms = 0;                    ///< t_d of a remote drafter: its share of the cores, and what is added
  double wire_ms = 0;                            ///< of the drafts' exchange without a link
  double exchange_ms = 0;                        ///< what the link adds to it
  double plain = 0, colocated = 0, remote = 0;   ///< tokens per second
  std::optional<double> break_even_rtt_ms = {};  ///< remote is as fast as plain; none: at no round trip
  /// The factor by which a saturated verifier carries more clients when its drafter is elsewhere and costs it nothing:
  /// 1 + g t_d / T(g + 1) (Speculation at a Distance), and with N clients whose rows share forward passes 1 + N g t_d /
  /// T(N (g + 1)).
  double capacity = 1, capacity_shared = 1;
  bool ahead = false;  ///< Axes::drafts_ahead(), of which the closed form knows nothing
};

/// With T(M), t_d, wire and acceptance as calibrated, one client's round takes T(g + 1) + g t_d + wire + other. Of N
/// clients that share a verifier all meet in one forward pass of T(N (g + 1)), or two halves take turns, each drafted
/// for while the other is verified, whichever is shorter: as the verifier chooses (batch_window.h). A drafter makes the
/// drafts of half of its texts in each pass, which is taken to last as long as one text's. Nothing is predicted of
/// contention for the same cores.
/// Drafts are asked for: what drafting ahead saves (Axes::drafts_ahead) is not in it.
/// @return none where a policy chooses the draft length, and of an open loop.
std::optional<Prediction> predict(const Calibration& calibration, const Axes& axes);

/// The axes with what the remote drafters' host and link cost beyond the calibrated drafter's, where no axis says it:
/// the round trip and the added time with which predict() has what was seen there.
/// @param calibration  of the drafter beside the verifier. @param there  of the remote one
Axes with_seen_link(const Axes& axes, const Calibration& calibration, const Calibration& there);

/// The draft lengths whose times the closed form needs for a cell, those of N clients' rows among them; none where it
/// says nothing.
std::vector<int> calibrated_lengths(const Axes& axes);

/// Tokens per second of all clients in the fastest of a few draft lengths, plain decoding included: for estimates of
/// time where a policy chooses.
double best_rate(const Calibration& calibration, const Axes& axes);

}  // namespace outrider
