#include "verifier-node/verifier_node.h"

#include <omp.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include <spdlog/spdlog.h>

#include "common/checkpoint/checkpoint.h"
#include "common/config/pair.h"
#include "common/kernels/isa.h"
#include "common/transport/pump.h"
#include "verifier-node/backbone_engine.h"
#include "verifier-node/host_memory.h"

namespace outrider {
namespace {

/// Longest sleep of the loop: how late a tick or a stop may be seen.
constexpr Duration kTick = std::chrono::milliseconds(20);
/// After a stop: how long the sessions at hand may go on.
constexpr Duration kDrainMax = std::chrono::seconds(2);

/// The thread that runs the forward passes. It loads the model too: OpenMP's thread count belongs to
/// the thread, and GEMMs are prepared for it.
class EngineThread {
 public:
  EngineThread(const VerifierOptions& options, Endpoint& endpoint)
      : endpoint_(endpoint), thread_([this, options](std::stop_token stop) { run_guarded(options, stop); }) {}
  ~EngineThread() {
    thread_.request_stop();
    changed_.notify_all();
  }

  struct Loaded {
    PairFacts facts;
    KvCost kv_cost;
  };
  /// Waits for the model. @return what to know about it, or why it cannot be loaded.
  Result<Loaded> wait_loaded() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return loaded_.has_value(); });
    return *loaded_;
  }
  void submit(std::vector<VerifyWork> batch, std::vector<SessionId> released) {
    {
      const std::lock_guard lock(mutex_);
      if (!batch.empty()) batch_ = std::move(batch);
      released_.insert(released_.end(), released.begin(), released.end());
    }
    changed_.notify_all();
  }
  std::optional<std::vector<VerifyResult>> take_results() {
    const std::lock_guard lock(mutex_);
    return std::exchange(results_, std::nullopt);
  }

  /// Why the engine had to stop (no memory for another session's K/V, say).
  std::optional<Error> failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  void run_guarded(const VerifierOptions& options, std::stop_token stop) {
    const Result<void> result = no_throw([&] {
      run(options, stop);
      return Result<void>();
    });
    if (result) return;
    {
      const std::lock_guard lock(mutex_);
      failure_ = Error{result.error().code, "the engine stopped: " + result.error().message};
      if (!loaded_) loaded_ = *failure_;
    }
    changed_.notify_all();
    endpoint_.wake();
  }

  void run(const VerifierOptions& options, std::stop_token stop) {
    if (options.threads > 0) omp_set_num_threads(options.threads);
    auto backbone = Backbone::load(options.backbone, options.weight_type, options.core.rows_max);
    const auto tell = [&](Result<Loaded> loaded) {
      {
        const std::lock_guard lock(mutex_);
        loaded_ = std::move(loaded);
      }
      changed_.notify_all();
    };
    if (!backbone) return tell(backbone.error());
    BackboneEngine engine(std::move(*backbone));
    tell(Loaded{pair_facts(engine.backbone().config(), engine.backbone().checkpoint(), options.weight_type), engine.kv_cost()});
    spdlog::info("event=loaded model={} dtype={} isa={} gemm=\"{}\" threads={}", options.backbone.string(),
                 to_string(options.weight_type), to_string(active_isa()), engine.backbone().gemm_implementation(), omp_get_max_threads());
    while (true) {
      std::vector<VerifyWork> batch;
      std::vector<SessionId> released;
      {
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [&] { return !batch_.empty() || !released_.empty(); })) return;
        batch = std::exchange(batch_, {});
        released = std::exchange(released_, {});
      }
      for (const SessionId session : released) engine.release(session);
      if (batch.empty()) continue;
      std::vector<VerifyResult> results = engine.run(batch);
      {
        const std::lock_guard lock(mutex_);
        results_ = std::move(results);
      }
      endpoint_.wake();
    }
  }

  Endpoint& endpoint_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<Result<Loaded>> loaded_;
  std::vector<VerifyWork> batch_;
  std::vector<SessionId> released_;
  std::optional<std::vector<VerifyResult>> results_;
  std::optional<Error> failure_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace

Result<void> run_verifier(TransportContext& context, const VerifierOptions& options, std::stop_token stop) {
  ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint, Endpoint::connect(context, options.join));
  EngineThread engine(options, *endpoint);
  ASSIGN_OR_RETURN(EngineThread::Loaded loaded, engine.wait_loaded());

  VerifierConfig config = options.core;
  config.kv_cost = loaded.kv_cost;
  // The rest is for scratch, for messages under way and, on a machine of one's own, for the drafter.
  config.kv_bytes_max = options.kv_bytes_max > 0 ? options.kv_bytes_max : available_memory_bytes() / 4 * 3;
  spdlog::info("event=kv_memory limit_mib={} session_mib_at_full_context={}", config.kv_bytes_max >> 20,
               config.kv_cost.bytes(loaded.facts.context_max) >> 20);
  VerifierCore core(config, {.role = Role::kVerifier, .name = fmt::format("verifier-{}", getpid()), .facts = std::move(loaded.facts)});
  Pump pump(*endpoint);
  const std::stop_callback wake_on_stop(stop, [&] { endpoint->wake(); });
  std::optional<TimePoint> drain_until;
  while (!core.link().refusal() && !pump.version_mismatch()) {
    if (stop.stop_requested()) {
      if (!drain_until) {
        drain_until = now() + kDrainMax;
        core.drain();
      }
      if (core.session_count() == 0 || !core.link().joined() || now() > *drain_until) break;
    }
    pump.receive([&](const PeerId&, Message message) { core.on_message(std::move(message), now()); });
    if (const std::optional<Error> failure = engine.failure()) return *failure;
    if (auto results = engine.take_results()) core.on_batch_done(std::move(*results), now());
    core.on_tick(now());
    std::vector<VerifyWork> batch = core.take_batch();
    std::vector<SessionId> released = core.take_released();
    if (!batch.empty() || !released.empty()) engine.submit(std::move(batch), std::move(released));
    pump.send(core.take_outgoing());
    pump.log(core.take_notices());
    endpoint->wait(kTick);
  }
  if (pump.version_mismatch()) return *pump.version_mismatch();
  if (core.link().refusal()) return *core.link().refusal();
  pump.send(core.take_outgoing());
  return {};
}

}  // namespace outrider
