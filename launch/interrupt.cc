#include "launch/interrupt.h"

#include <atomic>

#include "common/base/check.h"

namespace outrider {
namespace {
std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");
}  // namespace

Interrupt::Interrupt(bool also_sigterm) {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = SA_RESTART;  // other waits of the program continue
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) {
    if (number != SIGINT && !also_sigterm) break;
    before_.emplace_back(number, action);
    CHECK(sigaction(number, &action, &before_.back().second) == 0);
  }
  clear();
}

Interrupt::~Interrupt() {
  for (const auto& [number, before] : before_) sigaction(number, &before, nullptr);
}

bool Interrupt::requested() const { return interrupted; }
void Interrupt::clear() { interrupted = false; }

}  // namespace outrider
