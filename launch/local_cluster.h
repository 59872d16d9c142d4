#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/client/client.h"
#include "common/compute/kernels/linear.h"
#include "common/os/child.h"
#include "common/pair/pair_files.h"
#include "common/wire/transport/endpoint.h"
#include "coordinator-node/coordinator_node.h"
#include "drafter-node/drafter_node.h"
#include "verifier-node/verifier_node.h"

namespace outrider {

/// Options of the roles on one machine.
struct ClusterOptions {
  PairPaths pair;
  WeightType weight_type = WeightType::kBf16;
  /// None: weight_type; for a whole draft model its own suitable type, since the target's pack may have another.
  std::optional<WeightType> drafter_weight_type = {};
  int verifiers = 1, drafters = 1;
  bool processes = false;  ///< start_cluster(): a process per role, over TCP
  // The start fills in addresses, the pair's models, weight types and the hidden rows of a drafter.
  CoordinatorOptions coordinator = {};
  VerifierOptions verifier = {};
  DrafterOptions drafter = {};
  /// start_processes(): additional variables of the drafters.
  std::map<std::string, std::string> drafter_environment = {};
  /// start_processes(): maps the coordinator's address to the one that the drafter connects to.
  std::function<Result<std::string>(const std::string& coordinator)> drafter_route = {};
  std::string program = kThisProgram;  ///< what start_processes() runs

  /// @param chosen  the user chose the type, which then is the drafters' type too
  void load_as(WeightType type, bool chosen) {
    weight_type = type;
    if (chosen) drafter_weight_type = type;
  }
};

/// A coordinator, verifiers and perhaps drafters, started here and stopped by the destructor.
class Cluster {
 public:
  virtual ~Cluster() = default;
  /// @return the address for clients
  virtual const std::string& address() const = 0;
  /// Checks that coordinator and verifiers, which are essential, run. @return the reason of the first one's end
  virtual Result<void> check() = 0;
  /// The same for the drafters, if there are any. Without them answers are slower.
  virtual Result<void> check_drafter() = 0;
  /// The drafters' processes, if they are children of this one; they are not reaped while the cluster lives.
  virtual std::vector<pid_t> drafters() const { return {}; }
};

/// Runs all roles as threads of this process, over inproc://: the embedded default.
Result<std::unique_ptr<Cluster>> start_threads(TransportContext& context, const ClusterOptions& options);

/// Runs every role as a process (this program again), over TCP on the loopback interface.
Result<std::unique_ptr<Cluster>> start_processes(const ClusterOptions& options);

/// Selects one of the two by options.processes.
Result<std::unique_ptr<Cluster>> start_cluster(TransportContext& context, const ClusterOptions& options);

/// A client, with the cluster that was started for it.
struct ClusterClient {
  std::unique_ptr<Cluster> cluster;  ///< none: the coordinator is elsewhere
  Client client;
};

/// Returns a client of the coordinator at `connect`, whatever workers have joined. After a loss it continues answers
/// for options.coordinator.failover_wait_s seconds. If `connect` is empty, starts a cluster here, and returns its
/// client once its workers have joined.
Result<ClusterClient> connect_or_start(TransportContext& context, const std::string& connect,
                                       const ClusterOptions& options);

}  // namespace outrider
