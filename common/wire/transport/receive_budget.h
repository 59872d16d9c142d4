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

/// Whether a long message is on its way over a connection, by the kernel's counts of its bytes.
class Arrival {
 public:
  struct Bytes {
    std::uint64_t received = 0, acknowledged = 0;
    std::uint64_t waiting = 0;  ///< given to the kernel, and not acknowledged
  };
  /// What the kernel counts for ZeroMQ's handle; none: it is no connection any more.
  static std::optional<Bytes> bytes_of(int fd);
  /// @param heard  a message was handed out since the last look
  void look(const Bytes& bytes, bool heard);
  /// Bytes that came since a message was last known to be handed out.
  std::uint64_t half() const { return last_ - before_; }
  /// Whether more of one has come since this was asked last.
  bool more() { return std::exchange(more_, false); }
  /// Whether more of a long one has left since this was asked last, and not all of it.
  bool leaving() { return std::exchange(leaving_, false); }

 private:
  std::uint64_t before_ = 0, last_ = 0, acknowledged_ = 0;
  bool more_ = false, leaving_ = false;
};

/// Bounds what peers can make a listening ZeroMQ socket hold. ZeroMQ keeps the frames of a message until its last one
/// has come, however many these are, and takes a frame as large as any while it shakes hands; it has no option against
/// either. So this looks from outside, and cuts connections, upon which ZeroMQ drops what it holds of them:
/// - *One without end.* The messages of a connection come one after the other: where none was handed out while more
///   bytes came in than a message may have, it is one without end.
/// - *Strangers*, in front of a socket with keys. Who has not shaken hands may bring no more than a handshake, and of
///   too many the first to come go.
/// - *All half messages together.* A frame costs more memory than it has bytes, many times as much where it is small or
///   comes in small pieces. So their memory is measured, as what this process took while there were any: beyond a bound
///   those that have brought most go, until they are half of all that came. (A process that listens has no model, whose
///   K/V could take as much: clusters within a process are inproc://, where nothing is looked at.)
///
/// Bytes are the kernel's count of what has come over a connection, encrypted or not. The socket's thread.
class ReceiveBudget {
 public:
  struct Limits {
    std::size_t message_bytes_max;  ///< of a message's frames together
    bool keys = false;              ///< the socket has some: who has not proved his is a stranger
  };
  static constexpr std::size_t kStrangersMax = 256;

  explicit ReceiveBudget(const Limits& limits);

  /// ZeroMQ's own handles.
  void opened(int fd) { connections_[fd] = {.number = ++opened_, .stranger = keys_}; }
  void closed(int fd) {
    if (connections_.erase(fd) == 0 && undropped_ > 0) --undropped_;
    ++left_;
  }
  /// Whether `peer` has been heard over the connection that has this handle now.
  bool knows(int fd, const PeerId& peer) const {
    const auto connection = connections_.find(fd);
    return connection != connections_.end() && connection->second.peer == peer;
  }
  /// Cuts that peer's connection, unless it has ended: then its handle may be another's.
  void cut(int fd, const PeerId& peer, TimePoint now, std::string_view event, std::string_view why);
  /// A message of this connection was handed out, which is that peer's.
  void heard(int fd, const PeerId& peer);
  /// As Endpoint::arriving().
  std::vector<PeerId> arriving();
  /// As Endpoint::leaving().
  std::vector<PeerId> leaving();
  /// There is no handle for another connection: cuts the first half of those that have never said anything.
  /// @return how many that were
  int cut_silent(TimePoint now);
  /// Cuts the connections that have gone too far. Cheap: it looks once in kInterval at most. To be called between
  /// messages: whoever has a whole one waiting is heard from one look to the next, since ZeroMQ takes peers in turn.
  void check(TimePoint now);

 private:
  struct Connection {
    std::uint64_t number = 0;  ///< the first to come has the least
    PeerId peer = {};          ///< who has said something over it last: before its own, what an earlier one had said
    Arrival arrival = {};
    bool stranger = false;  ///< has not shaken hands
    bool heard = false;     ///< a message was handed out since the last look
    bool suspect = false;   ///< more than a message had come by then: after a pause of ours it may be several
  };
  /// Asks the kernel about all of them. Forgets those that are gone.
  void look();
  void cut_without_end(TimePoint now);
  void cut_strangers(TimePoint now);
  void bound_memory(TimePoint now);
  /// Gives what ZeroMQ had for connections that have left, some 25 KiB each and their half messages, back to the
  /// system; and again as long as more of them leave or are to leave, since its thread may be late to drop them.
  void give_back(TimePoint now);
  /// @return the next one.
  std::map<int, Connection>::iterator cut(std::map<int, Connection>::iterator connection, TimePoint now,
                                          std::string_view event, std::string_view why);

  const bool keys_;
  const std::uint64_t message_max_, memory_max_;
  std::map<int, Connection> connections_;
  std::uint64_t opened_ = 0;
  TimePoint next_{};
  // Of bound_memory().
  std::optional<std::uint64_t> calm_;  ///< this process's memory before there were half messages
  std::uint64_t allowed_;              ///< beyond calm_, for now
  bool over_ = false;                  ///< it was more at the last look: after a pause of ours it may be whole messages
  std::optional<TimePoint> settled_;   ///< what was cut is given back then
  // Of give_back().
  std::size_t left_ = 0;       ///< connections, since memory was given back
  std::size_t undropped_ = 0;  ///< that were cut for their memory, and ZeroMQ has not said yet that they left
  std::optional<TimePoint> give_back_;
  RateLimit limit_;
};

}  // namespace outrider
