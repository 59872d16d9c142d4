#include "common/wire/transport/receive_budget.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/wire/transport/address.h"

namespace outrider {
namespace {

/// Bytes between ZeroMQ and the network, and overhead of encryption and framing.
constexpr std::uint64_t kSlack = 16u << 20;
/// CURVE's greeting, HELLO and INITIATE have 64, 202 and some 300 bytes. A peer whose handshake succeeded has
/// acknowledged a greeting and a WELCOME of 64 and 170 bytes, and then a READY, which is longer than an ERROR (12).
constexpr std::uint64_t kHandshakeMax = 4096, kAdmittedMin = 64 + 170 + 32;
/// Below this sum of half-received messages their memory is not measured.
constexpr std::uint64_t kCalm = 1u << 20;
/// Memory bound of all half-received messages, in messages of the largest size.
constexpr std::uint64_t kMessagesMax = 8;
/// Heartbeats are shorter.
constexpr std::uint64_t kLong = 2048;
constexpr Duration kInterval = std::chrono::milliseconds(50);  ///< between two looks
/// Time in which ZeroMQ frees the memory of a cut connection.
constexpr Duration kDropped = std::chrono::seconds(1);
/// Closed connections after which their memory is returned; the allocator keeps some 6 MiB at most.
constexpr std::size_t kLeftMax = 256;

std::optional<tcp_info> tcp_info_of(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return info;
}

/// Returns this process's anonymous resident memory, in bytes.
std::uint64_t anonymous_memory() {
  std::uint64_t size = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> size >> resident >> shared;
  return (resident - std::min(resident, shared)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

ReceiveBudget::ReceiveBudget(const Limits& limits)
    : keys_(limits.keys),
      message_max_(limits.message_bytes_max + kSlack),
      memory_max_(kMessagesMax * message_max_),
      allowed_(memory_max_) {}

std::optional<Arrival::Bytes> Arrival::bytes_of(int fd) {
  const std::optional<tcp_info> info = tcp_info_of(fd);
  if (!info) return std::nullopt;
  int waiting = 0;
  if (ioctl(fd, SIOCOUTQ, &waiting) != 0) waiting = 0;
  return Bytes{info->tcpi_bytes_received, info->tcpi_bytes_acked, static_cast<std::uint64_t>(std::max(waiting, 0))};
}

void Arrival::look(const Bytes& bytes, bool got_message) {
  const bool came = bytes.received > last_;
  last_ = std::max(last_, bytes.received);
  if (got_message) before_ = last_;
  more_ = more_ || (came && half() > kLong);
  leaving_ = leaving_ || (bytes.acknowledged > acknowledged_ && bytes.waiting > kLong);
  acknowledged_ = bytes.acknowledged;
}

void ReceiveBudget::on_received(int fd, const PeerId& peer) {
  const auto connection = connections_.find(fd);
  if (connection == connections_.end()) return;
  connection->second.got_message = true;
  connection->second.peer = peer;
}

std::vector<PeerId> ReceiveBudget::peers_with(bool (Arrival::*change)()) {
  std::vector<PeerId> peers;
  for (auto& [fd, connection] : connections_) {
    if ((connection.arrival.*change)() && !connection.peer.empty()) peers.push_back(connection.peer);
  }
  return peers;
}

void ReceiveBudget::cut(int fd, const PeerId& peer, TimePoint now, std::string_view event, std::string_view why) {
  if (knows(fd, peer)) cut(connections_.find(fd), now, event, why);
}

int ReceiveBudget::cut_silent(TimePoint now) {
  std::vector<std::pair<std::uint64_t, int>> silent;
  for (const auto& [fd, connection] : connections_) {
    if (connection.peer.empty()) silent.emplace_back(connection.number, fd);
  }
  std::ranges::sort(silent);
  silent.resize((silent.size() + 1) / 2);
  for (const auto& [number, fd] : silent)
    cut(connections_.find(fd), now, "silent", "no file handle is left, and it has said nothing");
  return static_cast<int>(silent.size());
}

void ReceiveBudget::check(TimePoint now) {
  if (now < next_) return;
  next_ = now + kInterval;
  look();
  cut_without_end(now);
  if (keys_) cut_unauthenticated(now);
  give_back(now);
  bound_memory(now);
}

void ReceiveBudget::look() {
  for (auto entry = connections_.begin(); entry != connections_.end();) {
    auto& [fd, connection] = *entry;
    const std::optional<Arrival::Bytes> bytes = Arrival::bytes_of(fd);
    if (!bytes) {
      entry = connections_.erase(entry);
      continue;
    }
    if (connection.got_message) connection.suspect = false;
    connection.arrival.look(*bytes, std::exchange(connection.got_message, false));
    connection.unauthenticated = connection.unauthenticated && bytes->acknowledged < kAdmittedMin;
    ++entry;
  }
}

void ReceiveBudget::cut_without_end(TimePoint now) {
  for (auto entry = connections_.begin(); entry != connections_.end();) {
    Connection& connection = entry->second;
    const bool cuts = connection.arrival.half() > message_max_ && std::exchange(connection.suspect, true);
    entry =
        cuts ? cut(entry, now, "endless_message",
                   fmt::format("{} bytes of one message, at most {} allowed", connection.arrival.half(), message_max_))
             : std::next(entry);
  }
}

void ReceiveBudget::cut_unauthenticated(TimePoint now) {
  std::vector<std::uint64_t> numbers;
  for (const auto& [fd, connection] : connections_) {
    if (connection.unauthenticated) numbers.push_back(connection.number);
  }
  std::uint64_t first_kept = 0;
  if (numbers.size() > kStrangersMax) {
    std::ranges::nth_element(numbers, numbers.end() - kStrangersMax);
    first_kept = *(numbers.end() - kStrangersMax);
  }
  for (auto entry = connections_.begin(); entry != connections_.end();) {
    const Connection& connection = entry->second;
    const bool too_much = connection.arrival.half() > kHandshakeMax, too_many = connection.number < first_kept;
    entry = connection.unauthenticated && (too_much || too_many)
                ? cut(entry, now, "stranger",
                      too_much ? fmt::format("{} bytes of a handshake, at most {} allowed", connection.arrival.half(),
                                             kHandshakeMax)
                               : fmt::format("{} connections shake hands, at most {} allowed: the first to come goes",
                                             numbers.size(), kStrangersMax))
                : std::next(entry);
  }
}

void ReceiveBudget::bound_memory(TimePoint now) {
  if (settled_ && now >= *settled_) {
    settled_.reset();
    allowed_ = memory_max_;
  }
  std::uint64_t all = 0;
  for (const auto& [fd, connection] : connections_) all += connection.arrival.half();
  if (all < kCalm) {
    over_ = false;
    if (!settled_) baseline_.reset();
    return;
  }
  const std::uint64_t memory = anonymous_memory();
  if (!baseline_) baseline_ = memory;
  const std::uint64_t held = memory - std::min(memory, *baseline_);
  if (!std::exchange(over_, held > allowed_) || !over_) return;
  std::vector<std::pair<std::uint64_t, int>> most;
  for (const auto& [fd, connection] : connections_) most.emplace_back(connection.arrival.half(), fd);
  std::ranges::sort(most, std::greater<>());
  std::uint64_t cut_off = 0;
  for (auto one = most.begin(); 2 * cut_off < all; ++one) {
    cut_off += one->first;
    ++undropped_;
    cut(connections_.find(one->second), now, "half_messages",
        fmt::format("half messages take {} bytes of memory, at most {} allowed, and {} came here", held, memory_max_,
                    one->first));
  }
  // Freed memory is reused before it is returned, and counts as held until then.
  allowed_ = held + memory_max_ / kMessagesMax;
  if (!settled_) give_back_ = settled_ = now + kDropped;
}

void ReceiveBudget::give_back(TimePoint now) {
  if (left_ >= kLeftMax && !give_back_) give_back_ = now + kDropped;
  if (!give_back_ || now < *give_back_) return;
  malloc_trim(0);
  give_back_ = std::exchange(left_, 0) + undropped_ > 0 ? std::optional(now + kDropped) : std::nullopt;
}

std::map<int, ReceiveBudget::Connection>::iterator ReceiveBudget::cut(std::map<int, Connection>::iterator connection,
                                                                      TimePoint now, std::string_view event,
                                                                      std::string_view why) {
  const std::string peer = peer_address(connection->first);
  ::shutdown(connection->first, SHUT_RDWR);
  if (const auto more = limit_.pass(now))
    log_warn("event={} from={} reason=\"{}: its connection is cut\"{}", event, peer, why, *more);
  return connections_.erase(connection);
}

}  // namespace outrider
