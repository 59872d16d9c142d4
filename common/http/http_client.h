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

// An HTTP/1.1 client on Boost.Beast, with TLS: one request per connection. The caller chooses the addresses.

namespace outrider {

/// Returns true when nobody waits for the outcome any more. Any thread.
using Gone = std::function<bool()>;

/// Resolves a name through the system.
/// @return its numeric addresses, at least one; kNotFound for an unknown name; kTimeout; kCancelled once `gone`;
/// kUnavailable if too many look-ups are running
Result<std::vector<std::string>> addresses_of(const std::string& host, TimePoint deadline, const Gone& gone);

/// A server's answer, or its head.
struct HttpAnswer {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers = {};  ///< names in lower case
  std::string body = {};

  /// Returns the first header of this name, empty if there is none. @param name  in lower case
  std::string header(std::string_view name) const;
};

struct HttpCall {
  HttpUrl url;  ///< as sent to the other end; with TLS its certificate must be the host's, by the trust store
  std::vector<std::string> addresses;  ///< numeric, tried one after the other; nothing else is connected to
  std::string method = "GET", body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  TimePoint deadline = TimePoint::max();     ///< of the whole call
  std::optional<Duration> silence_max = {};  ///< longest time without new bytes
  Gone gone = [] { return false; };
  /// Checks the head of the answer.
  /// @return most bytes of its body, 0 to skip it, or an error
  /// @param length  of the body, if the head has it; else -1
  std::function<Result<std::int64_t>(const HttpAnswer& head, std::int64_t length)> admit = {};
  /// Receives the next piece of the body, and may return an error to end it; empty: the answer collects the body.
  std::function<Result<void>(std::string_view piece)> on_body = {};
};

/// @return the answer; kTimeout; kCancelled once `gone`; kIo if no connection is made, or one breaks or is not trusted
/// by TLS; kOutOfRange for a body that is longer than admitted; on_body's error
Result<HttpAnswer> call_http(const HttpCall& call);

inline constexpr int kRedirectsMax = 5;

/// Calls call_http(), and follows redirections. Only the first server gets Authorization. `admit` is not called for
/// redirections.
/// @param addresses  allowed addresses of a server, or the reason that there are none
/// @return as call_http() and `addresses`, with the name of the failing server before the message; kUnsupported for too
/// many redirections, and for one from https to http
Result<HttpAnswer> follow_http(HttpCall call,
                               const std::function<Result<std::vector<std::string>>(const HttpUrl& url)>& addresses);

}  // namespace outrider
