#include "common/transport/endpoint.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <zmq.hpp>

#include "common/transport/codec.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace outrider {
namespace {

int to_zmq_ms(Duration d) { return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(d).count()); }

Error zmq_error(const char* verb, const std::string& address, int number) {
  const bool nonsense = number == EINVAL || number == EPROTONOSUPPORT || number == ENOCOMPATPROTO;
  return Error{nonsense ? Errc::kInvalidArgument : Errc::kIo,
               fmt::format("cannot {} {}: {}", verb, address, zmq_strerror(number))};
}

/// Refuses a TCP port that ZeroMQ would not: it listens at 34463 when asked for 99999, and at 80
/// for 80x.
void check_port(const std::string& address) {
  if (!address.starts_with("tcp://")) return;
  const std::string port = address.substr(address.rfind(':') + 1);
  unsigned number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  const bool is_number = error == std::errc() && end == port.data() + port.size();
  if (port != "*" && !(is_number && number <= 65'535)) {
    errno = EINVAL;
    throw zmq::error_t();
  }
}

void set_options(zmq::socket_t& socket, const EndpointOptions& options) {
  socket.set(zmq::sockopt::linger, to_zmq_ms(options.linger));
  socket.set(zmq::sockopt::sndhwm, options.queue_messages_max);
  socket.set(zmq::sockopt::rcvhwm, options.queue_messages_max);
  socket.set(zmq::sockopt::maxmsgsize,
             static_cast<std::int64_t>(std::max(options.limits.header_bytes_max, options.limits.tensor_bytes_max)));
  // What opens a TCP connection and then does not speak ZMTP is dropped, not kept for ever.
  socket.set(zmq::sockopt::handshake_ivl, 5'000);
  // To notice a host that vanished without closing its connection, which TCP by itself may take hours
  // for. Slow enough that cores full of GEMM cannot fake a dead peer; the protocol's own heartbeats
  // judge whether a node still works. Not ZMTP's heartbeats: libzmq 4.3.4 aborts when a connection with
  // them is remade while its queue is full (libzmq issue 3937).
  socket.set(zmq::sockopt::tcp_maxrt, 10'000);
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, 5);
  socket.set(zmq::sockopt::tcp_keepalive_intvl, 2);
  socket.set(zmq::sockopt::tcp_keepalive_cnt, 3);
  // A restarted coordinator is found at once; one that stays away costs little. Without the
  // maximum there is no back-off.
  socket.set(zmq::sockopt::reconnect_ivl, 50);
  socket.set(zmq::sockopt::reconnect_ivl_max, 1'000);
}

/// A ZeroMQ frame that shares `bytes` until ZeroMQ, on whatever thread, is done with it.
zmq::message_t to_frame(const SharedBytes& bytes) {
  auto* const holder = new SharedBytes(bytes);
  return zmq::message_t(
      const_cast<std::byte*>(bytes.bytes().data()), bytes.bytes().size(),
      [](void*, void* hint) { delete static_cast<SharedBytes*>(hint); }, holder);
}

/// The frame's bytes, 8-byte aligned.
SharedBytes to_shared(zmq::message_t frame) {
  const std::size_t size = frame.size();
  if (reinterpret_cast<std::uintptr_t>(frame.data()) % alignof(std::uint64_t) == 0) {
    const auto owner = std::make_shared<zmq::message_t>(std::move(frame));
    return SharedBytes(owner, {owner->data<const std::byte>(), size});
  }
  // Why: ZeroMQ hands out small TCP frames in place within its 8 KiB receive buffer, at any
  // address. A copy of one is cheap; large frames have memory of their own, aligned.
  const std::shared_ptr<std::uint64_t[]> copy =
      std::make_shared_for_overwrite<std::uint64_t[]>(size / sizeof(std::uint64_t) + 1);
  std::memcpy(copy.get(), frame.data(), size);
  return SharedBytes(copy, {reinterpret_cast<const std::byte*>(copy.get()), size});
}

// ThreadSanitizer does not see how ZeroMQ, which is not built with it, hands in-process bytes from
// one thread to another.
#ifdef __SANITIZE_THREAD__
char handover;
void bytes_leave() { __tsan_release(&handover); }
void bytes_arrive() { __tsan_acquire(&handover); }
#else
void bytes_leave() {}
void bytes_arrive() {}
#endif

/// Takes one frame. @return false when there is none.
bool take(zmq::socket_t& socket, zmq::message_t& frame) {
  int rc;
  do {
    rc = zmq_msg_recv(frame.handle(), socket.handle(), ZMQ_DONTWAIT);
  } while (rc < 0 && errno == EINTR);
  return rc >= 0;
}

/// Queues one frame. @return 0 or the error number.
int put(zmq::socket_t& socket, zmq::message_t& frame, bool more) {
  const int flags = ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0);
  int rc;
  do {
    rc = zmq_msg_send(frame.handle(), socket.handle(), flags);
  } while (rc < 0 && errno == EINTR);
  return rc < 0 ? errno : 0;
}

/// A file descriptor that poll sees as readable after signal(), until clear().
class EventFd {
 public:
  EventFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) throw zmq::error_t();  // carries errno
  }
  ~EventFd() { close(fd_); }
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;

  int fd() const { return fd_; }
  void signal() { [[maybe_unused]] const int rc = eventfd_write(fd_, 1); }
  void clear() {
    eventfd_t count;
    [[maybe_unused]] const int rc = eventfd_read(fd_, &count);
  }

 private:
  int fd_;
};

}  // namespace

struct TransportContext::Impl {
  zmq::context_t zmq{1};
};

TransportContext::TransportContext() : impl_(std::make_unique<Impl>()) {}
TransportContext::~TransportContext() = default;
TransportContext::TransportContext(TransportContext&&) noexcept = default;
TransportContext& TransportContext::operator=(TransportContext&&) noexcept = default;

struct Endpoint::Impl {
  Impl(zmq::context_t& context, bool is_bound, const EndpointOptions& opts)
      : bound(is_bound), options(opts), socket(context, bound ? zmq::socket_type::router : zmq::socket_type::dealer) {
    set_options(socket, options);
    // Else a ROUTER drops in silence what it cannot deliver.
    if (bound) socket.set(zmq::sockopt::router_mandatory, true);
  }

  bool readable() const { return (socket.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0; }

  const bool bound;  ///< a ROUTER, whose messages carry the peer's name; else a DEALER
  const EndpointOptions options;
  zmq::socket_t socket;
  std::string address;
  EventFd wake_event;
  std::atomic<bool> woken = false;  ///< the event has been signalled, or is about to be
};

Endpoint::Endpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Endpoint::~Endpoint() = default;

Result<std::unique_ptr<Endpoint>> Endpoint::bind(TransportContext& context, const std::string& address,
                                                 const EndpointOptions& options) {
  try {
    auto impl = std::make_unique<Impl>(context.impl_->zmq, true, options);
    check_port(address);
    impl->socket.bind(address);
    impl->address = impl->socket.get(zmq::sockopt::last_endpoint);
    return std::unique_ptr<Endpoint>(new Endpoint(std::move(impl)));
  } catch (const zmq::error_t& error) {
    return zmq_error("listen at", address, error.num());
  }
}

Result<std::unique_ptr<Endpoint>> Endpoint::connect(TransportContext& context, const std::string& address,
                                                    const EndpointOptions& options) {
  try {
    auto impl = std::make_unique<Impl>(context.impl_->zmq, false, options);
    check_port(address);
    impl->socket.connect(address);
    impl->address = address;
    return std::unique_ptr<Endpoint>(new Endpoint(std::move(impl)));
  } catch (const zmq::error_t& error) {
    return zmq_error("connect to", address, error.num());
  }
}

const std::string& Endpoint::address() const { return impl_->address; }

Result<std::size_t> Endpoint::send(const PeerId& to, const Message& message) {
  std::vector<zmq::message_t> parts;
  if (impl_->bound) parts.emplace_back(to);
  std::size_t bytes = 0;
  for (const SharedBytes& frame : encode(message)) {
    bytes += frame.bytes().size();
    parts.push_back(to_frame(frame));
  }

  bytes_leave();

  // The first part decides: it finds the peer, and a place in its queue for the whole message.
  int error = put(impl_->socket, parts[0], parts.size() > 1);
  if (error == 0) {
    // When the connection dies between two parts, ZeroMQ drops the message but still wants the rest
    // of it, or it would take the next message for that rest.
    for (std::size_t i = 1; i < parts.size(); ++i) {
      const int rest = put(impl_->socket, parts[i], i + 1 < parts.size());
      if (error == 0) error = rest;
    }
  }
  if (error == 0) return bytes;
  if (error == EAGAIN) {
    return Error{Errc::kUnavailable, fmt::format("cannot send {}: {} messages are waiting for {}", name_of(message),
                                                 impl_->options.queue_messages_max, impl_->address)};
  }
  return Error{Errc::kPeerGone, fmt::format("cannot send {}: {}", name_of(message), zmq_strerror(error))};
}

std::optional<Received> Endpoint::receive() {
  zmq::message_t frame;
  if (!take(impl_->socket, frame)) return std::nullopt;
  bytes_arrive();
  PeerId from;
  if (impl_->bound) {
    from = frame.to_string();
    take(impl_->socket, frame);  // ZeroMQ delivers whole messages, so the rest is there
  }

  // One frame too many is kept for decode() to complain about; the rest only counted.
  const std::size_t frames_max = impl_->options.limits.tensors_max + 2;
  Frames frames;
  std::size_t bytes = 0;
  for (bool more = true; more; more = more && take(impl_->socket, frame)) {
    more = frame.more();
    bytes += frame.size();
    if (frames.size() < frames_max) frames.push_back(to_shared(std::move(frame)));
  }
  return Received{std::move(from), decode(frames, impl_->options.limits), bytes};
}

void Endpoint::wait(Duration timeout) {
  const auto ready = [this] { return impl_->woken.load(std::memory_order_relaxed) || impl_->readable(); };
  bool done = false;
  if (const Duration spin = std::min(impl_->options.spin, timeout); spin > Duration::zero()) {
    const TimePoint end = now() + spin;
    while (!(done = ready()) && now() < end) {
    }
  }
  if (!done) {
    // zmq_poll and not poll: a socket's descriptor is edge-triggered, and says nothing of messages
    // that an earlier call has already noticed.
    zmq_pollitem_t items[] = {{impl_->socket.handle(), 0, ZMQ_POLLIN, 0},
                              {nullptr, impl_->wake_event.fd(), ZMQ_POLLIN, 0}};
    zmq_poll(items, std::size(items), to_zmq_ms(timeout));
  }
  // In this order: a wake() after the exchange signals again, one before it is answered by our
  // return.
  impl_->wake_event.clear();
  impl_->woken.exchange(false);
}

void Endpoint::wake() {
  if (!impl_->woken.exchange(true)) impl_->wake_event.signal();
}

}  // namespace outrider
