#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace outrider {

/// Ends a streamed text before its first stop string: the one that completes first, and the longest of those that
/// complete together. The outcome does not depend on how the text is cut into pieces, so that drafts cannot change it.
class StopMatcher {
 public:
  /// Most stop strings, and most bytes of one: they bound held-back text, and the cost of a byte of text.
  static constexpr std::size_t kStopsMax = 64, kStopBytesMax = 1024;

  /// @param stops  may be empty: the text never stops
  /// @param keep_stop  the text ends after the stop string, not before it
  /// @return kInvalidArgument for too many, or one that is empty, too long or not UTF-8
  static Result<StopMatcher> create(std::vector<std::string> stops, bool keep_stop = false);

  /// @param piece  valid UTF-8 from a StreamingDetokenizer
  /// @return text in which no stop string can begin any more, in whole characters. Nothing after the stop
  std::string push(std::string_view piece);
  /// Returns true after a stop string was completed: the text is over.
  bool stopped() const { return !stop_.empty(); }
  /// The stop string that ended the text; empty while none did.
  const std::string& stop() const { return stop_; }
  /// Ends a text without a stop string. @return the held-back text
  std::string finish();

 private:
  /// One stop string, with its longest prefix at the end of the text so far (Knuth, Morris, Pratt 1977).
  struct Stop {
    std::string text;
    std::vector<std::size_t> border;  ///< [i]: longest proper prefix of text[0..i] that is its suffix too
    std::size_t matched = 0;          ///< below text.size()
  };

  std::vector<Stop> stops_;
  std::string held_;  ///< between calls: the longest end of the text that begins a stop string
  bool keep_stop_ = false;
  std::string stop_;  ///< the completed one
};

}  // namespace outrider
