#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "common/os/child.h"
#include "common/os/durable_file.h"
#include "common/wire/transport/security.h"
#include "launch/cluster/backend.h"

namespace outrider {

/// Something that a launch has started and must end: a line of ledger.jsonl.
struct LedgerEntry {
  std::string name;   ///< "drafter.3"; "launcher"
  std::string where;  ///< local, ssh, srun; slurm: a job
  Host host;
  ProcessId process;  ///< of all but slurm
  std::string job;    ///< of slurm: the number of a job
};

/// A file rendered from a plan for another program, which starts the run.
struct RenderedFile {
  std::string name;  ///< in the run folder: "job.sbatch"
  std::string text;
};

/// Everything that a launch leaves behind: plan.json, lock.json, logs/, ledger.jsonl, coordinator.address, status.json,
/// and rendered scripts.
class RunFolder {
 public:
  /// Creates the folder with plan.json, and keeps other processes from doing so while this object lives.
  /// @return kInvalidArgument for a folder with a ledger or keys, or another owner: two runs are never mixed
  static Result<RunFolder> create(const std::filesystem::path& path, const nlohmann::json& plan);
  /// @return kNotFound for one without plan.json
  static Result<RunFolder> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path address_file() const { return path_ / "coordinator.address"; }
  std::filesystem::path log(const std::string& name) const { return path_ / "logs" / name; }
  /// Name of the log with a host's own facts, if a script asks for them.
  static std::string facts_log(const std::string& host) { return host + ".facts.log"; }
  /// Returns the last lines of a log for a terminal; empty if there is none.
  std::string log_end(const std::string& name, std::size_t lines) const;

  /// Replaces a file atomically, since others read it meanwhile.
  Result<void> write(const std::string& name, const std::string& text) const;
  Result<void> write(const std::string& name, const nlohmann::ordered_json& value) const;
  Result<nlohmann::json> read_json(const std::string& name) const;
  /// Creates the ledger, with its first entry. @return kInvalidArgument if another launch has done so since create()
  Result<void> begin(const LedgerEntry& launcher) const;
  Result<void> append(const LedgerEntry& entry) const;
  Result<std::vector<LedgerEntry>> ledger() const;
  /// Returns the coordinator's addresses; empty: not there yet.
  std::vector<std::string> addresses() const;

 private:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
  std::optional<DurableFile> held_;  ///< the creator's lock
};

/// The keys of one run, in the folder keys/ of its run folder. No other process can join, and all traffic between hosts
/// is encrypted (docs/security.md). A run on one host has none.
class RunKeys {
 public:
  /// Makes a key for each role and one for clients, and authorizes these.
  static Result<RunKeys> create(const RunFolder& folder);
  /// Returns the keys of a run, if it has any.
  static std::optional<RunKeys> of(const RunFolder& folder);

  /// Returns options for a process that sees the folder of keys.
  /// @param role  coordinator, verifier, shard, drafter, client
  /// @param listens_for_shards  of a verifier
  static std::vector<std::string> options(const std::filesystem::path& keys, const std::string& role,
                                          bool listens_for_shards = false);
  std::vector<std::string> options(const std::string& role, bool listens_for_shards = false) const {
    return options(folder_, role, listens_for_shards);
  }
  /// Returns the files for a process that does not see the folder: each option with its file's contents.
  Result<std::vector<std::pair<std::string, std::string>>> files(const std::string& role,
                                                                 bool listens_for_shards = false) const;
  Security client() const;

 private:
  explicit RunKeys(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::filesystem::path folder_;
};

}  // namespace outrider
