#pragma once

#include <filesystem>
#include <string>

#include "common/base/time.h"

namespace outrider {

/// "loading PATH (SIZE on disk)", of a model's file or directory.
/// @param part  of it: "the vision tower of "
std::string loading(const std::filesystem::path& path, const std::string& part = "");

/// One line on stderr about something long, nothing for what takes less than two seconds. Where stderr is a terminal
/// it is written over itself and ends with the time that was needed, or with nothing where not every step was done;
/// elsewhere there is another every ten seconds.
class Progress {
 public:
  /// @param what  what is done, for people
  /// @param steps  1 and more
  Progress(std::string what, int steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One step more is done.
  void step() { reach(done_ + 1); }
  /// So many steps are done.
  void reach(double steps);

 private:
  std::string what_;
  double steps_, done_ = 0;
  TimePoint start_ = now(), line_due_;
  bool terminal_, shown_ = false;
};

}  // namespace outrider
