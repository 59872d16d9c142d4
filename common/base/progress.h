#pragma once

#include <filesystem>
#include <string>

#include "common/base/time.h"

namespace outrider {

/// "loading PATH (SIZE on disk)", of a model's file or directory.
/// @param part  of it: "the vision tower of "
std::string loading(const std::filesystem::path& path, const std::string& part = "");

/// One line on stderr about something long, written over itself, where stderr is a terminal: nothing for what takes
/// less than two seconds. It ends with the time that was needed, or with nothing where not every step was done.
class Progress {
 public:
  /// @param what  what is done, for people
  Progress(std::string what, int steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One step more is done.
  void step();

 private:
  std::string what_;
  int steps_, done_ = 0;
  TimePoint start_ = now();
  bool terminal_, shown_ = false;
};

}  // namespace outrider
