#pragma once

#include <chrono>
#include <optional>
#include <stop_token>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/wire/transport/pump.h"
#include "common/wire/transport/worker.h"

namespace outrider {

/// The single-threaded loop of a worker (ADR 3): passes messages and time to its core, which is an EncoderCore, a
/// VerifierCore or a DrafterCore, sends the core's messages, and does the work that the core assigns.
template <typename Core>
class WorkerLoop {
 public:
  /// All arguments outlive the loop.
  WorkerLoop(Core& core, Endpoint& endpoint, const WorkerOptions& options)
      : core_(core),
        endpoint_(endpoint),
        pump_(endpoint),
        alone_seconds_max_(options.alone_seconds_max),
        ready_file_(options) {}

  /// Runs until `stop` (then Ok), or returns the reason: a refusal that is final, another protocol version, no
  /// coordinator for longer than the options allow, or a failure of the work.
  /// @param drain_wait  time after `stop` for accepted work, while new sessions are declined
  /// @param take  take(Core::Output&) keeps the output's work; not called with work while other work is under way
  /// @param work  work() does the kept work, and returns false if there was none
  template <typename Take, typename Work>
  Result<void> run(std::stop_token stop, Duration drain_wait, Take take, Work work) {
    const std::stop_callback wake_on_stop(stop, [&] { endpoint_.wake(); });
    std::optional<TimePoint> drain_until;
    while (!core_.membership().refusal() && !pump_.version_mismatch()) {
      if (stop.stop_requested()) {
        if (!drain_until) {
          drain_until = outrider::now() + drain_wait;
          last_alone_ = {};
          core_.drain();
        }
        if (outrider::now() >= *drain_until || has_drained()) break;
      }
      RETURN_IF_ERROR(check_alone());
      RETURN_IF_ERROR(ready_file_.show(core_.membership().joined()));
      exchange();
      const std::optional<TimePoint> due = hand_over(take);
      // After an exception (no memory for another session's K/V, say) the engine is not usable any more.
      const Result<bool> worked = no_throw([&] { return Result<bool>(work()); });
      if (!worked) return Error{worked.error().code, "the engine stopped: " + worked.error().message};
      if (*worked) {
        hand_over(take);  // at once: a verdict must not wait for newly arrived messages
      } else {
        pump_.wait(due, now());
      }
    }
    if (pump_.version_mismatch()) return *pump_.version_mismatch();
    if (core_.membership().refusal()) return *core_.membership().refusal();
    hand_over(take);
    return {};
  }

  /// To be called now and then by long work: handles messages and heartbeats.
  void between_steps() {
    if (outrider::now() - exchanged_ <= kLook) return;
    exchange();
    hand_over([](const typename Core::Output&) {});
  }

  /// The core's time.
  TimePoint now() { return clock_.now(); }

 private:
  /// Pause between two looks for messages during long work. The core sees messages that late: a verifier learns from
  /// their times when sequences return (BatchWindow). A look takes some microseconds.
  static constexpr Duration kLook = std::chrono::milliseconds(2);

  /// Time for a coordinator that did not know this worker any more to welcome it, and then to give it the sessions
  /// again that no other worker can take.
  static constexpr Duration kReturn = std::chrono::seconds(1);

  bool has_drained() {
    const bool is_idle = core_.session_count() == 0;
    if (core_.membership().joined()) return is_idle && now() - last_alone_ > kReturn;
    return is_idle || now() - last_joined_ > kReturn;
  }

  /// A worker whose job was killed must not stay for ever.
  Result<void> check_alone() {
    if (alone_seconds_max_ == 0 || now() - last_joined_ <= std::chrono::seconds(alone_seconds_max_)) return {};
    return Error(Errc::kUnavailable, "no coordinator for {} s (--exit-when-alone)", alone_seconds_max_);
  }

  void exchange() {
    pump_.receive([&](const PeerId&, Message message) { core_.on_message(std::move(message), now()); });
    if (!endpoint_.arriving().empty()) core_.on_arriving(now());
    core_.on_tick(now());
    (core_.membership().joined() ? last_joined_ : last_alone_) = now();
    exchanged_ = outrider::now();
  }
  /// @return time of the core's next tick, if known
  template <typename Take>
  std::optional<TimePoint> hand_over(Take take) {
    typename Core::Output output = core_.take_output();
    pump_.deliver(output);
    take(output);
    return output.due;
  }

  Core& core_;
  Endpoint& endpoint_;
  Pump pump_;
  LoopClock clock_;
  const int alone_seconds_max_;  ///< 0: for ever
  TimePoint last_joined_ = now(), last_alone_{};
  ReadyFile ready_file_;
  TimePoint exchanged_ = outrider::now();
};

}  // namespace outrider
