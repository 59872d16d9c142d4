#include "verifier-node/verifier_node.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>

#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/team.h"
#include "common/compute/kernels/team_sizer.h"
#include "common/model/block_drafter/block_config.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/numeric_class.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/os/child.h"
#include "common/os/host.h"
#include "common/os/logging.h"
#include "common/pair/pair_files.h"
#include "common/wire/messages/donor_rows.h"
#include "common/wire/transport/worker_loop.h"
#include "verifier-node/backbone_engine.h"
#include "verifier-node/sequences.h"

namespace outrider {
namespace {

/// As if the forward pass of these had taken so much longer.
void slow_down(std::vector<VerifyResult>& results, int added_verify_us) {
  if (added_verify_us == 0) return;
  const TimePoint start = now();
  std::this_thread::sleep_for(std::chrono::microseconds(added_verify_us));
  for (VerifyResult& result : results) result.verdict.verify_ns += (now() - start).count();
}

/// The processes that compute a verifier's backbone with it. They end with this object.
class ShardGroup {
 public:
  /// Starts them, and puts this process onto its own share of the cores.
  Result<void> start(const VerifierOptions& options, int count) {
    const int threads = std::max(1, (options.threads > 0 ? options.threads : team_size()) / count);
    ASSIGN_OR_RETURN(const Descriptor memory, SharedMemoryShards::create(count));
    ASSIGN_OR_RETURN(shards_, SharedMemoryShards::join(memory, {0, count}));
    for (int rank = 1; rank < count; ++rank) {
      ASSIGN_OR_RETURN(Child child,
                       Child::start({kThisProgram, "shard", "--backbone", options.backbone.string(), "--dtype",
                                     to_string(options.weight_type), "--rows", std::to_string(options.core.rows_max),
                                     "--threads", std::to_string(threads), "--memory-fd", std::to_string(memory),
                                     "--rank", std::to_string(rank), "--count", std::to_string(count)},
                                    STDERR_FILENO, {}));
      children_.push_back(std::move(child));
    }
    shards_->set_watch([this] { check(); });
    use_share_of_cores(0, count);
    set_team_size(threads);
    log_info("event=shards count={} threads_each={}", count, threads);
    return {};
  }
  /// Null: this process computes alone.
  Shards* shards() { return shards_.get(); }
  /// Throws where one has ended: what is left of the model is of no use.
  void check() {
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (const auto status = children_[i].poll())
        throw std::runtime_error(
            fmt::format("shard {} of {} has ended with status {}", i + 1, children_.size() + 1, *status));
    }
  }

 private:
  std::unique_ptr<SharedMemoryShards> shards_;
  std::vector<Child> children_;
};

Result<std::unique_ptr<Backbone>> load_backbone(const ModelFiles& files, const VerifierOptions& options,
                                                Shards* shards) {
  ASSIGN_OR_RETURN(std::unique_ptr<Backbone> backbone,
                   Backbone::load(files, options.weight_type, options.core.rows_max, shards));
  for (const std::string& note : backbone->config().notes) log_warn("event=metadata_overruled note=\"{}\"", note);
  log_info("event=loaded model={} dtype={} isa={} gemm=\"{}\" threads={}", options.backbone.string(),
           to_string(options.weight_type), to_string(active_isa()), backbone->gemm_implementation(), team_size());
  return backbone;
}

/// What the core asks of the model, and how much K/V there is memory for. @param grammars, towers  outlive the core
VerifierConfig core_config(const VerifierOptions& options, const BackboneEngine& engine, GrammarCompiler& grammars,
                           const Towers& towers) {
  VerifierConfig config = options.core;
  config.link.peer_timeout = std::chrono::seconds(options.worker.peer_timeout_s);
  config.want_grammar = [&grammars](const std::string& text, const std::string& client) {
    return grammars.want(text, client);
  };
  config.soft_tokens = [&towers](const WireMedium& medium) { return towers.soft_tokens(medium); };
  config.capacity.kv_cost = engine.kv_cost();
  // The rest is for scratch, for messages under way and, on a machine of one's own, for the drafter.
  config.capacity.kv_bytes_max =
      options.memory_mib > 0 ? options.memory_mib << 20
                             : available_memory_bytes().value_or(std::numeric_limits<std::int64_t>::max()) / 4 * 3;
  log_info("event=kv_memory limit_mib={} session_mib_at_full_context={}", config.capacity.kv_bytes_max >> 20,
           config.capacity.kv_cost.bytes(engine.backbone().config().max_position_embeddings) >> 20);
  return config;
}

/// Says so when another number of threads was found, once a minute at most: between two that are as fast it wavers.
class ThreadsLog {
 public:
  explicit ThreadsLog(const TeamSizer& sizer) : sizer_(sizer) {}
  void look() {
    const int steps = sizer_.chosen(1), prompts = sizer_.chosen(VerifierConfig().prefill_chunk);
    if (steps == steps_ && prompts == prompts_) return;
    steps_ = steps, prompts_ = prompts;
    if (const auto more = limit_.pass(now())) log_info("event=threads steps={} prompts={}{}", steps, prompts, *more);
  }

 private:
  const TeamSizer& sizer_;
  int steps_ = sizer_.chosen(1), prompts_ = steps_;
  RateLimit limit_{{std::chrono::minutes(1), 1}};
};

}  // namespace

Result<void> run_shard(const ShardOptions& options) {
  // Who stops a service tells every process of it; the verifier drains, and needs its shards until its end.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGTERM, SIG_IGN);
  use_share_of_cores(options.place.rank, options.place.count);
  set_team_size(options.threads);
  ASSIGN_OR_RETURN(const std::unique_ptr<SharedMemoryShards> shards,
                   SharedMemoryShards::join(options.memory, options.place));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(options.backbone));
  ASSIGN_OR_RETURN(std::unique_ptr<Backbone> backbone,
                   Backbone::load(files, options.weight_type, options.rows_max, shards.get()));
  numeric_class(*backbone);  // which is computed by all
  Sequences(std::move(backbone)).follow();
}

Result<void> run_verifier(TransportContext& context, const VerifierOptions& options, std::stop_token stop) {
  if (options.threads > 0) set_team_size(options.threads);
  if (options.worker.verify_weights) RETURN_IF_ERROR(verify_packs({options.backbone}));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(options.backbone));
  ShardGroup group;
  const int shard_count = options.shards > 0 ? options.shards : memory_node_count();
  if (shard_count > 1) RETURN_IF_ERROR(group.start(options, shard_count));
  ASSIGN_OR_RETURN(std::unique_ptr<Backbone> backbone, load_backbone(files, options, group.shards()));
  PairFacts facts = pair_facts(backbone->config(), backbone->weights());
  if (!options.hidden_rows_for.empty()) {
    ASSIGN_OR_RETURN(const ModelFiles drafter, ModelFiles::open(options.hidden_rows_for));
    ASSIGN_OR_RETURN(const BlockConfig config, load_block_config(drafter, backbone->config()));
    facts.donors = {hidden_rows_donor(config.hidden_layers, config.hidden_size)};
    backbone->keep_hidden(config.hidden_layers);
  }
  if (const auto tokenizer = Tokenizer::load(files)) facts.tokenizer_fingerprint = tokenizer->fingerprint();
  const std::string bits = numeric_class(*backbone);
  log_info("event=numeric_class class=\"{}\"", bits);
  GrammarCompiler grammars([&files, size = backbone->config().vocab_size]() -> Result<GrammarVocabulary> {
    const Result<Tokenizer> tokenizer = Tokenizer::load(files);
    if (tokenizer) return grammar_vocabulary(*tokenizer, size);
    log_warn("event=no_grammars reason=\"{}\"", tokenizer.error().message);  // which names files: for no client
    return Error{tokenizer.error().code, "the verifier cannot read its tokenizer"};
  });
  // At once: while a tower is loaded for a sequence that came, no heartbeat would go out. A model without one, or whose
  // file has its config alone, reads.
  Towers towers = options.no_towers ? Towers::none("this verifier has no towers (--no-towers)")
                                    : Towers::load(files, options.weight_type);
  std::string encoding_class = towers.encoding_class(options.weight_type, backbone->weights().fingerprint());
  TeamSizer sizer(team_size(), backbone->config().layers.size());
  if (options.threads == 0 && shard_count == 1) backbone->set_team_sizer(&sizer);
  BackboneEngine engine(std::move(backbone), options.synthetic_acceptance, &towers);
  ASSIGN_OR_RETURN(std::string name, chosen_name(options.worker, node_name("verifier")));
  ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint, Endpoint::connect(context, options.join));
  VerifierCore core(core_config(options, engine, grammars, towers), {.role = Role::kVerifier,
                                                                     .name = std::move(name),
                                                                     .facts = std::move(facts),
                                                                     .numeric_class = bits,
                                                                     .encoding_class = std::move(encoding_class),
                                                                     .no_towers = options.no_towers});
  ThreadsLog threads_log(sizer);
  std::vector<VerifyWork> batch;
  WorkerLoop loop(core, *endpoint, options.worker);
  return loop.run(
      stop, std::chrono::seconds(options.drain_wait_s),
      [&](VerifierCore::Output& output) {
        for (const SessionId session : output.released) engine.release(session);
        batch = std::move(output.batch);
      },
      [&] {
        if (batch.empty()) {
          group.check();
          return false;
        }
        std::vector<VerifyResult> results = engine.run(batch, [&] { loop.between_steps(); });
        slow_down(results, options.added_verify_us);
        core.on_batch_done(std::move(results), loop.now());
        threads_log.look();
        return true;
      });
}

}  // namespace outrider
