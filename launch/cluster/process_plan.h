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

/// One host of a plan.
struct Host {
  std::string name, address;
  std::vector<std::string> ssh;  ///< more arguments for ssh
  std::int64_t cpus = 0;         ///< 0: not said
};

/// One process of a plan.
struct PlannedProcess {
  std::string role;  ///< coordinator, verifier, shard, drafter, encoder
  std::string name;  ///< "drafter.3": in logs, the ledger and the coordinator's books
  Host host;
  std::size_t group = 0;             ///< of its role in the plan
  std::string model;                 ///< its directory of a pair, if it has one
  std::vector<std::string> before;   ///< what its command line begins with: environment and CPUs
  std::vector<std::string> options;  ///< of the role, --exit-with-stdin among them, but for where the coordinator is

  /// Without a drafter text comes more slowly, without an encoder it may not be about pictures; without the others
  /// there is none.
  bool required() const { return role != "drafter" && role != "encoder"; }
  bool has_deadline() const;
  /// Of a verifier: whether shards of other hosts join it.
  bool hears_shards() const;
  std::string log_name() const { return host.name + "." + name + ".log"; }
  /// The whole command line. @param more  options that the launcher adds.
  std::vector<std::string> command(const std::string& program, const std::vector<std::string>& more) const;
};

/// The processes of a plan: the coordinator, then verifiers, each with its shards of other hosts behind it, then
/// drafters, then encoders.
struct ProcessPlan {
  std::vector<PlannedProcess> processes;
  std::vector<Host> hosts;  ///< those that have a process
  std::string listen;       ///< of the coordinator

  /// @return whether other hosts can reach the coordinator. The run has keys then.
  bool open() const { return !is_local(listen); }

  const PlannedProcess& coordinator() const { return processes.front(); }
  int count(const std::string& role) const;
};

/// @param one_host  every process will run on this machine, whatever its host's name.
/// @return kInvalidArgument, naming it, for a host that the plan does not have, for a process that wants more threads
///   than its host has CPUs, and for a plan across hosts whose coordinator would listen at loopback.
Result<ProcessPlan> plan_processes(const Plan& plan, bool one_host);

/// The form in which a backend writes the words of a plan's commands.
struct CommandForm {
  std::map<std::string, std::string> values;  ///< what stands for "{coordinator}" and its like, as it is written
  std::string program;                        ///< for a first word `outrider`, as it is written
  std::vector<std::string> client_key;        ///< more such words, for an `outrider` that dials the coordinator
  /// Writes the text between values.
  std::function<std::string(const std::string& text)> write = [](const std::string& text) { return text; };
};
/// The words of a plan's command, with the values in them or in parts of them. A value is not looked through again.
std::vector<std::string> fill_in(const std::vector<std::string>& command, const CommandForm& form);

/// Words as a shell reads them.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace outrider
