#pragma once

#include <csignal>
#include <utility>
#include <vector>

namespace outrider {

/// While one exists, Ctrl-C (SIGINT) is a request that the program handles when it can, and does not end it; so are
/// SIGTERM, SIGUSR1 and SIGUSR2 on demand, the last two of which batch systems send. There is one at a time.
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
