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

  void ask(Environment& environment, const PeerId& to, Message message) {
    message_ = std::move(message);
    retries_ = 0;
    repeat(environment, to);
  }
  /// @param to  "" while there is nobody: only the time counts
  void repeat(Environment& environment, const PeerId& to) {
    sent_ = environment.now;
    if (!to.empty()) environment.send(to, *message_);
  }
  /// Something was said about it.
  void heard() { retries_ = 0; }
  /// A part of its answer is here, or the request is long and still on its way: the answer has its time from now on.
  void wait_from(TimePoint now) { sent_ = now; }
  /// A Prefill without K/V rows for drafters, again.
  void repeat_without_rows(Environment& environment, const PeerId& to) {
    std::get<Prefill>(message_->body).kv_from.reset();
    repeat(environment, to);
  }
  /// Its answer is late: repeats it. @return why the worker is of no use, after too many repeats
  std::optional<Error> on_tick(Environment& environment, const PeerId& to) {
    if (environment.now - sent_ < kResend) return std::nullopt;
    // A worker that says nothing at all is the fleet's matter (LinkConfig::peer_timeout).
    const Worker* worker = environment.fleet.find(to);
    if (worker != nullptr && worker->spoke > sent_ && ++retries_ > kRetriesMax)
      return Error(Errc::kTimeout, "{} requests, and no answer that can be read", retries_);
    repeat(environment, to);
    return std::nullopt;
  }

  /// Whether rows are those that a Verify commits, not a prompt's or a late joiner's history.
  bool commits(const KvRows& kv) const {
    return message_ && std::holds_alternative<Verify>(message_->body) && kv.from >= message_->base;
  }
  TimePoint sent() const { return sent_; }  ///< its last repeat

 private:
  std::optional<Message> message_;
  TimePoint sent_{};
  int retries_ = 0;  ///< since anything was said about it
};

}  // namespace outrider
