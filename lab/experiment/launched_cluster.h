#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/wire/transport/endpoint.h"
#include "launch/local_cluster.h"
#include "launch/plan_file.h"

namespace outrider {

/// What run_launch() starts, as a cluster that lives as long as this object. A drafter that ends is an error like any
/// other process: what is measured without it is of another cluster.
class LaunchedCluster final : public Cluster {
 public:
  /// Once it is ready. @param backend  local, ssh or srun. @param folder  a run folder that is not there yet
  static Result<std::unique_ptr<LaunchedCluster>> start(PlanFile plan, const std::string& backend,
                                                        const std::filesystem::path& folder);

  const std::string& address() const override { return address_; }
  Result<void> check() override;
  Result<void> check_drafter() override { return check(); }
  /// With a client's key of this run, for all its clients.
  TransportContext& context() { return *context_; }

 private:
  LaunchedCluster() = default;

  std::string address_;
  std::optional<TransportContext> context_;
  std::mutex mutex_;
  std::optional<Error> failure_;
  std::jthread launcher_;  // last: it uses the others. The processes end with it
};

}  // namespace outrider
