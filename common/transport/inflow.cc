#include "common/transport/inflow.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <sys/socket.h>

#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace outrider {
namespace {

/// Bytes that have come over a TCP connection; nothing where there is none any more.
std::optional<std::uint64_t> received_bytes(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return info.tcpi_bytes_received;
}

std::string peer_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[INET6_ADDRSTRLEN] = "?";
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return text;
  const void* const number = address.ss_family == AF_INET6
                                 ? static_cast<const void*>(&reinterpret_cast<sockaddr_in6&>(address).sin6_addr)
                                 : &reinterpret_cast<sockaddr_in&>(address).sin_addr;
  inet_ntop(address.ss_family, number, text, sizeof text);
  return text;
}

}  // namespace

void Inflow::heard(int fd) {
  if (const auto connection = connections_.find(fd); connection != connections_.end()) connection->second.heard = true;
}

void Inflow::check(TimePoint now) {
  if (now < next_) return;
  next_ = now + kInterval;
  for (auto entry = connections_.begin(); entry != connections_.end();) {
    auto& [fd, connection] = *entry;
    const std::optional<std::uint64_t> bytes = received_bytes(fd);
    if (bytes && connection.heard) connection = {.before = *bytes};
    const bool too_far = bytes && *bytes > connection.before + bytes_max_;
    const bool cuts = too_far && std::exchange(connection.suspect, true);
    if (cuts) cut(fd, *bytes - connection.before, now);
    entry = !bytes || cuts ? connections_.erase(entry) : std::next(entry);
  }
}

void Inflow::cut(int fd, std::uint64_t bytes, TimePoint now) {
  const std::string peer = peer_of(fd);
  ::shutdown(fd, SHUT_RDWR);
  std::int64_t held_back = 0;
  if (!limit_.pass(now, &held_back)) return;
  log_warn(
      "event=endless_message from={} reason=\"{} bytes of one message, at most {} allowed: its connection is cut\"{}",
      peer, bytes, bytes_max_, held_back > 0 ? fmt::format(" ({} more held back)", held_back) : "");
}

}  // namespace outrider
