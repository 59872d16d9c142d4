#include "launch/cluster/process_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "common/base/text.h"
#include "launch/cluster/deadline.h"
#include "launch/cluster/host_set.h"

namespace outrider {
namespace {

/// The starter holds each process's standard input, so that a worker on a host without network ends by itself.
constexpr const char* kHeld = "--exit-with-stdin";
constexpr const char* kAloneSeconds = "60";
constexpr const char* kDeadline = "--deadline";
constexpr const char* kListenShards = "--listen-shards";

/// Returns a plan's hosts by name, in its order.
Result<std::vector<Host>> all_hosts(const Plan& plan) {
  std::vector<Host> hosts;
  for (const HostPlan& group : plan.hosts) {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, expand_host_set(group.name));
    ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                     expand_host_set(group.address.empty() ? group.name : group.address));
    if (addresses.size() != names.size())
      return Error(Errc::kInvalidArgument, "host set '{}' has {} names, its address '{}' {}", group.name, names.size(),
                   group.address, addresses.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (std::ranges::find(hosts, names[i], &Host::name) != hosts.end())
        return Error(Errc::kInvalidArgument, "hosts: {} is there twice", names[i]);
      hosts.push_back({names[i], addresses[i], group.ssh, group.cpus});
    }
  }
  if (hosts.empty()) hosts.push_back({"localhost", "localhost", {}, 0});
  return hosts;
}

/// Returns the hosts of a group's processes, in turn. @param set, key  of the plan
Result<std::vector<Host>> hosts_of(const std::string& set, const std::string& key, const std::vector<Host>& all) {
  if (set.empty()) return all;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, expand_host_set(set));
  std::vector<Host> hosts;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(all, name, &Host::name);
    if (found == all.end()) return Error(Errc::kInvalidArgument, "{}: {} is none of the plan's hosts", key, name);
    hosts.push_back(*found);
  }
  return hosts;
}

std::vector<std::string> words_before(const RolePlan& role) {
  std::vector<std::string> words;
  if (!role.environment.empty()) words.emplace_back("env");
  for (const auto& [name, value] : role.environment) words.push_back(name + "=" + value);
  if (!role.cpuset.empty()) words.insert(words.end(), {"taskset", "-c", role.cpuset});
  return words;
}

/// Adds the options common to all roles.
Result<void> add_common(PlannedProcess& process, const RolePlan& role) {
  if (!role.deadline.empty()) {
    // Only a process in the job can ask Slurm for that job's end.
    if (const auto parsed = parse_deadline(role.deadline); role.deadline != "slurm" && !parsed)
      return Error{parsed.error().code, process.name + ": " + parsed.error().message};
    process.options.insert(process.options.end(), {kDeadline, role.deadline});
  }
  process.options.emplace_back(kHeld);
  return {};
}

/// Returns the value of one of the options; 0: not given.
std::int64_t number_in(const std::vector<std::string>& options, const char* name) {
  const auto flag = std::ranges::find(options, name);
  return flag == options.end() ? 0 : to_number<std::int64_t>(*(flag + 1)).value_or(0);
}

class Planner {
 public:
  Planner(const Plan& plan, std::vector<Host> all) : plan_(plan), all_(std::move(all)) {}

  Result<void> add_coordinator() {
    ASSIGN_OR_RETURN(const std::vector<Host> hosts, hosts_of(plan_.coordinator.hosts, "coordinator.hosts", all_));
    result_.processes.push_back({.role = "coordinator",
                                 .name = "coordinator",
                                 .host = hosts.front(),
                                 .group = 0,
                                 .model = {},
                                 .before = words_before(plan_.coordinator),
                                 .options = plan_.coordinator.options});
    return add_common(result_.processes.back(), plan_.coordinator);
  }

  template <class Options>
  Result<void> add_workers(const char* role, const std::vector<WorkerPlan<Options>>& groups) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const WorkerPlan<Options>& group = groups[g];
      ASSIGN_OR_RETURN(const std::vector<Host> hosts,
                       hosts_of(group.hosts, fmt::format("{}s[{}].hosts", role, g), all_));
      const std::size_t count = group.count > 0       ? static_cast<std::size_t>(group.count)
                                : group.hosts.empty() ? 1
                                                      : hosts.size();
      const std::string key = fmt::format("{}s[{}].shard_hosts", role, g);
      std::vector<Host> shard_hosts;
      if (!group.shard_hosts.empty()) {
        ASSIGN_OR_RETURN(shard_hosts, hosts_of(group.shard_hosts, key, all_));
        const std::int64_t shards = std::max<std::int64_t>(1, number_in(group.options, "--shards"));
        const auto wanted = static_cast<std::int64_t>(count) * (shards - 1);
        if (std::ssize(shard_hosts) != wanted)
          return Error(Errc::kInvalidArgument, "{} has {} hosts, wanted {}: {} for each of {} with shards {}", key,
                       shard_hosts.size(), wanted, shards - 1, count, shards);
      }
      const std::size_t others = shard_hosts.size() / count;  // per verifier
      for (std::size_t i = 0; i < count; ++i) {
        RETURN_IF_ERROR(add_worker(role, group, g, hosts[i % hosts.size()]));
        const std::string prefix = result_.processes.back().name + ".shard.";
        for (std::size_t s = 0; s < others; ++s)
          RETURN_IF_ERROR(add_shard(prefix + std::to_string(s + 1), group, g, shard_hosts[i * others + s]));
      }
    }
    return {};
  }

  Result<ProcessPlan> finish(bool one_host) {
    for (const PlannedProcess& process : result_.processes) note(process.host);
    result_.listen = plan_.coordinator.listen;
    // Hosts with one address are one machine.
    const bool across = !one_host && std::ranges::any_of(result_.hosts, [&](const Host& host) {
      return host.address != result_.hosts.front().address;
    });
    if (result_.listen.empty()) result_.listen = across ? "tcp://0.0.0.0:*" : "tcp://127.0.0.1:*";
    if (across && !result_.open())
      return Error(Errc::kInvalidArgument, "coordinator.listen is {}, which other hosts cannot dial", result_.listen);
    const bool ipv6 = result_.listen.find('[') != std::string::npos;
    const char* const shards_at = !result_.open() ? "tcp://127.0.0.1:*" : ipv6 ? "tcp://[::]:*" : "tcp://0.0.0.0:*";
    for (std::size_t i = 1; i < result_.processes.size(); ++i) {
      PlannedProcess& before = result_.processes[i - 1];
      if (before.role == "verifier" && result_.processes[i].role == "shard")
        before.options.insert(before.options.end(), {kListenShards, shards_at});
    }
    return std::move(result_);
  }

 private:
  template <class Options>
  Result<void> add_worker(const char* role, const WorkerPlan<Options>& group, std::size_t number, const Host& host) {
    ASSIGN_OR_RETURN(PlannedProcess process,
                     process_of(role, fmt::format("{}.{}", role, next_[role]++), group, number, host));
    const auto add = [&](const char* option, const std::string& value) {
      if (!value.empty()) process.options.insert(process.options.end(), {option, value});
    };
    process.options.insert(process.options.begin(), {"--name", process.name});
    add("--assistant", group.assistant);
    add("--dtype", group.dtype.empty() ? plan_.dtype : group.dtype);
    process.options.insert(process.options.end(), group.options.begin(), group.options.end());
    if (std::ranges::count(group.options, "--exit-when-alone") == 0) add("--exit-when-alone", kAloneSeconds);
    RETURN_IF_ERROR(add_common(process, group));
    result_.processes.push_back(std::move(process));
    return {};
  }

  /// Adds a shard of the group's last verifier, which assigns its work.
  template <class Options>
  Result<void> add_shard(std::string name, const WorkerPlan<Options>& group, std::size_t number, const Host& host) {
    ASSIGN_OR_RETURN(PlannedProcess process, process_of("shard", std::move(name), group, number, host));
    if (const std::int64_t threads = number_in(group.options, "--threads"); threads > 0)
      process.options.insert(process.options.end(), {"--threads", std::to_string(threads)});
    process.options.emplace_back(kHeld);  // no deadline: its verifier needs it while draining
    result_.processes.push_back(std::move(process));
    return {};
  }

  /// Makes a process of a group, with its models.
  template <class Options>
  Result<PlannedProcess> process_of(const char* role, std::string name, const WorkerPlan<Options>& group,
                                    std::size_t number, const Host& host) const {
    if (const std::int64_t threads = number_in(group.options, "--threads"); host.cpus > 0 && threads > host.cpus)
      return Error(Errc::kInvalidArgument, "{}s: {} threads on {}, which has {} CPUs", role, threads, host.name,
                   host.cpus);
    PlannedProcess process{.role = role,
                           .name = std::move(name),
                           .host = host,
                           .group = number,
                           .model = group.model.empty() ? plan_.model : group.model,
                           .before = words_before(group),
                           .options = {}};
    for (const auto& [option, path] : {std::pair("--model", process.model), std::pair("--backbone", group.backbone)})
      if (!path.empty()) process.options.insert(process.options.end(), {option, path});
    return process;
  }

  void note(const Host& host) {
    if (std::ranges::find(result_.hosts, host.name, &Host::name) == result_.hosts.end()) result_.hosts.push_back(host);
  }

  const Plan& plan_;
  const std::vector<Host> all_;
  ProcessPlan result_;
  std::map<std::string, int> next_;  ///< number of a role's next process
};

}  // namespace

bool PlannedProcess::has_deadline() const { return std::ranges::count(options, kDeadline) > 0; }

bool PlannedProcess::listens_for_shards() const { return std::ranges::count(options, kListenShards) > 0; }

std::vector<std::string> PlannedProcess::command(const std::string& program,
                                                 const std::vector<std::string>& more) const {
  std::vector<std::string> words = before;
  words.insert(words.end(), {program, role});
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

int ProcessPlan::count(const std::string& role) const {
  return static_cast<int>(std::ranges::count(processes, role, &PlannedProcess::role));
}

Result<ProcessPlan> plan_processes(const Plan& plan, bool one_host) {
  ASSIGN_OR_RETURN(std::vector<Host> all, all_hosts(plan));
  Planner planner(plan, std::move(all));
  RETURN_IF_ERROR(planner.add_coordinator());
  RETURN_IF_ERROR(planner.add_workers("verifier", plan.verifiers));
  RETURN_IF_ERROR(planner.add_workers("drafter", plan.drafters));
  RETURN_IF_ERROR(planner.add_workers("encoder", plan.encoders));
  return planner.finish(one_host);
}

std::vector<std::string> fill_in(const std::vector<std::string>& command, const CommandForm& form) {
  const bool ours = command.front() == "outrider";
  bool dials = false;
  std::vector<std::string> words;
  for (const std::string& word : command) {
    if (ours && words.empty()) {
      words.push_back(form.program);
      continue;
    }
    std::string written, text;
    const auto write_text = [&] { written += form.write(std::exchange(text, {})); };
    for (std::size_t at = 0; at < word.size();) {
      const auto value = std::ranges::find_if(
          form.values, [&](const auto& one) { return word.compare(at, one.first.size(), one.first) == 0; });
      if (value == form.values.end()) {
        text += word[at++];
        continue;
      }
      if (!text.empty()) write_text();
      written += value->second;
      at += value->first.size();
      dials = dials || value->first == "{coordinator}";
    }
    if (!text.empty() || word.empty()) write_text();
    words.push_back(std::move(written));
  }
  if (ours && dials) words.insert(words.end(), form.client_key.begin(), form.client_key.end());
  return words;
}

std::string shell_line(const std::vector<std::string>& words) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) {
      line += word;
      continue;
    }
    line += "'" + replaced(word, "'", R"('\'')") + "'";
  }
  return line;
}

}  // namespace outrider
