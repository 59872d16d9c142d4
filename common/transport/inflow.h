#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "common/base/time.h"
#include "common/logging/logging.h"

namespace outrider {

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
class Inflow {
 public:
  struct Limits {
    std::size_t message_bytes_max;  ///< of a message's frames together
    bool keys = false;              ///< the socket has some: who has not proved his is a stranger
  };
  static constexpr std::size_t kStrangersMax = 256;

  explicit Inflow(const Limits& limits);

  /// ZeroMQ's own handles.
  void opened(int fd) { connections_[fd] = {.number = ++opened_, .stranger = keys_}; }
  void closed(int fd) { connections_.erase(fd); }
  /// Which connection has this handle now; 0: none that is known.
  std::uint64_t number(int fd) const {
    const auto connection = connections_.find(fd);
    return connection == connections_.end() ? 0 : connection->second.number;
  }
  /// Cuts the connection of that number, unless it has ended.
  void cut(int fd, std::uint64_t number, TimePoint now, std::string_view event, std::string_view why);
  /// A message of this connection was handed out.
  void heard(int fd);
  /// Cuts the connections that have gone too far. Cheap: it looks once in kInterval at most. To be called between
  /// messages: whoever has a whole one waiting is heard from one look to the next, since ZeroMQ takes peers in turn.
  void check(TimePoint now);

 private:
  struct Connection {
    std::uint64_t number = 0;  ///< the first to come has the least
    std::uint64_t before = 0;  ///< bytes that had come when a message was last known to be handed out
    std::uint64_t half = 0;    ///< that have come since
    bool stranger = false;     ///< has not shaken hands
    bool heard = false;        ///< a message was handed out since the last look
    bool suspect = false;      ///< more than a message had come by then: after a pause of ours it may be several
  };
  /// Asks the kernel about all of them. Forgets those that are gone.
  void look();
  void cut_without_end(TimePoint now);
  void cut_strangers(TimePoint now);
  void bound_memory(TimePoint now);
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
  std::optional<TimePoint> trim_;      ///< what ZeroMQ has dropped is given back to the system then
  RateLimit limit_;
};

}  // namespace outrider
