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

/// Something that a launch has started and that must be ended: a line of ledger.jsonl.
struct LedgerEntry {
  std::string name;   ///< "drafter.3"; "launcher"
  std::string where;  ///< local, ssh, srun; slurm: a job
  Host host;
  ProcessId process;  ///< of all but slurm
  std::string job;    ///< of slurm: the number of a job
};

/// A file that a plan becomes for another program, which starts it.
struct RenderedFile {
  std::string name;  ///< in the run folder: "job.sbatch"
  std::string text;
};

/// All that a launch leaves behind: plan.json, lock.json, logs/, ledger.jsonl, coordinator.address, status.json, and
/// the scripts that were rendered.
class RunFolder {
 public:
  /// It has plan.json in it; no other process creates it while this object lives. @return kInvalidArgument for a folder
  /// that has a ledger, or belongs to another owner: two runs are never mixed.
  static Result<RunFolder> create(const std::filesystem::path& path, const nlohmann::json& plan);
  /// @return kNotFound for one without plan.json.
  static Result<RunFolder> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path address_file() const { return path_ / "coordinator.address"; }
  std::filesystem::path log(const std::string& name) const { return path_ / "logs" / name; }
  /// The log of what a host printed about itself, where a script asks it.
  static std::string facts_log(const std::string& host) { return host + ".facts.log"; }
  /// The last lines of a log for a terminal; empty if there is none.
  std::string log_end(const std::string& name, std::size_t lines) const;

  /// Makes the file that text or nothing: others look at it meanwhile.
  Result<void> write(const std::string& name, const std::string& text) const;
  Result<void> write(const std::string& name, const nlohmann::ordered_json& value) const;
  Result<nlohmann::json> read_json(const std::string& name) const;
  /// Makes the ledger, with its first entry. @return kInvalidArgument if another launch has since create().
  Result<void> begin(const LedgerEntry& launcher) const;
  Result<void> append(const LedgerEntry& entry) const;
  Result<std::vector<LedgerEntry>> ledger() const;
  /// The coordinator's addresses; empty: not there yet.
  std::vector<std::string> addresses() const;

 private:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
  std::optional<DurableFile> held_;  ///< the lock of who created it
};

/// The keys of one run, in the folder keys/ of its run folder. No other process gets in, and nothing leaves a host in
/// clear (docs/security.md). A run on one host has none.
class RunKeys {
 public:
  /// Makes a key for each role and one for clients, and lets these in.
  static Result<RunKeys> create(const RunFolder& folder);
  /// It gives the keys of a run, if it has any.
  static std::optional<RunKeys> of(const RunFolder& folder);

  /// Options of a process that sees the folder of keys. @param role  coordinator, verifier, shard, drafter, client
  /// @param hears_shards  of a verifier
  static std::vector<std::string> options(const std::filesystem::path& keys, const std::string& role,
                                          bool hears_shards = false);
  std::vector<std::string> options(const std::string& role, bool hears_shards = false) const {
    return options(folder_, role, hears_shards);
  }
  /// A process that does not see the folder has to be given these: each option with the content of its file.
  Result<std::vector<std::pair<std::string, std::string>>> files(const std::string& role,
                                                                 bool hears_shards = false) const;
  Security client() const;

 private:
  explicit RunKeys(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::filesystem::path folder_;
};

}  // namespace outrider
