#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/fields.h"
#include "common/base/result.h"
#include "coordinator-node/coordinator_node.h"
#include "drafter-node/drafter_node.h"
#include "encoder-node/encoder_node.h"
#include "verifier-node/verifier_node.h"

namespace outrider {

// The contents of a plan. Each struct lists its keys once, in fields(). These define the reader, which refuses all
// other keys, and the published schema (`outrider launch --schema`).

/// A key's description for people.
struct KeyInfo {
  const char* help;
  bool required = false;
};

/// A host, or several equal ones.
struct HostPlan {
  std::string name;              ///< a host set
  std::string address;           ///< a set with as many names as `name`; empty: the name itself
  std::vector<std::string> ssh;  ///< additional arguments of ssh, before the address
  std::int64_t cpus = 0;         ///< 0: not given

  static void fields(auto& v, auto& m) {
    v("name", m.name, KeyInfo{"A host, or a set like node[1-8,12]", true});
    v("address", m.address, KeyInfo{"Address that ssh connects to, a set of as many names (default: the name)"});
    v("ssh", m.ssh, KeyInfo{"Additional arguments for ssh, such as -p and 2222"});
    v("cpus", m.cpus, KeyInfo{"CPUs of each host; a process with more threads is refused"},
      Range<std::int64_t>{0, 65536});
  }
};

/// Lines of a script's header; no value: omits the line.
using SlurmHeader = std::map<std::string, std::optional<std::string>>;

/// Keys common to all roles. A role's own options have the names of its command line, without leading dashes and with _
/// for -.
struct RolePlan {
  std::string hosts;  ///< host sets; empty: all hosts in turn
  std::string cpuset, deadline;
  std::map<std::string, std::string> environment;
  std::vector<std::string> options;  ///< in command line form

  static void fields(auto& v, auto& m) {
    v("hosts", m.hosts,
      KeyInfo{"Hosts or host sets; a host that is named twice gets two processes (default: all hosts in turn)"});
    v("cpuset", m.cpuset, KeyInfo{"CPUs that the process may use, in taskset's notation: 0-7,16"});
    v("environment", m.environment, KeyInfo{"Environment variables of the process"});
    v("deadline", m.deadline,
      KeyInfo{
          "Drain a minute before this time: a local time, a duration like 2h, or slurm: the end of its host's job"});
  }
};

struct CoordinatorPlan : RolePlan {
  std::string listen;

  static void fields(auto& v, auto& m) {
    RolePlan::fields(v, m);
    v("listen", m.listen, KeyInfo{"Address (default: any port, of loopback if all is on one host, else of all)"});
    v.template options<CoordinatorOptions>(m.options);
  }
};

template <class Options>
struct WorkerPlan : RolePlan {
  std::int64_t count = 0;  ///< 0: one per entry of `hosts`, or one
  std::string model, backbone, assistant, dtype;
  SlurmHeader slurm_header;  ///< of drafters
  std::string shard_hosts;   ///< of verifiers: host sets; empty: shards are the verifier's own processes

  static void fields(auto& v, auto& m) {
    v("count", m.count, KeyInfo{"Number of processes (default: one for each entry of hosts, or one)"},
      Range<std::int64_t>{0, 4096});
    RolePlan::fields(v, m);
    v("model", m.model, KeyInfo{"Directory of the pair on its host (default: the plan's)"});
    v("backbone", m.backbone, KeyInfo{"The target alone"});
    v("assistant", m.assistant, KeyInfo{"The assistant alone"});
    v("dtype", m.dtype, KeyInfo{"Weights (default: the plan's)"});
    if constexpr (std::is_same_v<Options, DrafterOptions>)
      v("slurm_header", m.slurm_header,
        KeyInfo{"elastic: header lines of this group's array; they override slurm.drafter_header"});
    if constexpr (std::is_same_v<Options, VerifierOptions>)
      v("shard_hosts", m.shard_hosts,
        KeyInfo{"Hosts of the other shards: shards - 1 for each verifier (default: all on the verifier's host)"});
    v.template options<Options>(m.options);
  }
};
using VerifierPlan = WorkerPlan<VerifierOptions>;
using DrafterPlan = WorkerPlan<DrafterOptions>;
using EncoderPlan = WorkerPlan<EncoderOptions>;

/// A command to run against the cluster, to its end.
struct RunPlan {
  std::vector<std::string> command;

  static void fields(auto& v, auto& m) {
    v("command", m.command,
      KeyInfo{"Words of the command. outrider is this program; {coordinator}, {run_dir} and {model} are replaced",
              true});
  }
};

/// Settings for Slurm jobs.
struct SlurmPlan {
  std::string shape;  ///< one, het, elastic
  SlurmHeader header, drafter_header;
  std::int64_t drain_seconds = 120;

  static void fields(auto& v, auto& m) {
    v("shape", m.shape,
      KeyInfo{"one: one allocation; het: a job of two components, drafters in the second; elastic: drafters are an "
              "array of jobs that come and go"},
      {"one", "het", "elastic"});
    v("header", m.header,
      KeyInfo{"Lines of the script's header: option and value. \"\": an option without value; null: no such line"});
    v("drafter_header", m.drafter_header, KeyInfo{"The same for the second component, or for all arrays of drafters"});
    v("drain_seconds", m.drain_seconds,
      KeyInfo{"Seconds before the time limit at which running commands are asked to end. Slurm may be a minute early"},
      Range<std::int64_t>{0, 86400});
  }
};

/// Settings for a Kubernetes overlay.
struct KubernetesPlan {
  std::string image, ns, claim, verifier_memory, drafter_memory, queue;
  std::int64_t shards = 0;  ///< 0: the plan is a cluster

  static void fields(auto& v, auto& m) {
    v("image", m.image, KeyInfo{"Image and tag, as packaging/Containerfile makes one (default: outrider:VERSION)"});
    v("namespace", m.ns, KeyInfo{"Namespace (default: outrider)"});
    v("claim", m.claim,
      KeyInfo{"An existing PersistentVolumeClaim, mounted at /packs of drafters and front ends, and of commands, which "
              "may write to it"});
    v("verifier_memory", m.verifier_memory,
      KeyInfo{"Memory of each verifier and of each of its shards, in Kubernetes' notation: 64Gi (default: the model's "
              "files plus 1 GiB if this machine has them, else 4Gi)"});
    v("drafter_memory", m.drafter_memory, KeyInfo{"Memory of each drafter (default: 1Gi)"});
    v("shards", m.shards,
      KeyInfo{"Pods of an Indexed Job that share the plan's batch, each a process by itself (default: a cluster)"},
      Range<std::int64_t>{0, 4096});
    v("queue", m.queue, KeyInfo{"The Job's queue of Kueue (default: none)"});
  }
};

struct Plan {
  std::string program, model, dtype;
  std::vector<HostPlan> hosts;
  CoordinatorPlan coordinator;
  std::vector<VerifierPlan> verifiers;
  std::vector<DrafterPlan> drafters;
  std::vector<EncoderPlan> encoders;
  std::vector<RunPlan> run;
  SlurmPlan slurm;
  KubernetesPlan kubernetes;
  nlohmann::json lock;

  static void fields(auto& v, auto& m) {
    v("program", m.program, KeyInfo{"Path of outrider on the hosts (default: in ssh's PATH, else this program)"});
    v("model", m.model, KeyInfo{"Directory of the pair on the hosts (default: the nano pair)"});
    v("dtype", m.dtype, KeyInfo{"Weights of all workers (default: a pack's own, else bf16)"});
    v("hosts", m.hosts, KeyInfo{"Hosts that roles may name (default: localhost)"});
    v("coordinator", m.coordinator, KeyInfo{"The coordinator"});
    v("verifiers", m.verifiers, KeyInfo{"Groups of verifiers", true});
    v("drafters", m.drafters, KeyInfo{"Groups of drafters"});
    v("encoders", m.encoders, KeyInfo{"Groups of encoders (default: none; verifiers encode pictures and sounds)"});
    v("run", m.run,
      KeyInfo{
          "Commands to run one after the other once the cluster is ready. None: the cluster runs until it is stopped"});
    v("slurm", m.slurm, KeyInfo{"Settings of the backend slurm"});
    v("kubernetes", m.kubernetes, KeyInfo{"Settings of the backend kubernetes"});
    v("lock", m.lock, KeyInfo{"Facts in a lock.json about the hosts of a run; ignored"});
  }
};

/// @param file  its name in messages
/// @return the first error, by the key's name; for an unknown key with the nearest known one
Result<Plan> read_plan(const nlohmann::json& object, std::string_view file);

/// Replaces the plan's hosts by those of an MPI-like host file, "HOST [role=ROLE] [slots=N] [address=ADDRESS]" a line.
/// A line without role is for a drafter.
/// @return kInvalidArgument with the line for anything else, and for a plan that places roles itself
Result<void> place_on_hosts(nlohmann::json& plan, std::string_view text, std::string_view file);

/// The plan's JSON schema (draft 2020-12).
nlohmann::ordered_json plan_schema();

}  // namespace outrider
