#pragma once

#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "drafter-node/drafter_core.h"
#include "verifier-node/verifier_core.h"

namespace outrider {

/// A worker's core whose output is taken apart, for tests that look at one part at a time. Heartbeats are left out.
/// Asking for work lets the core's loop go around: it ticks at the time of the last message.
template <typename Core>
class Driven : public Core {
 public:
  using Core::Core;

  void on_message(Message message, TimePoint now) {
    now_ = now;
    Core::on_message(std::move(message), now);
  }
  std::vector<Outgoing> take_outgoing() {
    collect();
    return std::exchange(messages_, {});
  }
  /// Of the verifier.
  std::vector<VerifyWork> take_batch() {
    this->on_tick(now_);
    collect();
    return std::exchange(batch_, {});
  }
  std::vector<SessionId> take_released() {
    collect();
    return std::exchange(released_, {});
  }
  /// Of the drafter.
  std::vector<DraftWork> take_work() {
    this->on_tick(now_);
    collect();
    return std::exchange(work_, {});
  }

 private:
  static void append(auto& to, auto&& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  }
  void collect() {
    auto output = this->take_output();
    std::erase_if(output.send, [](const Outgoing& out) { return std::holds_alternative<Heartbeat>(out.message.body); });
    append(messages_, output.send);
    if constexpr (requires { output.batch; }) {
      append(released_, output.released);
      append(batch_, output.batch);
    } else {
      append(work_, output.work);
    }
  }

  TimePoint now_{};
  std::vector<Outgoing> messages_;
  std::vector<SessionId> released_;
  std::vector<VerifyWork> batch_;
  std::vector<DraftWork> work_;
};

}  // namespace outrider
