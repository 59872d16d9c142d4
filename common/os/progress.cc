#include "common/os/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "common/os/files.h"

namespace outrider {
namespace {

constexpr Duration kQuiet = std::chrono::seconds(2), kLineEvery = std::chrono::seconds(10);

}  // namespace

std::string loading(const std::filesystem::path& path, const std::string& part) {
  return fmt::format("loading {}{} ({:.1f} GB on disk)", part, path.string(),
                     static_cast<double>(bytes_on_disk(path)) / 1e9);
}

Progress::Progress(std::string what, int steps)
    : what_(std::move(what)), steps_(steps), terminal_(isatty(STDERR_FILENO) == 1) {
  line_due_ = start_ + (terminal_ ? kQuiet : kLineEvery);
}

Progress::~Progress() {
  if (!shown_ || !terminal_) return;
  // Returns to the start of the line and clears it.
  std::fprintf(stderr, "\r\033[K");
  if (done_ >= steps_) std::fprintf(stderr, "%s: ready in %.0f s\n", what_.c_str(), to_seconds(now() - start_));
}

void Progress::advance_to(double steps) {
  done_ = steps;
  const TimePoint time = now();
  if (time < line_due_ || done_ <= 0) return;
  if (!terminal_) line_due_ = time + kLineEvery;
  shown_ = true;
  const std::string line = fmt::format("{}: {:.0f} of {:.0f}, {:.0f} s left", what_, done_, steps_,
                                       to_seconds(time - start_) / done_ * std::max(0.0, steps_ - done_));
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "outrider: %s\n", line.c_str());
}

}  // namespace outrider
