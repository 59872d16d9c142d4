#include "http-server/http_message.h"

#include <algorithm>

namespace outrider {

HttpReply error_reply(const ApiError& error) {
  HttpReply reply{.status = error.status, .body = error_body(error)};
  if (error.status == 429 || error.status == 503)
    reply.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  return reply;
}

void each_event(std::string_view events, const std::function<void(std::string_view data)>& on_data) {
  constexpr std::string_view kData = "data: ", kEnd = "\n\n";
  while (!events.empty()) {
    const std::string_view event = events.substr(0, events.find(kEnd));
    events.remove_prefix(std::min(events.size(), event.size() + kEnd.size()));
    if (event.starts_with(kData)) on_data(event.substr(kData.size()));
  }
}

}  // namespace outrider
