#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "coordinator-node/session/environment.h"

namespace outrider {

/// What a worker was asked last. The session repeats it while nothing is heard of it, since the request or its answer
/// may be lost.
class PendingRequest {
 public:
  /// Repeat an unanswered request to a worker that is alive.
  static constexpr Duration kResend = std::chrono::seconds(2);
  /// Repeats of which a worker says nothing, not even that the request is in work, until it counts as of no use.
  static constexpr int kRetriesMax = 4;

  explicit PendingRequest(Environment& environment) : environment_(environment) {}

  void ask(const PeerId& to, Message message) {
    message_ = std::move(message);
    retries_ = 0;
    repeat(to);
  }
  /// @param to  "" while there is nobody: only the time counts
  void repeat(const PeerId& to) {
    wait_from_now();
    if (!to.empty()) environment_.send(to, *message_);
  }
  /// Something was said about it.
  void heard() { retries_ = 0; }
  /// A part of its answer is here, or the request is long and still on its way: the answer has its time from now on.
  void wait_from_now() { sent_ = environment_.now; }
  /// A Prefill without K/V rows for drafters, again.
  void repeat_without_rows(const PeerId& to) {
    std::get<Prefill>(message_->body).kv_from.reset();
    repeat(to);
  }
  /// Repeats it where its answer is late. @return why the worker is of no use, after too many repeats
  std::optional<Error> on_tick(const PeerId& to) {
    const TimePoint now = environment_.now;
    const Worker* worker = environment_.fleet.find(to);
    // The answer, or what it waits behind, is on its way.
    if (worker != nullptr && worker->arriving.now(now)) return std::nullopt;
    if (worker != nullptr && worker->leaving != TimePoint() && now - worker->leaving < Worker::kLeaving)
      wait_from_now();
    if (now - sent_ < kResend) return std::nullopt;
    // A worker that says nothing at all is the fleet's matter (LinkConfig::peer_timeout).
    if (worker != nullptr && worker->spoke > sent_ && ++retries_ > kRetriesMax)
      return Error(Errc::kTimeout, "{} requests, and no answer that can be read", retries_);
    repeat(to);
    return std::nullopt;
  }

  /// Whether rows are those that a Verify commits, not a prompt's or a late joiner's history.
  bool commits(const KvRows& kv) const {
    return message_ && std::holds_alternative<Verify>(message_->body) && kv.from >= message_->base;
  }
  TimePoint sent() const { return sent_; }  ///< its last repeat

 private:
  Environment& environment_;
  std::optional<Message> message_;
  TimePoint sent_{};
  int retries_ = 0;  ///< since anything was said about it
};

}  // namespace outrider
