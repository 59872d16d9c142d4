#include "http-server/http_message.h"

namespace outrider {

HttpReply error_reply(const ApiError& error) {
  HttpReply reply{.status = error.status, .body = error_body(error)};
  if (error.status == 429 || error.status == 503)
    reply.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  return reply;
}

}  // namespace outrider
