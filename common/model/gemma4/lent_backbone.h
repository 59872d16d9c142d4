#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <utility>

#include "common/model/gemma4/backbone.h"

namespace outrider {

/// A verifier's backbone, lent in the verifier's idle time to one drafter, which has K/V of its own. One of the two
/// computes at a time, and the verifier goes first: it waits for at most one pass of the drafter. Each calls from its
/// own thread.
class LentBackbone {
 public:
  // For the verifier. The backbone is taken until it is given for the first time.
  void lend(std::shared_ptr<Backbone> backbone);
  /// Waits for the drafter's pass, and lets none begin until give(). @param meanwhile  called every few milliseconds
  void take(const std::function<void()>& meanwhile = [] {});
  void give();

  // For the drafter.
  /// Waits for lend(). @return false if `stop` came first
  bool wait(std::stop_token stop);
  /// @pre wait() returned true
  const std::shared_ptr<Backbone>& backbone() const { return backbone_; }
  /// One pass of the drafter, if the backbone is not taken.
  class Pass {
   public:
    explicit Pass(LentBackbone& lent) : lent_(lent), begun_(lent.begin()) {}
    ~Pass() {
      if (begun_) lent_.end();
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    bool begun() const { return begun_; }

   private:
    LentBackbone& lent_;
    const bool begun_;
  };

 private:
  bool begin();
  void end();

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::shared_ptr<Backbone> backbone_;
  bool taken_ = true, in_pass_ = false;
};

}  // namespace outrider
