#pragma once

#include <array>
#include <cstddef>

#include "common/decoding/drafting/draft_policy.h"
#include "common/decoding/drafting/fading_mean.h"

namespace outrider {

/// How likely draft i of a round is to hold when those before it did, counted with exponential forgetting.
/// Where little was counted it leans on `prior`, or without one on the position before.
class Survival {
 public:
  /// @param keep weight of the past at each trial. @param prior nullptr, or one that outlives this.
  explicit Survival(double keep = 1, const Survival* prior = nullptr) : keep_(keep), prior_(prior) {}
  /// A round without drafts lets all that was counted fade: what was bad then need not be now.
  void observe(int drafted, int accepted);
  /// a_1 .. a_length, each in (0, 1).
  std::array<double, kDraftLengthMax> conditional() const;

 private:
  struct Count {
    double held = 0, tried = 0;
  };
  std::array<Count, kDraftLengthMax> counts_ = {};
  double keep_;
  const Survival* prior_;
};

/// Survival of each source's drafts, from the sequence's last token and behind the last draft of another source.
class SourceSurvival {
 public:
  /// As of Survival. @param keep_behind  for what is looked up behind others
  SourceSurvival(double keep, double keep_behind, const SourceSurvival* prior = nullptr);
  void observe(const RoundOutcome& outcome);
  /// Drafts of this source were not tried behind others: lets what was counted fade, as what was bad need not be now.
  void fade_behind(DraftSource source) { behind_[static_cast<std::size_t>(source)].observe(0, 0); }
  const Survival& of(DraftSource source) const { return of_[static_cast<std::size_t>(source)]; }
  const Survival& behind(DraftSource source) const { return behind_[static_cast<std::size_t>(source)]; }
  /// Tokens that a round with the drafts of `begun` emits on average, and the chance that all of them hold.
  struct Reach {
    double tokens = 1, survives = 1;
  };
  Reach reach(const RoundOutcome& begun) const;
  /// What is looked up behind the assistant's drafts, on average.
  struct Followed {
    double rows = 0;    ///< of a round
    double tokens = 0;  ///< of one whose drafts all hold
  };
  Followed followed() const;

 private:
  std::array<Survival, kDraftSources> of_, behind_;
  FadingMean rows_, tokens_;
  const SourceSurvival* prior_;
};

}  // namespace outrider
