#pragma once

#include <csignal>

namespace outrider {

/// While one lives, Ctrl-C (SIGINT) is a request that the program answers when it can, and does not
/// end it. There is one at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const;
  void clear();

 private:
  struct sigaction before_ {};
};

}  // namespace outrider
