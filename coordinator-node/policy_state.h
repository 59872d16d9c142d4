#pragma once

#include <filesystem>
#include <string>

#include "common/base/result.h"
#include "common/base/time.h"
#include "common/policy/policies.h"

namespace outrider {

/// The file that keeps what the bandits learned over restarts (Policies::save).
class PolicyState {
 public:
  /// Loads the file, if there is one and it is not empty, into `policies`, and writes it once to see that it can be.
  /// @return kMalformed for a file of something else, kIo for one that cannot be read or written.
  static Result<PolicyState> open(const std::filesystem::path& path, Policies& policies, TimePoint now);

  /// Writes what was learned since. A crash leaves the old file or the new one.
  Result<void> save(const Policies& policies);
  /// The same once a minute, so that no more than that is lost in a crash. Where it cannot be written, that is logged.
  void save_when_due(const Policies& policies, TimePoint now);

 private:
  static constexpr Duration kInterval = std::chrono::minutes(1);

  std::filesystem::path path_;
  std::string saved_;  ///< what the file has
  TimePoint due_;
};

}  // namespace outrider
