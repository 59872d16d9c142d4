#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/http/url.h"

// An HTTP/1.1 client on Boost.Beast, with TLS: one request on a connection of its own. Whom it asks is decided before.

namespace outrider {

/// Whether nobody waits for an outcome any more. Any thread.
using Gone = std::function<bool()>;

/// Looks a name up in the system's way.
/// @return its addresses in numbers, at least one; kNotFound for a name that nobody knows; kTimeout; kCancelled once
///   `gone`; kUnavailable where too many are being looked up.
Result<std::vector<std::string>> addresses_of(const std::string& host, TimePoint deadline, const Gone& gone);

/// It holds a server's answer, or the head of it.
struct HttpAnswer {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers = {};  ///< names in lower case
  std::string body = {};

  /// It gives the first header of this name, empty if there is none. @param name  in lower case
  std::string header(std::string_view name) const;
};

struct HttpCall {
  HttpUrl url;  ///< as the other end is to hear it; with TLS its certificate must be the host's, by the trust store
  std::vector<std::string> addresses;  ///< in numbers, tried one after the other; nothing else is connected to
  std::string method = "GET", body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  TimePoint deadline = TimePoint::max();     ///< of the whole
  std::optional<Duration> silence_max = {};  ///< how long nothing may come
  Gone gone = [] { return false; };
  /// Judges the head of the answer. @return most bytes of its body; 0: it is not read. Or why there is to be none.
  /// @param length  of the body, where the head says it; else -1
  std::function<Result<std::int64_t>(const HttpAnswer& head, std::int64_t length)> admit = {};
  /// Takes the next piece of the body, or says why there is to be no more; empty: the answer holds all of it.
  std::function<Result<void>(std::string_view piece)> on_body = {};
};

/// @return the answer; kTimeout; kCancelled once `gone`; kIo where no connection is made, or one breaks or is not
///   trusted by TLS; kOutOfRange for a body that is longer than admitted; what on_body said.
Result<HttpAnswer> call_http(const HttpCall& call);

inline constexpr int kRedirectsMax = 5;

/// call_http(), and again at the place that a redirection names. Another server than the first one gets no
/// Authorization. `admit` is asked about no redirection.
/// @param addresses  of a server: those that may be connected to, or why none may
/// @return as call_http() and `addresses`, with the name of the server that is at fault in front of the message;
///   kUnsupported for too many redirections, and for one from https to http.
Result<HttpAnswer> follow_http(HttpCall call,
                               const std::function<Result<std::vector<std::string>>(const HttpUrl& url)>& addresses);

}  // namespace outrider
