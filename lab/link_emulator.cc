#include "lab/link_emulator.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <vector>

#include "common/base/random.h"
#include "common/wire/transport/address.h"

namespace outrider {
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
  if (!is_sane(target) || target.find('*') != target.npos)
    return Error(Errc::kInvalidArgument, "link to {}: wanted {}", target, kAddressForm);
  std::unique_ptr<LinkEmulator> link(new LinkEmulator);
  link->target_ = target;
  ASSIGN_OR_RETURN(link->listener_, listen_tcp("tcp://127.0.0.1:*"));
  link->address_ = own_address(link->listener_);
  link->acceptor_ = std::jthread([raw = link.get()](std::stop_token stop) { raw->accept_connections(stop); });
  return link;
}

LinkEmulator::~LinkEmulator() = default;

void LinkEmulator::set(const Link& link) {
  const std::lock_guard lock(shared_.mutex);
  shared_.link = link;
}

void LinkEmulator::accept_connections(std::stop_token stop) {
  constexpr Duration kConnectMax = std::chrono::seconds(3);
  std::vector<Descriptor> sockets;
  while (!stop.stop_requested()) {
    pollfd ready{listener_, POLLIN, 0};
    if (poll(&ready, 1, 50) <= 0) continue;
    Descriptor in(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    if (in < 0) continue;
    Result<Descriptor> out = connect_tcp(target_, kConnectMax);
    if (!out) continue;  // the peer sees a closed connection and retries
    fcntl(*out, F_SETFL, 0);  // blocking: a thread for each direction waits
    const int one = 1;
    for (const Descriptor* const fd : {&in, &*out}) setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    pipes_.push_back(std::make_unique<Pipe>(in, *out, shared_, pipes_.size()));
    pipes_.push_back(std::make_unique<Pipe>(*out, in, shared_, pipes_.size()));
    sockets.push_back(std::move(in));
    sockets.push_back(std::move(*out));
  }
  // All of them first: each pipe ends only when both of its sockets are down.
  for (const Descriptor& socket : sockets) shutdown(socket, SHUT_RDWR);
  pipes_.clear();
}

}  // namespace outrider
