#include "common/base/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace outrider {

Progress::Progress(std::string what, int steps)
    : what_(std::move(what)), steps_(steps), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (!shown_) return;
  // To the start of the line, and away with what stands there.
  std::fprintf(stderr, "\r\033[K");
  if (done_ == steps_) std::fprintf(stderr, "%s: ready in %.0f s\n", what_.c_str(), to_seconds(now() - start_));
}

void Progress::step() {
  ++done_;
  const double seconds = to_seconds(now() - start_);
  if (!terminal_ || seconds < 2) return;
  shown_ = true;
  std::fprintf(stderr, "\r\033[K%s: %d of %d, %.0f s left", what_.c_str(), done_, steps_,
               seconds / done_ * (steps_ - done_));
}

}  // namespace outrider
