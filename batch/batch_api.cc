#include "batch/batch_api.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "batch/hash.h"
#include "common/base/ascii.h"
#include "common/base/json_fields.h"
#include "common/base/text.h"
#include "common/base/time.h"
#include "common/os/files.h"
#include "common/os/logging.h"
#include "server/form.h"
#include "server/openai.h"
#include "server/random_id.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

constexpr std::int64_t kDay = 24 * 3600;
constexpr std::int64_t kAgeMin = 3600, kAgeMax = 30 * kDay;
constexpr std::int64_t kSweepSeconds = 60;
/// Bytes counted for a file besides its content, and for a batch: their objects stay in memory.
constexpr std::uint64_t kEntryBytes = 64 << 10;
// OpenAI's limits.
constexpr std::size_t kMetadataMax = 16, kMetadataKeyBytesMax = 64, kMetadataTextBytesMax = 512;
constexpr std::size_t kFilenameBytesMax = 255;
constexpr std::ptrdiff_t kLinesMax = 50'000;
constexpr const char *kFiles = "files", *kBatches = "batches";
// Not shown to clients: the owner, and the time that a batch's output is kept.
constexpr const char *kOwner = "outrider_owner", *kOutputSeconds = "outrider_output_seconds";

/// Reads a value from limit=3&after=batch_1. The values needed here require no decoding.
std::string query_value(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    if (pair.starts_with(key) && pair.substr(key.size()).starts_with('='))
      return std::string(pair.substr(key.size() + 1));
  }
  return "";
}

Json published(Json json) {
  json.erase(kOwner);
  json.erase(kOutputSeconds);
  return json;
}
HttpReply published_reply(Json json) { return json_reply(published(std::move(json))); }
HttpReply not_there(const HttpRequest& http) {
  return error_reply({.status = 404, .message = fmt::format("there is no {}", http.path)});
}
HttpReply refused(const char* param, std::string why) {
  return error_reply({.status = 400, .message = std::move(why), .param = param});
}
/// The error names a file of the server, and so is only logged.
HttpReply disk_reply(const Error& error) {
  log_error("event=disk_failed reason=\"{}\"", error.message);
  return error_reply({500, "this server cannot read or write its files: its log says why"});
}

/// Returns a batch's `errors`.
Json errors_of(const Error& error) {
  return {{"object", "list"},
          {"data",
           Json::array({Json{
               {"code", to_string(error.code)}, {"message", error.message}, {"param", nullptr}, {"line", nullptr}}})}};
}

std::uint64_t bytes_of(const Json& file) { return file.value("bytes", std::uint64_t{0}); }
std::uint64_t stored_bytes_of(const Json& file) { return bytes_of(file) + kEntryBytes; }

/// @return true if a saved object has all fields that are read, with the right types
bool has_its_fields(const Json& object, bool is_batch) {
  const auto are = [&](std::initializer_list<const char*> keys, bool (Json::*is)() const noexcept) {
    return std::ranges::all_of(keys, [&](const char* key) { return (member(object, key).*is)(); });
  };
  if (!are({"created_at", "expires_at"}, &Json::is_number_integer)) return false;
  if (const Json& owner = member(object, kOwner); !owner.is_null() && !owner.is_string()) return false;
  if (const Json& age = member(object, kOutputSeconds); !age.is_null() && !age.is_number_integer()) return false;
  return is_batch ? are({"status", "input_file_id", "endpoint"}, &Json::is_string)
                  : are({"bytes"}, &Json::is_number_integer);
}

bool is_metadata(const Json& metadata) {
  if (metadata.is_null()) return true;
  if (!metadata.is_object() || metadata.size() > kMetadataMax) return false;
  for (const auto& [key, value] : metadata.items()) {
    if (key.size() > kMetadataKeyBytesMax || !value.is_string()) return false;
    if (value.get_ref<const std::string&>().size() > kMetadataTextBytesMax) return false;
  }
  return true;
}

bool is_over(const Json& batch) {
  const std::string status = batch.value("status", "");
  return status == "completed" || status == "failed" || status == "cancelled" || status == "expired";
}

/// @return true if the batch ends now, finished or not
bool is_due(const Json& batch) {
  return !is_over(batch) &&
         (batch["status"] == "cancelling" || unix_seconds() > batch["expires_at"].get<std::int64_t>());
}

Json file_json(const std::string& id, const std::string& name, std::uint64_t bytes, const char* purpose,
               const std::string& owner, std::int64_t seconds) {
  return {{"id", id},         {"object", "file"},   {"bytes", bytes},        {"created_at", unix_seconds()},
          {"filename", name}, {"purpose", purpose}, {"status", "processed"}, {"expires_at", unix_seconds() + seconds},
          {kOwner, owner}};
}

Json batch_json(const std::string& input, const std::string& endpoint, const std::string& model, const Json& metadata,
                const std::string& owner, std::int64_t output_seconds) {
  Json json = {{"id", random_id("batch_")},
               {"object", "batch"},
               {"endpoint", endpoint},
               {"model", model},
               {"errors", nullptr},
               {"input_file_id", input},
               {"completion_window", "24h"},
               {"status", "validating"},
               {"created_at", unix_seconds()},
               {"expires_at", unix_seconds() + kDay},
               {"request_counts", {{"total", 0}, {"completed", 0}, {"failed", 0}}},
               {"metadata", metadata},
               {kOutputSeconds, output_seconds},
               {kOwner, owner}};
  for (const char* later : {"output_file_id", "error_file_id", "in_progress_at", "finalizing_at", "completed_at",
                            "failed_at", "expired_at", "cancelling_at", "cancelled_at", "usage"})
    json[later] = nullptr;
  return json;
}

}  // namespace

// ---- storage ----

Result<std::unique_ptr<BatchApi>> BatchApi::open(BatchApiOptions options) {
  for (const std::filesystem::path& folder : {options.dir, options.dir / kFiles, options.dir / kBatches}) {
    std::error_code failed;
    if (std::filesystem::create_directories(folder, failed))
      std::filesystem::permissions(folder, std::filesystem::perms::owner_all, failed);  // clients' texts
    if (failed) return Error(Errc::kIo, "{}: cannot create: {}", folder.string(), failed.message());
  }
  ASSIGN_OR_RETURN(DurableFile lock, DurableFile::open(options.dir / "lock", O_RDWR | O_CREAT));
  RETURN_IF_ERROR(lock.lock());
  std::unique_ptr<BatchApi> api(new BatchApi(std::move(options), std::move(lock)));
  RETURN_IF_ERROR(api->load(kFiles, api->files_));
  RETURN_IF_ERROR(api->load(kBatches, api->batches_));
  for (const auto& [id, file] : api->files_) api->stored_bytes_ += stored_bytes_of(file);
  api->stored_bytes_ += api->batches_.size() * kEntryBytes;
  api->forget_halves();
  api->forget_old();
  api->thread_ = std::jthread([raw = api.get()] { raw->run_batches(); });
  return api;
}

BatchApi::~BatchApi() {
  const std::lock_guard lock(mutex_);
  ends_ = true;
  changed_.notify_all();
}

std::filesystem::path BatchApi::path(const char* kind, const std::string& id, const char* ending) const {
  return options_.dir / kind / (id + ending);
}

Result<void> BatchApi::load(const char* kind, Table& table) const {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(options_.dir / kind, failed)) {
    if (entry.path().extension() != ".json") continue;
    ASSIGN_OR_RETURN(const std::string text, read_text(entry.path()));
    ASSIGN_OR_RETURN(Json object, parse_json_object(text, entry.path().string()));
    if (member(object, "id") != entry.path().stem().string() || !has_its_fields(object, kind == kBatches))
      return Error(Errc::kMalformed, "{}: not made by outrider serve, or damaged", entry.path().string());
    const std::string id = object["id"];
    table[id] = std::move(object);
  }
  return failed ? Result<void>(Error(Errc::kIo, "{}: cannot read: {}", kind, failed.message())) : Result<void>();
}

void BatchApi::forget_halves() const {
  std::error_code ignored;
  std::vector<std::filesystem::path> halves;
  for (const auto& entry : std::filesystem::directory_iterator(options_.dir / kFiles, ignored)) {
    const bool content = entry.path().extension() == ".jsonl" && !files_.contains(entry.path().stem().string());
    if (content || entry.path().extension() == ".tmp") halves.push_back(entry.path());
  }
  for (const std::filesystem::path& half : halves) std::filesystem::remove(half, ignored);
}

Result<void> BatchApi::save(const char* kind, const Json& object) const {
  return replace_file(path(kind, object["id"], ".json"),
                      [&](const AppendBytes& append) { return append(to_text(object) + "\n"); });
}

void BatchApi::keep_file(const Json& file) {
  const auto [kept, is_new] = files_.try_emplace(file["id"]);
  if (!is_new) stored_bytes_ -= stored_bytes_of(kept->second);
  stored_bytes_ += stored_bytes_of(file);
  kept->second = file;
}

void BatchApi::forget_file(Table::iterator file) {
  stored_bytes_ -= stored_bytes_of(file->second);
  std::error_code ignored;
  for (const char* ending : {".json", ".jsonl"}) std::filesystem::remove(path(kFiles, file->first, ending), ignored);
  files_.erase(file);
}

void BatchApi::forget_old() {
  swept_ = unix_seconds();
  const std::int64_t oldest = swept_ - kAgeMax;
  const auto old = [&](const Json& object) { return object.value("created_at", std::int64_t{0}) < oldest; };
  std::error_code ignored;
  for (auto it = batches_.begin(); it != batches_.end();) {
    const auto batch = it++;
    if (!is_over(batch->second) || !old(batch->second)) continue;
    for (const char* ending : {".json", ".d"})
      std::filesystem::remove_all(path(kBatches, batch->first, ending), ignored);
    batches_.erase(batch);
    stored_bytes_ -= kEntryBytes;
  }
  std::set<std::string> wanted;  // by unfinished batches
  for (const auto& [id, batch] : batches_)
    if (!is_over(batch)) wanted.insert(batch["input_file_id"].get<std::string>());
  for (auto it = files_.begin(); it != files_.end();) {
    const auto file = it++;
    if (file->second.value("expires_at", std::int64_t{0}) < swept_ && !wanted.contains(file->first)) forget_file(file);
  }
}

// ---- HTTP ----

std::vector<HttpRoute> BatchApi::routes() {
  const auto locked = [this](auto handle, auto*... table) {
    return [this, handle, table...](const HttpRequest& http) {
      const std::lock_guard lock(mutex_);
      forget_old();
      return (this->*handle)(*table..., http);
    };
  };
  std::vector<HttpRoute> routes = {{"POST", "/v1/files", locked(&BatchApi::add_file)},
                                   {"GET", "/v1/files", locked(&BatchApi::list, &files_)},
                                   {"GET", "/v1/files/{id}", locked(&BatchApi::one, &files_)},
                                   {"DELETE", "/v1/files/{id}", locked(&BatchApi::delete_file)},
                                   {"GET", "/v1/files/{id}/content", locked(&BatchApi::file_content)},
                                   {"POST", "/v1/batches", locked(&BatchApi::add_batch)},
                                   {"GET", "/v1/batches", locked(&BatchApi::list, &batches_)},
                                   {"GET", "/v1/batches/{id}", locked(&BatchApi::one, &batches_)},
                                   {"POST", "/v1/batches/{id}/cancel", locked(&BatchApi::cancel_batch)}};
  routes.front().takes = kFormType;
  routes.back().takes = "";
  return routes;
}

HttpReply BatchApi::list(const Table& table, const HttpRequest& http) const {
  const std::string limit_text = query_value(http.query, "limit"), after = query_value(http.query, "after");
  const std::size_t limit = limit_text.empty() ? table.size() : to_number<std::size_t>(limit_text).value_or(0);
  if (!limit_text.empty() && limit == 0)
    return refused("limit", "limit is no number above 0");
  const std::string purpose = query_value(http.query, "purpose");
  std::vector<Json> data;
  for (const auto& [id, object] : table) {
    if (object.value(kOwner, "") != http.owner()) continue;
    if (purpose.empty() || member(object, "purpose") == purpose) data.push_back(published(object));
  }
  std::ranges::stable_sort(data, std::greater<>(),
                           [](const Json& one) { return one.value("created_at", std::int64_t{0}); });
  if (query_value(http.query, "order") == "asc") std::ranges::reverse(data);
  if (!after.empty()) {
    const auto last = std::ranges::find_if(data, [&](const Json& one) { return one["id"] == after; });
    if (last == data.end())
      return error_reply({.status = 404, .message = fmt::format("there is no {}", after), .param = "after"});
    data.erase(data.begin(), last + 1);
  }
  const bool more = data.size() > limit;
  data.resize(std::min(limit, data.size()));
  Json reply = {{"object", "list"}, {"has_more", more}, {"first_id", nullptr}, {"last_id", nullptr}};
  if (!data.empty()) {
    reply["first_id"] = data.front()["id"];
    reply["last_id"] = data.back()["id"];
  }
  reply["data"] = std::move(data);
  return json_reply(reply);
}

HttpReply BatchApi::one(Table& table, const HttpRequest& http) {
  const Json* const found = find(table, http);
  return found == nullptr ? not_there(http) : published_reply(*found);
}

BatchApi::Json* BatchApi::find(Table& table, const HttpRequest& http) {
  const auto found = table.find(http.id);
  const bool theirs = found != table.end() && found->second.value(kOwner, "") == http.owner();
  return theirs ? &found->second : nullptr;
}

HttpReply BatchApi::add_file(const HttpRequest& http) {
  const auto form = parse_form(http.body);
  if (!form) return error_reply({400, "the request is not a form (multipart/form-data)"});
  const auto part = [&](const char* name) {
    const auto at = std::ranges::find(*form, name, &FormPart::name);
    return at == form->end() ? nullptr : &*at;
  };
  const FormPart* const file = part("file");
  if (file == nullptr) return refused("file", "the form has no file");
  if (part("purpose") == nullptr || part("purpose")->content != "batch")
    return refused("purpose", "purpose is not 'batch'");
  std::int64_t seconds = kAgeMax;
  if (const FormPart* const anchor = part("expires_after[anchor]");
      anchor != nullptr && anchor->content != "created_at")
    return refused("expires_after", fmt::format("expires_after.anchor is '{}', wanted created_at", anchor->content));
  if (const FormPart* const asked = part("expires_after[seconds]"); asked != nullptr) {
    seconds = to_number<std::int64_t>(asked->content).value_or(0);
    if (seconds < kAgeMin || seconds > kAgeMax)
      return refused("expires_after", fmt::format("expires_after.seconds is '{}', wanted {} to {}", asked->content,
                                                  kAgeMin, kAgeMax));
  }
  if (file->filename.size() > kFilenameBytesMax)
    return refused("file", fmt::format("the file's name has {} bytes, wanted at most {}", file->filename.size(),
                                       kFilenameBytesMax));
  const bool open_line = !file->content.empty() && !file->content.ends_with('\n');
  if (const auto lines = std::ranges::count(file->content, '\n') + open_line; lines > kLinesMax)
    return refused("file", fmt::format("the file has {} lines, wanted at most {}", lines, kLinesMax));
  const std::uint64_t bytes = file->content.size() + kEntryBytes + stored_bytes_;
  if (bytes > options_.bytes_max) {
    return error_reply(
        {413, fmt::format("with this file there would be {} bytes of files, this server keeps {}: delete some", bytes,
                          options_.bytes_max)});
  }
  Json object = file_json(random_id("file-"), file->filename, file->content.size(), "batch", http.owner(), seconds);
  const auto written = replace_file(path(kFiles, object["id"], ".jsonl"),
                                    [&](const AppendBytes& append) { return append(file->content); });
  if (!written) return disk_reply(written.error());
  if (const auto saved = save(kFiles, object); !saved) return disk_reply(saved.error());
  keep_file(object);
  return published_reply(std::move(object));
}

HttpReply BatchApi::delete_file(const HttpRequest& http) {
  const Json* const found = find(files_, http);
  if (found == nullptr) return not_there(http);
  const std::string id = (*found)["id"];
  for (const auto& [name, batch] : batches_) {
    if (!is_over(batch) && batch["input_file_id"] == id)
      return error_reply({409, fmt::format("{} is the input of {}, which is not over", id, name)});
  }
  forget_file(files_.find(id));
  return json_reply({{"id", id}, {"object", "file"}, {"deleted", true}});
}

HttpReply BatchApi::file_content(const HttpRequest& http) {
  static constexpr std::uint64_t kPieceBytes = 1u << 20;
  const Json* const found = find(files_, http);
  if (found == nullptr) return not_there(http);
  Result<DurableFile> opened = DurableFile::open(path(kFiles, (*found)["id"], ".jsonl"), O_RDONLY);
  if (!opened) return disk_reply(opened.error());
  HttpReply reply{.status = 200, .body = "", .content_type = "application/octet-stream"};
  reply.length = bytes_of(*found);
  reply.next = [file = std::make_shared<DurableFile>(std::move(*opened)), bytes = *reply.length,
                left = *reply.length]() mutable -> std::optional<std::string> {
    if (left == 0) return std::nullopt;
    Result<std::string> piece = file->read_at(bytes - left, std::min(kPieceBytes, left));
    if (!piece || piece->empty()) {
      log_error("event=file_breaks_off reason=\"{}\"",
                piece ? fmt::format("{} bytes are missing at its end", left) : piece.error().message);
      return std::nullopt;
    }
    left -= piece->size();
    return std::move(*piece);
  };
  return reply;
}

HttpReply BatchApi::add_batch(const HttpRequest& http) {
  if (json_nesting(http.body) > kJsonDepthMax) return error_reply({400, "the request nests too deeply"});
  const Result<Json> parsed = parse_json_object(http.body, "the request", /*bytes_max=*/1 << 20);
  if (!parsed) return error_reply({400, parsed.error().message});
  FirstError wrong{.file = ""};
  const JsonFields fields(*parsed, "", wrong);
  const std::string input = fields.text("input_file_id", {}, "the id of a file");
  const std::string endpoint = fields.choice("endpoint", {}, {"/v1/chat/completions", "/v1/completions"});
  fields.choice("completion_window", {}, {"24h"});
  std::int64_t output_seconds = kAgeMax;
  if (!member(*parsed, "output_expires_after").is_null()) {
    const JsonFields after = fields.object("output_expires_after");
    after.choice("anchor", {}, {"created_at"});
    output_seconds = after.integer("seconds", {}, kAgeMin, kAgeMax);
  }
  if (!is_metadata(member(*parsed, "metadata")))
    fields.wrong("metadata", fmt::format("an object of {} texts of {} bytes, with names of {}, at most", kMetadataMax,
                                         kMetadataTextBytesMax, kMetadataKeyBytesMax));
  const auto file = files_.find(input);
  if (!wrong.error && (file == files_.end() || file->second.value(kOwner, "") != http.owner()))
    fields.wrong("input_file_id", "the id of a file that is there");
  if (wrong.error) return error_reply({.status = 400, .message = wrong.error->message, .param = wrong.key});
  if (stored_bytes_ >= options_.bytes_max)
    return error_reply({413, fmt::format("there are {} bytes of files, as many as this server keeps: delete some for "
                                         "what the batch will write",
                                         stored_bytes_)});
  const Json object =
      batch_json(input, endpoint, options_.model, member(*parsed, "metadata"), http.owner(), output_seconds);
  if (const auto saved = save(kBatches, object); !saved) return disk_reply(saved.error());
  batches_[object["id"]] = object;
  stored_bytes_ += kEntryBytes;
  changed_.notify_all();
  return published_reply(object);
}

HttpReply BatchApi::cancel_batch(const HttpRequest& http) {
  Json* const batch = find(batches_, http);
  if (batch == nullptr) return not_there(http);
  if (is_over(*batch))
    return error_reply(
        {409, fmt::format("the batch is {} and cannot be cancelled", (*batch)["status"].get<std::string>())});
  Json changed = *batch;
  changed.update({{"status", "cancelling"}, {"cancelling_at", unix_seconds()}});
  if (const auto saved = save(kBatches, changed); !saved) return disk_reply(saved.error());
  *batch = changed;
  return published_reply(std::move(changed));
}

// ---- jobs ----

void BatchApi::update(const std::string& id, const Json& changes) {
  const std::lock_guard lock(mutex_);
  Json& batch = batches_.at(id);
  if (batch["status"] == "cancelling" && member(changes, "status") == "in_progress") return;
  batch.update(changes);
  (void)save(kBatches, batch);  // otherwise the next start repeats this part
}

std::optional<ApiError> BatchApi::admit(const std::string& owner, HttpRequest& http) const {
  std::shared_ptr<const void> open;
  if (options_.keys && owner.starts_with(kKeyClient)) {
    http.key = options_.keys->named(owner.substr(kKeyClient.size()));
    if (!http.key) return ApiError{.status = 401, .message = "the key that this batch belongs to was removed"};
    const auto begun = http.key->begin(now());
    if (!begun) return begun.error();
    open = *begun;
  }
  http.reserve = [memory = std::make_shared<RequestMemory>(options_.memory, http.client), open](std::int64_t bytes) {
    std::optional<ApiError> refused = memory->reserve(bytes);
    if (refused && refused->status == 503) refused->status = 429;  // too many lines of the batch, not an outage
    return refused;
  };
  return http.reserve(counted_bytes(http.body));
}

void BatchApi::run_batches() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const Json* next = nullptr;
    for (const auto& [id, batch] : batches_) {
      const auto turn = [](const Json& one) {
        return std::pair(one["created_at"].get<std::int64_t>(), one["id"].get<std::string>());
      };
      if (!is_over(batch) && (next == nullptr || turn(batch) < turn(*next))) next = &batch;
    }
    if (next == nullptr) {
      changed_.wait_for(lock, std::chrono::seconds(kSweepSeconds));
      forget_old();
      continue;
    }
    const std::string id = (*next)["id"];
    lock.unlock();
    run(id);
    lock.lock();
  }
}

void BatchApi::run(const std::string& id) {
  const Result<void> ran = no_throw([&] { return run_batch(id); });
  if (!ran) fail(id, ran.error());
}

Result<void> BatchApi::run_batch(const std::string& id) {
  BatchOptions options;
  {
    const std::lock_guard lock(mutex_);
    const Json& batch = batches_.at(id);
    options.input = path(kFiles, batch["input_file_id"], ".jsonl");
    options.output = path(kBatches, id, ".d") / "output.jsonl";
    options.only_url = batch["endpoint"];
    options.made_by = options_.made_by;
    options.admit = [this, owner = batch.value(kOwner, "")](HttpRequest& http) { return admit(owner, http); };
  }
  std::error_code ignored;
  std::filesystem::create_directories(options.output.parent_path(), ignored);
  const auto is_cancelled = [&] {
    const std::lock_guard lock(mutex_);
    return batches_.at(id)["status"] == "cancelling";
  };
  Result<std::unique_ptr<BatchJob>> opened = BatchJob::open(options);
  if (!opened && opened.error().code == Errc::kMismatch) {
    if (is_cancelled()) return finish(id, "cancelled");
    return Error(Errc::kMismatch,
                 "this server's model, its type, its name or the version has changed since the batch was begun; the "
                 "files have what was done before");
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<BatchJob> job, std::move(opened));
  if (job->counts().total == 0) return Error(Errc::kInvalidArgument, "the input file has no lines");
  bool full = false;         // no room for its output
  std::int64_t looked = 0;  // last second in which the other batches were checked
  const auto stop = [&] {
    if (ends_) return BatchStop::kCutOff;
    std::unique_lock lock(mutex_);
    if (unix_seconds() > swept_ + kSweepSeconds) forget_old();
    const std::uint64_t journal = std::filesystem::file_size(job->paths().journal, ignored);
    full = !ignored && stored_bytes_ + journal > options_.bytes_max;
    if (full || is_due(batches_.at(id))) return BatchStop::kCutOff;
    if (unix_seconds() == std::exchange(looked, unix_seconds())) return BatchStop::kGoOn;
    const auto queued =
        std::ranges::find_if(batches_, [&](const auto& entry) { return entry.first != id && is_due(entry.second); });
    if (queued == batches_.end()) return BatchStop::kGoOn;
    const std::string due = queued->first;
    lock.unlock();
    run(due);  // sends nothing, and so need not wait for this batch
    return BatchStop::kGoOn;
  };
  if (stop() == BatchStop::kGoOn) update(id, {{"status", "in_progress"}, {"in_progress_at", unix_seconds()}});
  const BatchControl control{.concurrency = options_.concurrency,
                             .stop = stop,
                             .on_tick = [&](const BatchCounts& counts) { count(id, counts); }};
  const Result<bool> done = no_throw([&] { return job->run(options_.answer, control); });
  count(id, job->counts());
  if (!done && done.error().code == Errc::kPeerGone) return {};  // try again
  if (!done) return done.error();
  if (!*done && ends_) return {};
  const char* status = "completed";
  if (!*done) status = is_cancelled() ? "cancelled" : full ? "failed" : "expired";
  if (full && !*done)
    update(id, {{"errors", errors_of({Errc::kOutOfRange,
                                      "with what it has written there are more than {} bytes of files, "
                                      "which is all that this server keeps; the files have what was done",
                                      options_.bytes_max})}});
  if (status == std::string_view("expired"))
    RETURN_IF_ERROR(job->give_up_open_lines("batch_expired", "the batch was not done within its completion window"));
  return finish(id, status);
}

void BatchApi::count(const std::string& id, const BatchCounts& counts) {
  const std::lock_guard lock(mutex_);
  Json& batch = batches_.at(id);
  batch["request_counts"] = {{"total", counts.total}, {"completed", counts.completed}, {"failed", counts.failed}};
  batch["usage"] = {{"input_tokens", counts.tokens.prompt},
                    {"input_tokens_details", {{"cached_tokens", counts.tokens.cached}}},
                    {"output_tokens", counts.tokens.completion},
                    {"output_tokens_details", {{"reasoning_tokens", counts.tokens.reasoning}}},
                    {"total_tokens", counts.tokens.prompt + counts.tokens.completion}};
}

Result<std::optional<std::string>> BatchApi::adopt(const std::filesystem::path& from, const std::string& name,
                                                   const Json& batch) {
  std::error_code failed;
  // Every attempt gives the same id.
  const std::string id = "file-" + hex(hash128(name));
  const std::filesystem::path to = path(kFiles, id, ".jsonl");
  if (std::filesystem::exists(from, failed)) std::filesystem::rename(from, to, failed);
  if (failed) return file_error(Errc::kIo, from, "cannot be moved to {}: {}", to.string(), failed.message());
  const std::uint64_t bytes = std::filesystem::file_size(to, failed);
  if (failed || bytes == 0) {
    std::filesystem::remove(to, failed);
    return std::optional<std::string>();
  }
  const Json object =
      file_json(id, name, bytes, "batch_output", batch.value(kOwner, ""), batch.value(kOutputSeconds, kAgeMax));
  RETURN_IF_ERROR(save(kFiles, object));
  const std::lock_guard lock(mutex_);
  keep_file(object);
  return std::optional(id);
}

Result<void> BatchApi::finish(const std::string& id, const char* status) {
  const BatchPaths paths = BatchPaths::of(path(kBatches, id, ".d") / "output.jsonl");
  if (status == std::string_view("completed")) {
    update(id, {{"status", "finalizing"}, {"finalizing_at", unix_seconds()}});
  } else {
    ASSIGN_OR_RETURN(const BatchCounts counts, write_what_is_done(paths.output));
    count(id, counts);
  }
  Json batch;
  {
    const std::lock_guard lock(mutex_);
    batch = batches_.at(id);
  }
  const auto or_null = [](const std::optional<std::string>& file) { return file ? Json(*file) : Json(); };
  ASSIGN_OR_RETURN(const auto output, adopt(paths.output, id + "_output.jsonl", batch));
  ASSIGN_OR_RETURN(const auto errors, adopt(paths.errors, id + "_error.jsonl", batch));
  update(id, {{"status", status},
              {std::string(status) + "_at", unix_seconds()},
              {"output_file_id", or_null(output)},
              {"error_file_id", or_null(errors)}});
  std::error_code ignored;
  std::filesystem::remove_all(paths.output.parent_path(), ignored);
  return {};
}

void BatchApi::fail(const std::string& id, const Error& error) {
  if (error.code == Errc::kIo) log_error("event=disk_failed batch={} reason=\"{}\"", id, error.message);
  const Error shown(error.code, replaced(error.message, (options_.dir / "").string(), ""));  // clients see no paths
  update(id, {{"errors", errors_of(shown)}});
  if (finish(id, "failed")) return;
  // Its folder may have the only copy of results.
  update(id, {{"status", "failed"}, {"failed_at", unix_seconds()}});
}

}  // namespace outrider
