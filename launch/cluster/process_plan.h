#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/transport/address.h"
#include "launch/cluster/plan.h"

namespace outrider {

/// Default of the time that processes have to become ready.
inline constexpr int kReadySeconds = 600;

/// One host of a plan.
struct Host {
  std::string name, address;
  std::vector<std::string> ssh;  ///< additional arguments for ssh
  std::int64_t cpus = 0;         ///< 0: not given
};

/// One process of a plan.
struct PlannedProcess {
  std::string role;  ///< coordinator, verifier, shard, drafter, encoder
  std::string name;  ///< "drafter.3": in logs, the ledger and at the coordinator
  Host host;
  std::size_t group = 0;             ///< index of the role's group in the plan
  std::string model;                 ///< directory of a pair, if it has one
  std::vector<std::string> before;   ///< prefix of its command line: environment and CPUs
  std::vector<std::string> options;  ///< of the role, including --exit-with-stdin, without the coordinator's address

  /// Returns false for drafters and encoders: without drafters answers are slower, and without encoders requests with
  /// pictures may fail. All other processes are essential.
  bool required() const { return role != "drafter" && role != "encoder"; }
  bool has_deadline() const;
  /// Returns true for a verifier that shards of other hosts join.
  bool listens_for_shards() const;
  std::string log_name() const { return host.name + "." + name + ".log"; }
  /// Returns the whole command line. @param more  options that the launcher adds
  std::vector<std::string> command(const std::string& program, const std::vector<std::string>& more) const;
};

/// The processes of a plan: the coordinator, then verifiers, each followed by its shards on other hosts, then drafters,
/// then encoders.
struct ProcessPlan {
  std::vector<PlannedProcess> processes;
  std::vector<Host> hosts;  ///< those with a process
  std::string listen;       ///< of the coordinator

  /// @return true if other hosts can reach the coordinator. The run then has keys.
  bool open() const { return !is_local(listen); }

  const PlannedProcess& coordinator() const { return processes.front(); }
  int count(const std::string& role) const;
};

/// @param one_host  every process runs on this machine, whatever its host's name
/// @return kInvalidArgument for an unknown host, which it names, for a process with more threads than its host has
/// CPUs, and for a plan across hosts whose coordinator would listen at loopback
Result<ProcessPlan> plan_processes(const Plan& plan, bool one_host);

/// Notation of a backend for the words of a plan's commands.
struct CommandForm {
  std::map<std::string, std::string> values;  ///< replacements of "{coordinator}" and the like, already written
  std::string program;                        ///< replaces a first word `outrider`, already written
  std::vector<std::string> client_key;        ///< more such words, for an `outrider` that connects to the coordinator
  /// Writes the text between values.
  std::function<std::string(const std::string& text)> write = [](const std::string& text) { return text; };
};
/// Returns the words of a plan's command, with values filled in. Values are not expanded again.
std::vector<std::string> fill_in(const std::vector<std::string>& command, const CommandForm& form);

/// Quotes words for a shell.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace outrider
