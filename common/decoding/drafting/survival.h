#pragma once

#include <array>
#include <cstddef>

#include "common/decoding/drafting/draft_policy.h"
#include "common/decoding/drafting/fading.h"

namespace outrider {

/// Probability that draft i of a round is accepted when those before it were, counted with exponential forgetting. With
/// few counts it follows `prior`, or without one the position before.
class Survival {
 public:
  /// @param keep  weight of the past at each trial @param prior  nullptr, or a Survival that outlives this one
  explicit Survival(double keep = 1, const Survival* prior = nullptr) : keep_(keep), prior_(prior) {}
  /// A round without drafts lets the counts fade: past rejections may be outdated.
  void observe(int drafted, int accepted);
  /// a_1 .. a_length, each in (0, 1).
  std::array<double, kDraftLengthMax> conditional() const;

 private:
  struct Count {
    double accepted = 0, tried = 0;
  };
  std::array<Count, kDraftLengthMax> counts_ = {};
  double keep_;
  const Survival* prior_;
};

/// Survival of each source's drafts: after the sequence's last token, and after the last draft of another source.
class SourceSurvival {
 public:
  /// See Survival. @param keep_behind  for looked-up drafts after another source's
  SourceSurvival(double keep, double keep_behind, const SourceSurvival* prior = nullptr);
  void observe(const RoundOutcome& outcome);
  /// Lets the counts fade when this source was not tried after another: past rejections may be outdated.
  void fade_behind(DraftSource source) { behind_[static_cast<std::size_t>(source)].observe(0, 0); }
  const Survival& of(DraftSource source) const { return of_[static_cast<std::size_t>(source)]; }
  const Survival& behind(DraftSource source) const { return behind_[static_cast<std::size_t>(source)]; }
  /// Mean tokens of a round with the drafts of `begun`, and the probability that all of them are accepted.
  struct RoundSoFar {
    double tokens = 1, survives = 1;
  };
  RoundSoFar so_far(const RoundOutcome& begun) const;
  /// Looked-up drafts after the assistant's, on average.
  struct Followed {
    double rows = 0;    ///< per round
    double tokens = 0;  ///< per round whose drafts are all accepted
  };
  Followed followed() const;

 private:
  std::array<Survival, kDraftSources> of_, behind_;
  FadingMean rows_, tokens_;
  const SourceSurvival* prior_;
};

}  // namespace outrider
