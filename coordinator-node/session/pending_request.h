#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "coordinator-node/session/environment.h"

namespace outrider {

/// The last request to a worker. The session repeats it while nothing is received about it, since the request or its
/// answer may be lost.
class PendingRequest {
 public:
  /// The interval of repeats to a live worker, and the longest one after the worker said that it works on the request,
  /// or has no room for it: the request may be a prompt of a hundred MiB.
  static constexpr Duration kResend = std::chrono::seconds(2), kResendInWork = std::chrono::seconds(16);
  /// Unacknowledged repeats after which a worker counts as useless.
  static constexpr int kRetriesMax = 4;
  /// Time for which long messages on the connection delay a repeat. Other sequences may send them without end. A Verify
  /// is short; other requests may be long messages themselves.
  static constexpr Duration kUnderWay = std::chrono::minutes(1), kUnderWayItself = std::chrono::minutes(10);

  explicit PendingRequest(Environment& environment) : environment_(environment) {}

  void ask(const PeerId& to, Message message) {
    message_ = std::move(message);
    retries_ = 0;
    resend_ = kResend;
    repeat(to);
  }
  /// Sends the request again. @param to  "" without a worker: only the time restarts
  void repeat(const PeerId& to) {
    wait_from_now();
    if (!to.empty()) environment_.send(to, *message_);
  }
  /// Tells a verifier that has answered the request that the session goes on, by the shortest message of its round: the
  /// verifier sends the verdict again. @param to  as for repeat()
  void keep_alive(const PeerId& to) {
    wait_from_now();
    if (!to.empty())
      environment_.send(to, {.session = message_->session, .round = message_->round, .body = Verify{.tokens = {0}}});
  }
  /// Records a message about the request. @return true for a Heartbeat: the worker has the request, and a repeat can
  /// only bring a lost answer back
  bool on_message(const Message& message) {
    retries_ = 0;
    heard_ = environment_.now;
    const bool in_work = std::holds_alternative<Heartbeat>(message.body);
    if (in_work || std::holds_alternative<Failed>(message.body))
      resend_ = std::min<Duration>(2 * resend_, kResendInWork);
    return in_work;
  }
  /// Restarts the time of the request: a part of the answer arrived.
  void wait_from_now() { sent_ = heard_ = environment_.now; }
  /// Repeats a Prefill, but without K/V rows for drafters.
  void repeat_without_rows(const PeerId& to) {
    std::get<Prefill>(message_->body).kv_from.reset();
    repeat(to);
  }
  /// Repeats the request when the answer is late. @return an error after too many repeats
  std::optional<Error> on_tick(const PeerId& to) {
    const TimePoint now = environment_.now;
    const Worker* worker = environment_.fleet.find(to);
    const bool is_short = std::holds_alternative<Verify>(message_->body);
    if (worker != nullptr && now - heard_ < (is_short ? kUnderWay : kUnderWayItself)) {
      // The answer, or a message before it, is arriving.
      if (worker->arriving.now(now)) return std::nullopt;
      if (worker->leaving != TimePoint() && now - worker->leaving < Worker::kLeaving) sent_ = now;
    }
    if (now - sent_ < resend_) return std::nullopt;
    // The fleet handles complete silence (LinkConfig::peer_timeout).
    if (worker != nullptr && worker->last_message > sent_ && ++retries_ > kRetriesMax)
      return Error(Errc::kTimeout, "{} requests, and no answer that can be read", retries_);
    repeat(to);
    return std::nullopt;
  }

  /// Returns true if these are the rows that a Verify commits, not a prompt's or a late joiner's history.
  bool commits(const KvRows& kv) const {
    return message_ && std::holds_alternative<Verify>(message_->body) && kv.from >= message_->base;
  }
  TimePoint sent() const { return sent_; }  ///< start of its time, see sent_

 private:
  Environment& environment_;
  std::optional<Message> message_;
  TimePoint sent_{}, heard_{};  ///< start of its time, and of the last repeat or message about it
  Duration resend_ = kResend;
  int retries_ = 0;  ///< since the last message about it
};

}  // namespace outrider
