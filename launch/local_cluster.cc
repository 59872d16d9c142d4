#include "launch/local_cluster.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <concepts>
#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/ranges.h>

#include "common/base/time.h"
#include "common/model/block_drafter/block_config.h"
#include "common/os/files.h"
#include "launch/suitable_type.h"

namespace outrider {
namespace {

class ThreadCluster final : public Cluster {
 public:
  ThreadCluster(TransportContext& context, const ClusterOptions& options) : context_(context), options_(options) {}
  ~ThreadCluster() override {
    while (!threads_.empty()) threads_.pop_back();  // workers first: their last messages need a coordinator
  }

  Result<void> start() {
    static std::atomic<int> count = 0;
    const std::string name = fmt::format("inproc://outrider-{}", count++);
    std::promise<std::string> promise;
    std::future<std::string> listening = promise.get_future();
    options_.coordinator.listen = name;
    launch(failure_, [this, promise = std::move(promise)](std::stop_token stop) mutable {
      return run_coordinator(context_, options_.coordinator, stop,
                             [&](const std::string& address) { promise.set_value(address); });
    });
    listening.wait();  // also if it ends before it listens, which breaks the promise
    RETURN_IF_ERROR(check());
    address_ = listening.get();
    VerifierOptions& verifier = options_.verifier;
    verifier.backbone = options_.pair.backbone;
    verifier.weight_type = options_.weight_type;
    verifier.join = address_;
    for (int i = 0; i < options_.verifiers; ++i)
      launch(failure_, [this](std::stop_token stop) { return run_verifier(context_, options_.verifier, stop); });
    options_.drafter.join = address_;
    for (int i = 0; i < options_.drafters; ++i)
      launch(drafter_failure_, [this](std::stop_token stop) { return run_drafter(context_, options_.drafter, stop); });
    return {};
  }

  const std::string& address() const override { return address_; }
  Result<void> check() override { return unless(failure_); }
  Result<void> check_drafter() override { return unless(drafter_failure_); }

 private:
  Result<void> unless(const std::optional<Error>& failure) {
    const std::lock_guard lock(mutex_);
    return failure ? Result<void>(*failure) : Result<void>();
  }

  /// @param failure  receives the reason of the role's end
  template <typename Role>
  void launch(std::optional<Error>& failure, Role role) {
    threads_.emplace_back([this, &failure, role = std::move(role)](std::stop_token stop) mutable {
      const Result<void> result = no_throw([&] { return role(stop); });
      if (result) return;
      const std::lock_guard lock(mutex_);
      if (!failure) failure = result.error();
    });
  }

  TransportContext& context_;
  ClusterOptions options_;
  std::string address_;
  std::mutex mutex_;
  std::optional<Error> failure_, drafter_failure_;  ///< failure_: of the coordinator or the verifier
  std::vector<std::jthread> threads_;               // last: they use the others
};

/// Returns an option's value as an argument; "": none.
std::string argument(std::int64_t value) { return std::to_string(value); }
std::string argument(std::same_as<double> auto value) { return fmt::format("{}", value); }
std::string argument(const std::filesystem::path& value) { return value.string(); }
std::string argument(const std::vector<double>& values) { return fmt::format("{}", fmt::join(values, ",")); }

class ProcessCluster final : public Cluster {
 public:
  explicit ProcessCluster(const ClusterOptions& options) : options_(options) {}
  ~ProcessCluster() override {
    for (Process& process : processes_) process.child.signal(SIGTERM);
    // Processes answer between two forward passes; a process that does not answer is killed.
    const TimePoint deadline = now() + std::chrono::seconds(3);
    for (Process& process : processes_) {
      while (!process.child.poll() && now() < deadline) usleep(2000);
    }
  }

  Result<void> start() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return system_error("pipe of the coordinator", "open");
    const Descriptor out(ends[0]);
    {
      const Descriptor in(ends[1]);  // with the coordinator as its only writer, its end is detected
      RETURN_IF_ERROR(spawn("coordinator", {"--listen", "tcp://127.0.0.1:*"}, options_.coordinator, in));
    }
    address_ = read_line(out);
    if (address_.empty()) return Error{Errc::kPeerGone, "the coordinator process ended before it listened"};
    const std::string dtype = to_string(options_.weight_type);
    for (int i = 0; i < options_.verifiers; ++i) {
      RETURN_IF_ERROR(spawn("verifier",
                            {"--join", address_, "--backbone", options_.pair.backbone.string(), "--dtype", dtype},
                            options_.verifier, STDERR_FILENO));
    }
    std::string join = address_;
    if (options_.drafters > 0 && options_.drafter_route) {
      ASSIGN_OR_RETURN(join, options_.drafter_route(address_));
    }
    const DrafterOptions& drafter = options_.drafter;
    for (int i = 0; i < options_.drafters; ++i) {
      std::vector<std::string> arguments = {"--join", join, "--dtype", to_string(drafter.weight_type)};
      if (!drafter.backbone.empty()) arguments.insert(arguments.end(), {"--backbone", drafter.backbone.string()});
      if (!drafter.assistant.empty()) arguments.insert(arguments.end(), {"--assistant", drafter.assistant.string()});
      RETURN_IF_ERROR(spawn(kDrafter, std::move(arguments), options_.drafter, STDERR_FILENO));
    }
    return {};
  }

  const std::string& address() const override { return address_; }
  Result<void> check() override { return check(/*drafters=*/false); }
  Result<void> check_drafter() override { return check(/*drafters=*/true); }
  std::vector<pid_t> drafters() const override {
    std::vector<pid_t> pids;
    for (const Process& process : processes_) {
      if (process.role == kDrafter) pids.push_back(process.child.id().pid);
    }
    return pids;
  }

 private:
  static constexpr const char* kDrafter = "drafter";
  struct Process {
    std::string role;
    Child child;
  };

  Result<void> check(bool drafters) {
    for (Process& process : processes_) {
      const std::optional<int> status = (process.role == kDrafter) == drafters ? process.child.poll() : std::nullopt;
      if (!status) continue;
      return Error{Errc::kPeerGone,
                   *status > 128 ? fmt::format("the {} process was killed by signal {}", process.role, *status - 128)
                                 : fmt::format("the {} process ended with status {}", process.role, *status)};
    }
    return {};
  }

  /// @param arguments  those not among the role's declared options @param out  receives its output
  template <class Options>
  Result<void> spawn(const std::string& role, std::vector<std::string> arguments, Options& options, int out) {
    arguments.insert(arguments.begin(), {options_.program, role});
    declare_options(
        [&]<typename T>(const char* name, const T& value, const OptionInfo&) {
          if constexpr (std::is_same_v<T, bool>) {
            if (value) arguments.push_back(name);
          } else if (const std::string text = argument(value); !text.empty())
            arguments.insert(arguments.end(), {name, text});
        },
        options);
    std::map<std::string, std::string> environment;
    if (role == kDrafter) environment = options_.drafter_environment;
    // Its life-cycle messages would disturb the answer.
    if (std::getenv("OUTRIDER_LOG") == nullptr) environment.emplace("OUTRIDER_LOG", "warn");
    ASSIGN_OR_RETURN(Child child, Child::start(arguments, out, environment));
    processes_.push_back({role, std::move(child)});
    return {};
  }

  static std::string read_line(int fd) {
    std::string line;
    char c;
    while (read(fd, &c, 1) == 1 && c != '\n') line.push_back(c);
    return line;
  }

  ClusterOptions options_;
  std::string address_;
  std::vector<Process> processes_;
};

/// Chooses the drafters' models and types, and the rows that verifiers keep for them.
Result<void> choose_draft_models(ClusterOptions& options) {
  DrafterOptions& drafter = options.drafter;
  drafter.weight_type = options.drafter_weight_type.value_or(options.weight_type);
  const bool assistant = drafter.draft_model.empty();
  if (!assistant) {
    ASSIGN_OR_RETURN(drafter.draft_model, model_path(drafter.draft_model));
  }
  const bool block = !assistant && is_block_drafter(drafter.draft_model);
  if (assistant) drafter.assistant = options.pair.assistant;
  if (assistant || block) drafter.backbone = options.pair.backbone;
  if (block) options.verifier.hidden_rows_for = drafter.draft_model;
  if (assistant || block || options.drafter_weight_type) return {};
  ASSIGN_OR_RETURN(const PairPaths model, pair_paths(drafter.draft_model, {.assistant = false}));
  ASSIGN_OR_RETURN(const SuitableType suitable, suitable_type(model));
  drafter.weight_type = suitable.type;
  return {};
}

/// No worker joins such a cluster later, so that waits for a worker end at once. The starter watches the workers
/// (check()), and so tolerates workers that are silent on a busy machine.
Result<ClusterOptions> closed(ClusterOptions options) {
  constexpr int kDay = 86'400;
  options.coordinator.peer_timeout_s = options.verifier.worker.peer_timeout_s = options.drafter.worker.peer_timeout_s =
      kDay;
  options.coordinator.failover_wait_s = 0;
  options.verifier.drain_wait_s = 2;
  if (options.drafters > 0) RETURN_IF_ERROR(choose_draft_models(options));
  options.verifier.core.link.exit_when_refused = options.drafter.core.link.exit_when_refused = true;
  return options;
}

template <typename Kind>
Result<std::unique_ptr<Cluster>> started(std::unique_ptr<Kind> cluster) {
  RETURN_IF_ERROR(cluster->start());
  return Result<std::unique_ptr<Cluster>>(std::move(cluster));
}

}  // namespace

Result<std::unique_ptr<Cluster>> start_threads(TransportContext& context, const ClusterOptions& options) {
  ASSIGN_OR_RETURN(const ClusterOptions ready, closed(options));
  return started(std::make_unique<ThreadCluster>(context, ready));
}

Result<std::unique_ptr<Cluster>> start_processes(const ClusterOptions& options) {
  ASSIGN_OR_RETURN(const ClusterOptions ready, closed(options));
  return started(std::make_unique<ProcessCluster>(ready));
}

Result<std::unique_ptr<Cluster>> start_cluster(TransportContext& context, const ClusterOptions& options) {
  return options.processes ? start_processes(options) : start_threads(context, options);
}

Result<ClusterClient> connect_or_start(TransportContext& context, const std::string& connect,
                                       const ClusterOptions& options) {
  std::unique_ptr<Cluster> cluster;
  if (connect.empty()) {
    ASSIGN_OR_RETURN(cluster, start_cluster(context, options));
  }
  ASSIGN_OR_RETURN(Client client,
                   Client::connect(context, cluster ? cluster->address() : connect,
                                   {.failover_wait = std::chrono::seconds(options.coordinator.failover_wait_s),
                                    .own = cluster != nullptr}));
  const auto none_ended = [&]() -> Result<void> {
    RETURN_IF_ERROR(cluster->check());
    return cluster->check_drafter();
  };
  if (cluster) RETURN_IF_ERROR(client.wait_for_workers(options.verifiers, options.drafters, none_ended));
  return ClusterClient{std::move(cluster), std::move(client)};
}

}  // namespace outrider
