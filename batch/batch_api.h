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
#include "server/api_error.h"
#include "server/api_keys.h"
#include "server/http_server.h"
#include "server/request_memory.h"

namespace outrider {

struct BatchApiOptions {
  std::filesystem::path dir;                          ///< exists, or is created
  std::uint64_t bytes_max = std::uint64_t{10} << 30;  ///< of all files, and of a batch's output
  Manifest made_by;                                   ///< see BatchOptions
  std::string model;
  int concurrency = 0;  ///< see BatchControl
  BatchAnswer answer;
  std::shared_ptr<ApiKeys> keys;         ///< a batch's lines are charged to its owner's; null: none
  std::shared_ptr<ServerMemory> memory;  ///< of the lines' requests
};

/// OpenAI's /v1/files and /v1/batches: batches run one after the other, in order of arrival, each as a BatchJob. All
/// state is in a folder, so that a new server continues the work of the last one. A key with a name has access to its
/// own files and batches; all other clients share theirs.
class BatchApi {
 public:
  /// @return kUnavailable while another server has the folder; kIo; kMalformed for a foreign file in it
  static Result<std::unique_ptr<BatchApi>> open(BatchApiOptions options);
  /// Cuts off the lines in progress; the next server repeats them.
  ~BatchApi();

  /// Must outlive the HttpServer that has them.
  std::vector<HttpRoute> routes();

 private:
  using Json = nlohmann::json;
  using Table = std::map<std::string, Json>;  ///< by id

  BatchApi(BatchApiOptions options, DurableFile lock) : options_(std::move(options)), lock_(std::move(lock)) {}
  std::filesystem::path path(const char* kind, const std::string& id, const char* ending) const;
  Result<void> load(const char* kind, Table& table) const;
  /// Removes remains of uploads after a crash.
  void forget_halves() const;
  Result<void> save(const char* kind, const Json& object) const;
  HttpReply list(const Table& table, const HttpRequest& http) const;
  HttpReply one(Table& table, const HttpRequest& http);
  /// Returns an entry that the requester may see; the id is the path's third part.
  Json* find(Table& table, const HttpRequest& http);

  HttpReply add_file(const HttpRequest& http);
  HttpReply delete_file(const HttpRequest& http);
  HttpReply file_content(const HttpRequest& http);
  HttpReply add_batch(const HttpRequest& http);
  HttpReply cancel_batch(const HttpRequest& http);
  /// Makes a stored file of a job's output file. @return its id, or none if the job wrote no such file
  Result<std::optional<std::string>> adopt(const std::filesystem::path& from, const std::string& name,
                                           const Json& batch);
  /// Removes expired files and batches.
  void forget_old();
  /// Adds or updates a file.
  void keep_file(const Json& file);
  void forget_file(Table::iterator file);

  /// See BatchAdmission.
  std::optional<ApiError> admit(const std::string& owner, HttpRequest& http) const;
  void run_batches();
  void run(const std::string& id);
  /// @return the error that ends the batch
  Result<void> run_batch(const std::string& id);
  /// Makes files of a batch's finished lines. @param status  the batch's last one
  Result<void> finish(const std::string& id, const char* status);
  /// Ends a batch by an error. Its finished lines become files.
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
  std::uint64_t stored_bytes_ = 0;  ///< of all files and batches
  std::int64_t swept_ = 0;          ///< last removal of expired entries, Unix seconds
  std::jthread thread_;             // last: it uses the others
};

}  // namespace outrider
