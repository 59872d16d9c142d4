#include "verifier-node/verifier_node.h"

#include <thread>

#include "common/base/host.h"
#include "common/checkpoint/pack.h"
#include "common/kernels/isa.h"
#include "common/kernels/team.h"
#include "common/kernels/team_sizer.h"
#include "common/logging/logging.h"
#include "common/model/numeric_class.h"
#include "common/pair/pair_files.h"
#include "common/tokenizer/tokenizer.h"
#include "common/transport/worker_loop.h"
#include "verifier-node/backbone_engine.h"

namespace outrider {
namespace {

/// As if the forward pass of these had taken so much longer.
void slow_down(std::vector<VerifyResult>& results, int added_verify_us) {
  if (added_verify_us == 0) return;
  const TimePoint start = now();
  std::this_thread::sleep_for(std::chrono::microseconds(added_verify_us));
  for (VerifyResult& result : results) result.verdict.verify_ns += (now() - start).count();
}

Result<std::unique_ptr<Backbone>> load_backbone(const ModelFiles& files, const VerifierOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Backbone> backbone,
                   Backbone::load(files, options.weight_type, options.core.rows_max));
  for (const std::string& note : backbone->config().notes) log_warn("event=metadata_overruled note=\"{}\"", note);
  log_info("event=loaded model={} dtype={} isa={} gemm=\"{}\" threads={}", options.backbone.string(),
           to_string(options.weight_type), to_string(active_isa()), backbone->gemm_implementation(), team_size());
  return backbone;
}

/// What the core asks of the model, and how much K/V there is memory for. @param grammars, towers  outlive the core
VerifierConfig core_config(const VerifierOptions& options, const BackboneEngine& engine, GrammarCompiler& grammars,
                           const Towers& towers) {
  VerifierConfig config = options.core;
  config.grammar_ready = [&grammars](const std::string& text) -> Result<bool> {
    ASSIGN_OR_RETURN(const std::shared_ptr<const Grammar> grammar, grammars.find(text));
    return grammar != nullptr;
  };
  config.soft_tokens = [&towers](const WireMedium& medium) { return towers.soft_tokens(medium); };
  config.capacity.kv_cost = engine.kv_cost();
  // The rest is for scratch, for messages under way and, on a machine of one's own, for the drafter.
  config.capacity.kv_bytes_max = options.memory_mib > 0 ? options.memory_mib << 20 : available_memory_bytes() / 4 * 3;
  log_info("event=kv_memory limit_mib={} session_mib_at_full_context={}", config.capacity.kv_bytes_max >> 20,
           config.capacity.kv_cost.bytes(engine.backbone().config().max_position_embeddings) >> 20);
  return config;
}

/// Says so when another number of threads was found.
class ThreadsLog {
 public:
  explicit ThreadsLog(const TeamSizer& sizer) : sizer_(sizer) {}
  void look() {
    const int steps = sizer_.chosen(1), prompts = sizer_.chosen(VerifierConfig().prefill_chunk);
    if (steps == steps_ && prompts == prompts_) return;
    log_info("event=threads steps={} prompts={}", steps_ = steps, prompts_ = prompts);
  }

 private:
  const TeamSizer& sizer_;
  int steps_ = sizer_.chosen(1), prompts_ = steps_;
};

}  // namespace

Result<void> run_verifier(TransportContext& context, const VerifierOptions& options, std::stop_token stop) {
  if (options.threads > 0) set_team_size(options.threads);
  if (options.worker.verify_weights) RETURN_IF_ERROR(verify_packs({options.backbone}));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(options.backbone));
  ASSIGN_OR_RETURN(std::unique_ptr<Backbone> backbone, load_backbone(files, options));
  PairFacts facts = pair_facts(backbone->config(), backbone->weights());
  if (const auto tokenizer = Tokenizer::load(files)) facts.tokenizer_fingerprint = tokenizer->fingerprint();
  const std::string bits = numeric_class(*backbone);
  log_info("event=numeric_class class=\"{}\"", bits);
  GrammarCompiler grammars([&files, size = backbone->config().vocab_size]() -> Result<GrammarVocabulary> {
    ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(files));
    return grammar_vocabulary(tokenizer, size);
  });
  // At once: while a tower is loaded for a text that came, no heartbeat would go out. A model without one, or whose
  // file has its config alone, reads.
  Towers towers = options.no_towers ? Towers::none("this verifier has no towers (--no-towers)")
                                    : Towers::load(files, options.weight_type);
  std::string encoding_class = towers.encoding_class(options.weight_type, backbone->weights().fingerprint());
  TeamSizer sizer(team_size(), backbone->config().layers.size());
  if (options.threads == 0) backbone->set_team_sizer(&sizer);
  BackboneEngine engine(std::move(backbone), options.synthetic_acceptance, &grammars, &towers);
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
        if (batch.empty()) return false;
        std::vector<VerifyResult> results = engine.run(batch, [&] { loop.between_steps(); });
        slow_down(results, options.added_verify_us);
        core.on_batch_done(std::move(results), loop.now());
        threads_log.look();
        return true;
      });
}

}  // namespace outrider
