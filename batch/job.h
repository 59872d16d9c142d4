#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "batch/dispatch.h"
#include "batch/input.h"
#include "batch/journal.h"
#include "server/http_server.h"

namespace outrider {

/// The files of a job, all beside its output.
struct BatchPaths {
  std::filesystem::path output, errors, journal, progress;

  /// @param output  OUT.jsonl: then OUT.errors.jsonl, OUT.journal, OUT.progress.json.
  static BatchPaths of(const std::filesystem::path& output);
};

struct BatchOptions {
  std::filesystem::path input, output;
  Shard shard;
  BatchInput::Order order = BatchInput::Order::kPrefix;
  Manifest made_by;           ///< what a result depends on besides its line
  std::string only_url;       ///< that all lines must have; empty: either
  bool restart = false;       ///< what is there is discarded
  bool retry_errors = false;  ///< lines that have an error are not done
};

/// How far a job is.
struct BatchCounts {
  std::uint32_t total = 0, completed = 0, failed = 0;
  BatchTokens tokens;
  // Of this run of the program:
  std::uint32_t finished_now = 0;
  BatchTokens tokens_now;
  int under_way = 0, concurrency = 0;
  std::int64_t retries = 0;
  Duration elapsed{};
  std::string last_problem;  ///< why the last retry was needed

  std::uint32_t open() const { return total - completed - failed; }
};

enum class BatchStop {
  kGoOn,
  kDrain,   ///< nothing new is sent
  kCutOff,  ///< nor is anything waited for
};

/// Answers one request as the HTTP API does; status 0: nobody has. Any thread, many at once.
using BatchAnswer = std::function<HttpReply(const HttpRequest& request)>;
/// It lets the routes of a server answer.
BatchAnswer answer_by(std::vector<HttpRoute> routes);

struct BatchControl {
  int concurrency = 0;  ///< lines under way at once; 0: as many as it takes, found by itself
  std::function<BatchStop()> stop = [] { return BatchStop::kGoOn; };            ///< asked some ten times a second
  std::function<void(const BatchCounts&)> on_tick = [](const BatchCounts&) {};  ///< called as often
};

/// A file of requests that becomes a file of results, whatever happens on the way: each line is done once, as far as
/// anybody can see, and what is done is never lost.
class BatchJob {
 public:
  /// Reads the input and what was done before. @return kUnavailable while another process runs the job; kMismatch where
  ///   the files are of another one; as BatchInput::open, Journal::open.
  static Result<std::unique_ptr<BatchJob>> open(const BatchOptions& options);

  /// Does what is not done, until it is or control.stop() says so. Then, if all is done, writes output and errors in
  /// the input's order. Once.
  /// @return whether all is done. kIo: the disk; kPeerGone: nobody has answered for Dispatch::kSilenceMax. What was
  ///   done until then is kept.
  Result<bool> run(const BatchAnswer& answer, const BatchControl& control);

  /// After a run that did not come to its end: makes an error of every line that is not done, with this code and
  /// message.
  Result<void> give_up_open_lines(const std::string& code, const std::string& message);

  /// After a run that did not come to its end: output and errors of what is done.
  Result<void> write_what_is_done() const;

  BatchCounts counts() const;
  const BatchPaths& paths() const { return paths_; }
  /// Bytes of a result that was cut short by a crash.
  std::uint64_t torn_bytes() const { return journal_->torn_bytes(); }

 private:
  BatchJob(BatchOptions options, BatchInput input)
      : options_(std::move(options)), paths_(BatchPaths::of(options_.output)), input_(std::move(input)) {}
  struct Outcome;
  class Workers;

  void take(const JournalEntry& entry);
  Outcome answer_line(std::uint32_t line, const BatchAnswer& answer) const;
  Result<void> record(std::uint32_t line, const Outcome& outcome);
  /// Waits until what was recorded is on the disk, or lost.
  Result<void> await_journal();
  Result<void> work_through(const BatchAnswer& answer, const BatchControl& control, Dispatch& dispatch);

  const BatchOptions options_;
  const BatchPaths paths_;
  const BatchInput input_;
  std::atomic<bool> cut_off_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  BatchCounts counts_;
  std::vector<JournalEntry> entries_;  ///< by line; those without a length are not done
  std::unique_ptr<Journal> journal_;   // last: its thread uses the others
};

/// It holds the state that the journal of a job tells.
struct BatchStatus {
  Manifest manifest;
  BatchCounts counts;
};
Result<BatchStatus> batch_status(const std::filesystem::path& output);

/// Makes the output and the errors of all lines from those of all shards.
/// @param shards  the shards' outputs, in any order; their journals are read.
/// @return kMismatch where one is of another job or missing, kUnavailable where one is not done yet, kIo.
Result<BatchCounts> merge_batches(const std::filesystem::path& output,
                                  const std::vector<std::filesystem::path>& shards);

}  // namespace outrider
