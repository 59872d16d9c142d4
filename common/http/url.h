#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace outrider {

/// An IP address in IPv6 form: IPv4 as ::ffff:a.b.c.d.
using IpAddress = std::array<std::uint8_t, 16>;
/// @return none unless the text is a numeric address
std::optional<IpAddress> parse_ip_address(const std::string& text);
/// Returns true for an address on the public Internet: not this machine, its network, a provider's, multicast,
/// reserved, or an IPv6 form of such an IPv4 address (IANA's registries of special addresses).
bool is_public(const IpAddress& address);

/// HOST[:PORT], with brackets around an IPv6 address.
struct HostPort {
  std::string host, port;  ///< in lower case, without the brackets; may be empty
};
/// @return none for an invalid text, or a port that is not a number
std::optional<HostPort> split_host_port(std::string_view text);

/// HOST[:PORT] of an http(s) URL, and its target.
struct HttpUrl {
  bool tls = false;
  std::string host;  ///< in lower case; IPv6 without brackets
  std::string port;
  std::string target;  ///< path and query

  /// Returns HOST[:PORT], which messages may repeat; the rest may contain a signature.
  std::string server() const;
};
inline constexpr const char* kDefaultPorts[] = {"80", "443"};  ///< without TLS, with it

/// @return kMalformed for another URL, one with a user's name, or one with characters that require %XX
Result<HttpUrl> parse_http_url(std::string_view url);
/// Resolves the URL of a redirection, relative to its source.
std::string absolute_url(const HttpUrl& from, const std::string& location);

}  // namespace outrider
