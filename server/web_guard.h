#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace outrider {

/// Keeps pages of other sites from using a server that their reader's browser can reach: by asking it as they are
/// (their Origin), or after their own name has been made to point here (Host, "DNS rebinding"). Pure; any thread.
class WebGuard {
 public:
  /// @param hosts  names without a port, besides this machine's own and any address in numbers, which no name server
  /// can
  ///   turn to somebody else; "*": any name
  /// @param origins  as in https://chat.example, of pages that other servers serve; "*": any page
  WebGuard(std::vector<std::string> hosts, std::vector<std::string> origins);

  /// @param host  the header, of which there was one. @return why not, with status 403.
  std::optional<ApiError> check_host(std::string_view host) const;
  /// It checks a request that a page has made. @param host  whose check_host() passed. @return why it is refused
  std::optional<ApiError> check_origin(std::string_view origin, std::string_view host) const;
  /// @return whether this page comes from another server and may still read the replies (CORS).
  bool shares_with(std::string_view origin) const;

 private:
  std::vector<std::string> hosts_, origins_;  ///< in lower case
};

/// It lists the names of a server that listens at `listens_at`, for people and programs on this machine and around it.
std::vector<std::string> own_names(const std::string& listens_at);

}  // namespace outrider
