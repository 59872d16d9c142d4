#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/http/http_client.h"

namespace outrider {

/// Fetches files from http(s) URLs in requests, from servers allowed by the operator, and never from addresses that
/// only this machine can reach: a name is resolved once, each of its addresses is checked, and one of those is
/// connected to (docs/http.md, "Pictures from elsewhere"). Any thread, many concurrently.
class MediaFetcher {
 public:
  /// The signature of addresses_of().
  using Resolve = std::function<Result<std::vector<std::string>>(const std::string& host, TimePoint, const Gone&)>;

  /// @param domains  HOST[:PORT], *.DOMAIN[:PORT], or * for any; without a PORT 80 and 443. A numeric address may be a
  /// private one. @return kInvalidArgument for an entry in another form
  static Result<MediaFetcher> create(const std::vector<std::string>& domains, Resolve resolve = addresses_of);

  /// @param admit  called before the body is read, with an upper bound of its bytes
  /// @return the file; or an error with the server's name: kInvalidArgument if it is not allowed, call_http()'s error,
  /// or `admit`'s
  Result<std::string> fetch(const std::string& url, const std::function<Result<void>(std::int64_t bytes)>& admit,
                            TimePoint deadline, const Gone& gone) const;

 private:
  struct Domain {
    std::string host;  ///< in lower case; "*" any, "*.DOMAIN" any in it
    std::string port;  ///< empty: 80 and 443
    bool holds(const HttpUrl& url, const std::string& host_or_address) const;
  };

  MediaFetcher(std::vector<Domain> domains, Resolve resolve)
      : domains_(std::move(domains)), resolve_(std::move(resolve)) {}
  /// @return all addresses of its host, each of which is allowed
  Result<std::vector<std::string>> checked_addresses(const HttpUrl& url, TimePoint deadline, const Gone& gone) const;

  std::vector<Domain> domains_;
  Resolve resolve_;
};

}  // namespace outrider
