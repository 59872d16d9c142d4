#include "launch/cluster/slurm.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/ascii.h"
#include "common/base/text.h"
#include "launch/cluster/facts.h"
#include "launch/cluster/run_folder.h"

namespace outrider {

// Parts of scripts, of launch/slurm: the start of each, the functions of a job, its end, and the loop of an array of
// drafters, whose command is DRAFTER.
std::string_view begin_sh(), job_sh(), end_sh(), drafters_sh();

namespace {

Error no_job(const std::string& why) { return {Errc::kInvalidArgument, "slurm: " + why}; }

/// Parses a --time of Slurm into seconds: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS. None: invalid.
std::optional<std::int64_t> seconds_of(std::string_view time) {
  constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
  const std::string word = in_lower_case(time);
  if (word == "unlimited" || word == "infinite" || word == "-1") return kNoLimit;
  const std::size_t dash = time.find('-');
  const auto days = dash == time.npos ? 0u : to_number<std::uint32_t>(time.substr(0, dash));
  std::vector<std::int64_t> parts;
  for (std::string_view rest = dash == time.npos ? time : time.substr(dash + 1);;) {
    const std::size_t colon = rest.find(':');
    const auto number = to_number<std::uint32_t>(rest.substr(0, colon));
    if (!number || parts.size() == 3) return {};
    parts.push_back(*number);
    if (colon == rest.npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (!days) return {};
  if (dash == time.npos && parts.size() < 3) parts.insert(parts.begin(), 0);  // MM and MM:SS
  parts.resize(3, 0);
  const std::int64_t seconds = ((std::int64_t{*days} * 24 + parts[0]) * 60 + parts[1]) * 60 + parts[2];
  return seconds == 0 ? kNoLimit : seconds;
}

/// Quotes a value for #SBATCH, where white space ends it and # begins a comment.
std::string header_value(const std::string& value) {
  if (value.find_first_of(" \t#'\"\\") == value.npos) return value;
  return "\"" + replaced(replaced(value, "\\", "\\\\"), "\"", "\\\"") + "\"";
}

/// Returns the header of a script: our lines, each replaced or omitted by the plan, then the plan's own.
std::string header(std::vector<std::pair<std::string, std::string>> lines, const SlurmHeader& changes) {
  std::string text;
  const auto add = [&](const std::string& option, const std::string& value) {
    const bool is_long = option.starts_with("--");
    text += fmt::format("#SBATCH {}{}{}\n", option, value.empty() ? "" : is_long ? "=" : " ", header_value(value));
  };
  for (const auto& [option, value] : lines) {
    const auto change = changes.find(option);
    if (change == changes.end()) {
      add(option, value);
    } else if (change->second) {
      add(option, *change->second);
    }
  }
  for (const auto& [option, value] : changes) {
    const bool ours = std::ranges::any_of(lines, [&option = option](const auto& line) { return line.first == option; });
    if (value && !ours) add(option, *value);
  }
  return text;
}

/// A component of a job: some hosts of the plan and their processes.
struct Component {
  std::vector<Host> hosts;
  std::vector<const PlannedProcess*> processes;

  void add(const PlannedProcess& process) {
    if (!has(process.host)) hosts.push_back(process.host);
    processes.push_back(&process);
  }
  bool has(const Host& host) const { return std::ranges::find(hosts, host.name, &Host::name) != hosts.end(); }
  std::size_t index(const Host& host) const {
    return static_cast<std::size_t>(std::ranges::find(hosts, host.name, &Host::name) - hosts.begin());
  }
  std::int64_t cpus() const { return hosts.empty() ? 0 : std::ranges::max_element(hosts, {}, &Host::cpus)->cpus; }
};

class Renderer {
 public:
  Renderer(const Plan& plan, const ProcessPlan& processes, const std::string& program, std::string run_dir,
           int ready_seconds)
      : plan_(plan),
        processes_(processes),
        program_(program),
        run_(std::move(run_dir)),
        ready_seconds_(ready_seconds) {
    for (const PlannedProcess& process : processes.processes)
      (process.role == "drafter" && plan.slurm.shape != "one" ? drafters_ : main_).add(process);
  }

  Result<void> check() const;
  std::vector<RenderedFile> render() const {
    std::vector<RenderedFile> scripts = {{"job.sbatch", job()}};
    for (std::size_t group = 0; elastic() && group < plan_.drafters.size(); ++group)
      scripts.push_back({group == 0 ? "drafters.sbatch" : fmt::format("drafters.{}.sbatch", group), drafters(group)});
    return scripts;
  }

 private:
  using Lines = std::vector<std::pair<std::string, std::string>>;

  /// Returns the start of a script. @param job  its number, in Slurm's notation for names @param more  of the header
  std::string begin(Lines lines, const SlurmHeader& changes, const char* job, const std::string& more = "") const;
  std::string job() const;
  std::string drafters(std::size_t group) const;
  std::string steps(const Component& component, const std::string& nodes, const std::string& group) const;
  Lines size_lines(const Component& component) const {
    Lines lines = {{"--nodes", std::to_string(component.hosts.size())}, {"--ntasks-per-node", "1"}};
    if (component.cpus() > 0) lines.emplace_back("--cpus-per-task", std::to_string(component.cpus()));
    return lines;
  }
  /// Returns the options of a role's key files, which all nodes see.
  std::vector<std::string> keys_of(const std::string& role, bool listens_for_shards = false) const {
    return processes_.open() ? RunKeys::options(run_ + "/keys", role, listens_for_shards) : std::vector<std::string>();
  }
  bool elastic() const { return plan_.slurm.shape == "elastic" && !drafters_.processes.empty(); }
  bool het() const { return plan_.slurm.shape == "het" && !drafters_.processes.empty(); }

  const Plan& plan_;
  const ProcessPlan& processes_;
  const std::string& program_;
  const std::string run_;
  const int ready_seconds_;
  Component main_, drafters_;
};

/// Checks lines for a script, a second component or an array.
Result<void> check_header(const SlurmHeader& lines, std::int64_t drain_seconds) {
  for (const auto& [option, value] : lines) {
    if (!option.starts_with("-") || option.find_first_of(" \t\n\r=#'\"\\") != option.npos)
      return no_job(option + " is no option of sbatch, wanted one with its dashes");
    if (value && value->find_first_of("\n\r") != value->npos) return no_job(option + " has a line break in it");
  }
  for (const char* option : {"--time", "-t"}) {
    const auto time = lines.find(option);
    if (time == lines.end() || !time->second) continue;
    const std::optional<std::int64_t> limit = seconds_of(*time->second);
    if (!limit) return no_job(fmt::format("{}={} is no time, wanted HH:MM:SS or UNLIMITED", option, *time->second));
    if (*limit <= drain_seconds + 60)
      return no_job(fmt::format("{}={} is {} s; the signal may come {} s before its end, a minute early", option,
                                *time->second, *limit, drain_seconds + 60));
  }
  return {};
}

Result<void> Renderer::check() const {
  const SlurmPlan& slurm = plan_.slurm;
  if (run_.find_first_of("\n\r\\") != run_.npos)
    return no_job(
        fmt::format("the run folder is {}, which has a backslash or a line break: Slurm would write its logs "
                    "elsewhere",
                    shell_line({run_})));
  RETURN_IF_ERROR(check_header(slurm.header, slurm.drain_seconds));
  RETURN_IF_ERROR(check_header(slurm.drafter_header, slurm.drain_seconds));
  for (const DrafterPlan& group : plan_.drafters) {
    RETURN_IF_ERROR(check_header(group.slurm_header, slurm.drain_seconds));
    if (!elastic() && !group.slurm_header.empty())
      return no_job("drafters.slurm_header is for the shape elastic; wanted slurm.drafter_header");
  }
  if (const auto array = slurm.header.find("--array"); array != slurm.header.end() && array->second)
    return no_job(fmt::format("--array in the header: {}; drafters alone can be one (shape elastic)",
                              het() ? "there are no arrays of het jobs" : "a run has one coordinator"));
  if (const auto signal = slurm.header.find("--signal");
      signal != slurm.header.end() && signal->second && !signal->second->starts_with("B:"))
    return no_job(
        fmt::format("--signal={}: without B: it reaches the steps and not the script, wanted B:...", *signal->second));
  if (elastic() && !processes_.open())
    return no_job(
        fmt::format("elastic: coordinator.listen is {}, which drafters of other jobs cannot dial", processes_.listen));
  if (elastic() && plan_.drafters.size() > 1 && slurm.drafter_header.contains("--array"))
    return no_job("elastic: --array in drafter_header, which is for all groups; wanted in a group's slurm_header");
  for (const Host& host : drafters_.hosts) {
    if (het() && main_.has(host))
      return no_job(
          fmt::format("het: {} has drafters and another role; components need nodes of their own", host.name));
  }
  return {};
}

std::string Renderer::steps(const Component& component, const std::string& nodes, const std::string& group) const {
  std::string text;
  for (const PlannedProcess* process : component.processes) {
    const bool coordinator = process->role == "coordinator", for_shards = process->listens_for_shards();
    const std::string file = process->name + ".address";
    std::vector<std::string> more = keys_of(process->role, for_shards);
    if (coordinator) more.insert(more.end(), {"--listen", processes_.listen});
    if (coordinator || for_shards) more.insert(more.end(), {"--address-file", run_ + "/" + file});
    text += fmt::format("step {}{} \"${{{}[{}]}}\" {}{}\n", shell_line({process->log_name()}), group, nodes,
                        component.index(process->host), shell_line(process->command(program_, more)),
                        coordinator                ? ""
                        : process->role == "shard" ? " --join \"$address\""
                                                   : " --join \"$coordinator\"");
    if (coordinator && plan_.run.empty()) text += "coordinator_step=$!\n";  // the script watches it
    if (coordinator || for_shards) text += fmt::format("await_address {}\n", file);
    if (coordinator) text += "coordinator=$address\n";
  }
  for (const Host& host : component.hosts) {
    text += fmt::format("step {}{} \"${{{}[{}]}}\" {}\n", shell_line({RunFolder::facts_log(host.name)}), group, nodes,
                        component.index(host), shell_line(facts_command(program_, plan_.dtype, processes_, host)));
  }
  return text;
}

std::string Renderer::begin(Lines lines, const SlurmHeader& changes, const char* job, const std::string& more) const {
  // In the name of a log, % begins a part that Slurm fills in.
  lines.insert(lines.end(), {{"--output", fmt::format("{}/logs/slurm-{}.log", replaced(run_, "%", "%%"), job)},
                             {"--open-mode", "append"},
                             {"--requeue", ""},
                             {"--signal", fmt::format("B:USR1@{}", plan_.slurm.drain_seconds)}});
  return fmt::format(
      "#!/bin/bash\n{}# Rendered by `outrider launch`: lines may be changed and the script submitted by hand.\n"
      "run={}\n{}",
      header(lines, changes) + more, shell_line({run_}), begin_sh());
}

std::string Renderer::job() const {
  const SlurmPlan& slurm = plan_.slurm;
  Lines lines = {{"--job-name", "outrider"}};
  for (auto& line : size_lines(main_)) lines.push_back(std::move(line));
  std::string text = begin(std::move(lines), slurm.header, "%j",
                           het() ? "#SBATCH hetjob\n" + header(size_lines(drafters_), slurm.drafter_header) : "") +
                     fmt::format("\nprogram={}{}\n", shell_line({program_}), job_sh());
  if (het()) {
    text +=
        "mapfile -t nodes < <(scontrol show hostnames \"$SLURM_JOB_NODELIST_HET_GROUP_0\")\n"
        "mapfile -t drafter_nodes < <(scontrol show hostnames \"$SLURM_JOB_NODELIST_HET_GROUP_1\")\n";
    text += steps(main_, "nodes", " --het-group=0") + steps(drafters_, "drafter_nodes", " --het-group=1");
  } else {
    text += "mapfile -t nodes < <(scontrol show hostnames \"$SLURM_JOB_NODELIST\")\n" + steps(main_, "nodes", "");
  }
  text += fmt::format("input=$hold run_command \"$program\" launch wait \"$run\"{} --exit-with-stdin{}\n",
                      ready_seconds_ == kReadySeconds ? "" : fmt::format(" --timeout {}", ready_seconds_),
                      slurm.shape == "elastic" ? " --without-drafters  # drafters may join later" : "");
  text += "[ \"$status\" != 0 ] || \"$program\" launch lock \"$run\"\n";
  const auto quoted = [](const std::string& word) { return shell_line({word}); };
  CommandForm form{
      .values = {{"{coordinator}", "\"$coordinator\""}, {"{run_dir}", quoted(run_)}, {"{model}", quoted(plan_.model)}},
      .program = "\"$program\"",
      .client_key = keys_of("client"),
      .write = quoted};
  std::ranges::transform(form.client_key, form.client_key.begin(), quoted);
  for (const RunPlan& run : plan_.run) {
    text += fmt::format("if [ -z \"$stopping\" ] && [ \"$status\" = 0 ]; then run_command {}; fi\n",
                        fmt::join(fill_in(run.command, form), " "));
  }
  if (plan_.run.empty())
    text += fmt::format(
        "while [ -z \"$stopping\" ] && [ \"$status\" = 0 ]; do\n  sleep 1\n  kill -0 \"$coordinator_step\" && "
        "continue\n{}  status=4\ndone\n",
        processes_.coordinator().has_deadline() ? "  if wait \"$coordinator_step\"; then break; fi\n" : "");
  return text.append(end_sh());
}

std::string Renderer::drafters(std::size_t group) const {
  const SlurmPlan& slurm = plan_.slurm;
  Component array;
  for (const PlannedProcess* process : drafters_.processes) {
    if (process->group == group) array.add(*process);
  }
  const auto first_index =
      std::ranges::find(drafters_.processes, array.processes.front()) - drafters_.processes.begin();
  // A task's number is that of its drafter among all groups.
  Lines lines = {{"--job-name", "outrider-drafters"},
                 {"--array", fmt::format("{}-{}", first_index, first_index + std::ssize(array.processes) - 1)},
                 {"--nodes", "1"},
                 {"--ntasks", "1"}};
  if (array.cpus() > 0) lines.emplace_back("--cpus-per-task", std::to_string(array.cpus()));
  SlurmHeader changes = plan_.drafters[group].slurm_header;
  changes.insert(slurm.drafter_header.begin(), slurm.drafter_header.end());
  const std::vector<std::string> words = array.processes.front()->command(program_, keys_of("drafter"));
  const auto name = std::ranges::find(words, "--name") + 1;
  const std::string command = fmt::format("{} drafter.\"$SLURM_ARRAY_TASK_ID\" {}", shell_line({words.begin(), name}),
                                          shell_line({name + 1, words.end()}));
  return begin(std::move(lines), changes, "%A_%a") + replaced(drafters_sh(), "DRAFTER", command);
}

}  // namespace

Result<std::vector<RenderedFile>> render_slurm(const Plan& plan, const ProcessPlan& processes,
                                               const std::string& program, const std::filesystem::path& run_dir,
                                               int ready_seconds) {
  const Renderer renderer(plan, processes, program, run_dir.string(), ready_seconds);
  RETURN_IF_ERROR(renderer.check());
  return renderer.render();
}

}  // namespace outrider
