#include "lab/experiment/launched_cluster.h"

#include <future>
#include <utility>

#include "launch/cluster/launcher.h"
#include "launch/cluster/run_folder.h"

namespace outrider {

Result<std::unique_ptr<LaunchedCluster>> LaunchedCluster::start(PlanFile plan, const std::string& backend,
                                                                const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(RunFolder run, RunFolder::create(folder, plan.object));
  LaunchOptions options;
  plan.set(options, backend);
  options.strict = true;
  std::unique_ptr<LaunchedCluster> cluster(new LaunchedCluster);
  std::promise<Result<ReadyCluster>> promise;
  std::future<Result<ReadyCluster>> ready = promise.get_future();
  cluster->launcher_ = std::jthread([&cluster = *cluster, plan = std::move(plan), options, run = std::move(run),
                                     promise = std::move(promise)](std::stop_token stop) mutable {
    bool began = false;
    const auto work = [&](const ReadyCluster& there) -> Result<int> {
      began = true;
      promise.set_value(there);
      while (!stop.stop_requested()) {
        if (const Result<void> alive = there.check(); !alive) {
          const std::lock_guard lock(cluster.mutex_);
          cluster.failure_ = alive.error();
          return int{kLost};
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      return 0;
    };
    const Result<int> status = no_throw([&] {
      return run_launch(plan.object, plan.processes, work, options, run, [&] { return stop.stop_requested(); });
    });
    if (began) return;
    promise.set_value(Error(Errc::kUnavailable, "the cluster was not ready{}; the run folder is {}",
                            status ? "" : ": " + status.error().message, run.path().string()));
  });
  ASSIGN_OR_RETURN(const ReadyCluster there, ready.get());
  cluster->address_ = there.addresses;
  cluster->context_.emplace(there.security);
  return cluster;
}

Result<void> LaunchedCluster::check() {
  const std::lock_guard lock(mutex_);
  return failure_ ? Result<void>(*failure_) : Result<void>();
}

}  // namespace outrider
