#pragma once

#include <csignal>
#include <utility>
#include <vector>

namespace outrider {

/// While one lives, Ctrl-C (SIGINT) is a request that the program answers when it can, and does not
/// end it; so are SIGTERM, SIGUSR1 and SIGUSR2, the last two of which batch systems send, where that is wanted. There
/// is one at a time.
class Interrupt {
 public:
  explicit Interrupt(bool also_sigterm = false);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const;
  void clear();

 private:
  std::vector<std::pair<int, struct sigaction>> before_;  ///< by signal
};

}  // namespace outrider
