#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "batch/batch_line.h"
#include "batch/line_reader.h"
#include "common/base/result.h"

namespace outrider {

/// The results of a job depend on these, by name: another value makes another job.
using Manifest = std::map<std::string, std::string>;

/// The first field in which two differ. @return kMismatch that names it and both values.
Result<void> check_same_job(const Manifest& journal, const Manifest& now, const std::filesystem::path& path);

/// It says of a line that is done what it cost, and where its result lies.
struct JournalEntry {
  std::uint32_t line = 0;  ///< from 0
  bool ok = false;         ///< a line of the output, not of the errors
  BatchTokens tokens;
  std::uint64_t offset = 0;  ///< of the result in the journal
  std::uint32_t length = 0;
};
using OnEntry = std::function<void(const JournalEntry& entry)>;

/// The results of a job as they come, on the disk: lines of JSON, each with a checksum of what follows it. The first
/// holds the manifest. A line is there whole or not at all: what a crash has left of one is cut off at the next start.
/// Of two results of one line the later one counts.
class Journal {
 public:
  /// Opens it to go on, or begins it: then it has the manifest alone.
  /// @param restart  what is there is discarded.
  /// @param on_entry  gets what is there.
  /// @param on_committed  gets what append() was given, once it is on the disk; on a thread of the journal.
  /// @return kUnavailable while another process has it; kMismatch if it is of another job; kMalformed if it is no
  ///   journal; kIo.
  static Result<std::unique_ptr<Journal>> open(const std::filesystem::path& path, const Manifest& manifest,
                                               bool restart, const OnEntry& on_entry, OnEntry on_committed);
  /// The same without writing to it, whoever else does.
  static Result<Manifest> read(const DurableFile& file, const OnEntry& on_entry);
  /// Commits what was appended.
  ~Journal();

  /// Waits while much is not on the disk yet. Any thread. An error is final, and the same for all.
  Result<void> append(std::uint32_t line, bool ok, const BatchTokens& tokens, std::string_view result);
  /// Why there is no more writing; any thread.
  Result<void> state() const;
  /// Whether some of what was appended is neither on the disk nor lost; any thread.
  bool has_uncommitted() const;

  const DurableFile& file() const { return file_; }
  /// Bytes behind the last whole line that open() has cut off.
  std::uint64_t torn_bytes() const { return torn_bytes_; }

 private:
  Journal(DurableFile file, std::uint64_t end, OnEntry on_committed)
      : file_(std::move(file)), end_(end), on_committed_(std::move(on_committed)) {}
  void commit_until_closed();

  DurableFile file_;
  std::uint64_t end_;  ///< of the file, once all that was appended is written
  std::uint64_t torn_bytes_ = 0;
  OnEntry on_committed_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string unwritten_;
  std::vector<JournalEntry> entries_;  ///< of them
  std::optional<Error> error_;
  bool closed_ = false, committing_ = false;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace outrider
