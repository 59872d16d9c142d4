#include "common/wire/transport/endpoint.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <zmq.hpp>

#include "common/base/token_bucket.h"
#include "common/os/descriptor.h"
#include "common/os/logging.h"
#include "common/wire/transport/address.h"
#include "common/wire/transport/authorization.h"
#include "common/wire/transport/codec.h"
#include "common/wire/transport/dialer.h"
#include "common/wire/transport/gatekeeper.h"
#include "common/wire/transport/key_needs.h"
#include "common/wire/transport/listener_guard.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace outrider {
namespace {

int to_zmq_ms(Duration d) { return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(d).count()); }

Error zmq_error(const char* verb, const std::string& address, int number) {
  const bool nonsense = number == EINVAL || number == EPROTONOSUPPORT || number == ENOCOMPATPROTO;
  return Error(nonsense ? Errc::kInvalidArgument : Errc::kIo, "cannot {} {}: {}{}", verb, address, zmq_strerror(number),
               nonsense ? std::string(", wanted ") + kAddressForm : "");
}

void set_options(zmq::socket_t& socket, const EndpointOptions& options) {
  socket.set(zmq::sockopt::linger, to_zmq_ms(options.linger));
  socket.set(zmq::sockopt::sndhwm, options.queue_messages_max);
  socket.set(zmq::sockopt::rcvhwm, options.queue_messages_max);
  socket.set(zmq::sockopt::maxmsgsize,
             static_cast<std::int64_t>(std::max(options.limits.header_bytes_max, options.limits.tensor_bytes_max)));
  // Drops a TCP connection that does not speak ZMTP.
  socket.set(zmq::sockopt::handshake_ivl, 5'000);
  // Detects a host that vanished without closing its connection, for which TCP alone may take hours. The timeouts are
  // long enough that cores full of GEMM do not look like a dead peer; the protocol's own heartbeats judge whether a
  // node still works. ZMTP's heartbeats are not used: libzmq 4.3.4 aborts when a connection with them is remade while
  // its queue is full (libzmq issue 3937).
  socket.set(zmq::sockopt::tcp_maxrt, 10'000);
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, 5);
  socket.set(zmq::sockopt::tcp_keepalive_intvl, 2);
  socket.set(zmq::sockopt::tcp_keepalive_cnt, 3);
  // Finds a restarted coordinator at once, and costs little while one stays away. Without the maximum there is no
  // back-off.
  socket.set(zmq::sockopt::reconnect_ivl, 50);
  socket.set(zmq::sockopt::reconnect_ivl_max, 1'000);
}

/// Makes ZeroMQ reject connections when no gatekeeper answers. Its header declares the option in draft builds only, but
/// every build has it.
Result<void> enforce_domain(zmq::socket_t& socket) {
  constexpr int kZapEnforceDomain = 93;
  const int on = 1;
  if (zmq_setsockopt(socket.handle(), kZapEnforceDomain, &on, sizeof on) == 0) return {};
  return Error(Errc::kUnsupported, "this ZeroMQ cannot enforce keys: {}", zmq_strerror(errno));
}

/// Makes a ZeroMQ frame that shares `bytes` until ZeroMQ, on any thread, is done with them.
zmq::message_t to_frame(const SharedBytes& bytes) {
  auto* const holder = new SharedBytes(bytes);
  return zmq::message_t(
      const_cast<std::byte*>(bytes.bytes().data()), bytes.bytes().size(),
      [](void*, void* hint) { delete static_cast<SharedBytes*>(hint); }, holder);
}

/// Returns the frame's bytes, 8-byte aligned.
SharedBytes to_shared(zmq::message_t frame) {
  const std::size_t size = frame.size();
  if (reinterpret_cast<std::uintptr_t>(frame.data()) % alignof(std::uint64_t) == 0) {
    const auto owner = std::make_shared<zmq::message_t>(std::move(frame));
    return SharedBytes(owner, {owner->data<const std::byte>(), size});
  }
  // ZeroMQ hands out small TCP frames in place within its 8 KiB receive buffer, at any address. Copying one is cheap;
  // large frames have aligned memory of their own.
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

/// Queues one frame. @return 0 or the error number
int put(zmq::socket_t& socket, zmq::message_t& frame, bool more) {
  const int flags = ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0);
  int rc;
  do {
    rc = zmq_msg_send(frame.handle(), socket.handle(), flags);
  } while (rc < 0 && errno == EINTR);
  return rc < 0 ? errno : 0;
}

}  // namespace

struct TransportContext::Impl {
  explicit Impl(Security given) : security(std::move(given)) { zmq.set(zmq::ctxopt::max_sockets, kSocketsMax); }
  static constexpr int kSocketsMax = 16'384;  ///< three per TCP connection; a server has one connection per request
  const Security security;
  zmq::context_t zmq{1};
  std::unique_ptr<Gatekeeper> gatekeeper;  ///< declared after the context, since its socket must close first
  std::atomic<bool> connected = false;     ///< true once any endpoint was connected
};

TransportContext::TransportContext(Security security) : impl_(std::make_unique<Impl>(std::move(security))) {}
TransportContext::~TransportContext() = default;
TransportContext::TransportContext(TransportContext&&) noexcept = default;
TransportContext& TransportContext::operator=(TransportContext&&) noexcept = default;

struct Endpoint::Impl {
  struct KeyState;
  Impl(zmq::context_t& context, bool is_bound, const EndpointOptions& opts)
      : bound(is_bound), options(opts), socket(context, bound ? zmq::socket_type::router : zmq::socket_type::dealer) {
    if (wake_event < 0) throw zmq::error_t();  // carries errno
    set_options(socket, options);
    // Without this option a ROUTER silently drops what it cannot deliver.
    if (bound) socket.set(zmq::sockopt::router_mandatory, true);
  }

  bool readable() const { return (socket.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0; }
  /// Handles connection events. After dialling anew, sends `unsent` again: it was lost with the previous attempt.
  void service();
  /// Takes the first frames of a message, up to the one after its peer's name. Drops messages of ignored_peers.
  bool take_first(zmq::message_t& frame, PeerId& from);
  /// Sleeps for a moment, or until another peer sends, when only peers of ignored_peers have messages. They are read so
  /// slowly that their queues fill, ZeroMQ stops reading their connections, and TCP holds them up.
  void wait_for_others(Duration timeout);
  /// Ignores the connection of the last message from now on. An earlier ignored connection of the same key is cut: each
  /// costs a look per message of other peers, and ZeroMQ would go on reading it.
  void ignore_sender(KeyState& of_key);
  /// Returns true when the key of the last message may join as a worker.
  bool may_join() const {
    const auto of_key = by_key.find(sender.key);
    return of_key == by_key.end() || now() >= of_key->second.may_join;
  }
  /// For zmq_poll: readable when service() is to be called.
  void* monitor() const { return dialer ? dialer->monitor() : guard ? guard->monitor() : nullptr; }

  const bool bound;  ///< a ROUTER, whose messages carry the peer's name; else a DEALER
  const EndpointOptions options;
  zmq::socket_t socket;
  std::string address;
  const Gatekeeper* gatekeeper = nullptr;      ///< set when peers have keys
  std::unique_ptr<Dialer> dialer;              ///< connected over TCP; ends before the socket, as its monitor must
  std::atomic<bool>* was_connected = nullptr;  ///< the context's flag, with a dialer
  std::unique_ptr<ListenerGuard> guard;        ///< bound over TCP; ends before the socket too
  std::deque<Frames> unsent;                   ///< handed to ZeroMQ before there was a connection
  const Descriptor wake_event{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::atomic<bool> woken = false;  ///< the event has been signalled, or is about to be

  // Bound sockets with keys only.
  struct Sender {
    PeerId peer;
    std::string key;
    int fd = -1;  ///< ZeroMQ's handle
  } sender;       ///< of the last message
  struct KeyState {
    TokenBucket bucket;    ///< allowance of useless messages
    int fd = -1;           ///< its ignored connection
    PeerId peer = {};      ///< peer of that connection
    TimePoint may_join{};  ///< earliest time to join as a worker again
  };
  std::map<std::string, KeyState> by_key;    ///< keys that sent useless messages
  std::unordered_set<PeerId> ignored_peers;  ///< ignored connections, which sent too many useless messages
  bool only_ignored = false;                 ///< as far as known, no other peer has a message
  RateLimit ignored_notices;
};

/// Queues one message. @param to  null on a connected socket. @return 0 or the error number
int put_message(zmq::socket_t& socket, const PeerId* to, const Frames& frames) {
  std::vector<zmq::message_t> parts;
  if (to != nullptr) parts.emplace_back(*to);
  for (const SharedBytes& frame : frames) parts.push_back(to_frame(frame));

  bytes_leave();

  // The first part decides: it finds the peer, and reserves a place in its queue for the whole message.
  int error = put(socket, parts[0], parts.size() > 1);
  if (error != 0) return error;
  // When the connection dies between two parts, ZeroMQ drops the message but still expects its other parts: without
  // them it would take the next message for these.
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const int rest = put(socket, parts[i], i + 1 < parts.size());
    if (error == 0) error = rest;
  }
  return error;
}

/// Returns true when a message came over the network. @param peer  its peer's address; empty within the process
bool is_from_elsewhere(const std::string& peer) {
  if (peer.empty()) return false;
  std::string_view host = peer;
  constexpr std::string_view kMapped = "::ffff:";  // IPv4 at a socket that takes IPv6 too
  if (host.starts_with(kMapped)) host.remove_prefix(kMapped.size());
  return !is_local(fmt::format("tcp://{}:0", host));
}

void Endpoint::Impl::service() {
  if (guard) guard->service();
  if (dialer == nullptr) return;
  const bool anew = dialer->service();
  address = dialer->address();
  if (anew) {  // the connection may be up already
    for (const Frames& frames : unsent) (void)put_message(socket, nullptr, frames);
  }
  if (!dialer->connected()) return;
  unsent.clear();
  *was_connected = true;
}

bool Endpoint::Impl::take_first(zmq::message_t& frame, PeerId& from) {
  constexpr int kDroppedMax = 64;
  PeerId first_dropped;
  only_ignored = false;
  for (int dropped = 0; !only_ignored; ++dropped) {
    if (!take(socket, frame)) {
      service();
      return false;
    }
    if (!bound) {
      if (dialer) dialer->on_received();
      return true;
    }
    from = frame.to_string();
    take(socket, frame);  // ZeroMQ delivers whole messages, so the rest is there
    if (guard) guard->on_received(zmq_msg_get(frame.handle(), ZMQ_SRCFD), from);
    if (ignored_peers.empty() || !ignored_peers.contains(from)) return true;
    while (frame.more()) take(socket, frame);
    // ZeroMQ takes peers in turn: after one turn no other peer has had a message.
    only_ignored = from == first_dropped || dropped == kDroppedMax;
    if (dropped == 0) first_dropped = from;
  }
  return false;
}

void Endpoint::Impl::wait_for_others(Duration timeout) {
  constexpr Duration kPause = std::chrono::milliseconds(1);
  // ZeroMQ's descriptor becomes readable when a peer with an empty queue sends, not while queues hold messages.
  pollfd items[] = {{.fd = socket.get(zmq::sockopt::fd), .events = POLLIN, .revents = 0},
                    {.fd = wake_event, .events = POLLIN, .revents = 0}};
  poll(items, 2, to_zmq_ms(std::min(timeout, kPause)));
  (void)readable();  // updates ZeroMQ's state
}

void Endpoint::Impl::ignore_sender(KeyState& of_key) {
  constexpr std::size_t kIgnoredPeersMax = 4096;
  constexpr Duration kJoinPause = std::chrono::seconds(8);  // otherwise it would take and leave sequences all the time
  if (ignored_peers.size() == kIgnoredPeersMax) ignored_peers.clear();  // those still connected are soon found again
  ignored_peers.insert(sender.peer);
  guard->cut(of_key.fd, of_key.peer, "another one under its key says too much that is of no use");
  of_key.fd = sender.fd;
  of_key.peer = sender.peer;
  of_key.may_join = now() + kJoinPause;
  const std::optional<std::string> more = ignored_notices.pass(now());
  if (!more) return;
  const std::optional<Identity> identity = gatekeeper->identity(sender.key.c_str());
  log_warn(
      "event=in_vain key={} reason=\"more than {} messages a second that were of no use: nothing more is heard of "
      "this connection\"{}",
      identity ? identity->name : sender.key, options.useless_per_second, *more);
}

Endpoint::Endpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Endpoint::~Endpoint() = default;

Result<std::unique_ptr<Endpoint>> Endpoint::bind(TransportContext& context, const std::string& address,
                                                 const EndpointOptions& options) {
  try {
    auto impl = std::make_unique<Impl>(context.impl_->zmq, true, options);
    const bool known = address.starts_with("tcp://") || address.starts_with("inproc://");
    if (!known || !is_sane(address)) return zmq_error("listen at", address, EINVAL);
    ASSIGN_OR_RETURN(const std::optional<KeysToListen> keys, keys_to_listen(context.impl_->security, address));
    if (keys) {
      std::unique_ptr<Gatekeeper>& gatekeeper = context.impl_->gatekeeper;
      if (gatekeeper == nullptr) {
        ASSIGN_OR_RETURN(gatekeeper, Gatekeeper::start(context.impl_->zmq.handle(), keys->authorized));
      }
      // Without a domain, or without a gatekeeper, ZeroMQ would admit every key.
      impl->gatekeeper = gatekeeper.get();
      impl->socket.set(zmq::sockopt::zap_domain, Gatekeeper::kDomain);
      RETURN_IF_ERROR(enforce_domain(impl->socket));
      impl->socket.set(zmq::sockopt::curve_server, true);
      zmq_setsockopt(impl->socket.handle(), ZMQ_CURVE_SECRETKEY, keys->own.secret.data(), keys->own.secret.size());
    }
    impl->socket.set(zmq::sockopt::ipv6, address.find('[') != address.npos);
    if (address.starts_with("tcp://"))
      impl->guard = std::make_unique<ListenerGuard>(
          context.impl_->zmq.handle(), impl->socket.handle(),
          ReceiveBudget::Limits{.message_bytes_max = options.limits.message_bytes_max, .keys = keys.has_value()});
    impl->socket.bind(address);
    impl->address = impl->socket.get(zmq::sockopt::last_endpoint);
    return std::unique_ptr<Endpoint>(new Endpoint(std::move(impl)));
  } catch (const zmq::error_t& error) {
    return zmq_error("listen at", address, error.num());
  }
}

Result<std::unique_ptr<Endpoint>> Endpoint::connect(TransportContext& context, const std::string& addresses,
                                                    const EndpointOptions& options) {
  ASSIGN_OR_RETURN(std::vector<std::string> list, split_addresses(addresses));
  try {
    auto impl = std::make_unique<Impl>(context.impl_->zmq, false, options);
    impl->address = list[0];
    if (list[0].starts_with("inproc://")) {
      impl->socket.connect(list[0]);
    } else {
      ASSIGN_OR_RETURN(std::optional<KeysToConnect> credentials, keys_to_connect(context.impl_->security, list));
      impl->dialer = std::make_unique<Dialer>(context.impl_->zmq.handle(), impl->socket.handle(), std::move(list),
                                              std::move(credentials));
      impl->was_connected = &context.impl_->connected;
      impl->service();
    }
    return std::unique_ptr<Endpoint>(new Endpoint(std::move(impl)));
  } catch (const zmq::error_t& error) {
    return zmq_error("connect to", addresses, error.num());
  }
}

const std::string& Endpoint::address() const { return impl_->address; }

std::optional<Error> Endpoint::connection_error() const {
  return impl_->dialer ? impl_->dialer->connection_error() : std::nullopt;
}

int Endpoint::connections() const { return impl_->dialer ? impl_->dialer->connections() : 1; }

bool Endpoint::connected() const { return !impl_->dialer || impl_->dialer->connected(); }

bool Endpoint::was_there() const { return impl_->was_connected != nullptr && *impl_->was_connected; }

int Endpoint::places() const { return impl_->dialer ? impl_->dialer->places() : 1; }

void Endpoint::redial() {
  if (impl_->dialer) impl_->dialer->redial();
}

Result<std::size_t> Endpoint::send(const PeerId& to, const Message& message) {
  const Frames frames = encode(message);
  std::size_t bytes = 0;
  for (const SharedBytes& frame : frames) bytes += frame.bytes().size();
  int error = put_message(impl_->socket, impl_->bound ? &to : nullptr, frames);
  if (impl_->dialer && !impl_->dialer->connected() && (error == 0 || error == EAGAIN)) {
    // Kept for the next place: between two places ZeroMQ has no queue.
    const bool room = std::ssize(impl_->unsent) < impl_->options.queue_messages_max;
    if (room) impl_->unsent.push_back(frames);
    error = room ? 0 : EAGAIN;
  }
  if (error == 0) return bytes;
  if (error == EAGAIN) {
    return Error(Errc::kUnavailable, "cannot send {}: {} messages are waiting for {}", name_of(message),
                 impl_->options.queue_messages_max, impl_->address);
  }
  return Error(Errc::kPeerGone, "cannot send {}: {}", name_of(message), zmq_strerror(error));
}

std::optional<Received> Endpoint::receive() {
  if (impl_->guard) impl_->guard->check();
  zmq::message_t frame;
  PeerId from;
  if (!impl_->take_first(frame, from)) return std::nullopt;
  bytes_arrive();

  // Keeps one frame too many, which decode() rejects; further frames are only counted.
  const std::size_t frames_max = impl_->options.limits.tensors_max + 2;
  Frames frames;
  std::size_t bytes = 0;
  const char* const peer_address = zmq_msg_gets(frame.handle(), "Peer-Address");  // null within the process
  const std::string peer = peer_address == nullptr ? "" : peer_address;           // freed with the frame
  std::optional<Identity> identity;                                               // looked up anew per message
  if (impl_->gatekeeper != nullptr) {
    const char* const key = zmq_msg_gets(frame.handle(), "User-Id");
    identity = impl_->gatekeeper->identity(key);
    impl_->sender.peer = from;
    impl_->sender.fd = zmq_msg_get(frame.handle(), ZMQ_SRCFD);
    impl_->sender.key = key == nullptr ? "" : key;  // reuses the string's memory
  }
  for (bool more = true; more; more = more && take(impl_->socket, frame)) {
    more = frame.more();
    bytes += frame.size();
    if (frames.size() < frames_max) frames.push_back(to_shared(std::move(frame)));
  }
  if (impl_->gatekeeper != nullptr && !identity)
    return Received{std::move(from), Error{Errc::kMismatch, "this key was revoked"}, bytes, true};
  SessionId about{};
  Result<Message> message = decode(frames, impl_->options.limits, &about);
  if (impl_->gatekeeper == nullptr) {
    Hello* const hello = message ? std::get_if<Hello>(&message->body) : nullptr;
    if (hello != nullptr) hello->unproven = is_from_elsewhere(peer);
    return Received{std::move(from), std::move(message), bytes, false, about};
  }
  Result<void> admitted = message ? admit(*identity, *message) : Result<void>();
  if (message && std::holds_alternative<Hello>(message->body) && !impl_->may_join())
    admitted = Error{Errc::kUnavailable,
                     "too much that was of no use was said under this key: it may join again in some seconds"};
  if (!admitted) return Received{std::move(from), admitted.error(), bytes, true};
  return Received{std::move(from), std::move(message), bytes, false, about};
}

std::vector<PeerId> Endpoint::arriving() {
  if (impl_->guard) return impl_->guard->arriving();
  if (impl_->dialer && impl_->dialer->arriving()) return {""};
  return {};
}

std::vector<PeerId> Endpoint::leaving() { return impl_->guard ? impl_->guard->leaving() : std::vector<PeerId>(); }

bool Endpoint::count_useless_message() {
  if (impl_->gatekeeper == nullptr) return false;
  const int most = impl_->options.useless_per_second;
  const TokenBucket full(Duration(std::chrono::seconds(1)) / most, most);
  const auto of_key = impl_->by_key.try_emplace(impl_->sender.key, Impl::KeyState{full}).first;
  if (of_key->second.bucket.pass(now())) return false;
  impl_->ignore_sender(of_key->second);
  return true;
}

void Endpoint::wait(Duration timeout) {
  if (impl_->only_ignored) {
    impl_->wait_for_others(timeout);
  } else {
    // zmq_poll, not poll: a socket's descriptor is edge-triggered, and does not report messages that an earlier call
    // has already noticed.
    zmq_pollitem_t items[] = {{impl_->socket.handle(), 0, ZMQ_POLLIN, 0},
                              {nullptr, impl_->wake_event, ZMQ_POLLIN, 0},
                              {impl_->monitor(), -1, ZMQ_POLLIN, 0}};
    zmq_poll(items, impl_->monitor() != nullptr ? 3 : 2, to_zmq_ms(timeout));
  }
  impl_->service();
  // In this order a wake() after the exchange signals again, and one before it is answered by this return.
  eventfd_t count;
  (void)eventfd_read(impl_->wake_event, &count);
  impl_->woken.exchange(false);
}

void Endpoint::wake() {
  if (!impl_->woken.exchange(true)) (void)eventfd_write(impl_->wake_event, 1);
}

}  // namespace outrider
