#pragma once

#include "common/decoding/drafting/fading_sums.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// What a drafter that leaves it to its coordinator (WireForm::kAuto) gets its rows rounded to: nothing, or int8 while
/// exact rows would surely take a share of its rounds' time that counts. The time of a byte is the slope of the waits
/// for drafts over the bytes that went out before: rounds keep more or fewer drafts, so that their bytes differ. Where
/// noise hides it, nothing changes.
class WireChoice {
 public:
  WireForm form() const { return form_; }
  /// A round is over in which drafts were waited for. @param bytes  to the drafter, in the form of now or before.
  /// @param wire_s  the wait less the drafting. @param round_s  the whole round. @return whether form() is another now.
  bool observe(double bytes, double wire_s, double round_s);

 private:
  WireForm form_ = WireForm::kExact;
  FadingSums sums_;  ///< of bytes, and of waits
};

}  // namespace outrider
