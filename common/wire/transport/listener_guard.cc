#include "common/wire/transport/listener_guard.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>
#include <zmq.hpp>

namespace outrider {
namespace {
/// Allows this process one more file handle. @return false when the system does not allow it
bool raise_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return false;
  ++limit.rlim_cur;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

/// Repeats because ZeroMQ's thread may take each new handle for another connection.
Descriptor open_spare() {
  constexpr int kTriesMax = 16;
  Descriptor fd;
  for (int tries = 0; tries < kTriesMax; ++tries) {
    fd = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (fd >= 0 || errno != EMFILE || !raise_limit()) break;
  }
  return fd;
}
}  // namespace

ListenerGuard::ListenerGuard(void* context, void* socket, const ReceiveBudget::Limits& limits)
    : monitor_(context, socket,
               ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPT_FAILED | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED),
      spare_(open_spare()),
      receive_budget_(limits) {}

void ListenerGuard::service() {
  bool full = false;
  if (spare_ < 0) spare_ = open_spare();
  while (const std::optional<Monitor::Event> event = monitor_.take()) {
    const int value = static_cast<int>(event->value);
    switch (event->number) {
      case ZMQ_EVENT_LISTENING:
        listener_ = value;
        // Keeps accept() in turn_away() from blocking when ZeroMQ's thread took the connection first.
        ::fcntl(listener_, F_SETFL, ::fcntl(listener_, F_GETFL) | O_NONBLOCK);
        break;
      case ZMQ_EVENT_ACCEPTED: receive_budget_.opened(value); break;
      case ZMQ_EVENT_DISCONNECTED: receive_budget_.closed(value); break;
      default: full = full || value == EMFILE || value == ENFILE;
    }
  }
  if (full && listener_ >= 0) turn_away();
}

void ListenerGuard::on_received(int fd, const PeerId& peer) {
  // ZeroMQ's notice that the connection was opened may still be unread when its first message is taken. Without it the
  // peer would count as silent, and be cut in place of one that is.
  if (!receive_budget_.knows(fd, peer)) service();
  receive_budget_.on_received(fd, peer);
}

void ListenerGuard::turn_away() {
  spare_ = Descriptor();
  int turned_away = 0;
  for (int fd = 0; (fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; ++turned_away) ::close(fd);
  spare_ = open_spare();
  const int cut = receive_budget_.cut_silent(now());
  if (const auto more = limit_.pass(now())) {
    log_warn("event=no_file_handles reason=\"{}; see ulimit -n\"{}",
             cut > 0 || turned_away > 0
                 ? fmt::format("{} connections cut that had said nothing, {} turned away", cut, turned_away)
                 : "others wait for one, and all that are connected have said something",
             *more);
  }
}

}  // namespace outrider
