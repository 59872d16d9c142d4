#include "common/http/url.h"

#include <arpa/inet.h>

#include <algorithm>
#include <span>

#include "common/base/ascii.h"
#include "common/base/text.h"

namespace outrider {
namespace {

/// Addresses with a common prefix.
struct Prefix {
  IpAddress bytes;
  int bits;

  bool holds(const IpAddress& address) const {
    for (int bit = 0; bit < bits; bit += 8) {
      const auto at = static_cast<std::size_t>(bit / 8);
      const int differs = address[at] ^ bytes[at];
      if ((differs >> std::max(0, bit + 8 - bits)) != 0) return false;
    }
    return true;
  }
};

constexpr Prefix v4(std::uint8_t a, std::uint8_t b, std::uint8_t c, int bits) {
  return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, 0}, 96 + bits};
}

constexpr Prefix kMapped = v4(0, 0, 0, 0);                 // ::ffff:0:0
constexpr Prefix kNat64 = {{0x00, 0x64, 0xff, 0x9b}, 96};  // 64:ff9b::, by which IPv6 reaches IPv4
constexpr Prefix kGlobal = {{0x20}, 3};                    // 2000::, except
constexpr auto kGlobalForOthers = std::to_array<Prefix>({
    {{0x20, 0x01, 0x00, 0x00}, 23},  // protocols, Teredo among them
    {{0x20, 0x01, 0x0d, 0xb8}, 32},
    {{0x3f, 0xff, 0x00}, 20},  // documentation
    {{0x20, 0x02}, 16},        // 6to4
});
constexpr auto kNotPublic = std::to_array<Prefix>({
    v4(0, 0, 0, 8), v4(127, 0, 0, 8),                              // this host
    v4(10, 0, 0, 8), v4(172, 16, 0, 12), v4(192, 168, 0, 16),      // private
    v4(100, 64, 0, 10),                                            // carrier-grade NAT
    v4(169, 254, 0, 16),                                           // link-local, where clouds serve instance secrets
    v4(192, 0, 0, 24), v4(198, 18, 0, 15), v4(192, 88, 99, 24),    // protocols, benchmarks, 6to4
    v4(192, 0, 2, 24), v4(198, 51, 100, 24), v4(203, 0, 113, 24),  // documentation
    v4(224, 0, 0, 4), v4(240, 0, 0, 4),                            // multicast; reserved, and broadcast
});

bool any_holds(std::span<const Prefix> prefixes, const IpAddress& address) {
  return std::ranges::any_of(prefixes, [&](const Prefix& prefix) { return prefix.holds(address); });
}

constexpr std::size_t kUrlBytesMax = 8 << 10;

}  // namespace

std::optional<IpAddress> parse_ip_address(const std::string& text) {
  IpAddress address = kMapped.bytes;
  if (inet_pton(AF_INET, text.c_str(), address.data() + 12) == 1) return address;
  if (inet_pton(AF_INET6, text.c_str(), address.data()) == 1) return address;
  return std::nullopt;
}

bool is_public(const IpAddress& address) {
  if (kMapped.holds(address)) return !any_holds(kNotPublic, address);
  if (kNat64.holds(address)) {
    IpAddress of_v4 = kMapped.bytes;
    std::copy(address.begin() + 12, address.end(), of_v4.begin() + 12);
    return is_public(of_v4);
  }
  return kGlobal.holds(address) && !any_holds(kGlobalForOthers, address);
}

std::optional<HostPort> split_host_port(std::string_view text) {
  HostPort split;
  std::string_view rest;
  if (text.starts_with('[')) {
    const std::size_t end = std::min(text.find(']'), text.size() - 1);
    split.host = in_lower_case(text.substr(1, end - 1));
    rest = text.substr(end + 1);
    if (text[end] != ']' || !parse_ip_address(split.host) || split.host.find(':') == split.host.npos)
      return std::nullopt;
  } else {
    const std::size_t end = std::min(text.find(':'), text.size());
    split.host = in_lower_case(text.substr(0, end));
    rest = text.substr(end);
    if (split.host.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_.*") != split.host.npos ||
        split.host.empty() || split.host.size() > 253)
      return std::nullopt;
  }
  if (rest.empty()) return split;
  const std::uint16_t port = to_number<std::uint16_t>(rest.substr(1)).value_or(0);
  if (rest[0] != ':' || port == 0) return std::nullopt;
  split.port = std::to_string(port);
  return split;
}

std::string HttpUrl::server() const {
  const std::string name = host.find(':') == host.npos ? host : "[" + host + "]";
  return name + (port == kDefaultPorts[tls] ? "" : ":" + port);
}

Result<HttpUrl> parse_http_url(std::string_view url) {
  const Error wrong{Errc::kMalformed, "is not a URL like https://HOST/PATH"};
  if (url.size() > kUrlBytesMax)
    return Error(Errc::kMalformed, "is a URL of {} bytes, wanted at most {}", url.size(), kUrlBytesMax);
  if (!std::ranges::all_of(url, [](char c) { return c > 0x20 && c < 0x7f && c != '\\'; })) return wrong;
  const std::size_t scheme = url.find("://");
  const std::string name = in_lower_case(url.substr(0, std::min(scheme, url.size())));
  if (scheme == url.npos || (name != "http" && name != "https")) return wrong;
  url.remove_prefix(scheme + 3);
  const std::size_t path = std::min(url.find_first_of("/?#"), url.size());
  const std::optional<HostPort> host = split_host_port(url.substr(0, path));
  if (!host || host->host.find('*') != std::string::npos) return wrong;
  HttpUrl read{.tls = name == "https", .host = host->host, .port = host->port, .target = "/"};
  if (read.port.empty()) read.port = kDefaultPorts[read.tls];
  const std::string_view target = url.substr(path, url.find('#') - path);
  read.target = target.starts_with('/') ? std::string(target) : "/" + std::string(target);
  return read;
}

std::string absolute_url(const HttpUrl& from, const std::string& location) {
  const std::size_t scheme = location.find_first_of(":/?#");
  if (scheme != location.npos && location[scheme] == ':') return location;
  const std::string protocol = from.tls ? "https:" : "http:", origin = protocol + "//" + from.server();
  if (location.starts_with("//")) return protocol + location;
  if (location.starts_with('/')) return origin + location;
  const std::string path = from.target.substr(0, from.target.find('?'));
  return origin + (location.starts_with('?') ? path : path.substr(0, path.rfind('/') + 1)) + location;
}

}  // namespace outrider
