#include "common/wire/transport/reachable.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

namespace outrider {
namespace {

constexpr std::string_view kAll4 = "tcp://0.0.0.0:", kAll6 = "tcp://[::]:";

/// An address of this host with its rank; the lowest rank is the best.
using Ranked = std::pair<int, std::string>;
constexpr int kUseless = 9;

Ranked ranked(const sockaddr_in& address) {
  const std::uint32_t ip = ntohl(address.sin_addr.s_addr);
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  const bool loopback = ip >> 24 == 127, link_local = ip >> 16 == 0xa9fe;
  const bool is_private = ip >> 24 == 10 || ip >> 20 == 0xac1 || ip >> 16 == 0xc0a8;
  return {loopback || link_local ? kUseless : is_private ? 0 : 1, text};
}

Ranked ranked(const sockaddr_in6& address) {
  const in6_addr& ip = address.sin6_addr;
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(AF_INET6, &ip, text, sizeof text);
  const bool useless = IN6_IS_ADDR_LOOPBACK(&ip) || IN6_IS_ADDR_LINKLOCAL(&ip);
  const bool is_private = (ip.s6_addr[0] & 0xfe) == 0xfc;
  return {useless ? kUseless : is_private ? 2 : 3, fmt::format("[{}]", text)};
}

}  // namespace

std::vector<std::string> reachable_addresses(const std::string& bound) {
  const bool all6 = bound.starts_with(kAll6);
  if (!all6 && !bound.starts_with(kAll4)) return {bound};
  const std::string port = bound.substr(bound.rfind(':'));
  std::vector<Ranked> found;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return {};
  for (const ifaddrs* i = interfaces; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    if (i->ifa_addr->sa_family == AF_INET) found.push_back(ranked(*reinterpret_cast<sockaddr_in*>(i->ifa_addr)));
    if (i->ifa_addr->sa_family == AF_INET6 && all6)
      found.push_back(ranked(*reinterpret_cast<sockaddr_in6*>(i->ifa_addr)));
  }
  freeifaddrs(interfaces);
  std::ranges::stable_sort(found, {}, &Ranked::first);
  std::vector<std::string> addresses;
  for (const auto& [rank, host] : found) {
    if (rank != kUseless) addresses.push_back("tcp://" + host + port);
  }
  return addresses;
}

}  // namespace outrider
