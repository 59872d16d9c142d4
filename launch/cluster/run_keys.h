#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/transport/security.h"
#include "launch/cluster/run_folder.h"

namespace outrider {

/// The keys of one run, in the folder keys/ of its run folder: nobody else gets in, and nothing that leaves a host is
/// in clear (docs/security.md). A run on one host has none.
class RunKeys {
 public:
  /// Makes a key for each role and one for clients, and lets these in.
  static Result<RunKeys> create(const RunFolder& folder);
  /// Those of a run, if it has any.
  static std::optional<RunKeys> of(const RunFolder& folder);

  /// Options of a process that sees the folder of keys. @param role  coordinator, verifier, drafter, client
  static std::vector<std::string> options(const std::filesystem::path& keys, const std::string& role);
  std::vector<std::string> options(const std::string& role) const { return options(folder_, role); }
  /// What a process that does not see it has to be given: each option with what its file holds.
  Result<std::vector<std::pair<std::string, std::string>>> files(const std::string& role) const;
  Security client() const;

 private:
  explicit RunKeys(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::filesystem::path folder_;
};

}  // namespace outrider
