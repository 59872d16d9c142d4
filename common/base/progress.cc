#include "common/base/progress.h"

#include <unistd.h>

#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace outrider {

std::string loading(const std::filesystem::path& path, const std::string& part) {
  std::error_code ignored;
  std::uintmax_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(path, ignored))
    if (file.is_regular_file(ignored)) bytes += file.file_size(ignored);
  if (std::filesystem::is_regular_file(path, ignored)) bytes = std::filesystem::file_size(path, ignored);
  return fmt::format("loading {}{} ({:.1f} GB on disk)", part, path.string(), static_cast<double>(bytes) / 1e9);
}

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
