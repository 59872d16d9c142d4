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

  /// Waits for the model. @return its facts, or why it cannot be loaded.
  Result<PairFacts> wait_loaded() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return facts_.has_value(); });
    return *facts_;
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
      if (!facts_) facts_ = *failure_;
    }
    changed_.notify_all();
    endpoint_.wake();
  }

  void run(const VerifierOptions& options, std::stop_token stop) {
    if (options.threads > 0) omp_set_num_threads(options.threads);
    auto backbone = Backbone::load(options.backbone, options.weight_type, options.core.rows_max);
    {
      const std::lock_guard lock(mutex_);
      facts_ = backbone ? Result<PairFacts>(pair_facts((*backbone)->config(), (*backbone)->checkpoint(), options.weight_type))
                        : Result<PairFacts>(backbone.error());
    }
    changed_.notify_all();
    if (!backbone) return;
    BackboneEngine engine(std::move(*backbone));
    spdlog::info("event=loaded model={} dtype={} isa={} gemm=\"{}\" threads={}", options.backbone.string(),
                 to_string(options.weight_type), to_string(active_isa()), engine.backbone().gemm_implementation(), omp_get_max_threads());
    for (const std::string& note : engine.backbone().config().notes) {
      spdlog::warn("event=metadata_overruled model={} note=\"{}\"", options.backbone.string(), note);
    }
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
  std::optional<Result<PairFacts>> facts_;
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
  ASSIGN_OR_RETURN(PairFacts facts, engine.wait_loaded());

  VerifierCore core(options.core, {.role = Role::kVerifier, .name = fmt::format("verifier-{}", getpid()), .facts = std::move(facts)});
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
