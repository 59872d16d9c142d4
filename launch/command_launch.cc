#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "common/base/complain.h"
#include "common/base/json_fields.h"
#include "common/base/utf8.h"
#include "common/os/files.h"
#include "common/os/logging.h"
#include "launch/cluster/facts.h"
#include "launch/cluster/kubernetes.h"
#include "launch/cluster/launcher.h"
#include "launch/cluster/plan.h"
#include "launch/cluster/process_plan.h"
#include "launch/cluster/push.h"
#include "launch/cluster/readiness.h"
#include "launch/cluster/run_folder.h"
#include "launch/cluster/slurm.h"
#include "launch/cluster/slurm_jobs.h"
#include "launch/lifetime.h"
#include "launch/model_flags.h"
#include "launch/plan_file.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

struct LaunchFlags {
  std::string plan;
  fs::path hosts, run_dir;
  std::string backend = "local";
  bool dry_run = false, schema = false, submit = false;
  LaunchOptions options;
  Lifetime lifetime;
};

/// Common flags of commands about a run.
struct RunFolderFlags {
  fs::path run_dir;
  int seconds = 0;
  bool without_drafters = false;
  Lifetime lifetime;
};

/// Works until it is done or stopped. Throws the returned exit status, unless that is 0.
void run_for_status(const Lifetime& lifetime, const std::function<Result<int>(std::stop_token)>& work) {
  int status = 0;
  or_throw(lifetime.run([&](std::stop_token stop) -> Result<void> {
    ASSIGN_OR_RETURN(status, work(stop));
    return {};
  }));
  if (status != 0) throw ExitStatus(status);
}

/// Prints a line for each process that would be started.
void print_dry_run(const PlanFile& plan, const LaunchOptions& options) {
  for (const PlannedProcess& process : plan.processes.processes) {
    const bool coordinator = process.role == "coordinator";
    const std::vector<std::string> command = process.command(
        options.program, {coordinator ? "--listen" : "--join", coordinator             ? plan.processes.listen
                                                               : process.role == "shard" ? "{verifier}"
                                                                                         : "{coordinator}"});
    std::printf("%s %s: %s\n", process.host.name.c_str(), process.name.c_str(),
                shell_line(announced_command_on(options.backend, process.host, command)).c_str());
  }
  for (const RunPlan& run : plan.plan.run) std::printf("then: %s\n", shell_line(run.command).c_str());
}

std::vector<RenderedFile> rendered(const PlanFile& plan, const LaunchFlags& flags, const fs::path& run_dir) {
  if (flags.backend == "slurm")
    return or_throw(
        render_slurm(plan.plan, plan.processes, flags.options.program, run_dir, flags.options.ready_seconds));
  if (flags.backend == "kubernetes")
    return or_throw(render_kubernetes(plan.plan, plan.processes, flags.options.build.version));
  return {};
}

/// Submits the scripts, or prints how to.
void to_slurm(const std::vector<RenderedFile>& scripts, const RunFolder& folder, bool submit) {
  if (submit) return or_throw(submit_to_slurm(scripts, folder));
  for (const RenderedFile& script : scripts)
    std::printf("%s\n", shell_line({"sbatch", (folder.path() / script.name).string()}).c_str());
}

/// Throws if an option is given that means nothing to the backend.
void check_options(const Command& command, const std::string& backend) {
  constexpr const char* kStarted = "local, ssh or srun";  // started by this process, not written for others to start
  const std::pair<const char*, const char*> kBackends[] = {
      {"--submit", "slurm"},     {"--strict", kStarted},          {"--ready-timeout", "local, ssh, srun or slurm"},
      {"--grace", kStarted},     {"--exit-with-stdin", kStarted}, {"--deadline", kStarted}};
  for (const auto& [option, wanted] : kBackends) {
    if (command.count(option) > 0 && std::string_view(wanted).find(backend) == std::string_view::npos)
      throw UsageError(fmt::format("launch: {} with --backend {}, wanted {}", option, backend, wanted));
  }
}

void launch(LaunchFlags flags) {
  if (flags.schema) {
    std::printf("%s\n", plan_schema().dump(2).c_str());
    return;
  }
  if (flags.plan.empty()) throw UsageError("launch: wanted a PLAN");
  init_logging("launch", "warn");
  const PlanFile plan = PlanFile::read(flags.plan, flags.hosts, flags.backend);
  plan.set(flags.options, flags.backend);
  const fs::path run_dir = fs::absolute(flags.run_dir.empty() ? default_run_dir(flags.plan) : flags.run_dir);
  const bool kubernetes = flags.backend == "kubernetes";
  const std::vector<RenderedFile> files = rendered(plan, flags, run_dir);
  if (flags.dry_run && !files.empty()) {
    for (const RenderedFile& file : files) std::printf("==> %s <==\n%s", file.name.c_str(), file.text.c_str());
    return;
  }
  if (flags.dry_run) return print_dry_run(plan, flags.options);
  const RunFolder folder = or_throw(RunFolder::create(run_dir, plan.object));
  const bool pods_of_cluster = kubernetes && plan.plan.kubernetes.shards == 0;
  if (pods_of_cluster || (!kubernetes && !files.empty() && plan.processes.open())) or_throw(RunKeys::create(folder));
  if (kubernetes) fs::create_directories(run_dir / "kubernetes" / "base");
  if (pods_of_cluster)
    for (const RenderedFile& file : kubernetes_base()) or_throw(folder.write(file.name, file.text));
  for (const RenderedFile& file : files) or_throw(folder.write(file.name, file.text));
  if (kubernetes) {
    std::fputs(how_to_apply(plan.plan, run_dir.string()).c_str(), stdout);
    return;
  }
  if (!files.empty()) return to_slurm(files, folder, flags.submit);
  std::vector<std::vector<std::string>> commands;
  for (const RunPlan& run : plan.plan.run) commands.push_back(run.command);
  run_for_status(flags.lifetime, [&](std::stop_token stop) {
    return run_launch(plan.object, plan.processes, commands, flags.options, folder,
                      [&] { return stop.stop_requested(); });
  });
}

void push(const LaunchFlags& flags, const PushSources& sources) {
  const PlanFile plan = PlanFile::read(flags.plan, flags.hosts, "ssh");
  if (or_throw(push_to_hosts(plan.plan, plan.processes, sources)) > 0) throw ExitStatus(1);
}

/// Returns the processes of a run, optionally without its drafters.
ProcessPlan processes_of(const RunFolder& folder, bool without_drafters) {
  const json object = or_throw(folder.read_json("plan.json"));
  Plan plan = or_throw(read_plan(object, "plan.json"));
  if (without_drafters) plan.drafters.clear();
  return or_throw(plan_processes(plan, /*one_host=*/true));  // only their names count, wherever they run
}

/// Returns the run's state, "ready"; empty: unknown.
std::string state_of(const RunFolder& folder) {
  const Result<json> status = folder.read_json("status.json");
  const json state = status ? member(*status, "state") : json();
  return state.is_string() ? state.get<std::string>() : "";
}

/// Says so if no process or job of the run is known here.
void say_if_unrecorded(const RunFolder& folder) {
  if (or_throw(folder.ledger()).empty())
    complain("{}: no process or job is recorded; scripts submitted by hand and pods are not (see squeue, scancel; "
             "kubectl)",
             folder.path().string());
}

void print_run_status(const RunFolderFlags& flags) {
  const RunFolder folder = or_throw(RunFolder::open(flags.run_dir));
  say_if_unrecorded(folder);
  const std::string state = state_of(folder);
  std::printf("%s\n", state.empty() ? "no status yet" : state.c_str());
  bool any = false;
  for (const auto& [entry, alive] : or_throw(who_is_alive(folder))) {
    const std::string number = entry.job.empty() ? std::to_string(entry.process.pid) : entry.job;
    std::printf("%-16s %-16s %8s  %s\n", printable(entry.name).c_str(), printable(entry.host.name).c_str(),
                printable(number).c_str(), alive ? "alive" : "gone");
    any = any || alive;
  }
  if (!any) throw ExitStatus(kLost);
}

/// Returns the reason that a run is not ready; empty: it is.
std::string why_not_ready(TransportContext& context, const RunFolder& folder, const ProcessPlan& plan) {
  Result<Client> client = connect_any(context, folder.addresses());
  const Result<Status> status = client ? client->status() : client.error();
  if (!status) {
    return fmt::format("coordinator: {}\n{}", status.error().message,
                       folder.log_end(plan.coordinator().log_name(), 20));
  }
  std::string missing;
  for (const PlannedProcess& process : missing_workers(plan, *status)) {
    missing += fmt::format("{} on {} has not joined; the end of its log:\n{}\n", process.name, process.host.name,
                           folder.log_end(process.log_name(), 20));
  }
  if (!missing.empty()) return missing;
  const Result<void> proven = prove_verifiers(context, folder.addresses());
  return proven ? "" : proven.error().message;
}

/// @return the exit status of `wait`
int wait_until_ready(const RunFolderFlags& flags, std::stop_token stop) {
  const RunFolder folder = or_throw(RunFolder::open(flags.run_dir));
  const ProcessPlan plan = processes_of(folder, flags.without_drafters);
  const std::optional<RunKeys> keys = RunKeys::of(folder);
  TransportContext context(keys ? keys->client() : Security());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(flags.seconds);
  std::string why;
  do {
    why = why_not_ready(context, folder, plan);
    if (why.empty()) {
      std::printf("ready: %s at %s\n", workers_text(plan.count("verifier"), plan.count("drafter")).c_str(),
                  folder.addresses().front().c_str());
      return 0;
    }
    if (state_of(folder) == "ended") {
      complain("the run has ended");
      return kLost;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  } while (std::chrono::steady_clock::now() < deadline && !stop.stop_requested());
  fmt::print(stderr, "outrider: not ready after {} s: {}\n", flags.seconds, why);  // with lines of a log
  return kNotReady;
}

void wait(const RunFolderFlags& flags) {
  init_logging("launch", "warn");
  run_for_status(flags.lifetime, [&](std::stop_token stop) -> Result<int> { return wait_until_ready(flags, stop); });
}

void print_logs(const RunFolderFlags& flags, const std::string& only) {
  const RunFolder folder = or_throw(RunFolder::open(flags.run_dir));
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder.path() / "logs")) files.push_back(entry.path());
  std::ranges::sort(files);
  for (const fs::path& file : files) {
    const std::string name = file.stem().string();
    if (name.find(only) == name.npos) continue;
    std::ifstream text(file);
    if (!text) throw CommandError("{}: cannot be read", file.string());
    for (std::string line; std::getline(text, line);) std::printf("%s: %s\n", name.c_str(), line.c_str());
  }
}

void down(const RunFolderFlags& flags) {
  const RunFolder folder = or_throw(RunFolder::open(flags.run_dir));
  say_if_unrecorded(folder);
  const int killed = or_throw(take_down(folder, flags.seconds));
  if (killed > 0) complain("killed {} processes that did not end in time", killed);
}

/// Called by Slurm's scripts in the job, after each host was asked for its facts.
void write_lock(const RunFolderFlags& flags) {
  const RunFolder folder = or_throw(RunFolder::open(flags.run_dir));
  const json plan = or_throw(folder.read_json("plan.json"));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(flags.seconds);
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  for (const Host& host : processes_of(folder, /*without_drafters=*/false).hosts) {
    const fs::path log = folder.log(RunFolder::facts_log(host.name));
    if (!fs::exists(log)) continue;  // drafters of other jobs
    Result<json> found = facts_in("", host.name);
    while (!(found = facts_in(or_throw(read_text(log)), host.name)) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    facts[host.name] = found ? *found : json("error: " + folder.log_end(RunFolder::facts_log(host.name), 1));
  }
  or_throw(folder.write("lock.json", lock_of(plan, this_build(), "slurm", facts)));
}

/// Reads a lock.json, given directly or by its run folder.
json read_lock(const fs::path& path) {
  const fs::path file = fs::is_directory(path) ? path / "lock.json" : path;
  return or_throw(parse_json_object(or_throw(read_text(file)), file.string(), std::size_t{64} << 20));
}

void add_run_subcommands(Command& launch) {
  const auto add = [&](const char* name, const char* about, int seconds, const char* help, auto callback) {
    Command* command = launch.add_subcommand(name, about);
    auto flags = std::make_shared<RunFolderFlags>(
        RunFolderFlags{.run_dir = {}, .seconds = seconds, .without_drafters = false, .lifetime = {}});
    command->add_option("RUN_DIR", flags->run_dir, "Folder of a run")->required();
    if (help != nullptr) add_number(*command, "--timeout", flags->seconds, 0, 1 << 20, help);
    if (name == std::string_view("wait")) {
      command->add_flag("--without-drafters", flags->without_drafters, "Do not wait for drafters");
      flags->lifetime.add_to(*command);
    }
    command->callback([flags, callback] { callback(*flags); });
    return command;
  };
  add("status", "Show which processes of a run are alive; status 4 if none is", 0, nullptr, print_run_status);
  add("wait",
      "Wait until a run is ready; status 3 and a list of missing processes after the time-out, 4 if the run has ended",
      kReadySeconds, "Seconds to wait", wait);
  auto only = std::make_shared<std::string>();
  add("logs", "Print the logs of a run, each line prefixed with host and process", 0, nullptr,
      [only](const RunFolderFlags& flags) { print_logs(flags, *only); })
      ->add_option("NAME", *only, "Only logs whose names contain this text: node3, drafter.1");
  add("down", "End all processes of a run; kill those that do not end in time", 30,
      "Seconds for a process to end before it is killed", down);
  add("lock", "Write lock.json from the hosts' facts; used by Slurm scripts", 60, "Seconds to wait for the facts",
      write_lock);
  Command* diff =
      launch.add_subcommand("diff", "Show the differences of two runs or lock.json files; status 1 if there are any");
  auto paths = std::make_shared<std::vector<fs::path>>();
  diff->add_option("RUN_DIR", *paths, "Two run folders or files")->required()->expected(2, 2);
  diff->callback([paths] {
    const std::vector<std::string> lines = differences(read_lock(paths->at(0)), read_lock(paths->at(1)));
    for (const std::string& line : lines) std::printf("%s\n", line.c_str());
    if (!lines.empty()) throw ExitStatus(1);
  });
}

}  // namespace

void add_launch_command(Command& app) {
  Command* command = app.add_subcommand("launch", "Start a plan's processes on hosts, and end them (docs/launch.md)");
  auto flags = std::make_shared<LaunchFlags>();
  command->add_option("PLAN", flags->plan, "A plan, or the lock.json of a run");
  command
      ->add_option("--backend", flags->backend,
                   "How to start the processes: local (all on this machine), ssh, srun, slurm or kubernetes")
      ->check(CLI::IsMember({"local", "ssh", "srun", "slurm", "kubernetes"}))
      ->capture_default_str();
  command->add_option("--hosts", flags->hosts,
                      "File with a line 'HOST role=verifier slots=1' per host, instead of the plan's hosts; env: the "
                      "hosts of SkyPilot, dstack or Slurm");
  command->add_option("--run-dir", flags->run_dir, "Folder for the run's files (default: PLAN.TIME.X)");
  command->add_flag("--dry-run", flags->dry_run, "Print the commands without running them");
  command->add_flag("--submit", flags->submit,
                    "With --backend slurm: submit the scripts, instead of only writing them");
  command->add_flag("--schema", flags->schema, "Print the JSON schema of plans");
  command->add_flag(
      "--strict", flags->options.strict,
      "With --backend local, ssh or srun: end if any host or drafter is missing, not only an essential one");
  add_number(*command, "--ready-timeout", flags->options.ready_seconds, 1, 1 << 20,
             "Seconds until all processes must be ready");
  add_number(*command, "--grace", flags->options.grace_seconds, 1, 1 << 20,
             "Seconds for a process to end before it is killed");
  flags->lifetime.add_to(*command);
  flags->lifetime.add_deadline_to(*command);
  add_run_subcommands(*command);
  Command* push_command = command->add_subcommand(
      "push", "Copy the program and the models to the hosts of a plan, over ssh; unchanged files are skipped");
  auto pushed = std::make_shared<LaunchFlags>();
  auto sources = std::make_shared<PushSources>();
  push_command->add_option("PLAN", pushed->plan, "A plan with the key program")->required();
  push_command->add_option("--hosts", pushed->hosts, "As for launch");
  push_command->add_option("--program", sources->program,
                           "Local file to copy as the plan's program (default: this program)");
  push_command->add_option("--model", sources->model,
                           "Local model to copy as the plan's model (default: the same path here)");
  push_command->callback([pushed, sources] {
    // Read here, since other commands must work without /proc, which a bare chroot lacks.
    if (sources->program.empty()) sources->program = fs::read_symlink("/proc/self/exe");
    push(*pushed, *sources);
  });
  Command* facts = command->add_subcommand("facts", "Print this host's facts, as in lock.json");
  struct FactsFlags {
    std::vector<std::string> models;
    std::string dtype;
  };
  auto wanted = std::make_shared<FactsFlags>();
  facts->add_option("MODEL", wanted->models, "Directories of pairs");
  ModelFlags::add_dtype(*facts, wanted->dtype);
  facts->callback([wanted] {
    forbid_asking_hub();  // the reader of the facts must not wait for a download
    std::printf("%s\n", to_text(host_facts(this_build(), wanted->models, wanted->dtype), 2).c_str());
  });
  command->callback([command, flags] {
    if (!command->get_subcommands().empty()) return;
    check_options(*command, flags->backend);
    launch(*flags);
  });
}

}  // namespace outrider
