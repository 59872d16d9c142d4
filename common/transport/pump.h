#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
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

  /// Sends; on_sent(message, bytes) and on_gone(peer) tell the core. Never blocks. What a full queue
  /// does not take the session protocol repeats, but for a client's text: that waits here.
  template <typename OnSent, typename OnGone>
  void send(const std::vector<Outgoing>& outgoing, OnSent on_sent, OnGone on_gone) {
    std::vector<Outgoing> waiting = std::exchange(waiting_, {});
    std::map<PeerId, std::size_t> behind;  // how many of waiting_
    const auto send_one = [&](const Outgoing& out) {
      const bool keep = is_text(out);
      if (const auto queued = behind.find(out.to); keep && queued != behind.end()) {
        if (++queued->second <= kWaitingMax) {
          waiting_.push_back(out);  // in order, or not at all
        } else if (queued->second == kWaitingMax + 1) {  // it asks and does not read: as good as gone
          std::erase_if(waiting_, [&](const Outgoing& w) { return w.to == out.to; });
          on_gone(out.to);
        }
        return;
      }
      const Result<std::size_t> bytes = endpoint_.send(out.to, out.message);
      if (bytes) {
        on_sent(out.message, *bytes);
      } else if (bytes.error().code == Errc::kPeerGone) {
        on_gone(out.to);
      } else if (keep) {
        waiting_.push_back(out);
        behind[out.to] = 1;
      } else if (!std::holds_alternative<Heartbeat>(out.message.body)) {
        warn_limited("event=send_dropped reason=\"" + bytes.error().message + "\"");
      }
    };
    for (const Outgoing& out : waiting) send_one(out);
    for (const Outgoing& out : outgoing) send_one(out);
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
  static constexpr std::size_t kWaitingMax = 16'384;  ///< messages that one client may leave unread
  /// What the coordinator tells a client once and for all. Bounded by the length of its answers.
  static bool is_text(const Outgoing& out) {
    const Message& message = out.message;
    const bool to_client = !out.to.empty();
    return (std::holds_alternative<Candidates>(message.body) && to_client) || std::holds_alternative<Tokens>(message.body) || std::holds_alternative<Done>(message.body) ||
           std::holds_alternative<Failed>(message.body);
  }
  void reject(const PeerId& from, const Error& error);
  void warn_limited(const std::string& text);

  Endpoint& endpoint_;
  std::vector<Outgoing> waiting_;
  RateLimit limit_;
  std::optional<Error> version_mismatch_;
};

}  // namespace outrider
