#include "drafter-node/drafter_node.h"

#include "common/checkpoint/pack.h"
#include "common/kernels/isa.h"
#include "common/kernels/team.h"
#include "common/logging/logging.h"
#include "common/model/draft_vocabulary.h"
#include "common/model/generation_config.h"
#include "common/pair/pair_files.h"
#include "common/protocol/donor_rows.h"
#include "common/transport/worker_loop.h"
#include "drafter-node/draft_engine.h"

namespace outrider {
Result<void> run_drafter(TransportContext& context, const DrafterOptions& options, std::stop_token stop) {
  if (options.threads > 0) set_team_size(options.threads);
  ASSIGN_OR_RETURN(const WireForm wire, parse_wire_form(options.wire));
  if (options.worker.verify_weights) RETURN_IF_ERROR(verify_packs({options.backbone, options.assistant}));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(options.backbone));
  ASSIGN_OR_RETURN(const ModelFiles assistant_files, ModelFiles::open(options.assistant));
  ASSIGN_OR_RETURN(const TextConfig backbone, load_text_config(files));
  ASSIGN_OR_RETURN(const std::shared_ptr<const WeightSource> backbone_weights,
                   open_weights(files, options.weight_type));
  ASSIGN_OR_RETURN(const std::vector<TokenId> vocabulary,
                   draft_vocabulary(options.draft_vocabulary, options.assistant, backbone.vocab_size));
  ASSIGN_OR_RETURN(std::unique_ptr<Assistant> assistant,
                   Assistant::load(assistant_files, backbone, *backbone_weights, options.weight_type, vocabulary));
  ASSIGN_OR_RETURN(GenerationConfig generation, load_generation_config(files));
  for (const std::string& note : backbone.notes)
    log_warn("event=metadata_overruled model={} note=\"{}\"", options.backbone.string(), note);
  for (const std::string& note : assistant->config().text.notes) {
    log_warn("event=metadata_overruled model={} note=\"{}\"", options.assistant.string(), note);
  }
  GrammarCompiler grammars([&files, size = backbone.vocab_size]() -> Result<GrammarVocabulary> {
    ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(files));
    return grammar_vocabulary(tokenizer, size);
  });
  DraftEngine engine(std::move(assistant), std::move(generation.eos_token_ids), &grammars);
  log_info("event=loaded model={} dtype={} isa={} threads={}", options.assistant.string(),
           to_string(options.weight_type), to_string(active_isa()), options.threads);

  ASSIGN_OR_RETURN(std::string name, chosen_name(options.worker, node_name("drafter")));
  ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint, Endpoint::connect(context, options.join));
  DrafterCore core(options.core, {.role = Role::kDrafter,
                                  .name = std::move(name),
                                  .facts = pair_facts(backbone, *backbone_weights),
                                  .wire = wire});
  DrafterCore::Output asked;
  WorkerLoop loop(core, *endpoint, options.worker);
  return loop.run(
      stop, Duration::zero(), [&](DrafterCore::Output& output) { asked = std::move(output); },
      [&] {
        for (const DraftWork& work : asked.work) engine.run(work);
        const std::vector<DraftTurn>& pass = asked.pass;
        if (pass.empty()) return false;
        const Duration added = std::chrono::microseconds(options.added_draft_us) * pass.size();
        std::vector<DraftProgress> progress = engine.step(pass, added);
        for (std::size_t i = 0; i < progress.size(); ++i) core.on_turn(pass[i], std::move(progress[i]));
        return true;  // the next pass may be due
      });
}

}  // namespace outrider
