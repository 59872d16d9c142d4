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

/// The roles of one machine need these to start.
struct ClusterOptions {
  PairPaths pair;
  WeightType weight_type = WeightType::kBf16;
  /// None: weight_type; of a whole draft model the type that suits it, since the target's pack may be of another.
  std::optional<WeightType> drafter_weight_type = {};
  int verifiers = 1, drafters = 1;
  bool processes = false;  ///< start_cluster(): each role a process of its own, over TCP
  // Addresses, the pair's models, weight types and the hidden rows of a block drafter are filled in at the start.
  CoordinatorOptions coordinator = {};
  VerifierOptions verifier = {};
  DrafterOptions drafter = {};
  /// start_processes(): variables that the drafters get besides this process's own.
  std::map<std::string, std::string> drafter_environment = {};
  /// start_processes(): where the drafter dials instead of the coordinator's address, which it gets.
  std::function<Result<std::string>(const std::string& coordinator)> drafter_route = {};
  std::string program = kThisProgram;  ///< what start_processes() runs

  /// @param chosen  by the user, not found to suit the target: then it is the drafters' type too
  void load_as(WeightType type, bool chosen) {
    weight_type = type;
    if (chosen) drafter_weight_type = type;
  }
};

/// A coordinator, verifiers and perhaps drafters, started here and stopped by the destructor.
class Cluster {
 public:
  virtual ~Cluster() = default;
  /// @return the address to which clients connect.
  virtual const std::string& address() const = 0;
  /// Checks that coordinator and verifiers run, without which there is no text. @return why the first that ended by
  /// itself did so.
  virtual Result<void> check() = 0;
  /// The same of the drafters, if there are any. Without them text comes more slowly.
  virtual Result<void> check_drafter() = 0;
  /// The drafters' processes, where they are children of this one; they are not reaped while the cluster lives.
  virtual std::vector<pid_t> drafters() const { return {}; }
};

/// All roles as threads of this process, over inproc://: the embedded default.
Result<std::unique_ptr<Cluster>> start_threads(TransportContext& context, const ClusterOptions& options);

/// Every role as a process of its own (this program again), over TCP on the loopback interface.
Result<std::unique_ptr<Cluster>> start_processes(const ClusterOptions& options);

/// The one or the other, as options.processes says.
Result<std::unique_ptr<Cluster>> start_cluster(TransportContext& context, const ClusterOptions& options);

/// A client, and the cluster that was started for it.
struct ClusterClient {
  std::unique_ptr<Cluster> cluster;  ///< none: the coordinator is elsewhere
  Client client;
};

/// A client of the coordinator at `connect`, with any workers that have joined. After a loss it continues answers for
/// options.coordinator.failover_wait_s seconds. If `connect` is empty, a client of a cluster that is started here, once
/// its workers have joined.
Result<ClusterClient> connect_or_start(TransportContext& context, const std::string& connect,
                                       const ClusterOptions& options);

}  // namespace outrider
