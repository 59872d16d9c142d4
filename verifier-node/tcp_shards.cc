#include "verifier-node/tcp_shards.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/json_fields.h"
#include "common/http/keyed_tls.h"
#include "common/os/host.h"
#include "common/os/logging.h"
#include "common/wire/messages/messages.h"
#include "common/wire/transport/address.h"
#include "verifier-node/shared_memory_shards.h"

namespace outrider {
namespace {

/// Time allowed to a new connection for its hello.
constexpr Duration kHelloTimeout = std::chrono::seconds(5);
/// Connections waiting for a hello; further ones are closed.
constexpr std::size_t kJoiningMax = 256;
/// Interval of checks for a stop or a deadline.
constexpr int kTickMs = 100;
constexpr int kRowsMax = 1 << 20, kTimeoutMax = 86'400;

static_assert(std::endian::native == std::endian::little);

void set_option(int socket, int level, int name, int value) { setsockopt(socket, level, name, &value, sizeof value); }

CurveKeyPair tls_key(const KeyPair& pair) { return {pair.secret, pair.open}; }

/// Returns true if a key list lets this key join as a verifier.
bool is_authorized(const std::filesystem::path& list, const Key& key) {
  return std::ranges::any_of(read_authorized_keys(list).first, [&](const AuthorizedKey& line) {
    return line.role == KeyRole::kVerifier && line.key == key;
  });
}

std::string hello_text(std::uint64_t weights) {
  return to_text(nlohmann::json{
      {"outrider", OUTRIDER_VERSION}, {"weights", fmt::format("{:016x}", weights)}, {"free_mib", free_mib()}});
}

/// Returns the free memory of a shard's host in MiB.
/// @return kMismatch with the reason that a shard with this hello does not fit a verifier with these weights
Result<std::int64_t> check_hello(const std::string& text, std::uint64_t weights) {
  struct Hello {
    std::string version, weights;
    std::int64_t free_mib;
  };
  const auto read = [](const JsonFields& fields, FirstError&) {
    return Hello{fields.text("outrider"), fields.text("weights"),
                 fields.integer("free_mib", 0, 0, std::numeric_limits<std::int64_t>::max())};
  };
  ASSIGN_OR_RETURN(const Hello hello, read_json_object(text, "a shard's hello", read));
  if (hello.version != OUTRIDER_VERSION)
    return Error(Errc::kMismatch, "the shard is outrider {:.40}, wanted " OUTRIDER_VERSION, hello.version);
  const std::string own = fmt::format("{:016x}", weights);
  if (hello.weights != own)
    return Error(Errc::kMismatch, "the shard's weights are {:.40}, wanted {}", hello.weights, own);
  return hello.free_mib;
}

std::string task_text(const ShardTask& task, std::size_t rank) {
  return to_text(nlohmann::json{{"rank", rank},
                                {"count", task.place.count},
                                {"dtype", to_string(task.weight_type)},
                                {"rows", task.rows_max},
                                {"peer_timeout", task.peer_timeout_s},
                                {"drain_wait", task.drain_wait_s},
                                {"verify_weights", task.verify_weights}});
}

Result<ShardTask> parse_task(const std::string& text) {
  std::string dtype, refused;
  ASSIGN_OR_RETURN(ShardTask task,
                   read_json_object(text, "a verifier's task for a shard", [&](const JsonFields& fields, FirstError&) {
                     ShardTask task;
                     refused = fields.text("refused", "");
                     if (!refused.empty()) return task;
                     task.place.count = static_cast<int>(fields.integer("count", {}, 2, kShards.max));
                     task.place.rank = static_cast<int>(fields.integer("rank", {}, 1, task.place.count - 1));
                     task.rows_max = fields.integer("rows", {}, 1, kRowsMax);
                     task.peer_timeout_s = static_cast<int>(fields.integer("peer_timeout", {}, 1, kTimeoutMax));
                     task.drain_wait_s = static_cast<int>(fields.integer("drain_wait", {}, 0, kTimeoutMax));
                     task.verify_weights = fields.boolean("verify_weights");
                     dtype = fields.text("dtype");
                     return task;
                   }));
  if (!refused.empty()) return Error{Errc::kMismatch, "the verifier refuses this shard: " + refused.substr(0, 400)};
  ASSIGN_OR_RETURN(task.weight_type, parse_weight_type(dtype));
  return task;
}

}  // namespace

ShardLink::ShardLink(Descriptor socket, std::unique_ptr<TlsSession> tls)
    : socket_(std::move(socket)), tls_(std::move(tls)), ready_(tls_ == nullptr), peer_(peer_address(socket_)) {
  set_option(socket_, IPPROTO_TCP, TCP_NODELAY, 1);
  set_timeout(ShardTask().peer_timeout_s);
}
ShardLink::ShardLink(ShardLink&&) noexcept = default;
ShardLink& ShardLink::operator=(ShardLink&&) noexcept = default;
ShardLink::~ShardLink() = default;

void ShardLink::set_timeout(int seconds) {
  set_option(socket_, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket_, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(socket_, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket_, IPPROTO_TCP, TCP_KEEPCNT, std::min(seconds, 127));  // the kernel's limit
  set_option(socket_, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * seconds);     // takes precedence over the one before
}

Error ShardLink::gone(const std::string& why) const { return {Errc::kPeerGone, "{}: {}", peer_, why}; }

Result<std::size_t> ShardLink::outcome(ssize_t bytes) const {
  if (bytes > 0) return static_cast<std::size_t>(bytes);
  if (bytes == 0) return gone("the connection was closed");
  if (errno == EAGAIN || errno == EINTR) return std::size_t{0};
  return gone(std::generic_category().message(errno));
}

Result<bool> ShardLink::shake_hands() {
  if (ready_) return true;
  const TlsSession::Attempt attempt = tls_->handshake();
  ready_ = attempt.bytes > 0;
  if (ready_ || attempt.wait_for != 0) return ready_;
  return gone(fmt::format("no agreement on keys ({}); wanted a shard whose key the verifier's host has authorized as a "
                          "verifier's, and at the shard the key of that host",
                          tls_->problem()));
}

Result<std::size_t> ShardLink::read(std::span<char> bytes) {
  ASSIGN_OR_RETURN(const bool ready, shake_hands());
  if (!ready) return std::size_t{0};
  if (tls_ == nullptr) return outcome(::recv(socket_, bytes.data(), bytes.size(), 0));
  const TlsSession::Attempt attempt = tls_->read(bytes);
  if (attempt.bytes > 0 || attempt.wait_for != 0) return attempt.bytes;
  return gone(tls_->problem().empty() ? "the connection was closed" : tls_->problem());
}

Result<std::size_t> ShardLink::write(std::span<const char> bytes) {
  ASSIGN_OR_RETURN(const bool ready, shake_hands());
  if (!ready) return std::size_t{0};
  if (tls_ == nullptr) return outcome(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  const TlsSession::Attempt attempt = tls_->write(bytes);
  if (attempt.bytes > 0 || attempt.wait_for != 0) return attempt.bytes;
  return gone(tls_->problem().empty() ? "the connection was closed" : tls_->problem());
}

Result<std::optional<std::string>> ShardLink::read_text() {
  std::uint32_t size = 0;
  for (;;) {
    if (text_.size() >= sizeof size) std::memcpy(&size, text_.data(), sizeof size);
    if (size > kTextBytesMax)
      return Error(Errc::kMalformed, "{}: a text of {} bytes, wanted at most {}", peer_, size, kTextBytesMax);
    const std::size_t there = text_.size(), wanted = sizeof size + size;
    if (there >= sizeof size && there == wanted)
      return std::optional(std::string(std::exchange(text_, {}).data() + sizeof size, size));
    text_.resize(wanted);
    const auto bytes = read(std::span(text_).subspan(there));
    text_.resize(there + (bytes ? *bytes : 0));
    if (!bytes) return bytes.error();
    if (*bytes == 0) return std::optional<std::string>();
  }
}

Result<void> ShardLink::write_text(const std::string& text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  bytes += text;
  ASSIGN_OR_RETURN(const std::size_t sent, write(bytes));  // whose buffer is still empty
  if (sent != bytes.size()) return gone("it takes no text");
  return {};
}

Result<void> ShardLink::check() const {
  pollfd state{.fd = socket_, .events = POLLRDHUP, .revents = 0};
  if (poll(&state, 1, 0) <= 0) return {};
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &size);
  return gone(error == 0 ? "the connection was closed" : std::generic_category().message(error));
}

TcpShards::TcpShards(ShardPlace place, std::vector<ShardLink> links) : Shards(place) {
  CHECK(std::ssize(links) == (place.rank == 0 ? place.count - 1 : 1), "{} links, {} shards", links.size(), place.count);
  int rank = place.rank == 0 ? 1 : 0;
  for (ShardLink& link : links) peers_.push_back({.link = std::move(link), .rank = rank++});
}

Result<void> TcpShards::check() const {
  for (const Peer& peer : peers_) {
    if (const auto there = peer.link.check(); !there)
      return Error(there.error().code, "shard {} of {} is gone: {}", peer.rank, place().count, there.error().message);
  }
  return {};
}

void TcpShards::fail(const Peer& peer, const std::string& why) const {
  throw std::runtime_error(fmt::format("shard {} of {} is gone: {}", peer.rank, place().count, why));
}

bool TcpShards::send(Peer& peer) {
  bool moved = false;
  while (peer.sent < peer.out.size()) {
    const auto bytes = peer.link.write(std::span<const char>(peer.out).subspan(peer.sent));
    if (!bytes) fail(peer, bytes.error().message);
    if (*bytes == 0) return moved;
    peer.sent += *bytes;
    moved = true;
  }
  peer.out.clear();
  peer.sent = 0;
  return moved;
}

bool TcpShards::is_ahead(const Peer& peer) const {
  return peer.received >= sizeof(Header) && peer.header.gather == gathers() + 1;
}

bool TcpShards::receive(Peer& peer, Matrix<float> rows, std::int64_t& there) {
  const std::int64_t width = rows.size(1);
  const Header& header = peer.header;
  for (bool moved = false;; moved = true) {
    if (there == width || is_ahead(peer)) return moved;
    if (peer.received >= sizeof(Header) && peer.in.size() == sizeof(Header)) {
      const std::int64_t left = width - there;
      if (header.gather != gathers() || header.rows != rows.size(0) || header.count == 0 || header.count > left ||
          header.begin > width - header.count) {
        fail(peer, fmt::format("{}: it sent {} rows of columns {} + {} in gather {}, wanted {} of {} more of {} in {}",
                               peer.link.peer(), header.rows, header.begin, header.count, header.gather, rows.size(0),
                               left, width, gathers()));
      }
      peer.in.resize(sizeof(Header) + std::size_t{header.rows} * header.count * sizeof(float));
    }
    if (peer.in.empty()) peer.in.resize(sizeof(Header));
    if (peer.received < peer.in.size()) {
      const auto bytes = peer.link.read(std::span(peer.in).subspan(peer.received));
      if (!bytes) fail(peer, bytes.error().message);
      if (*bytes == 0) return moved;
      peer.received += *bytes;
      if (peer.received >= sizeof(Header)) std::memcpy(&peer.header, peer.in.data(), sizeof(Header));
      continue;
    }
    const char* from = peer.in.data() + sizeof(Header);
    const std::size_t bytes = header.count * sizeof(float);
    for (std::int64_t r = 0; r < rows.size(0); ++r, from += bytes)
      std::memcpy(rows[r].data() + header.begin, from, bytes);
    there += header.count;
    for (Peer& other : peers_) {
      if (&other != &peer) other.out.insert(other.out.end(), peer.in.begin(), peer.in.end());
    }
    peer.in.clear();
    peer.received = 0;
  }
}

void TcpShards::wait(bool for_rows) {
  std::vector<pollfd> states;
  for (const Peer& peer : peers_) {
    const int in = for_rows && !is_ahead(peer) ? POLLIN : 0, out = peer.out.empty() ? 0 : POLLOUT;
    const bool matters = in != 0 || out != 0;
    states.push_back(
        {.fd = matters ? peer.link.socket() : -1, .events = static_cast<short>(in | out), .revents = 0});
  }
  const bool came = poll(states.data(), states.size(), kTickMs) > 0;
  if (const TimePoint time = now(); time - watched_ >= std::chrono::milliseconds(kTickMs)) {
    watched_ = time;
    call_watch();
  }
  if (came) return;
  if (const auto there = check(); !there) throw std::runtime_error(there.error().message);
}

void TcpShards::gather_piece(Matrix<float> rows, Columns own) {
  const std::int64_t width = rows.size(1);
  if (own.count > 0) {
    const Header header{gathers(), static_cast<std::uint32_t>(rows.size(0)), static_cast<std::uint32_t>(own.begin),
                        static_cast<std::uint32_t>(own.count)};
    const std::size_t bytes = static_cast<std::size_t>(own.count) * sizeof(float);
    for (Peer& peer : peers_) {
      const std::size_t begin = peer.out.size();
      peer.out.resize(begin + sizeof header + static_cast<std::size_t>(rows.size(0)) * bytes);
      char* to = peer.out.data() + begin;
      std::memcpy(to, &header, sizeof header);
      to += sizeof header;
      for (std::int64_t r = 0; r < rows.size(0); ++r, to += bytes) std::memcpy(to, rows[r].data() + own.begin, bytes);
    }
  }
  TimePoint moved_at = now();
  for (std::int64_t there = own.count;;) {
    bool moved = false, is_sent = true;
    for (Peer& peer : peers_) {
      moved |= send(peer);
      moved |= receive(peer, rows, there);
    }
    for (const Peer& peer : peers_) is_sent &= peer.out.empty();
    if (there == width && is_sent) break;
    if (moved)
      moved_at = now();
    else if (now() - moved_at < kSpin)
      std::this_thread::yield();
    else
      wait(there < width);
  }
}

Result<std::unique_ptr<ShardListener>> ShardListener::listen(const std::string& address, const Security& security) {
  ASSIGN_OR_RETURN(std::optional<KeysToListen> keys, keys_to_listen(security, address));
  if (keys) RETURN_IF_ERROR(read_authorized_keys(keys->authorized).second);
  ASSIGN_OR_RETURN(Descriptor socket, listen_tcp(address));
  return std::unique_ptr<ShardListener>(new ShardListener(std::move(socket), std::move(keys)));
}

std::string ShardListener::address() const { return own_address(socket_); }

bool ShardListener::accept_all(std::vector<Joining>& joining) {
  for (;;) {
    Descriptor socket(::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket < 0) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    if (joining.size() >= kJoiningMax) continue;
    std::unique_ptr<TlsSession> tls;
    if (keys_) {
      tls = tls_from_keys(
          tls_key(keys_->own), [list = keys_->authorized](const Key& key) { return is_authorized(list, key); }, socket);
      if (tls == nullptr) continue;
    }
    joining.push_back({ShardLink(std::move(socket), std::move(tls)), now() + kHelloTimeout});
  }
}

Result<void> ShardListener::read_joining(Joining& shard, std::uint64_t weights) {
  if (shard.may_join) return shard.link.check();
  if (now() > shard.deadline) return Error{Errc::kTimeout, "it does not say that it is a shard"};
  ASSIGN_OR_RETURN(const std::optional<std::string> text, shard.link.read_text());
  if (!text) return {};
  const auto free = check_hello(*text, weights);
  if (!free) {
    (void)shard.link.write_text(to_text(nlohmann::json{{"refused", free.error().message}}));
    return free.error();
  }
  shard.free_mib = *free;
  shard.may_join = true;
  log_info("event=shard_came from={}", shard.link.peer());
  return {};
}

bool ShardListener::suffice(const std::vector<Joining>& joining, const FewerShards& fewer) {
  const auto count = 1 + std::ranges::count_if(joining, &Joining::may_join);
  const auto has_room = [&](std::int64_t free) { return free > fewer.matrix_mib / count; };
  const auto fits = [&](const Joining& shard) { return !shard.may_join || has_room(shard.free_mib); };
  return fewer.least > 0 && count >= fewer.least && has_room(free_mib()) && std::ranges::all_of(joining, fits);
}

Result<std::unique_ptr<TcpShards>> ShardListener::gather_group(ShardTask task, std::uint64_t weights,
                                                               std::stop_token stop, const FewerShards& fewer) {
  const int wanted = task.place.count - 1;
  TimePoint patience_ends = now() + fewer.patience;
  std::vector<Joining> joining;
  RateLimit notices;
  bool may_accept = true;
  while (!stop.stop_requested()) {
    std::vector<pollfd> states{{.fd = may_accept ? static_cast<int>(socket_) : -1, .events = POLLIN, .revents = 0}};
    for (const Joining& shard : joining) {
      states.push_back({.fd = shard.link.socket(),
                        .events = static_cast<short>(shard.may_join ? POLLRDHUP : POLLIN),
                        .revents = 0});
    }
    poll(states.data(), states.size(), kTickMs);
    may_accept = accept_all(joining);
    if (!may_accept) {
      if (const auto more = notices.pass(now()))
        log_warn("event=accept_failed reason=\"{}\"{}", std::generic_category().message(errno), *more);
    }
    std::erase_if(joining, [&](Joining& shard) {
      const auto read = read_joining(shard, weights);
      if (read) return false;
      if (const auto more = notices.pass(now()))
        log_warn("event=shard_refused from={} reason=\"{}\"{}", shard.link.peer(), read.error().message, *more);
      return true;
    });
    const auto come = std::min<std::int64_t>(wanted, std::ranges::count_if(joining, &Joining::may_join));
    if (come < wanted && (now() < patience_ends || !suffice(joining, fewer))) continue;
    task.place.count = static_cast<int>(come) + 1;
    std::vector<ShardLink> links;
    bool all_written = true;
    for (Joining& shard : joining) {
      if (!shard.may_join || std::ssize(links) == come) continue;
      shard.link.set_timeout(task.peer_timeout_s);
      all_written &= shard.link.write_text(task_text(task, links.size() + 1)).has_value();
      links.push_back(std::move(shard.link));
    }
    if (all_written) return std::make_unique<TcpShards>(task.place, std::move(links));
    joining.clear();  // one shard left while the others got their tasks: the others join again
    patience_ends = now() + fewer.patience;
  }
  return std::unique_ptr<TcpShards>();
}

namespace {

/// @return none after `stop`
Result<std::optional<JoinedShard>> join_at(Descriptor socket, std::unique_ptr<TlsSession> tls, std::uint64_t weights,
                                           const std::stop_token& stop) {
  ShardLink link(std::move(socket), std::move(tls));
  const auto wait = [&] {
    pollfd state{.fd = link.socket(), .events = POLLIN, .revents = 0};
    poll(&state, 1, kTickMs);
    return !stop.stop_requested();
  };
  const TimePoint deadline = now() + kHelloTimeout;
  for (bool hello_sent = false; !hello_sent;) {
    ASSIGN_OR_RETURN(const bool ready, link.shake_hands());
    if (ready) {
      RETURN_IF_ERROR(link.write_text(hello_text(weights)));
      hello_sent = true;
    } else if (!wait()) {
      return std::optional<JoinedShard>();
    } else if (now() > deadline) {
      return Error(Errc::kPeerGone, "{}: no agreement on keys within {} s", link.peer(), to_seconds(kHelloTimeout));
    }
  }
  for (;;) {
    ASSIGN_OR_RETURN(const std::optional<std::string> text, link.read_text());
    if (text) {
      ASSIGN_OR_RETURN(const ShardTask task, parse_task(*text));
      link.set_timeout(task.peer_timeout_s);
      std::vector<ShardLink> links;
      links.push_back(std::move(link));
      return std::optional(JoinedShard{task, std::make_unique<TcpShards>(task.place, std::move(links))});
    }
    if (!wait()) return std::optional<JoinedShard>();
  }
}

}  // namespace

Result<std::optional<JoinedShard>> join_shards(const std::string& addresses, const Security& security,
                                               std::uint64_t weights, std::stop_token stop) {
  ASSIGN_OR_RETURN(const std::vector<std::string> list, split_addresses(addresses));
  ASSIGN_OR_RETURN(const std::optional<KeysToConnect> keys, keys_to_connect(security, list));
  const std::size_t tries = keys ? keys->coordinator.size() : 1;
  Error last(Errc::kPeerGone, "no address");
  for (const std::string& address : list) {
    const auto numeric = resolve(address);
    if (!numeric) {
      last = Error(Errc::kPeerGone, "{}: {}", address, numeric.error().message);
      continue;
    }
    for (const std::string& place : *numeric) {
      for (std::size_t i = 0; i < tries; ++i) {
        auto socket = connect_tcp(place, std::chrono::seconds(1));
        if (!socket) {
          last = Error(Errc::kPeerGone, "{}: {}", address, socket.error().message);
          break;
        }
        auto tls = keys ? tls_to_key(tls_key(keys->own), keys->coordinator[i], *socket) : nullptr;
        if (keys && tls == nullptr) return Error{Errc::kIo, "TLS cannot be had"};
        auto joined = join_at(std::move(*socket), std::move(tls), weights, stop);
        if (joined || joined.error().code != Errc::kPeerGone) return joined;
        last = joined.error();
      }
    }
  }
  return last;
}

}  // namespace outrider
