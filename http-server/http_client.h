#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"
#include "http-server/http_message.h"

// An HTTP/1.1 client on Boost.Beast, with TLS: one request on a connection of its own. Whom it asks is decided before.

namespace outrider {

/// Whether nobody waits for an outcome any more. Any thread.
using Gone = std::function<bool()>;

/// Looks a name up in the system's way.
/// @return its addresses in numbers, at least one; kNotFound for a name that nobody knows; kTimeout; kCancelled once
///   `gone`; kUnavailable where too many are being looked up.
Result<std::vector<std::string>> addresses_of(const std::string& host, TimePoint deadline, const Gone& gone);

/// HOST[:PORT] of an http(s) URL, and what may be asked of it.
struct HttpUrl {
  bool tls = false;
  std::string host;  ///< in lower case; IPv6 without brackets
  std::string port;
  std::string target;  ///< path and query

  /// HOST[:PORT]: what a message may repeat of it, as the rest may hold a signature.
  std::string server() const;
};
inline constexpr const char* kDefaultPorts[] = {"80", "443"};  ///< without TLS, with it

struct HttpCall {
  HttpUrl url;  ///< as the other end is to hear it; with TLS its certificate must be the host's, by the trust store
  std::vector<std::string> addresses;  ///< in numbers: one of them is connected to, and nothing else
  std::string method = "GET", body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  TimePoint deadline = TimePoint::max();  ///< of the whole
  Gone gone = [] { return false; };
  /// Judges the head of the reply. @return most bytes of its body; 0: it is not read. Or why there is to be none.
  /// @param length  of the body, where the head says it; else -1
  std::function<Result<std::int64_t>(const HttpReply& head, std::int64_t length)> admit = {};
};

/// @return the reply, with its headers' names in lower case; kTimeout; kCancelled once `gone`; kIo where no connection
///   is made, or one breaks or is not trusted by TLS; kOutOfRange for a body that is longer than admitted.
Result<HttpReply> call_http(const HttpCall& call);

}  // namespace outrider
