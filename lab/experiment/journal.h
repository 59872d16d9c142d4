#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "common/base/result.h"
#include "common/os/durable_file.h"
#include "lab/json.h"

namespace outrider {

/// An append-only file of JSON objects, one a line. A line is on disk when append() returns. One writer at a time: a
/// second one is refused.
class CellJournal {
 public:
  /// Creates it, or reads it and cuts a torn tail off: an end without a newline is left by a crash.
  /// @return kMalformed for another line that is not an object: the file is not ours
  static Result<CellJournal> open(const std::filesystem::path& path);

  const std::vector<Json>& lines() const { return lines_; }
  std::uint64_t bytes() const { return bytes_; }
  /// Atomic: after a crash all of the lines are there, or a torn tail.
  Result<void> append(const std::vector<Json>& lines);
  /// Drops everything after `bytes`, the end of a line. @return kMalformed if the file is shorter
  Result<void> truncate(std::uint64_t bytes);

 private:
  explicit CellJournal(DurableFile file) : file_(std::move(file)) {}

  DurableFile file_;
  std::vector<Json> lines_;
  std::uint64_t bytes_ = 0;
};

/// Returns the objects of such a file without opening it for writing; omits a torn tail.
Result<std::vector<Json>> read_journal(const std::filesystem::path& path);

}  // namespace outrider
