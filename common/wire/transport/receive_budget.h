#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/time.h"
#include "common/os/logging.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// Tracks long messages in transit over a connection, by the kernel's byte counts.
class Arrival {
 public:
  struct Bytes {
    std::uint64_t received = 0, acknowledged = 0;
    std::uint64_t waiting = 0;  ///< given to the kernel, not yet acknowledged
  };
  /// Returns the kernel's counts for ZeroMQ's handle; none if the handle is no longer a connection.
  static std::optional<Bytes> bytes_of(int fd);
  /// @param got_message  true when a message was received since the last look
  void look(const Bytes& bytes, bool got_message);
  /// Bytes received since the last message was known to be complete.
  std::uint64_t half() const { return last_ - before_; }
  /// Returns true when more of a long message arrived since the last call.
  bool more() { return std::exchange(more_, false); }
  /// Returns true when more of a long message was sent since the last call, but not all of it.
  bool leaving() { return std::exchange(leaving_, false); }

 private:
  std::uint64_t before_ = 0, last_ = 0, acknowledged_ = 0;
  bool more_ = false, leaving_ = false;
};

/// Bounds the memory that peers can make a listening ZeroMQ socket hold. ZeroMQ keeps the frames of a message until its
/// last one has come, however many there are, and accepts frames of any size during a handshake; it has no option
/// against either. This class observes connections from outside and cuts some, upon which ZeroMQ frees their memory:
/// - *Endless messages.* The messages of a connection come one after the other. More bytes than a message may have,
///   without a complete message, belong to an endless one.
/// - *Strangers*, on a socket with keys. Before the handshake is done, a peer may send a handshake's bytes at most. If
///   too many peers are in that state, the oldest connections are cut.
/// - *All half-received messages together.* A frame takes more memory than it has bytes, many times as much if it is
///   small or arrives in small pieces. Their memory is measured as the growth of this process since there were none.
///   Beyond a bound, the connections with the most bytes are cut, until they make up half of the sum. (A process that
///   listens has no model whose K/V could grow: clusters within a process use inproc://, which is not observed.)
///
/// Bytes are the kernel's count per connection, encrypted or not. Used by the socket's thread.
class ReceiveBudget {
 public:
  struct Limits {
    std::size_t message_bytes_max;  ///< of all frames of a message together
    bool keys = false;              ///< the socket has keys: a peer that has not proved its own is a stranger
  };
  static constexpr std::size_t kStrangersMax = 256;

  explicit ReceiveBudget(const Limits& limits);

  /// Handles are ZeroMQ's own.
  void opened(int fd) { connections_[fd] = {.number = ++opened_, .unauthenticated = keys_}; }
  void closed(int fd) {
    if (connections_.erase(fd) == 0 && undropped_ > 0) --undropped_;
    ++left_;
  }
  /// @return true if `peer` sent the last message over the connection that has this handle now
  bool knows(int fd, const PeerId& peer) const {
    const auto connection = connections_.find(fd);
    return connection != connections_.end() && connection->second.peer == peer;
  }
  /// Cuts that peer's connection, unless the connection has ended: its handle may then belong to another.
  void cut(int fd, const PeerId& peer, TimePoint now, std::string_view event, std::string_view why);
  /// Records that a message of this connection was received from `peer`.
  void on_received(int fd, const PeerId& peer);
  /// See Endpoint.
  std::vector<PeerId> arriving() { return peers_with(&Arrival::more); }
  std::vector<PeerId> leaving() { return peers_with(&Arrival::leaving); }
  /// For lack of a file handle, cuts the older half of the connections that have never sent a message.
  /// @return their number
  int cut_silent(TimePoint now);
  /// Cuts the connections that exceed a limit. Cheap: looks once per kInterval at most. To be called between messages:
  /// a peer with a complete message is received before the next look, since ZeroMQ takes peers in turn.
  void check(TimePoint now);

 private:
  struct Connection {
    std::uint64_t number = 0;  ///< in order of arrival
    PeerId peer = {};          ///< sender of the last message; at first perhaps the handle's previous peer
    Arrival arrival = {};
    bool unauthenticated = false;  ///< its handshake is not complete
    bool got_message = false;      ///< a message was received since the last look
    bool suspect = false;  ///< over the limit at the last look: after a pause of ours it may be several messages
  };
  std::vector<PeerId> peers_with(bool (Arrival::*change)());
  /// Asks the kernel about all connections. Forgets those that are closed.
  void look();
  void cut_without_end(TimePoint now);
  void cut_unauthenticated(TimePoint now);
  void bound_memory(TimePoint now);
  /// Returns the memory of closed connections, some 25 KiB each and their half messages, to the system. Repeats as long
  /// as connections close or are about to, since ZeroMQ's thread may drop them late.
  void give_back(TimePoint now);
  /// @return the next connection
  std::map<int, Connection>::iterator cut(std::map<int, Connection>::iterator connection, TimePoint now,
                                          std::string_view event, std::string_view why);

  const bool keys_;
  const std::uint64_t message_max_, memory_max_;
  std::map<int, Connection> connections_;
  std::uint64_t opened_ = 0;
  TimePoint next_{};
  // State of bound_memory().
  std::optional<std::uint64_t> baseline_;  ///< memory of this process before there were half messages
  std::uint64_t allowed_;                  ///< current bound above baseline_
  bool over_ = false;                      ///< over the bound at the last look: a pause of ours does that too
  std::optional<TimePoint> settled_;       ///< time at which the memory of what was cut is expected back
  // State of give_back().
  std::size_t left_ = 0;       ///< connections closed since memory was returned
  std::size_t undropped_ = 0;  ///< connections cut for their memory whose end ZeroMQ has not reported
  std::optional<TimePoint> give_back_;
  RateLimit limit_;
};

}  // namespace outrider
