#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/metrics/logging.h"
#include "common/protocol/worker_link.h"
#include "common/transport/endpoint.h"

namespace outrider {

/// What every node's loop does between its socket and its core: moves bytes and logs, nothing else.
class Pump {
 public:
  explicit Pump(Endpoint& endpoint) : endpoint_(endpoint) {}

  /// Hands what has arrived to on_message(from, message), at most a burst, so that ticks come
  /// through. Malformed frames are logged and dropped; a peer of another protocol version is told
  /// so.
  template <typename OnMessage>
  void receive(OnMessage on_message) {
    for (int n = 0; n < kBurstMax; ++n) {
      std::optional<Received> received = endpoint_.receive();
      if (!received) return;
      if (received->message) {
        on_message(received->from, std::move(*received->message));
      } else {
        reject(received->from, received->message.error());
      }
    }
  }

  /// Sends; on_sent(message, bytes) and on_gone(peer) tell the core. Never blocks: the session
  /// protocol repeats what a full queue drops.
  template <typename OnSent, typename OnGone>
  void send(const std::vector<Outgoing>& outgoing, OnSent on_sent, OnGone on_gone) {
    for (const Outgoing& out : outgoing) {
      const Result<std::size_t> bytes = endpoint_.send(out.to, out.message);
      if (bytes) {
        on_sent(out.message, *bytes);
      } else if (bytes.error().code == Errc::kPeerGone) {
        on_gone(out.to);
      } else {
        warn_limited("event=send_dropped reason=\"" + bytes.error().message + "\"");
      }
    }
  }
  void send(const std::vector<Outgoing>& outgoing) {
    send(
        outgoing, [](const Message&, std::size_t) {}, [](const PeerId&) {});
  }

  void log(const std::vector<Notice>& notices);

  /// Set once the coordinator that this endpoint is connected to turned out to speak another protocol
  /// version: a worker has nothing to wait for then.
  const std::optional<Error>& version_mismatch() const { return version_mismatch_; }

 private:
  static constexpr int kBurstMax = 64;
  void reject(const PeerId& from, const Error& error);
  void warn_limited(const std::string& text);

  Endpoint& endpoint_;
  RateLimit limit_;
  std::optional<Error> version_mismatch_;
};

}  // namespace outrider
