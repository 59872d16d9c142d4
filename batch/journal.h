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

/// Parameters that the results depend on, by name: with another value it is another job.
using Manifest = std::map<std::string, std::string>;

/// Compares two manifests. @return kMismatch with the first differing field and both values
Result<void> check_same_job(const Manifest& journal, const Manifest& now, const std::filesystem::path& path);

/// Cost and place of a finished line's result.
struct JournalEntry {
  std::uint32_t line = 0;  ///< from 0
  bool ok = false;         ///< a line of the output, not of the errors
  BatchTokens tokens;
  std::uint64_t offset = 0;  ///< of the result in the journal
  std::uint32_t length = 0;
};
using OnEntry = std::function<void(const JournalEntry& entry)>;

/// The results of a job on disk: lines of JSON, each with its checksum. The first line has the manifest. Lines are
/// atomic: a partial one after a crash is cut off at the next start. Of two results of one line the later one counts.
class Journal {
 public:
  /// Opens a journal to continue, or creates one with the manifest alone. @param restart  discards previous results
  /// @param on_entry  receives previous entries
  /// @param on_committed  receives appended entries once they are on disk; on a thread of the journal
  /// @return kUnavailable while another process has it; kMismatch if it is another job's; kMalformed if it is no
  /// journal; kIo
  static Result<std::unique_ptr<Journal>> open(const std::filesystem::path& path, const Manifest& manifest,
                                               bool restart, const OnEntry& on_entry, OnEntry on_committed);
  /// Reads entries without locking or writing, also while another process writes.
  static Result<Manifest> read(const DurableFile& file, const OnEntry& on_entry);
  /// Commits appended entries.
  ~Journal();

  /// Blocks while much is not on disk yet. Any thread. An error is final, and the same for all.
  Result<void> append(std::uint32_t line, bool ok, const BatchTokens& tokens, std::string_view result);
  /// Returns the error that ended writing; any thread.
  Result<void> state() const;
  /// Returns true while appended entries are neither on disk nor lost; any thread.
  bool has_uncommitted() const;

  const DurableFile& file() const { return file_; }
  /// Bytes after the last complete line that open() has cut off.
  std::uint64_t torn_bytes() const { return torn_bytes_; }

 private:
  Journal(DurableFile file, std::uint64_t end, OnEntry on_committed)
      : file_(std::move(file)), end_(end), on_committed_(std::move(on_committed)) {}
  void commit_until_closed();

  DurableFile file_;
  std::uint64_t end_;  ///< of the file, once all appended entries are written
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
