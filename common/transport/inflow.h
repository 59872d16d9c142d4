#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "common/base/time.h"
#include "common/logging/logging.h"

namespace outrider {

/// Bounds what one peer can make a listening ZeroMQ socket hold. ZeroMQ keeps the frames of a message until its last
/// one has come, however many these are, and has no option against it. So this looks from outside: the messages of a
/// connection come one after the other, and where none has been handed out while more bytes came in than a message may
/// have, it is one without end. Such a connection is cut, upon which ZeroMQ drops what it holds of it.
///
/// Bytes are the kernel's count of what has come over a connection, encrypted or not. The socket's thread.
class Inflow {
 public:
  /// @param bytes_max  of a message's frames together.
  explicit Inflow(std::size_t bytes_max) : bytes_max_(bytes_max + kSlack) {}

  /// ZeroMQ's own handles.
  void opened(int fd) { connections_[fd] = {}; }
  void closed(int fd) { connections_.erase(fd); }
  /// A message of this connection was handed out.
  void heard(int fd);
  /// Cuts the connections that have gone too far. Cheap: it looks once in kInterval at most. To be called between
  /// messages: whoever has a whole one waiting is heard from one look to the next, since ZeroMQ takes peers in turn.
  void check(TimePoint now);

 private:
  /// What may lie between ZeroMQ and the wire, and what encryption and frames add.
  static constexpr std::size_t kSlack = 16u << 20;
  static constexpr Duration kInterval = std::chrono::milliseconds(50);

  struct Connection {
    std::uint64_t before = 0;  ///< bytes that had come when a message was last known to be handed out
    bool heard = false;        ///< one was since the last look
    bool suspect = false;      ///< more than a message had come by then: after a pause of ours it may be several
  };
  void cut(int fd, std::uint64_t bytes, TimePoint now);

  const std::uint64_t bytes_max_;
  std::map<int, Connection> connections_;
  TimePoint next_{};
  RateLimit limit_;
};

}  // namespace outrider
