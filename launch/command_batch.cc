#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "batch/job.h"
#include "batch/progress.h"
#include "common/base/complain.h"
#include "common/base/json_fields.h"
#include "common/base/utf8.h"
#include "common/client/client.h"
#include "common/os/logging.h"
#include "launch/answer_flags.h"
#include "launch/answered_by.h"
#include "launch/cluster/backend.h"
#include "launch/cluster/deadline.h"
#include "launch/cluster_flags.h"
#include "launch/interrupt.h"
#include "launch/lifetime.h"
#include "launch/model_flags.h"
#include "launch/plan_file.h"
#include "server/api_server.h"
#include "server/endpoint.h"

namespace outrider {
namespace {

// Exit code besides 0 (all lines have results), 1 (cannot continue), 2 (invalid command line) and kExitAgain.
constexpr int kSomeFailed = 3;

/// Time for running lines after SIGTERM. Slurm kills after 30 s.
constexpr Duration kGrace = std::chrono::seconds(20);
struct BatchFlags {
  ModelFlags model;
  ClusterFlags cluster;
  DraftLengthFlag draft_length;
  std::string name, endpoint, concurrency = "auto", shard = "1/1", order = "prefix", deadline;
  BatchOptions job;
  bool check = false;
  std::filesystem::path plan, run_dir;  ///< of a cluster launched for the job
  std::string backend = "local";
};

/// Decides when a job stops: after a signal, or at its deadline.
class StopRule {
 public:
  explicit StopRule(std::optional<WallTime> deadline) : deadline_(deadline) {}

  BatchStop operator()() {
    const TimePoint time = now();
    if (signals_.requested()) {
      signals_.clear();
      cut_off_at(std::exchange(asked_, true) ? time : time + kGrace);
    }
    if (deadline_ && *deadline_ - std::chrono::system_clock::now() < kDrainBefore) {
      const Duration left = *deadline_ - std::chrono::system_clock::now();
      cut_off_at(time + left - kCutOffBefore);
    }
    if (!cut_off_) return BatchStop::kGoOn;
    return time < *cut_off_ ? BatchStop::kDrain : BatchStop::kCutOff;
  }

 private:
  void cut_off_at(TimePoint time) { cut_off_ = std::min(cut_off_.value_or(time), time); }

  Interrupt signals_{/*also_sigterm=*/true};
  const std::optional<WallTime> deadline_;
  std::optional<TimePoint> cut_off_;
  bool asked_ = false;  ///< by a signal
};

/// The answering model or server, and everything that must be equal for equal answers.
struct Answering {
  explicit Answering(const Security& security) : context(security) {}

  Manifest made_by;
  std::optional<PlanFile> plan;
  TransportContext context;
  std::optional<TextSide> text;  ///< until answer_by_cluster() takes it
  std::unique_ptr<Cluster> cluster;
  std::unique_ptr<ApiServer> api;
  BatchAnswer answer;
};

void answer_over_http(Answering& answering, const BatchFlags& flags) {
  const char* const key = std::getenv("OUTRIDER_API_KEY");
  answering.answer = or_throw(open_endpoint("--endpoint", flags.endpoint, key == nullptr ? "" : key));
  answering.made_by = {{"answered_by", "an endpoint"}, {"program", OUTRIDER_VERSION}};
}

/// Reads everything that the answers depend on.
void prepare_to_answer(Answering& answering, BatchFlags& flags) {
  if (!flags.plan.empty()) {
    answering.plan = PlanFile::read(flags.plan, /*hosts=*/{}, flags.backend);
    if (!answering.plan->plan.run.empty())
      throw CommandError("{}: run: wanted no commands; with --plan the batch is the only command", flags.plan.string());
    if (flags.model.model.empty()) flags.model.model = answering.plan->plan.model;
  }
  const PairPaths pair = flags.model.pair(flags.cluster.need());
  answering.text = load_text_side(open_model(pair.backbone));
  if (answering.text->context_max == 0) throw CommandError("{}: has no config.json", pair.backbone.string());
  answering.made_by = answered_by(flags.model, pair, flags.name.empty() ? served_name(pair.backbone) : flags.name,
                                  flags.cluster.connect.empty() && flags.plan.empty());
}

/// @param start  starts a cluster if there is none; otherwise only check() can be called
void answer_by_cluster(Answering& answering, const BatchFlags& flags, bool start) {
  if (flags.cluster.connect.empty() && start) {
    const PairPaths pair = flags.model.pair();
    const bool drafts = flags.draft_length.value().length > 0 || flags.cluster.can_draft(pair);
    answering.cluster = or_throw(start_cluster(answering.context, flags.cluster.options(flags.model, pair, drafts)));
  }
  // A failure here, such as a missing key, is not a line's error.
  if (start && !answering.cluster) or_throw(Client::connect(answering.context, flags.cluster.connect));
  answering.api = std::make_unique<ApiServer>(
      answering.context, std::move(*answering.text),
      ApiOptions{.coordinator = answering.cluster ? answering.cluster->address() : flags.cluster.connect,
                 .version = OUTRIDER_VERSION,
                 .model = answering.made_by.at("model"),
                 .draft_length = flags.draft_length.value(),
                 .governed = !flags.draft_length.no_governor,
                 .failover_wait = std::chrono::seconds(flags.cluster.cluster.coordinator.failover_wait_s),
                 .own = answering.cluster != nullptr});
  answering.answer = answer_by(answering.api->routes());
}

std::string first_error_of(const std::filesystem::path& errors) {
  const Result<DurableFile> file = DurableFile::open(errors, 0);
  if (!file) return file.error().message;
  LineReader reader(*file);
  const auto line = reader.next();
  if (!line || !*line) return "";
  const auto json = parse_json((*line)->text);
  const nlohmann::json& error = member(json, "error");
  const nlohmann::json& message = member(error, "message");
  return fmt::format("line {}: {}", to_text(member(error, "line")),
                     message.is_string() ? message.get<std::string>() : "");
}

/// @return the exit code
int report_end(const BatchJob& job, const Shard& shard, bool all_done) {
  const BatchCounts counts = job.counts();
  if (!all_done) {
    const std::string why = counts.last_problem.empty() ? "" : " (the last retry: " + counts.last_problem + ")";
    complain("stopped with {} of {} lines done{}; run the same command to continue", counts.completed + counts.failed,
             counts.total, why);
    return kExitAgain;
  }
  if (counts.failed == 0) return 0;
  complain("{}: {} of {} lines have errors; the first is {}", job.paths().errors.string(), counts.failed, counts.total,
           first_error_of(job.paths().errors));
  // Queues decide by a part's status whether to continue; `merge` reports lines with errors for the whole job.
  return shard.count > 1 ? 0 : kSomeFailed;
}

/// --check: sends and writes nothing. @return the exit code
int check(const BatchFlags& flags, const Answering& answering) {
  const BatchInput input = or_throw(BatchInput::open(flags.job.input, BatchInput::Order::kInput));
  std::uint32_t wrong = 0;
  for (const std::uint32_t line : input.to_send(flags.job.shard)) {
    const Result<std::string> text = input.read(line);
    const auto request = text ? parse_batch_line(*text) : BatchError{.message = text.error().message};
    std::string message;
    if (!request) {
      message = request.error().message;
    } else if (answering.api != nullptr) {
      if (const auto refused = answering.api->check(request->url, body_to_send(*request))) message = refused->message;
    }
    if (message.empty()) continue;
    ++wrong;
    std::printf("line %u: %s\n", line + 1, printable(message).c_str());
  }
  return wrong == 0 ? 0 : kSomeFailed;
}

/// Runs the job with the present answerer. @return the exit code
int run_job(BatchJob& job, Answering& answering, const BatchFlags& flags, const std::function<BatchStop()>& stop) {
  if (flags.endpoint.empty()) answer_by_cluster(answering, flags, /*start=*/job.counts().open() > 0);
  BatchProgress progress(job.paths().progress);
  const BatchControl control{.concurrency = flags.concurrency == "auto" ? 0 : std::stoi(flags.concurrency),
                             .stop = stop,
                             .on_tick = [&](const BatchCounts& counts) {
                               if (answering.cluster) or_throw(answering.cluster->check());
                               progress.tick(counts, now());
                             }};
  const Result<bool> all_done = no_throw([&] { return job.run(answering.answer, control); });
  progress.write(job.counts(), all_done && *all_done ? "done" : "stopped");
  if (!all_done && all_done.error().code == Errc::kPeerGone) {
    complain("{}; run the same command to continue", all_done.error().message);
    return kExitAgain;
  }
  return report_end(job, flags.job.shard, or_throw(all_done));
}

/// Launches the plan for the job, and ends it with the job. @return the exit code
int run_launched(BatchJob& job, Answering& answering, BatchFlags& flags, StopRule& stop) {
  LaunchOptions options;
  answering.plan->set(options, flags.backend);
  const std::filesystem::path run_dir = flags.run_dir.empty() ? default_run_dir(flags.plan) : flags.run_dir;
  const RunFolder folder = or_throw(RunFolder::create(run_dir, answering.plan->object));
  Launcher launcher(answering.plan->object, answering.plan->processes, options, folder,
                    [&] { return stop() != BatchStop::kGoOn; });
  const Result<std::optional<int>> not_ready = launcher.start();
  if (not_ready && !*not_ready) {
    Answering there(launcher.security());
    there.made_by = answering.made_by;
    there.text = std::move(answering.text);
    flags.cluster.connect = launcher.addresses();
    return run_job(job, there, flags, [&] {
      const BatchStop asked = stop();
      return launcher.check() ? asked : BatchStop::kCutOff;  // the launcher has reported the lost process
    });
  }
  if (stop() != BatchStop::kGoOn) return report_end(job, flags.job.shard, /*all_done=*/false);
  if (!not_ready) complain_text(not_ready.error().message);
  throw CommandError("{}: the cluster was not ready; the run folder is {}", flags.plan.string(),
                     folder.path().string());
}

int run_batch(BatchFlags& flags) {
  init_logging("outrider", "warn");
  raise_file_limit();
  flags.job.shard = or_throw(Shard::parse(flags.shard));
  flags.job.order = flags.order == "input" ? BatchInput::Order::kInput : BatchInput::Order::kPrefix;
  StopRule stop(or_throw(parse_deadline(flags.deadline)));
  Answering answering(flags.cluster.security);
  const bool elsewhere = !flags.endpoint.empty();
  if (elsewhere)
    answer_over_http(answering, flags);
  else
    prepare_to_answer(answering, flags);
  if (flags.check) {
    if (!elsewhere) answer_by_cluster(answering, flags, /*start=*/false);
    return check(flags, answering);
  }
  flags.job.made_by = answering.made_by;
  const std::unique_ptr<BatchJob> job = or_throw(BatchJob::open(flags.job));
  if (job->torn_bytes() > 0)
    complain("{}: removed {} bytes of an incomplete result", job->paths().journal.string(), job->torn_bytes());
  // Errors that need no weights were reported above; now the weights are loaded.
  if (answering.plan && job->counts().open() > 0) return run_launched(*job, answering, flags, stop);
  return run_job(*job, answering, flags, [&] { return stop(); });
}

void print_status(const std::filesystem::path& output) {
  const BatchStatus status = or_throw(batch_status(output));
  std::printf("%s, %lld tokens of prompts and %lld of answers\n", lines_text(status.counts).c_str(),
              static_cast<long long>(status.counts.tokens.prompt),
              static_cast<long long>(status.counts.tokens.completion));
  for (const char* key : {"model", "dtype", "shard"}) {
    const auto known = status.manifest.find(key);
    if (known != status.manifest.end()) std::printf("  %s: %s\n", key, printable(known->second).c_str());
  }
}

void end_with(int code) {
  if (code != 0) throw ExitStatus(code);
}

void add_run_options(Command& command, BatchFlags& flags) {
  command.add_option("--output", flags.job.output,
                     "OUT.jsonl; OUT.errors.jsonl, OUT.journal and OUT.progress.json are written beside it");
  flags.model.add_to(command);
  flags.draft_length.add_to(command);
  flags.cluster.add_to(command);
  auto* endpoint = command.add_option(
      "--endpoint", flags.endpoint,
      "Send the requests to the server at http://HOST:PORT/v1, with the API key in OUTRIDER_API_KEY");
  command.add_option("--served-model-name", flags.name, "Name of the model in the requests (default: its directory)");
  for (const char* other :
       {"--connect", "--model", "--backbone", "--draft-length", "--no-governor", "--served-model-name"})
    endpoint->excludes(command.get_option(other));
  for (const std::string& other : flags.cluster.chosen_there) endpoint->excludes(command.get_option(other));
  auto* plan = command.add_option("--plan", flags.plan,
                                  "Launch this plan for the job, and end its processes afterwards (docs/launch.md)");
  for (const char* other : {"--endpoint", "--connect", "--backbone"}) plan->excludes(command.get_option(other));
  for (const std::string& other : flags.cluster.chosen_there) plan->excludes(command.get_option(other));
  command.add_option("--backend", flags.backend, "How to launch the plan: local (all on this machine), ssh or srun")
      ->check(CLI::IsMember(kBackendNames))
      ->needs(plan)
      ->capture_default_str();
  command.add_option("--run-dir", flags.run_dir, "Folder for the run's files (default: PLAN.TIME.X)")->needs(plan);
  command.add_option("--concurrency", flags.concurrency, "Number of concurrent requests, or auto")
      ->check(CLI::IsMember({"auto"}) | CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--shard", flags.shard, "I/N: process only part I of N of the input")->capture_default_str();
  command
      .add_option("--order", flags.order,
                  "Order of the requests: input, or prefix: prompts that begin alike follow each other")
      ->check(CLI::IsMember({"input", "prefix"}))
      ->capture_default_str();
  command.add_option("--deadline", flags.deadline, fmt::format("Stop before this time: {}", kDeadlineForms));
  command.add_flag("--retry-errors", flags.job.retry_errors, "Send lines that have errors again");
  command.add_flag("--check", flags.check, "Only check the lines and print the invalid ones");
  command.add_flag("--restart", flags.job.restart, "Discard earlier results and start again");
}

}  // namespace

void add_batch_command(Command& app) {
  Command* command = app.add_subcommand(
      "batch", "Answer a file of requests in OpenAI's batch format; continues after interruptions (docs/batch.md)");
  auto flags = std::make_shared<BatchFlags>();
  command->add_option("input", flags->job.input, "IN.jsonl");
  add_run_options(*command, *flags);
  command->require_subcommand(0, 1);

  Command* status = command->add_subcommand("status", "Show the progress of a job");
  auto output = std::make_shared<std::filesystem::path>();
  status->add_option("output", *output, "OUT.jsonl of the job")->required();
  status->callback([output] { print_status(*output); });

  Command* merge = command->add_subcommand("merge", "Merge the outputs of all shards into one");
  auto parts = std::make_shared<std::vector<std::filesystem::path>>();
  merge->add_option("output", *output, "OUT.jsonl")->required();
  merge->add_option("shards", *parts, "The shards' outputs")->required();
  merge->callback([output, parts] {
    const BatchCounts counts = or_throw(merge_batches(*output, *parts));
    std::printf("%u lines, %u with errors\n", counts.total, counts.failed);
    if (counts.failed > 0) throw ExitStatus(kSomeFailed);
  });

  command->callback([command, flags] {
    if (!command->get_subcommands().empty()) return;
    if (flags->job.input.empty() || (flags->job.output.empty() && !flags->check))
      throw UsageError("IN.jsonl and --output are required");
    end_with(run_batch(*flags));
  });
}

}  // namespace outrider
