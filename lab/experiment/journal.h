#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "common/base/result.h"
#include "common/os/durable_file.h"
#include "lab/json.h"

namespace outrider {

/// A file of JSON objects, one a line, that only grows. A line that append() has returned from is on the disk. One
/// writer at a time: a second one is refused.
class CellJournal {
 public:
  /// Creates it, or reads it and cuts a torn tail off: an end without a newline is what a crash left. @return
  /// kMalformed for another line that is no object: the file is not ours.
  static Result<CellJournal> open(const std::filesystem::path& path);

  const std::vector<Json>& lines() const { return lines_; }
  std::uint64_t bytes() const { return bytes_; }
  /// After a crash all of several lines are there, or a torn tail.
  Result<void> append(const std::vector<Json>& lines);
  /// Drops what is beyond `bytes`, the end of a line. @return kMalformed where the file is shorter than that.
  Result<void> truncate(std::uint64_t bytes);

 private:
  explicit CellJournal(DurableFile file) : file_(std::move(file)) {}

  DurableFile file_;
  std::vector<Json> lines_;
  std::uint64_t bytes_ = 0;
};

/// The objects of such a file, for who only reads it; a torn tail is left out.
Result<std::vector<Json>> read_journal(const std::filesystem::path& path);

}  // namespace outrider
