#include "launch/interrupt.h"

#include <atomic>

#include "common/base/check.h"

namespace outrider {
namespace {
std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");
}  // namespace

Interrupt::Interrupt() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = SA_RESTART;  // whatever else the program waits for need not know
  CHECK(sigaction(SIGINT, &action, &before_) == 0);
  clear();
}

Interrupt::~Interrupt() { sigaction(SIGINT, &before_, nullptr); }

bool Interrupt::requested() const { return interrupted; }
void Interrupt::clear() { interrupted = false; }

}  // namespace outrider
