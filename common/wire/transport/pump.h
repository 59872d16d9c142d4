#pragma once

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/os/logging.h"
#include "common/wire/messages/membership.h"
#include "common/wire/transport/endpoint.h"

namespace outrider {

/// What every node's loop does between its socket and its core: moves bytes and logs, nothing else.
class Pump {
 public:
  /// Longest sleep of a loop: how late a tick or a stop may be seen.
  static constexpr Duration kTick = std::chrono::milliseconds(20);

  explicit Pump(Endpoint& endpoint) : endpoint_(endpoint) {}

  /// Hands what has arrived to on_message(from, message), at most a burst, so that ticks come
  /// through. Malformed frames are logged, and told to on_malformed(from, session); a peer of another protocol version,
  /// or one whose key does not allow what it says, is told so. The latter is as good as gone: on_gone(from).
  template <typename OnMessage, typename OnGone = void (*)(const PeerId&),
            typename OnMalformed = void (*)(const PeerId&, SessionId)>
  void receive(
      OnMessage on_message, OnGone on_gone = [](const PeerId&) {},
      OnMalformed on_malformed = [](const PeerId&, SessionId) {}) {
    for (int n = 0; n < kBurstMax; ++n) {
      std::optional<Received> received = endpoint_.receive();
      if (!received) return say_trouble();
      if (received->message) {
        on_message(received->from, std::move(*received->message));
        continue;
      }
      reject(*received);
      if (!received->refused) on_malformed(received->from, received->about);
      const bool is_cut = endpoint_.spoke_in_vain();
      if (is_cut || received->refused) on_gone(received->from);
    }
  }

  /// Sends; on_sent(message, bytes) and on_gone(peer) tell the core. Never blocks. What a full queue
  /// does not take the session protocol repeats, but for a client's text: that waits here.
  template <typename OnSent, typename OnGone>
  void send(const std::vector<Outgoing>& outgoing, OnSent on_sent, OnGone on_gone) {
    const auto sent = [&](const PeerId& to, const Message& message, const Result<std::size_t>& bytes) {
      if (bytes) {
        on_sent(message, *bytes);
      } else if (bytes.error().code == Errc::kPeerGone) {
        on_gone(to);
      }
      return bytes || bytes.error().code == Errc::kPeerGone;
    };
    // A queue that is still full is found out with its first message, however long the rest.
    for (auto queue = waiting_.begin(); queue != waiting_.end();) {
      auto& [to, messages] = *queue;
      while (!messages.empty() && sent(to, messages.front(), endpoint_.send(to, messages.front())))
        messages.pop_front();
      queue = messages.empty() ? waiting_.erase(queue) : std::next(queue);
    }
    for (const Outgoing& out : outgoing) {
      const bool keep = is_text(out);
      if (const auto queue = waiting_.find(out.to); keep && queue != waiting_.end()) {
        queue->second.push_back(out.message);  // in order, or not at all
        if (queue->second.size() <= kWaitingMax) continue;
        waiting_.erase(queue);  // it asks and does not read: as good as gone
        on_gone(out.to);
        continue;
      }
      const Result<std::size_t> bytes = endpoint_.send(out.to, out.message);
      if (sent(out.to, out.message, bytes)) continue;
      if (keep) {
        waiting_[out.to].push_back(out.message);
      } else if (!std::holds_alternative<Heartbeat>(out.message.body)) {
        warn_limited("event=send_dropped reason=\"" + bytes.error().message + "\"");
      }
    }
  }
  /// Of a worker: sends and logs.
  void deliver(const CoreOutput& output) {
    send(
        output.send, [](const Message&, std::size_t) {}, [](const PeerId&) {});
    log(output.notices);
    if (output.redial) endpoint_.redial();
  }

  /// Sleeps until there is something to read, until the core's tick is `due`, or for one tick.
  void wait(std::optional<TimePoint> due, TimePoint now) {
    endpoint_.wait(due ? std::clamp<Duration>(*due - now, Duration::zero(), kTick) : kTick);
  }

  /// So many at most that no peer can fill a disk; the others are counted.
  void log(const std::vector<Notice>& notices);

  /// Set once the coordinator that this endpoint is connected to turned out to speak another protocol
  /// version: a worker has nothing to wait for then.
  const std::optional<Error>& version_mismatch() const { return version_mismatch_; }

 private:
  static constexpr int kBurstMax = 64;
  static constexpr std::size_t kWaitingMax = 4'096;  ///< messages that one client may leave unread: some 2 MiB
  /// What the coordinator tells a client once and for all. Bounded by the length of its answers.
  static bool is_text(const Outgoing& out) {
    const Body& body = out.message.body;
    const bool to_client = !out.to.empty();  // not a drafter's, without which its coordinator goes on
    return std::holds_alternative<Tokens>(body) || std::holds_alternative<Done>(body) ||
           std::holds_alternative<Failed>(body) || (std::holds_alternative<Candidates>(body) && to_client);
  }
  void reject(const Received& received);
  /// Logs why the coordinator cannot be reached: each reason at once, and again while it lasts.
  void say_trouble();
  void warn_limited(const std::string& text);

  Endpoint& endpoint_;
  std::map<PeerId, std::deque<Message>> waiting_;
  RateLimit limit_;
  RateLimit notices_{{std::chrono::milliseconds(100), 100}};  ///< peers provoke them, by joining and leaving
  std::optional<Error> version_mismatch_;
  Reminder trouble_;
};

}  // namespace outrider
