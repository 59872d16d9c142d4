#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace outrider {

/// Ends a text that comes in pieces before the first stop string in it: the one that is complete first, and the longest
/// of those that end together. The outcome does not depend on how the text is cut into pieces, so drafts can not change
/// it.
class StopMatcher {
 public:
  /// Most stop strings, and most bytes of one: what is held back and what a byte of text costs are bounded by them.
  static constexpr std::size_t kStopsMax = 64, kStopBytesMax = 1024;

  /// @param stops perhaps none, then the text never stops.
  /// @param keep_stop the text ends behind the stop string, not before it.
  /// @return kInvalidArgument for too many, one that is empty, too long or not UTF-8.
  static Result<StopMatcher> create(std::vector<std::string> stops, bool keep_stop = false);

  /// @param piece valid UTF-8, as StreamingDetokenizer gives it.
  /// @return the text that may be shown now: what no stop string can begin in any more. Whole characters. After the
  /// stop, nothing.
  std::string push(std::string_view piece);
  /// Whether a stop string is complete: the text is over.
  bool stopped() const { return !stop_.empty(); }
  /// The stop string that ended the text; empty while none did.
  const std::string& stop() const { return stop_; }
  /// Ends the text where no stop string did. @return what was held back.
  std::string finish();

 private:
  /// One stop string and how much of it the text ends with (Knuth, Morris, Pratt 1977).
  struct Stop {
    std::string text;
    std::vector<std::size_t> border;  ///< [i]: longest proper prefix of text[0..i] that is its suffix too
    std::size_t matched = 0;          ///< below text.size()
  };

  std::vector<Stop> stops_;
  std::string held_;  ///< between calls: the longest end of the text that is the beginning of a stop string
  bool keep_stop_ = false;
  std::string stop_;  ///< that came
};

}  // namespace outrider
