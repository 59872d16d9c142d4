#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace outrider {

/// What ZeroMQ says of the connections of one socket. The socket's thread; ends before the socket.
class Monitor {
 public:
  struct Event {
    int number = 0;           ///< ZMQ_EVENT_...
    std::uint32_t value = 0;  ///< what it means depends on the event
    std::string address;      ///< of the connection it is about, or of the listener
  };

  /// @param context, socket  ZeroMQ's. @param events  wanted ones, by their bits.
  /// Throws zmq::error_t where the system has no file handle left.
  Monitor(void* context, void* socket, int events);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// The next event, if there is one.
  std::optional<Event> take();
  /// For zmq_poll: readable when there is one.
  void* handle() const { return pair_; }

 private:
  void* const socket_;
  void* pair_ = nullptr;
};

}  // namespace outrider
