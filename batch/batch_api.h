#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "batch/job.h"
#include "common/os/durable_file.h"
#include "server/http_server.h"

namespace outrider {

struct BatchApiOptions {
  std::filesystem::path dir;                          ///< exists, or is made
  std::uint64_t bytes_max = std::uint64_t{10} << 30;  ///< of all files, and of what a batch writes
  Manifest made_by;                                   ///< as BatchOptions::made_by
  std::string model;
  int concurrency = 0;  ///< as BatchControl::concurrency
  BatchAnswer answer;
};

/// OpenAI's /v1/files and /v1/batches: batches run one after the other, in the order in which they came, each as a
/// BatchJob. All is kept in a folder, so that a new server goes on where the last one was. Whoever has a key with a
/// name sees what came under that name; all others see each other's.
class BatchApi {
 public:
  /// @return kUnavailable while another server has the folder; kIo; kMalformed for a file there that is not ours.
  static Result<std::unique_ptr<BatchApi>> open(BatchApiOptions options);
  /// It cuts off the lines under way; the next server does them again.
  ~BatchApi();

  /// Must outlive the HttpServer that has them.
  std::vector<HttpRoute> routes();

 private:
  using Json = nlohmann::json;
  using Table = std::map<std::string, Json>;  ///< by id

  BatchApi(BatchApiOptions options, DurableFile lock) : options_(std::move(options)), lock_(std::move(lock)) {}
  std::filesystem::path path(const char* kind, const std::string& id, const char* ending) const;
  Result<void> load(const char* kind, Table& table) const;
  /// It removes the rests of uploads that a crash has left.
  void forget_halves() const;
  Result<void> save(const char* kind, const Json& object) const;
  HttpReply list(const Table& table, const HttpRequest& http) const;
  HttpReply one(Table& table, const HttpRequest& http);
  /// One that whoever asks may see; the id is the path's third part.
  Json* find(Table& table, const HttpRequest& http);

  HttpReply add_file(const HttpRequest& http);
  HttpReply delete_file(const HttpRequest& http);
  HttpReply file_content(const HttpRequest& http);
  HttpReply add_batch(const HttpRequest& http);
  HttpReply cancel_batch(const HttpRequest& http);
  /// Makes a file of one that a job has written. @return its id, or nothing where there is none.
  Result<std::optional<std::string>> adopt(const std::filesystem::path& from, const std::string& name,
                                           const Json& batch);
  /// Files and batches whose time is over.
  void forget_old();
  /// A new one, or one that is there as it is now.
  void keep_file(const Json& file);
  void forget_file(Table::iterator file);

  void run_batches();
  void run_batch(const std::string& id);
  Result<void> finish(const std::string& id, BatchJob& job, const char* status);
  /// Writes what is done of a batch that has not come to its end.
  Result<void> give_up(const std::string& id, BatchJob& job, const std::string& status);
  void fail(const std::string& id, const Error& error);
  void count(const std::string& id, const BatchCounts& counts);
  /// Changes a batch and saves it.
  void update(const std::string& id, const Json& changes);

  const BatchApiOptions options_;
  const DurableFile lock_;
  std::atomic<bool> ends_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  Table files_, batches_;
  std::uint64_t stored_bytes_ = 0;  ///< of all files
  std::int64_t swept_ = 0;          ///< when what is old was forgotten last, Unix seconds
  std::jthread thread_;             // last: it uses the others
};

}  // namespace outrider
