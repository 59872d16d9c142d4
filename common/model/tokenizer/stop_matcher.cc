#include "common/model/tokenizer/stop_matcher.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/utf8.h"

namespace outrider {
namespace {

/// Advances by one character: returns the longest prefix of `text` that ends there.
std::size_t extend(std::string_view text, const std::vector<std::size_t>& border, std::size_t matched, char next) {
  while (matched > 0 && text[matched] != next) matched = border[matched - 1];
  return matched + (text[matched] == next);
}

}  // namespace

Result<StopMatcher> StopMatcher::create(std::vector<std::string> stops, bool keep_stop) {
  if (stops.size() > kStopsMax)
    return Error(Errc::kInvalidArgument, "{} stop strings, wanted at most {}", stops.size(), kStopsMax);
  StopMatcher matcher;
  matcher.keep_stop_ = keep_stop;
  for (std::string& text : stops) {
    if (text.empty() || text.size() > kStopBytesMax) {
      return Error(Errc::kInvalidArgument, "a stop string of {} bytes, wanted 1 to {}", text.size(), kStopBytesMax);
    }
    if (!is_utf8(text)) return Error{Errc::kInvalidArgument, "a stop string is not UTF-8"};
    std::vector<std::size_t> border = {0};
    for (std::size_t i = 1; i < text.size(); ++i) border.push_back(extend(text, border, border.back(), text[i]));
    matcher.stops_.push_back({std::move(text), std::move(border)});
  }
  return matcher;
}

std::string StopMatcher::push(std::string_view piece) {
  if (stopped()) return {};
  std::size_t pending = held_.size();
  for (const char next : piece) {
    held_ += next;
    pending = 0;
    const Stop* completed = nullptr;  // the longest
    for (Stop& stop : stops_) {
      stop.matched = extend(stop.text, stop.border, stop.matched, next);
      pending = std::max(pending, stop.matched);
      const bool longer = completed == nullptr || completed->text.size() < stop.text.size();
      if (stop.matched == stop.text.size() && longer) completed = &stop;
    }
    if (completed == nullptr) continue;
    stop_ = completed->text;
    if (!keep_stop_) held_.resize(held_.size() - stop_.size());
    return std::exchange(held_, {});
  }
  std::string text = held_.substr(0, held_.size() - pending);
  held_.erase(0, text.size());
  return text;
}

std::string StopMatcher::finish() {
  for (Stop& stop : stops_) stop.matched = 0;
  return std::exchange(held_, {});
}

}  // namespace outrider
