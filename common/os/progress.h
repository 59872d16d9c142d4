#pragma once

#include <filesystem>
#include <string>

#include "common/base/time.h"

namespace outrider {

/// Returns "loading PATH (SIZE on disk)" for a model's file or directory. @param part  of it: "the vision tower of "
std::string loading(const std::filesystem::path& path, const std::string& part = "");

/// Shows progress of a long operation on stderr, and nothing for less than two seconds. On a terminal the line is
/// overwritten and ends with the time taken, or is cleared if not every step was done; elsewhere there is a line every
/// ten seconds.
class Progress {
 public:
  /// @param what  the operation, for people @param steps  1 and more
  Progress(std::string what, int steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Completes one more step.
  void step() { advance_to(done_ + 1); }
  /// Sets the number of completed steps.
  void advance_to(double steps);

 private:
  std::string what_;
  double steps_, done_ = 0;
  TimePoint start_ = now(), line_due_;
  bool terminal_, shown_ = false;
};

}  // namespace outrider
