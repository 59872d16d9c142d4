#include "lab/link_emulator.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <vector>

#include <fmt/format.h>

#include "common/base/random.h"

namespace outrider {
namespace {

sockaddr_in socket_address(const std::string& host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

Error failed(const char* what) { return {Errc::kIo, "link emulator: {}: {}", what, std::strerror(errno)}; }

}  // namespace

/// One direction of one connection: a thread reads bytes, another writes them when they are due.
struct LinkEmulator::Pipe {
  Pipe(int from, int to, const Shared& shared, std::uint64_t seed) : from_(from), to_(to), shared_(shared), rng_(seed) {
    reader_ = std::jthread([this] { read_all(); });
    writer_ = std::jthread([this] { write_all(); });
  }
  ~Pipe() {
    shutdown(from_, SHUT_RDWR);  // wakes the reader, which ends the writer
    shutdown(to_, SHUT_RDWR);
  }

 private:
  static constexpr double kPieceS = 0.01;  ///< longest transmission time of a piece, unless it is one segment
  struct Piece {
    TimePoint due;
    std::vector<char> bytes;
  };

  void read_all() {
    std::vector<char> buffer(1 << 16);
    while (true) {
      const ssize_t got = recv(from_, buffer.data(), buffer.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      const std::lock_guard lock(mutex_);
      // Nothing: the end, which is delayed like everything else.
      const auto size = static_cast<std::ptrdiff_t>(std::max<ssize_t>(got, 0));
      // On a slow link bytes trickle in: a message that came all at once would look like silence before.
      const TimePoint out = due(size);
      const double byte_s = shared_.now().byte_s();
      const auto piece =
          static_cast<std::ptrdiff_t>(std::max(Link::kSegmentBytes, byte_s > 0 ? kPieceS / byte_s : 1e9));
      for (std::ptrdiff_t at = 0, end = 0; at < size || size == 0; at = end) {
        end = std::min(at + piece, size);
        pieces_.push_back({out - from_seconds(byte_s * static_cast<double>(size - end)),
                           std::vector<char>(buffer.begin() + at, buffer.begin() + end)});
        if (size == 0) break;
      }
      changed_.notify_one();
      if (got <= 0) return;
    }
  }

  /// Returns the time at which bytes that arrive now are sent.
  TimePoint due(std::ptrdiff_t bytes) {
    const Link link = shared_.now();
    const auto ms = [](double x) { return Duration(static_cast<std::int64_t>(x * 1e6)); };
    sent_ = std::max(sent_, now());
    sent_ += from_seconds(static_cast<double>(bytes) * link.byte_s());
    TimePoint out = sent_ + ms((link.rtt_ms + link.jitter_ms * rng_.uniform()) / 2);
    double survives = 1;  // probability that all of its segments arrive at once
    for (double sent = 0; sent < static_cast<double>(bytes); sent += Link::kSegmentBytes) survives *= 1 - link.loss;
    if (rng_.uniform() >= survives) out += ms(link.retransmit_ms());
    return last_due_ = std::max(last_due_, out);
  }

  void write_all() {
    while (true) {
      Piece piece;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !pieces_.empty(); });
        piece = std::move(pieces_.front());
        pieces_.pop_front();
      }
      std::this_thread::sleep_until(piece.due);
      if (piece.bytes.empty()) {
        shutdown(to_, SHUT_WR);
        return;
      }
      for (std::size_t done = 0; done < piece.bytes.size();) {
        const ssize_t sent = send(to_, piece.bytes.data() + done, piece.bytes.size() - done, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) break;  // the peer is gone: the rest is drained
        done += static_cast<std::size_t>(sent);
      }
    }
  }

  int from_, to_;
  const Shared& shared_;
  CounterRng rng_;
  TimePoint sent_{}, last_due_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> pieces_;
  std::jthread reader_, writer_;  // last: they use the others
};

Result<std::unique_ptr<LinkEmulator>> LinkEmulator::start(const std::string& target) {
  std::unique_ptr<LinkEmulator> link(new LinkEmulator);
  const std::size_t colon = target.rfind(':');
  const auto malformed = [&] {
    return Error(Errc::kInvalidArgument, "link emulator: target '{}', wanted tcp://NUMBER.NUMBER.NUMBER.NUMBER:PORT",
                 target);
  };
  if (!target.starts_with("tcp://") || colon == std::string::npos) return malformed();
  link->target_host_ = target.substr(6, colon - 6);
  const char* end = target.data() + target.size();
  in_addr number{};
  if (std::from_chars(target.data() + colon + 1, end, link->target_port_).ptr != end ||
      inet_pton(AF_INET, link->target_host_.c_str(), &number) != 1) {
    return malformed();
  }
  link->listener_ = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (link->listener_ < 0) return failed("socket");
  sockaddr_in address = socket_address("127.0.0.1", 0);
  socklen_t size = sizeof address;
  if (bind(link->listener_, reinterpret_cast<const sockaddr*>(&address), size) != 0) return failed("bind");
  if (listen(link->listener_, 16) != 0) return failed("listen");
  if (getsockname(link->listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return failed("getsockname");
  link->address_ = fmt::format("tcp://127.0.0.1:{}", ntohs(address.sin_port));
  link->acceptor_ = std::jthread([raw = link.get()](std::stop_token stop) { raw->accept_connections(stop); });
  return link;
}

LinkEmulator::~LinkEmulator() = default;

void LinkEmulator::set(const Link& link) {
  const std::lock_guard lock(shared_.mutex);
  shared_.link = link;
}

void LinkEmulator::accept_connections(std::stop_token stop) {
  std::vector<Descriptor> sockets;
  while (!stop.stop_requested()) {
    pollfd ready{listener_, POLLIN, 0};
    if (poll(&ready, 1, 50) <= 0) continue;
    Descriptor in(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    if (in < 0) continue;
    Descriptor out(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = socket_address(target_host_, target_port_);
    if (out < 0 || connect(out, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      continue;  // the peer sees a closed connection and retries
    const int one = 1;
    for (const Descriptor* const fd : {&in, &out}) setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    pipes_.push_back(std::make_unique<Pipe>(in, out, shared_, pipes_.size()));
    pipes_.push_back(std::make_unique<Pipe>(out, in, shared_, pipes_.size()));
    sockets.push_back(std::move(in));
    sockets.push_back(std::move(out));
  }
  // All of them first: each pipe ends only when both of its sockets are down.
  for (const Descriptor& socket : sockets) shutdown(socket, SHUT_RDWR);
  pipes_.clear();
}

}  // namespace outrider
