#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/descriptor.h"
#include "common/logging/logging.h"
#include "common/transport/inflow.h"
#include "common/transport/monitor.h"

namespace outrider {

/// Keeps a listening ZeroMQ socket from spinning when this process has no file handle left for who dials: ZeroMQ would
/// try to accept the same connection again and again. One handle is kept back, with which those who wait at the door
/// are let in and at once out again; where ZeroMQ took that one too, the limit is raised by one, as far as the system
/// allows. Who is connected already notices nothing. And what peers can make it hold is bounded (Inflow).
///
/// The socket's thread; made before the socket is bound, ends before it.
class ListenerGuard {
 public:
  /// Throws zmq::error_t where the system has no file handle left.
  ListenerGuard(void* context, void* socket, const Inflow::Limits& limits);

  /// Does what there is to do.
  void service();
  /// A message was handed out that came over ZeroMQ's handle `fd`.
  void heard(int fd) { inflow_.heard(fd); }
  /// Which connection has this handle of ZeroMQ's; it may be another's later.
  std::uint64_t number(int fd) {
    service();
    return inflow_.number(fd);
  }
  /// Cuts that connection, unless it has ended.
  void cut(int fd, std::uint64_t number, std::string_view why) {
    service();
    inflow_.cut(fd, number, now(), "in_vain", why);
  }
  /// Between messages: cuts off who brings too much.
  void check() { inflow_.check(now()); }
  /// For zmq_poll: readable when there is something.
  void* monitor() const { return monitor_.handle(); }

 private:
  void turn_away();

  Monitor monitor_;
  int listener_ = -1;  ///< ZeroMQ's own handle
  Descriptor spare_;
  Inflow inflow_;
  RateLimit limit_;
};

}  // namespace outrider
