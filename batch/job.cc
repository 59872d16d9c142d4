#include "batch/job.h"

#include <fcntl.h>

#include <algorithm>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include "server/random_id.h"

namespace outrider {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(50);
/// The coordinator queues by client: a job is one client.
constexpr const char* kClient = "batch";
// In a manifest; differs between shards of one job.
constexpr const char* kShard = "shard";
constexpr const char* kRequests = "requests";

/// Returns true if a later reply may have another status.
bool may_pass(int status) { return status == 0 || status == 408 || status == 429 || status >= 500; }

/// The results of some lines, in their order, with their places.
struct Results {
  const DurableFile& journal;
  std::span<const JournalEntry> entries;
};

Result<void> append_results(const std::vector<Results>& all, bool ok, const AppendBytes& append) {
  for (const Results& results : all) {
    for (const JournalEntry& entry : results.entries) {
      if (entry.length == 0 || entry.ok != ok) continue;
      ASSIGN_OR_RETURN(std::string line, results.journal.read_at(entry.offset, entry.length));
      if (line.size() != entry.length)
        return Error(Errc::kIo, "{}: has become shorter", results.journal.path().string());
      line += '\n';
      RETURN_IF_ERROR(append(line));
    }
  }
  return {};
}

/// Errors are written first, so that an existing output implies complete results.
Result<void> write_results(const BatchPaths& paths, const std::vector<Results>& all, bool errors) {
  if (errors) {
    RETURN_IF_ERROR(
        replace_file(paths.errors, [&](const AppendBytes& append) { return append_results(all, false, append); }));
  } else {
    std::error_code ignored;
    std::filesystem::remove(paths.errors, ignored);
  }
  return replace_file(paths.output, [&](const AppendBytes& append) { return append_results(all, true, append); });
}

double chance() { return static_cast<double>(random_number() >> 11) * 0x1p-53; }

/// Refuses to overwrite files of other jobs.
Result<void> check_free(const BatchOptions& options, const BatchPaths& paths) {
  std::error_code ignored;
  for (const std::filesystem::path& path : {paths.output, paths.errors, paths.journal, paths.progress}) {
    if (std::filesystem::equivalent(options.input, path, ignored))
      return Error(Errc::kInvalidArgument, "{}: is the input, wanted another output", path.string());
  }
  if (options.restart) return {};
  if (std::filesystem::exists(paths.output, ignored) && !std::filesystem::exists(paths.journal, ignored)) {
    return Error(Errc::kMismatch, "{}: is there, and no journal of a job with it; --restart replaces it",
                 paths.output.string());
  }
  return {};
}

}  // namespace

BatchPaths BatchPaths::of(const std::filesystem::path& output) {
  std::filesystem::path stem = output;
  if (stem.extension() == ".jsonl") stem.replace_extension();
  const auto with = [&](const char* ending) { return std::filesystem::path(stem.string() + ending); };
  return {output, with(".errors.jsonl"), with(".journal"), with(".progress.json")};
}

BatchAnswer answer_by(std::vector<HttpRoute> routes) {
  return [routes = std::move(routes)](const HttpRequest& request) {
    const auto route = std::ranges::find_if(
        routes, [&](const HttpRoute& one) { return one.path == request.path && one.method == request.method; });
    return route == routes.end() ? HttpReply{.status = 404, .body = {}} : route->handler(request);
  };
}

/// The outcome of a line.
struct BatchJob::Outcome {
  enum class Kind { kOk, kError, kMayPass, kCutOff, kNoInput };
  Kind kind;
  std::string result;  ///< a line of the output or the errors; for kMayPass: of the errors, if it becomes final
  BatchTokens tokens = {};
  Failure failure = {};                ///< of kMayPass
  std::string problem = {};            ///< of kMayPass too
  std::optional<Error> no_input = {};  ///< why the job cannot continue
};

/// Waits for answers, on a thread for each line in progress.
class BatchJob::Workers {
 public:
  struct Finished {
    std::uint32_t line;
    Outcome outcome;
  };
  using Do = std::function<Outcome(std::uint32_t line)>;

  /// @param cut_off  ends the work, also when an exception leaves work_through()
  Workers(Do work, std::atomic<bool>& cut_off) : work_(std::move(work)), cut_off_(cut_off) {}
  ~Workers() { cut_off_ = true; }

  void start(std::uint32_t line) {
    const auto answer = [this, line] {
      Outcome outcome = work_(line);
      const std::lock_guard lock(mutex_);
      finished_.push_back({line, std::move(outcome)});
      changed_.notify_one();
    };
    try {
      threads_[line] = std::jthread(answer);
    } catch (const std::system_error&) {
      answer();  // no thread is left: the next line waits for this one
    }
  }
  /// Waits for finished lines; may return none.
  std::vector<Finished> wait(Duration at_most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, at_most, [&] { return !finished_.empty(); });
    std::vector<Finished> finished = std::exchange(finished_, {});
    lock.unlock();
    for (const Finished& one : finished) threads_.erase(one.line);
    return finished;
  }

 private:
  const Do work_;
  std::atomic<bool>& cut_off_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Finished> finished_;
  std::unordered_map<std::uint32_t, std::jthread> threads_;  // last: they use the others
};

Result<std::unique_ptr<BatchJob>> BatchJob::open(const BatchOptions& options) {
  RETURN_IF_ERROR(check_free(options, BatchPaths::of(options.output)));
  ASSIGN_OR_RETURN(BatchInput input, BatchInput::open(options.input, options.order));
  std::unique_ptr<BatchJob> job(new BatchJob(options, std::move(input)));
  job->entries_.resize(job->input_.lines());
  job->counts_.total = static_cast<std::uint32_t>(job->input_.to_send(options.shard).size());
  Manifest manifest = options.made_by;
  manifest.insert({{"format", "1"},
                   {"input_bytes", std::to_string(job->input_.bytes())},
                   {"input_lines", std::to_string(job->input_.lines())},
                   {"input_xxh128", hex(job->input_.hash())},
                   {kRequests, std::to_string(job->counts_.total)},
                   {kShard, options.shard.text()}});
  const auto known = [raw = job.get()](const JournalEntry& entry) {
    if (entry.ok || !raw->options_.retry_errors) raw->take(entry);
  };
  const auto committed = [raw = job.get()](const JournalEntry& entry) {
    const std::lock_guard lock(raw->mutex_);
    raw->take(entry);
    ++raw->counts_.finished_now;
    raw->counts_.tokens_now += entry.tokens;
    raw->changed_.notify_all();
  };
  ASSIGN_OR_RETURN(job->journal_, Journal::open(job->paths_.journal, manifest, options.restart, known, committed));
  for (const std::filesystem::path& path : {job->paths_.output, job->paths_.errors, job->paths_.progress}) {
    remove_halves_of(path);  // the journal's owner writes the others
    std::error_code ignored;
    if (options.restart) std::filesystem::remove(path, ignored);
  }
  return job;
}

void BatchJob::take(const JournalEntry& entry) {
  if (entry.line >= entries_.size()) return;
  JournalEntry& known = entries_[entry.line];
  if (known.length > 0) --(known.ok ? counts_.completed : counts_.failed);
  ++(entry.ok ? counts_.completed : counts_.failed);
  counts_.tokens += entry.tokens;
  known = entry;
}

BatchCounts BatchJob::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

BatchJob::Outcome BatchJob::answer_line(std::uint32_t line, const BatchAnswer& answer) const {
  const auto error = [&](const BatchError& wrong) {
    return Outcome{Outcome::Kind::kError, error_line(wrong, line + 1)};
  };
  Result<std::string> text = input_.read(line);
  if (!text && text.error().code != Errc::kOutOfRange)
    return {.kind = Outcome::Kind::kNoInput, .result = {}, .no_input = text.error()};
  if (!text) return error({.custom_id = {}, .code = "invalid_json_line", .message = text.error().message});
  HttpRequest http;
  http.method = "POST";
  http.body = *std::move(text);
  http.client = kClient;
  http.gone = http.server_ends = [this] { return cut_off_.load(); };
  const std::optional<ApiError> refused = options_.admit(http);  // before its memory is needed
  std::unique_lock without_memory(refused_, std::defer_lock);
  if (refused) without_memory.lock();  // a refused line is read for its name
  auto request = parse_batch_line(http.body, options_.only_url);
  if (!request) return error(request.error());
  http.path = request->url;
  http.body = body_to_send({request->custom_id, request->url, std::exchange(request->body, {})});
  const HttpReply reply = refused ? error_reply(*refused) : answer_with(answer, http);
  if (reply.status != 200) {
    if (cut_off_) return {Outcome::Kind::kCutOff, {}};
    const BatchError wrong = error_of(*request, reply);
    if (!may_pass(reply.status)) return error(wrong);
    return {.kind = Outcome::Kind::kMayPass,
            .result = error_line(wrong, line + 1),
            .failure = failure_of(reply.status),
            .problem = wrong.message};
  }
  auto good = settle_reply(*request, reply.body);
  if (!good) return error(good.error());
  return {Outcome::Kind::kOk, std::move(good->line), good->tokens};
}

Result<void> BatchJob::work_through(const BatchAnswer& answer, const BatchControl& control, Dispatch& dispatch) {
  const TimePoint start = now();
  Workers workers([&](std::uint32_t line) { return answer_line(line, answer); }, cut_off_);
  std::optional<Error> error;
  while (true) {
    const BatchStop stop = error ? BatchStop::kCutOff : control.stop();
    if (stop == BatchStop::kCutOff) cut_off_ = true;
    while (stop == BatchStop::kGoOn) {
      const std::optional<std::uint32_t> line = dispatch.next(now());
      if (!line) break;
      workers.start(*line);
    }
    for (Workers::Finished& finished : workers.wait(kTick)) {
      Outcome& outcome = finished.outcome;
      if (outcome.kind == Outcome::Kind::kMayPass) {
        const bool again = dispatch.failed(finished.line, outcome.failure, chance(), now());
        const std::lock_guard lock(mutex_);
        counts_.last_problem = std::move(outcome.problem);
        if (again) continue;
      } else if (outcome.kind == Outcome::Kind::kCutOff) {
        dispatch.dropped(finished.line);
        continue;
      } else if (outcome.kind == Outcome::Kind::kNoInput) {
        dispatch.dropped(finished.line);
        if (!error) error = outcome.no_input;
        continue;
      } else {
        dispatch.done(finished.line, now());
      }
      const bool ok = outcome.kind == Outcome::Kind::kOk;
      const Result<void> recorded = journal_->append(finished.line, ok, outcome.tokens, outcome.result);
      if (!recorded && !error) error = recorded.error();
    }
    if (const Result<void> state = journal_->state(); !state && !error) error = state.error();
    if (!error && stop == BatchStop::kGoOn && dispatch.outage()) {
      const std::string problem = counts().last_problem;
      error = Error(Errc::kPeerGone, "nobody has answered for {:.0f} minutes{}{}",
                    to_seconds(Dispatch::kSilenceMax) / 60, problem.empty() ? "" : ": ", problem);
    }
    {
      const std::lock_guard lock(mutex_);
      counts_.under_way = dispatch.under_way();
      counts_.concurrency = dispatch.concurrency();
      counts_.retries = dispatch.retries();
      counts_.elapsed = now() - start;
    }
    const BatchCounts so_far = counts();
    control.on_tick(so_far);
    if (so_far.open() == 0 || (stop != BatchStop::kGoOn && so_far.under_way == 0)) break;
  }
  return error ? Result<void>(*error) : Result<void>();
}

Result<void> BatchJob::await_journal() {
  std::unique_lock lock(mutex_);
  while (counts_.open() > 0 && journal_->has_uncommitted()) changed_.wait_for(lock, kTick);
  lock.unlock();
  return journal_->state();
}

Result<void> BatchJob::give_up_open_lines(const std::string& code, const std::string& message) {
  for (const std::uint32_t line : input_.to_send(options_.shard)) {
    {
      const std::lock_guard lock(mutex_);
      if (entries_[line].length > 0) continue;
    }
    BatchError error{.code = code, .message = message};
    if (const Result<std::string> text = input_.read(line)) {
      const auto parsed = parse_batch_line(*text);
      error.custom_id = parsed ? parsed->custom_id : parsed.error().custom_id;
    }
    RETURN_IF_ERROR(journal_->append(line, /*ok=*/false, {}, error_line(error, line + 1)));
  }
  return await_journal();
}

Result<bool> BatchJob::run(const BatchAnswer& answer, const BatchControl& control) {
  std::vector<std::uint32_t> lines = input_.to_send(options_.shard);
  std::erase_if(lines, [&](std::uint32_t line) { return entries_[line].length > 0; });
  Dispatch dispatch(std::move(lines), control.concurrency, now());
  if (counts().open() > 0) RETURN_IF_ERROR(work_through(answer, control, dispatch));
  RETURN_IF_ERROR(await_journal());
  const BatchCounts done = counts();
  control.on_tick(done);
  if (done.open() > 0) return false;
  RETURN_IF_ERROR(write_results(paths_, {{journal_->file(), entries_}}, done.failed > 0));
  return true;
}

Result<BatchStatus> batch_status(const std::filesystem::path& output) {
  ASSIGN_OR_RETURN(DurableFile journal, DurableFile::open(BatchPaths::of(output).journal, O_RDONLY));
  BatchStatus status{.journal = std::move(journal)};
  std::map<std::uint32_t, JournalEntry> last;
  ASSIGN_OR_RETURN(status.manifest,
                   Journal::read(status.journal, [&](const JournalEntry& entry) { last[entry.line] = entry; }));
  status.counts.total = static_cast<std::uint32_t>(std::strtoul(status.manifest[kRequests].c_str(), nullptr, 10));
  for (const auto& [line, entry] : last) {
    ++(entry.ok ? status.counts.completed : status.counts.failed);
    status.counts.tokens += entry.tokens;
    status.entries.push_back(entry);
  }
  return status;
}

Result<BatchCounts> write_what_is_done(const std::filesystem::path& output) {
  ASSIGN_OR_RETURN(const BatchStatus status, batch_status(output));
  RETURN_IF_ERROR(
      write_results(BatchPaths::of(output), {{status.journal, status.entries}}, status.counts.failed > 0));
  return status.counts;
}

Result<BatchCounts> merge_batches(const std::filesystem::path& output,
                                  const std::vector<std::filesystem::path>& shards) {
  struct Part {
    std::filesystem::path path;
    BatchStatus status;
    Shard shard;
  };
  std::vector<Part> parts;
  BatchCounts counts;
  for (const std::filesystem::path& path : shards) {
    ASSIGN_OR_RETURN(BatchStatus status, batch_status(path));
    const std::filesystem::path journal = status.journal.path();
    if (std::error_code ignored; std::filesystem::equivalent(output, journal, ignored))
      return Error(Errc::kInvalidArgument, "{}: is a shard's journal, wanted another output", output.string());
    ASSIGN_OR_RETURN(const Shard shard, Shard::parse(status.manifest[kShard]));
    if (status.counts.open() > 0) {
      return Error(Errc::kUnavailable, "{}: {} of {} lines are done, wanted all", journal.string(),
                   status.entries.size(), status.counts.total);
    }
    status.manifest.erase(kRequests);
    status.manifest.erase(kShard);
    if (!parts.empty()) RETURN_IF_ERROR(check_same_job(status.manifest, parts[0].status.manifest, journal));
    counts.total += status.counts.total;
    counts.completed += status.counts.completed;
    counts.failed += status.counts.failed;
    counts.tokens += status.counts.tokens;
    parts.push_back({path, std::move(status), shard});
  }
  std::ranges::sort(parts, {}, [](const Part& part) { return part.shard.index; });
  for (std::uint32_t i = 0; i < parts.size(); ++i) {
    if (parts[i].shard.index == i + 1 && parts[i].shard.count == parts.size()) continue;
    return Error(Errc::kMismatch, "{}: is shard {}, wanted {}/{}: each shard once", parts[i].path.string(),
                 parts[i].shard.text(), i + 1, parts.size());
  }
  std::vector<Results> results;
  for (const Part& part : parts) results.push_back({part.status.journal, part.status.entries});
  RETURN_IF_ERROR(write_results(BatchPaths::of(output), results, counts.failed > 0));
  return counts;
}

}  // namespace outrider
