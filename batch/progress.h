#pragma once

#include <deque>
#include <filesystem>
#include <string>
#include <utility>

#include "batch/job.h"
#include "common/base/time.h"

namespace outrider {

/// Shows the progress of a job: a bar if stderr is a terminal, else a line a minute; and a file each second.
class BatchProgress {
 public:
  explicit BatchProgress(std::filesystem::path file);
  ~BatchProgress();
  BatchProgress(const BatchProgress&) = delete;
  BatchProgress& operator=(const BatchProgress&) = delete;

  void tick(const BatchCounts& counts, TimePoint now);
  /// Writes the file. @param state  "running", "done" or "stopped"
  void write(const BatchCounts& counts, const char* state) const;

 private:
  const std::filesystem::path file_;
  const bool terminal_;
  TimePoint file_due_{}, line_due_{};
  /// Tokens by time, over the last minute; the first entry is the minute's beginning.
  std::deque<std::pair<TimePoint, std::int64_t>> recent_;
  double tokens_per_second_ = 0;
};

/// "3 of 4 lines (1 with errors)".
std::string lines_text(const BatchCounts& counts);
/// Returns one line for people.
std::string progress_text(const BatchCounts& counts, double tokens_per_second);

}  // namespace outrider
