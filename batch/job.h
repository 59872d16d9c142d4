#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "batch/dispatch.h"
#include "batch/input.h"
#include "batch/journal.h"
#include "server/api_error.h"
#include "server/http_server.h"

namespace outrider {

/// The files of a job, in its output's folder.
struct BatchPaths {
  std::filesystem::path output, errors, journal, progress;

  /// @param output  OUT.jsonl: then OUT.errors.jsonl, OUT.journal, OUT.progress.json
  static BatchPaths of(const std::filesystem::path& output);
};

/// Adds the key and the memory of a server's request to a line's request, whose body is the line.
/// @return the reason if it is refused
using BatchAdmission = std::function<std::optional<ApiError>(HttpRequest& request)>;

struct BatchOptions {
  std::filesystem::path input, output;
  Shard shard;
  BatchInput::Order order = BatchInput::Order::kPrefix;
  Manifest made_by;           ///< everything that a result depends on, besides its line
  std::string only_url;       ///< required of all lines; empty: either
  bool restart = false;       ///< discard earlier results
  bool retry_errors = false;  ///< repeat lines with an error
  BatchAdmission admit = [](HttpRequest&) { return std::optional<ApiError>(); };
};

/// Progress of a job.
struct BatchCounts {
  std::uint32_t total = 0, completed = 0, failed = 0;
  BatchTokens tokens;
  // In this run of the program:
  std::uint32_t finished_now = 0;
  BatchTokens tokens_now;
  int under_way = 0, concurrency = 0;
  std::int64_t retries = 0;
  Duration elapsed{};
  std::string last_problem;  ///< reason of the last retry

  std::uint32_t open() const { return total - completed - failed; }
};

enum class BatchStop {
  kGoOn,
  kDrain,   ///< send nothing new
  kCutOff,  ///< and wait for nothing
};

/// Answers one request like the HTTP API; status 0: no server answered. Any thread, many concurrently.
using BatchAnswer = std::function<HttpReply(const HttpRequest& request)>;
/// Answers by the routes of a server.
BatchAnswer answer_by(std::vector<HttpRoute> routes);

struct BatchControl {
  int concurrency = 0;                                                          ///< concurrent lines; 0: see Dispatch
  std::function<BatchStop()> stop = [] { return BatchStop::kGoOn; };            ///< polled some ten times a second
  std::function<void(const BatchCounts&)> on_tick = [](const BatchCounts&) {};  ///< called as often
};

/// Turns a file of requests into a file of results across crashes: each line is effectively done once, and results are
/// never lost.
class BatchJob {
 public:
  /// Reads the input and earlier results.
  /// @return kUnavailable while another process runs the job; kMismatch if the files are another job's; errors as
  /// BatchInput::open, Journal::open
  static Result<std::unique_ptr<BatchJob>> open(const BatchOptions& options);

  /// Does the remaining lines, until all are done or control.stop() ends it. If all are done, writes output and errors
  /// in the input's order. To be called once.
  /// @return true if all are done. kIo: the disk; kPeerGone: no answer for Dispatch::kSilenceMax. Results so far are
  /// kept.
  Result<bool> run(const BatchAnswer& answer, const BatchControl& control);

  /// After an incomplete run: makes an error of every open line, with this code and message.
  Result<void> give_up_open_lines(const std::string& code, const std::string& message);

  BatchCounts counts() const;
  const BatchPaths& paths() const { return paths_; }
  /// Bytes of a result that a crash had cut short.
  std::uint64_t torn_bytes() const { return journal_->torn_bytes(); }

 private:
  BatchJob(BatchOptions options, BatchInput input)
      : options_(std::move(options)), paths_(BatchPaths::of(options_.output)), input_(std::move(input)) {}
  struct Outcome;
  class Workers;

  void take(const JournalEntry& entry);
  Outcome answer_line(std::uint32_t line, const BatchAnswer& answer) const;
  /// Waits until recorded results are on disk, or lost.
  Result<void> await_journal();
  Result<void> work_through(const BatchAnswer& answer, const BatchControl& control, Dispatch& dispatch);

  const BatchOptions options_;
  const BatchPaths paths_;
  const BatchInput input_;
  std::atomic<bool> cut_off_ = false;
  mutable std::mutex refused_;  ///< held by the only line that is parsed without reserved memory
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  BatchCounts counts_;
  std::vector<JournalEntry> entries_;  ///< by line; those without a length are not done
  std::unique_ptr<Journal> journal_;   // last: its thread uses the others
};

/// The state of a job, from its journal.
struct BatchStatus {
  DurableFile journal;
  Manifest manifest = {};
  BatchCounts counts = {};
  std::vector<JournalEntry> entries = {};  ///< each line's last result, in the input's order
};
Result<BatchStatus> batch_status(const std::filesystem::path& output);

/// Writes output and errors of the finished lines of a job that is not running, even of another program or model.
Result<BatchCounts> write_what_is_done(const std::filesystem::path& output);

/// Merges the output and the errors of all shards.
/// @param shards  the shards' outputs, in any order; their journals are read
/// @return kMismatch if one is of another job or missing, kUnavailable if one is not done yet, kIo
Result<BatchCounts> merge_batches(const std::filesystem::path& output,
                                  const std::vector<std::filesystem::path>& shards);

}  // namespace outrider
