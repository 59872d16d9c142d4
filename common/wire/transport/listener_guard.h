#pragma once

#include <string_view>
#include <vector>

#include "common/os/descriptor.h"
#include "common/os/logging.h"
#include "common/wire/transport/monitor.h"
#include "common/wire/transport/receive_budget.h"

namespace outrider {

/// Keeps a listening ZeroMQ socket from spinning when this process has no file handle left for new connections, which
/// ZeroMQ would try to accept again and again. One spare handle is reserved: with it, waiting connections are accepted
/// and closed at once. If ZeroMQ took that handle too, the limit is raised by one, as far as the system allows.
/// Existing connections are unaffected. ReceiveBudget bounds the memory that peers can occupy.
///
/// Used by the socket's thread; made before the socket is bound, ends before it.
class ListenerGuard {
 public:
  /// Throws zmq::error_t when the process has no file handle left.
  ListenerGuard(void* context, void* socket, const ReceiveBudget::Limits& limits);

  /// Handles pending connection events.
  void service();
  /// A message of a peer was handed out that came over ZeroMQ's handle `fd`.
  void on_received(int fd, const PeerId& peer);
  std::vector<PeerId> arriving() { return receive_budget_.arriving(); }
  std::vector<PeerId> leaving() { return receive_budget_.leaving(); }
  /// Cuts a peer's connection, which had this handle of ZeroMQ's, unless the connection has ended.
  void cut(int fd, const PeerId& peer, std::string_view why) {
    service();
    receive_budget_.cut(fd, peer, now(), "in_vain", why);
  }
  /// To be called between messages: cuts connections that exceed the ReceiveBudget.
  void check() { receive_budget_.check(now()); }
  /// For zmq_poll: readable when service() is to be called.
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
