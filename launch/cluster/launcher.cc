#include "launch/cluster/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/complain.h"
#include "common/base/json_fields.h"
#include "common/base/text.h"
#include "common/base/time.h"
#include "common/base/utf8.h"
#include "common/os/files.h"
#include "launch/cluster/deadline.h"
#include "launch/cluster/readiness.h"
#include "launch/cluster/run_folder.h"
#include "launch/cluster/slurm_jobs.h"

namespace outrider {
namespace {
using nlohmann::json;
using nlohmann::ordered_json;

constexpr Duration kPollInterval = std::chrono::milliseconds(50), kAskStatus = std::chrono::milliseconds(300);
constexpr int kFactsSeconds = 60, kAnswerSeconds = 30;
constexpr int kProgramMissing = 127, kSshFailed = 255;
constexpr const char* kReady = "ready";  // state of a run

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return printable(text.substr(text.rfind('\n') + 1));
}

bool wait_until(const std::function<bool()>& condition, Duration deadline) {
  const TimePoint give_up = now() + deadline;
  while (!condition()) {
    if (now() > give_up) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
}

/// Reports the facts of a host that differ from the first one's.
void name_unlike(const Host& host, const json& facts, const ordered_json& all) {
  const json first_facts = all.begin().value();
  for (const char* key : {"machine", "version"}) {
    const json &here = member(facts, key), &first = member(first_facts, key);
    if (here != first)
      complain("{}: {} is {}, that of {} is {}", host.name, key, show(here), all.begin().key(), show(first));
  }
}

Error not_listening(const PlannedProcess& process) {
  return Error(Errc::kUnavailable, "{} has not said where it listens", process.name);
}

}  // namespace

Launcher::~Launcher() {
  if (state_.empty()) return;
  (void)no_throw([&]() -> Result<void> {
    end_all();
    return {};
  });
}

Result<std::optional<int>> Launcher::start() {
  RETURN_IF_ERROR(look_at_hosts());
  if (stopped_()) return std::optional<int>(0);
  RETURN_IF_ERROR(start_all());
  return await_ready();
}

std::string Launcher::addresses() const { return fmt::format("{}", fmt::join(addresses_, ",")); }

Result<void> Launcher::check() {
  const Running* const over = look();
  if (over == nullptr) return {};
  return Error(Errc::kPeerGone, "{} on {} has ended", over->plan->name, over->plan->host.name);
}

bool Launcher::Running::left() const { return plan->has_deadline() && (status == 0 || status == 128 + SIGTERM); }

void Launcher::log_state(const char* state) {
  state_ = state;
  ordered_json processes = ordered_json::array();
  for (const Running& running : running_) {
    processes.push_back({{"name", running.plan->name},
                         {"host", running.plan->host.name},
                         {"pid", running.process.pid},
                         {"exit_status", running.status ? ordered_json(*running.status) : ordered_json()}});
  }
  const ordered_json status = {{"state", state}, {"coordinator", addresses_}, {"processes", processes}};
  if (const Result<void> written = folder_.write("status.json", status); !written)
    complain_text(written.error().message);
}

std::string Launcher::why_no_facts(const Host& host, const Captured& answer) const {
  const std::string last = last_line(answer.out), by = std::string(to_string(options_.backend)) + ": ";
  if (answer.status == 124) return fmt::format("no answer in {} s", kFactsSeconds);
  if (last.starts_with(by)) return last;  // already starts with the way, as when srun is missing here
  if (answer.status == kProgramMissing) return "no program " + options_.program;
  if (options_.backend == Backend::kSsh && answer.status == kSshFailed) return by + last;
  const std::vector<Captured> machine =
      run_all({command_on(options_.backend, host, machine_command(options_.program))}, kAnswerSeconds);
  if (const auto wrong = wrong_architecture(machine.front().out, options_.program)) return *wrong;
  return fmt::format("status {}: {}", answer.status, last);
}

Result<void> Launcher::look_at_hosts() {
  std::vector<std::vector<std::string>> commands;
  for (const Host& host : processes_.hosts) {
    commands.push_back(
        command_on(options_.backend, host, facts_command(options_.program, options_.dtype, processes_, host)));
  }
  const std::vector<Captured> answers = run_all(commands, kFactsSeconds, stopped_);
  if (stopped_()) return {};
  ordered_json facts = ordered_json::object();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const Host& host = processes_.hosts[i];
    const Result<json> found = facts_in(answers[i].out, host.name);
    if (answers[i].status == 0 && found) {
      facts[host.name] = *found;
      name_unlike(host, *found, facts);
      continue;
    }
    const std::string why = why_no_facts(host, answers[i]);
    complain("{}: {}", host.name, why);
    left_out_.push_back(host.name);
    const bool needed = std::ranges::any_of(processes_.processes, [&](const PlannedProcess& process) {
      return process.host.name == host.name && (process.required() || options_.strict);
    });
    if (needed) return Error{Errc::kUnavailable, host.name + " cannot take part, and the plan needs it"};
  }
  return folder_.write("lock.json", lock_of(plan_, options_.build, to_string(options_.backend), facts));
}

Result<void> Launcher::start(const PlannedProcess& process, const std::vector<std::string>& more) {
  const bool local = options_.backend == Backend::kLocal;
  std::vector<std::string> command = process.command(options_.program, more);
  std::vector<SentFile> files;
  if (keys_ && local) {
    std::ranges::copy(keys_->options(process.role, process.listens_for_shards()), std::back_inserter(command));
  } else if (keys_) {
    ASSIGN_OR_RETURN(files, keys_->files(process.role, process.listens_for_shards()));
  }
  command = announced_command_on(options_.backend, process.host, command, files);
  ASSIGN_OR_RETURN(Child child, Child::start(command, folder_.log(process.log_name()), /*keep_stdin_open=*/true));
  for (const SentFile& file : files) RETURN_IF_ERROR(child.write(file.second));
  running_.push_back({&process, std::move(child), {}, {}});
  if (!local) return {};
  running_.back().process = running_.back().child.id();
  return folder_.append({process.name, "local", process.host, running_.back().process, {}});
}

void Launcher::explain(const Running& running) const {
  const std::string tail = folder_.log_end(running.plan->log_name(), 1);
  const bool ssh = options_.backend == Backend::kSsh;
  const std::string how = running.left()                       ? "left by its deadline"
                          : *running.status == kProgramMissing ? "no program " + options_.program
                          : ssh && *running.status == kSshFailed
                              ? std::string(running.process.start == 0 ? "cannot be reached" : "connection lost")
                              : fmt::format("ended with status {}", *running.status);
  complain("{} on {}: {}: {}", running.plan->name, running.plan->host.name, how, last_line(tail));
}

std::ptrdiff_t Launcher::alive(std::string_view role) const {
  return std::ranges::count_if(
      running_, [&](const Running& running) { return running.plan->role == role && !running.status; });
}

bool Launcher::ends_run(const Running& running) const {
  if (!running.status || options_.strict) return running.status.has_value();
  if (!running.plan->required() || (running.left() && alive(running.plan->role) > 0)) return false;
  if (state_ != kReady) return true;  // a plan that does not start is wrong, and nobody has lost work yet
  // A shard's verifier ends with the shard, and a verifier's sequences continue at another verifier.
  return running.plan->role == "coordinator" || (running.plan->role == "verifier" && alive("verifier") == 0);
}

const Launcher::Running* Launcher::look() {
  const Running* over = nullptr;
  for (Running& running : running_) {
    if (running.process.start == 0 && options_.backend != Backend::kLocal) {
      const Result<std::string> log = read_text(folder_.log(running.plan->log_name()));
      const std::optional<ProcessId> process = log ? announced_process(*log) : std::nullopt;
      if (process) {
        running.process = *process;
        (void)folder_.append({running.plan->name, to_string(options_.backend), running.plan->host, *process, {}});
      }
    }
    if (!running.status && (running.status = running.child.poll())) {
      explain(running);
      if (running.plan->role == "verifier" && !ends_run(running))
        complain("the run goes on with {}", workers_text(alive("verifier"), alive("drafter")));
      log_state(state_.c_str());
    }
    if (ends_run(running) && (over == nullptr || over->left())) over = &running;
  }
  return over;
}

Result<std::vector<std::string>> Launcher::await_addresses(const PlannedProcess& process) {
  std::vector<std::string> addresses;
  const auto printed = [&] {
    const Result<std::string> text = read_text(folder_.log(process.log_name()));
    for (std::size_t at = 0; text && at < text->size();) {
      const std::size_t end = text->find('\n', at);
      if (end == text->npos) break;
      if (text->compare(at, 6, "tcp://") == 0) {
        std::string line = text->substr(at, end - at);
        std::ranges::replace(line, ',', '\n');
        addresses = lines_of(line);
        return true;
      }
      at = end + 1;
    }
    return look() != nullptr || stopped_();
  };
  if (wait_until(printed, std::chrono::seconds(options_.ready_seconds))) return addresses;
  return not_listening(process);
}

Result<void> Launcher::start_all() {
  RETURN_IF_ERROR(folder_.begin({"launcher", "local", {}, identify(getpid()), {}}));
  log_state("starting");
  if (processes_.open()) {
    ASSIGN_OR_RETURN(keys_, RunKeys::create(folder_));
  }
  RETURN_IF_ERROR(start(processes_.coordinator(), {"--listen", processes_.listen}));
  ASSIGN_OR_RETURN(addresses_, await_addresses(processes_.coordinator()));
  if (addresses_.empty() && stopped_()) return {};
  if (addresses_.empty()) return not_listening(processes_.coordinator());
  (void)folder_.write("coordinator.address", fmt::format("{}\n", fmt::join(addresses_, "\n")));
  std::vector<std::string> shards_at;  // of the last verifier
  for (const PlannedProcess& process : processes_.processes) {
    if (process.role == "coordinator" || left_out(process.host)) continue;
    const std::vector<std::string>& at = process.role == "shard" ? shards_at : addresses_;
    RETURN_IF_ERROR(start(process, {"--join", fmt::format("{}", fmt::join(at, ","))}));
    look();
    if (!process.listens_for_shards()) continue;
    ASSIGN_OR_RETURN(shards_at, await_addresses(process));
    if (shards_at.empty()) break;  // await_ready() reports what has ended
  }
  log_state("starting");
  return {};
}

Result<std::optional<int>> Launcher::await_ready() {
  TransportContext context(security());
  std::vector<PlannedProcess> missing;
  std::optional<Client> client;
  TimePoint ask{};
  const Running* over = nullptr;
  bool all = false;
  const bool in_time = wait_until(
      [&] {
        over = look();
        if (over != nullptr || stopped_()) return true;
        if (now() < ask) return false;
        ask = now() + kAskStatus;
        if (!client) {
          if (Result<Client> found = connect_any(context, addresses_)) client.emplace(std::move(*found));
        }
        const Result<Status> status = client ? client->status() : Error{Errc::kUnavailable, ""};
        if (!status) return false;
        missing = missing_workers(processes_, *status);
        std::erase_if(missing, [&](const PlannedProcess& process) {  // already reported
          return left_out(process.host) || std::ranges::any_of(running_, [&](const Running& running) {
                   return running.plan->name == process.name && running.status;
                 });
        });
        all = missing.empty();
        return all;
      },
      std::chrono::seconds(options_.ready_seconds));
  if (over != nullptr) return std::optional<int>(over->left() ? kNotReady : kLost);
  if (stopped_()) return std::optional<int>(0);
  for (const PlannedProcess& process : missing) {
    complain("{} on {} has not joined; the end of its log:", process.name, process.host.name);
    std::fprintf(stderr, "%s\n", folder_.log_end(process.log_name(), 20).c_str());
  }
  if (!in_time || !all) return std::optional<int>(kNotReady);
  const Result<void> proven = prove_verifiers(context, addresses_);
  if (!proven) {
    complain("no token came through every verifier: {}", proven.error().message);
    return std::optional<int>(kNotReady);
  }
  log_state(kReady);
  complain("ready: {} at {}; run folder {}", workers_text(alive("verifier"), alive("drafter")), addresses_.front(),
           folder_.path().string());
  return std::optional<int>();
}

Result<int> Launcher::run_command(std::size_t number, const std::vector<std::string>& planned) {
  const json& model = member(plan_, "model");
  const std::vector<std::string> command =
      fill_in(planned, {.values = {{"{coordinator}", addresses()},
                                   {"{run_dir}", folder_.path().string()},
                                   {"{model}", model.is_string() ? model.get<std::string>() : ""}},
                        .program = kThisProgram,
                        .client_key = keys_ ? keys_->options("client") : std::vector<std::string>()});
  const std::string log = fmt::format("run.{}.log", number);
  ASSIGN_OR_RETURN(Child child, Child::start(command, folder_.log(log), /*keep_stdin_open=*/false));
  RETURN_IF_ERROR(folder_.append({fmt::format("run.{}", number), "local", {}, child.id(), {}}));
  std::ifstream output(folder_.log(log));
  const auto show = [&] {
    output.clear();  // the log has grown since its end was reached
    const std::string text{std::istreambuf_iterator<char>(output), {}};
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  std::optional<TimePoint> give_up;  // once it was asked to end
  const Running* over = nullptr;
  while (!child.poll()) {
    over = look();
    if ((over != nullptr || stopped_()) && !give_up) {
      child.signal(SIGTERM);
      give_up = now() + std::chrono::seconds(options_.grace_seconds);
    }
    if (give_up && now() > *give_up) {
      complain("run.{} has not ended in {} s: killed", number, options_.grace_seconds);
      child.signal(SIGKILL);
      give_up = TimePoint::max();
    }
    show();
    std::this_thread::sleep_for(kPollInterval);
  }
  show();
  const int status = *child.poll();
  if (over != nullptr && !over->left()) return kLost;
  if (status == 0 || status == kExitAgain) return status;
  complain("run.{} ended with status {}: {}", number, status, shell_line(planned));
  return kRunFailed;
}

int Launcher::serve() {
  while (!stopped_()) {
    if (const Running* over = look()) return over->left() ? 0 : kLost;
    std::this_thread::sleep_for(kPollInterval);
  }
  return 0;
}

void Launcher::end_all() {
  look();  // reports what has ended by itself
  log_state("ending");
  const auto end = [&](bool last) {
    const auto concerned = [&](const Running& running) {
      return (running.plan->role == "coordinator" || running.plan->role == "shard") == last;
    };
    for (Running& running : running_) {
      if (concerned(running)) running.child.release_stdin();
    }
    const auto runs = [&](Running& running) {
      return concerned(running) && !(running.status = running.child.poll());
    };
    const auto gone = [&] { return std::ranges::count_if(running_, runs) == 0; };  // each is asked
    if (wait_until(gone, std::chrono::seconds(options_.grace_seconds))) return;
    std::vector<std::vector<std::string>> kills;
    for (Running& running : running_) {
      if (!concerned(running) || running.status) continue;
      complain("{} on {} has not ended in {} s: killed", running.plan->name, running.plan->host.name,
               options_.grace_seconds);
      if (running.process.start != 0)
        kills.push_back(signal_command(options_.backend, running.plan->host, running.process, "KILL"));
    }
    run_all(kills, options_.grace_seconds);
  };
  end(/*last=*/false);  // draining workers need a coordinator, and a verifier its shards
  end(/*last=*/true);
  log_state("ended");
}

Result<int> run_launch(const json& plan, const ProcessPlan& processes,
                       const std::vector<std::vector<std::string>>& commands, const LaunchOptions& options,
                       const RunFolder& folder, const std::function<bool()>& stopped) {
  std::size_t done = 0;
  bool ready = false;
  int status = 0;
  {
    Launcher launcher(plan, processes, options, folder, stopped);
    ASSIGN_OR_RETURN(const std::optional<int> not_ready, launcher.start());
    ready = !not_ready;
    status = not_ready.value_or(0);
    if (ready && commands.empty()) status = launcher.serve();
    for (; ready && status == 0 && done < commands.size() && !stopped(); ++done) {
      ASSIGN_OR_RETURN(status, launcher.run_command(done, commands[done]));
    }
  }
  if (status == 0 && done < commands.size()) return int{kRunFailed};
  if (status == 0 && ready) complain("done; run folder {}", folder.path().string());
  return status;
}

namespace {

/// Returns the command that signals an entry's process, and everything that a local process has started.
std::vector<std::string> signal_entry(const LedgerEntry& entry, const std::string& signal) {
  const Backend backend = backend_named(entry.where).value_or(Backend::kLocal);
  const bool leads = backend == Backend::kLocal && entry.name != "launcher";  // the launcher's group is its shell's
  return leads ? signal_group_command(entry.process, signal)
               : signal_command(backend, entry.host, entry.process, signal);
}

/// Signals each entry that is still the same process. @return the entries that were alive
std::vector<LedgerEntry> signal_all(const std::vector<LedgerEntry>& entries, const std::string& signal) {
  std::vector<std::vector<std::string>> commands;
  for (const LedgerEntry& entry : entries) commands.push_back(signal_entry(entry, signal));
  const std::vector<Captured> answers = run_all(commands, kAnswerSeconds);
  std::vector<LedgerEntry> alive;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (answers[i].status == 0) alive.push_back(entries[i]);
    if (entries[i].where == "ssh" && answers[i].status == kSshFailed)
      complain("{}: {}", entries[i].host.name, last_line(answers[i].out));
  }
  return alive;
}

/// Asks the entries to end and waits. @return the entries that did not end
std::vector<LedgerEntry> end_politely(const std::vector<LedgerEntry>& entries, int grace_seconds) {
  std::vector<LedgerEntry> alive = signal_all(entries, "TERM");
  const TimePoint deadline = now() + std::chrono::seconds(grace_seconds);
  while (!alive.empty() && now() < deadline) {
    std::this_thread::sleep_for(kPollInterval);
    alive = signal_all(alive, "0");
  }
  return alive;
}

}  // namespace

Result<int> take_down(const RunFolder& folder, int grace_seconds) {
  ASSIGN_OR_RETURN(const std::vector<LedgerEntry> entries, folder.ledger());
  std::vector<LedgerEntry> launchers, others;
  std::vector<std::string> jobs;
  for (const LedgerEntry& entry : entries) {
    if (entry.where == "slurm") {
      jobs.push_back(entry.job);
    } else {
      (entry.name == "launcher" ? launchers : others).push_back(entry);
    }
  }
  end_slurm_jobs(jobs, grace_seconds);
  // The launcher ends its processes in two phases, each with the grace.
  end_politely(launchers, 3 * grace_seconds);
  std::vector<LedgerEntry> rest = end_politely(others, grace_seconds);
  const std::vector<LedgerEntry> killed = signal_all(rest, "KILL");
  signal_all(launchers, "KILL");
  return static_cast<int>(killed.size());
}

Result<std::vector<std::pair<LedgerEntry, bool>>> who_is_alive(const RunFolder& folder) {
  ASSIGN_OR_RETURN(const std::vector<LedgerEntry> entries, folder.ledger());
  std::vector<std::vector<std::string>> commands;
  for (const LedgerEntry& entry : entries) {
    commands.push_back(entry.where == "slurm" ? slurm_alive_command(entry.job) : signal_entry(entry, "0"));
  }
  const std::vector<Captured> answers = run_all(commands, kAnswerSeconds);
  std::vector<std::pair<LedgerEntry, bool>> result;
  for (std::size_t i = 0; i < entries.size(); ++i) result.emplace_back(entries[i], answers[i].status == 0);
  return result;
}

}  // namespace outrider
