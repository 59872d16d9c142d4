#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/http/http_client.h"

namespace outrider {

/// Gets the files that http(s) URLs in requests name, from where its operator has allowed it, and from nowhere that
/// only this machine can reach: a name is looked up once, each of its addresses is checked, and one of those is
/// connected to (docs/http.md, "Pictures from elsewhere"). Any thread, many at once.
class MediaFetcher {
 public:
  /// It is a function like addresses_of().
  using Resolve = std::function<Result<std::vector<std::string>>(const std::string& host, TimePoint, const Gone&)>;

  /// @param domains  HOST[:PORT], *.DOMAIN[:PORT], or * for any; without a PORT 80 and 443. An address in numbers may
  ///   be one that is not public.
  /// @return kInvalidArgument for an entry that has none of these forms.
  static Result<MediaFetcher> create(const std::vector<std::string>& domains, Resolve resolve = addresses_of);

  /// @param admit  asked before the body is read, with the bytes that it takes at most
  /// @return the file; or why not, with the server's name: kInvalidArgument for one that is not allowed, what
  ///   call_http() said, or what `admit` said.
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
  /// @return all addresses of its host, each of which may be connected to.
  Result<std::vector<std::string>> checked_addresses(const HttpUrl& url, TimePoint deadline, const Gone& gone) const;

  std::vector<Domain> domains_;
  Resolve resolve_;
};

}  // namespace outrider
