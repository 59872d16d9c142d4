#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace outrider {

/// Keeps pages of other sites from using a server that a reader's browser can reach: directly (Origin), or with a name
/// of theirs that points here (Host, "DNS rebinding"). Pure; any thread.
class WebGuard {
 public:
  /// @param hosts  names without a port, besides this machine's own and any numeric address, which no name server can
  /// redirect; "*": any name @param origins  of pages served by others, such as https://chat.example; "*": any page
  WebGuard(std::vector<std::string> hosts, std::vector<std::string> origins);

  /// @param host  the header, which must occur once @return an error with status 403
  std::optional<ApiError> check_host(std::string_view host) const;
  /// Checks a page's request. @param host  a host that check_host() accepted @return the error if it is refused
  std::optional<ApiError> check_origin(std::string_view origin, std::string_view host) const;
  /// @return true if this page comes from another server and may still read the replies (CORS)
  bool shares_with(std::string_view origin) const;

 private:
  std::vector<std::string> hosts_, origins_;  ///< in lower case
};

/// Returns what is wrong with a name of WebGuard that no Host can match; empty: nothing.
std::string wrong_host(const std::string& host);
/// The same of an origin, which has no path and not the port of its scheme.
std::string wrong_origin(const std::string& origin);

/// Returns the names of a server that listens at `listens_at`, for clients on this machine and around it.
std::vector<std::string> own_names(const std::string& listens_at);

}  // namespace outrider
