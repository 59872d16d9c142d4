#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace outrider {

/// An IP address, as IPv6 writes it: one of IPv4 as ::ffff:a.b.c.d.
using IpAddress = std::array<std::uint8_t, 16>;
/// @return nothing for what is no address in numbers.
std::optional<IpAddress> parse_ip_address(const std::string& text);
/// Whether anybody on the Internet may mean this address by it: not this machine, its network, a provider's, multicast,
/// what is reserved, or an address of IPv4 that is none, in IPv6's clothes (IANA's registries of special addresses).
bool is_public(const IpAddress& address);

/// HOST[:PORT], with brackets around an IPv6 address.
struct HostPort {
  std::string host, port;  ///< in lower case, without the brackets; perhaps empty
};
/// @return nothing for what is none, or has no number for its port.
std::optional<HostPort> split_host_port(std::string_view text);

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

/// @return kMalformed for another URL, one with a user's name, or with what URLs have to write as %XX.
Result<HttpUrl> parse_http_url(std::string_view url);
/// It resolves the URL of a redirection, seen from where it came.
std::string absolute_url(const HttpUrl& from, const std::string& location);

}  // namespace outrider
