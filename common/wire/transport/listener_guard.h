#pragma once

#include <string_view>
#include <vector>

#include "common/os/descriptor.h"
#include "common/os/logging.h"
#include "common/wire/transport/monitor.h"
#include "common/wire/transport/receive_budget.h"

namespace outrider {

/// Keeps a listening ZeroMQ socket from spinning when this process has no file handle left for who dials: ZeroMQ would
/// try to accept the same connection again and again. One handle is kept back, with which those who wait at the door
/// are let in and at once out again; where ZeroMQ took that one too, the limit is raised by one, as far as the system
/// allows. Who is connected already notices nothing. And what peers can make it hold is bounded (ReceiveBudget).
///
/// The socket's thread; made before the socket is bound, ends before it.
class ListenerGuard {
 public:
  /// Throws zmq::error_t where the system has no file handle left.
  ListenerGuard(void* context, void* socket, const ReceiveBudget::Limits& limits);

  /// Does what there is to do.
  void service();
  /// A message of a peer was handed out that came over ZeroMQ's handle `fd`.
  void heard(int fd, const PeerId& peer);
  std::vector<PeerId> arriving() { return receive_budget_.arriving(); }
  std::vector<PeerId> leaving() { return receive_budget_.leaving(); }
  /// Cuts a peer's connection, which had this handle of ZeroMQ's, unless it has ended.
  void cut(int fd, const PeerId& peer, std::string_view why) {
    service();
    receive_budget_.cut(fd, peer, now(), "in_vain", why);
  }
  /// Between messages: cuts off who brings too much.
  void check() { receive_budget_.check(now()); }
  /// For zmq_poll: readable when there is something.
  void* monitor() const { return monitor_.handle(); }

 private:
  void turn_away();

  Monitor monitor_;
  int listener_ = -1;  ///< ZeroMQ's own handle
  Descriptor spare_;
  ReceiveBudget receive_budget_;
  RateLimit limit_;
};

}  // namespace outrider
