#pragma once

#include <csignal>

namespace outrider {

/// While one lives, Ctrl-C (SIGINT) is a request that the program answers when it can, and does not
/// end it; so is SIGTERM where that is wanted. There is one at a time.
class Interrupt {
 public:
  explicit Interrupt(bool also_sigterm = false);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const;
  void clear();

 private:
  const bool also_sigterm_;
  struct sigaction before_ {
  }, before_sigterm_{};
};

}  // namespace outrider
