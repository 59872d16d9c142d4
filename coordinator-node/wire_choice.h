#pragma once

#include "common/decoding/drafting/fading.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// Chooses the rounding of rows for a drafter with WireForm::kAuto: exact, or int8 while exact rows would certainly
/// take a significant share of its rounds' time. The time of a byte is the slope of the waits for drafts over the bytes
/// sent before: the number of accepted drafts varies, and with it the bytes. If noise hides the slope, nothing changes.
class WireChoice {
 public:
  WireForm form() const { return form_; }
  /// Observes a round that waited for drafts.
  /// @param bytes  to the drafter, in the present or former form
  /// @param wire_s  the wait minus the drafting
  /// @param round_s  the whole round
  /// @return true if form() has changed
  bool observe(double bytes, double wire_s, double round_s);

 private:
  WireForm form_ = WireForm::kExact;
  FadingSums sums_;  ///< of bytes, and of waits
};

}  // namespace outrider
