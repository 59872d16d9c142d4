#include "launch/interrupt.h"

#include <atomic>

#include "common/base/check.h"

namespace outrider {
namespace {
std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");
}  // namespace

Interrupt::Interrupt(bool also_sigterm) : also_sigterm_(also_sigterm) {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = SA_RESTART;  // whatever else the program waits for need not know
  CHECK(sigaction(SIGINT, &action, &before_) == 0);
  if (also_sigterm_) CHECK(sigaction(SIGTERM, &action, &before_sigterm_) == 0);
  clear();
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &before_, nullptr);
  if (also_sigterm_) sigaction(SIGTERM, &before_sigterm_, nullptr);
}

bool Interrupt::requested() const { return interrupted; }
void Interrupt::clear() { interrupted = false; }

}  // namespace outrider
