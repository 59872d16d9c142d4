#include "drafter-node/drafter_node.h"

#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/team.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/gemma4/lent_backbone.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/os/added_time.h"
#include "common/os/host.h"
#include "common/os/logging.h"
#include "common/pair/pair_files.h"
#include "common/wire/messages/donor_rows.h"
#include "common/wire/transport/worker_loop.h"
#include "drafter-node/draft_engine.h"
#include "drafter-node/families.h"

namespace outrider {
Result<void> run_drafter(TransportContext& context, const DrafterOptions& options, std::stop_token stop) {
  if (options.threads > 0) set_team_size(options.threads);
  ASSIGN_OR_RETURN(const WireForm wire, parse_wire_form(options.wire));
  LentBackbone* const lent = options.lent;
  if (lent != nullptr && !lent->wait(stop)) return {};
  ASSIGN_OR_RETURN(LoadedDrafter loaded, load_drafter(options));
  if (options.threads == kThreadsOfFamily && loaded.step_bytes > 0)
    set_team_size(threads_worth(loaded.step_bytes, team_size()));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(loaded.tokenizer));
  GrammarCompiler grammars([&files, size = loaded.facts.vocab_size]() -> Result<GrammarVocabulary> {
    ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(files));
    return grammar_vocabulary(tokenizer, size);
  });
  const DraftInput needs = loaded.model->traits().needs;
  DrafterConfig core_config = options.core;
  core_config.link.peer_timeout = std::chrono::seconds(options.worker.peer_timeout_s);
  core_config.kv_cost = loaded.model->kv_cost();
  // A verifier of the same machine takes three quarters.
  core_config.kv_bytes_max =
      options.memory_mib > 0 ? options.memory_mib << 20
                             : available_memory_bytes().value_or(std::numeric_limits<std::int64_t>::max()) / 4;
  DraftEngine engine(std::move(loaded.model), std::move(loaded.stop_ids), &grammars);
  log_info("event=loaded model={} dtype={} isa={} threads={}", loaded.path, to_string(options.weight_type),
           to_string(active_isa()), team_size());

  ASSIGN_OR_RETURN(std::string name, chosen_name(options.worker, node_name("drafter")));
  ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint, Endpoint::connect(context, options.join));
  DrafterCore core(core_config, {.role = Role::kDrafter,
                                 .name = std::move(name),
                                 .facts = std::move(loaded.facts),
                                 .wire = wire,
                                 .needs = needs});
  DrafterCore::Output asked;
  WorkerLoop loop(core, *endpoint, options.worker);
  return loop.run(
      stop, Duration::zero(), [&](DrafterCore::Output& output) { asked = std::move(output); },
      [&] {
        for (const DraftWork& work : asked.work) engine.run(work);
        const std::vector<DraftTurn>& pass = asked.pass;
        if (pass.empty()) return false;
        std::optional<LentBackbone::Pass> turn;
        if (lent != nullptr && !turn.emplace(*lent).begun()) return core.decline();
        const auto between_steps = [&] { loop.between_steps(); };
        const auto wait = [&] { add_time(options.added_draft_us, std::ssize(pass), between_steps); };
        std::vector<DraftProgress> progress = engine.step(pass, between_steps, wait);
        turn.reset();
        for (std::size_t i = 0; i < progress.size(); ++i) core.on_turn(pass[i], std::move(progress[i]));
        return true;  // the next pass may be due
      });
}

}  // namespace outrider
