// TCP ports for servers that a test starts, stops and starts again.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <random>

#include <gtest/gtest.h>

namespace outrider {

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Returns a TCP port that is free at every address of this machine, another one at each call. The port lies below the
/// kernel's ephemeral range: no connection of another process takes the port before the server is up, or while the
/// server is restarted.
inline std::uint16_t free_port() {
  int first_ephemeral = 32768;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first_ephemeral;
  const int first = 10000, count = std::max(first_ephemeral, 20001) - first;
  static unsigned next = std::random_device()();  // Two processes at the same time begin at different ports.
  for (int tries = 0; tries < 1000; ++tries) {
    const auto port = static_cast<std::uint16_t>(first + static_cast<int>(next++ % static_cast<unsigned>(count)));
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = loopback(port);
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    const bool is_free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    close(fd);
    if (is_free) return port;
  }
  ADD_FAILURE() << "no free port in 1,000 tries";
  return 0;
}

}  // namespace outrider
