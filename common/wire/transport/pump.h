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

/// The part that all nodes' loops share, between socket and core: moves bytes and writes logs.
class Pump {
 public:
  /// Longest sleep of a loop, and longest delay of a tick or stop.
  static constexpr Duration kTick = std::chrono::milliseconds(20);

  explicit Pump(Endpoint& endpoint) : endpoint_(endpoint) {}

  /// Passes arrived messages to on_message(from, message), at most a burst, so that ticks are on time. Malformed frames
  /// are logged and reported to on_malformed(from, session). A peer with another protocol version, or with a key that
  /// does not allow its message, is sent a Refuse; the latter is then treated as gone: on_gone(from).
  template <typename OnMessage, typename OnGone = void (*)(const PeerId&),
            typename OnMalformed = void (*)(const PeerId&, SessionId)>
  void receive(
      OnMessage on_message, OnGone on_gone = [](const PeerId&) {},
      OnMalformed on_malformed = [](const PeerId&, SessionId) {}) {
    for (int n = 0; n < kBurstMax; ++n) {
      std::optional<Received> received = endpoint_.receive();
      if (!received) return log_problem();
      if (received->message) {
        on_message(received->from, std::move(*received->message));
        continue;
      }
      reject(*received);
      if (!received->refused) on_malformed(received->from, received->about);
      const bool is_cut = endpoint_.count_useless_message();
      if (is_cut || received->refused) on_gone(received->from);
    }
  }

  /// Sends; reports to the core by on_sent(message, bytes) and on_gone(peer). Never blocks. The session protocol
  /// repeats whatever a full queue rejects, except messages that are sent once, which are queued here.
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
    // The first message shows whether a queue is still full, however many follow.
    for (auto queue = waiting_.begin(); queue != waiting_.end();) {
      auto& [to, messages] = *queue;
      while (!messages.empty() && sent(to, messages.front(), endpoint_.send(to, messages.front())))
        messages.pop_front();
      queue = messages.empty() ? waiting_.erase(queue) : std::next(queue);
    }
    for (const Outgoing& out : outgoing) {
      const bool once = is_sent_once(out);
      if (const auto queue = waiting_.find(out.to); queue != waiting_.end()) {
        if (!once) continue;  // it would overtake those that wait
        queue->second.push_back(out.message);
        if (queue->second.size() <= kWaitingMax) continue;
        waiting_.erase(queue);  // a client that does not read is treated as gone
        on_gone(out.to);
        continue;
      }
      const Result<std::size_t> bytes = endpoint_.send(out.to, out.message);
      if (sent(out.to, out.message, bytes)) continue;
      if (once) {
        waiting_[out.to].push_back(out.message);
      } else if (!std::holds_alternative<Heartbeat>(out.message.body)) {
        warn_limited("event=send_dropped reason=\"" + bytes.error().message + "\"");
      }
    }
  }
  /// Workers only: sends and logs.
  void deliver(const CoreOutput& output) {
    send(
        output.send, [](const Message&, std::size_t) {}, [](const PeerId&) {});
    log(output.notices);
    if (output.redial) endpoint_.redial();
  }

  /// Sleeps until a message is readable, until the core's tick is `due`, or for one tick.
  void wait(std::optional<TimePoint> due, TimePoint now) {
    endpoint_.wait(due ? std::clamp<Duration>(*due - now, Duration::zero(), kTick) : kTick);
  }

  /// Rate-limited, so that no peer can fill a disk; dropped notices are counted.
  void log(const std::vector<Notice>& notices);

  /// Set once the connected coordinator turned out to speak another protocol version: a worker cannot work with it.
  const std::optional<Error>& version_mismatch() const { return version_mismatch_; }

 private:
  static constexpr int kBurstMax = 64;
  /// Messages that one client may leave unread: some 2 MiB, ten times as many with log-probabilities.
  static constexpr std::size_t kWaitingMax = 4'096;
  /// Returns true for messages that nobody asks for again. Their number is bounded by the sequence's length.
  static bool is_sent_once(const Outgoing& out) {
    const Body& body = out.message.body;
    const bool to_client = !out.to.empty();  // not a drafter's, which its coordinator can do without
    return std::holds_alternative<Tokens>(body) || std::holds_alternative<PromptScores>(body) ||
           std::holds_alternative<Done>(body) || std::holds_alternative<Failed>(body) ||
           (std::holds_alternative<Candidates>(body) && to_client);
  }
  void reject(const Received& received);
  /// Logs why the coordinator cannot be reached: each reason at once, and again while it lasts.
  void log_problem();
  void warn_limited(const std::string& text);

  Endpoint& endpoint_;
  std::map<PeerId, std::deque<Message>> waiting_;
  RateLimit limit_;
  RateLimit notices_{{std::chrono::milliseconds(100), 100}};  ///< peers cause them by joining and leaving
  std::optional<Error> version_mismatch_;
  Reminder reminder_;
};

}  // namespace outrider
