#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace outrider {

/// ZeroMQ's events about the connections of one socket. Used by the socket's thread; ends before the socket.
class Monitor {
 public:
  struct Event {
    int number = 0;           ///< ZMQ_EVENT_...
    std::uint32_t value = 0;  ///< depends on the event
    std::string address;      ///< of the connection or listener
  };

  /// @param context, socket  ZeroMQ's.
  /// @param events  bits of the wanted events Throws zmq::error_t when the process has no file handle left.
  Monitor(void* context, void* socket, int events);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// Returns the next event, if any.
  std::optional<Event> take();
  /// For zmq_poll: readable when there is an event.
  void* handle() const { return pair_; }

 private:
  void* const socket_;
  void* pair_ = nullptr;
};

}  // namespace outrider
