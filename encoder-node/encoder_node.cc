#include "encoder-node/encoder_node.h"

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/team.h"
#include "common/media/towers.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/os/logging.h"
#include "common/pair/pair_files.h"
#include "common/wire/transport/worker_loop.h"

namespace outrider {
namespace {

/// Time for the remaining work after a stop.
constexpr Duration kDrainWait = std::chrono::seconds(20);

WireTensor wire_rows(Tensor tensor) {
  const auto owner = std::make_shared<const Tensor>(std::move(tensor));
  const Matrix<const float> rows = owner->view();
  const std::span<const float> all(rows.data(), static_cast<std::size_t>(rows.size(0) * rows.size(1)));
  return {.dtype = DType::kF32, .shape = {rows.size(0), rows.size(1)}, .data = SharedBytes(owner, std::as_bytes(all))};
}

}  // namespace

Result<void> run_encoder(TransportContext& context, const EncoderOptions& options, std::stop_token stop) {
  if (options.threads > 0) set_team_size(options.threads);
  if (options.worker.verify_weights) RETURN_IF_ERROR(verify_packs({options.backbone}));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(options.backbone));
  ASSIGN_OR_RETURN(const TextConfig config, load_text_config(files));
  ASSIGN_OR_RETURN(const std::shared_ptr<const WeightSource> weights, open_weights(files, options.weight_type));
  PairFacts facts = pair_facts(config, *weights);
  if (const auto tokenizer = Tokenizer::load(files)) facts.tokenizer_fingerprint = tokenizer->fingerprint();
  Towers towers = Towers::load(files, options.weight_type);
  if (!towers.vision && !towers.audio)
    return Error(Errc::kUnsupported, "nothing to encode with: {}; {}", towers.vision.error().message,
                 towers.audio.error().message);
  std::string encoding_class = towers.encoding_class(options.weight_type, weights->fingerprint());
  log_info("event=loaded model={} dtype={} isa={} threads={} pictures={} sounds={}", options.backbone.string(),
           to_string(options.weight_type), to_string(active_isa()), team_size(), towers.vision.has_value(),
           towers.audio.has_value());
  log_info("event=encoding_class class=\"{}\"", encoding_class);
  ASSIGN_OR_RETURN(std::string name, chosen_name(options.worker, node_name("encoder")));
  ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint, Endpoint::connect(context, options.join));
  EncoderConfig core_config = options.core;
  core_config.link.peer_timeout = std::chrono::seconds(options.worker.peer_timeout_s);
  core_config.soft_tokens = [&towers](const WireMedium& medium) { return towers.soft_tokens(medium); };
  EncoderCore core(core_config, {.role = Role::kEncoder,
                                 .name = std::move(name),
                                 .facts = std::move(facts),
                                 .encoding_class = std::move(encoding_class)});
  std::optional<WireMedium> medium;
  WorkerLoop loop(core, *endpoint, options.worker);
  return loop.run(
      stop, kDrainWait,
      [&](EncoderCore::Output& output) {
        if (output.work) medium = std::move(output.work);
      },
      [&] {
        if (!medium) return false;
        const TimePoint start = now();
        Tensor rows = towers.encode(*medium, [&] { loop.between_steps(); });
        medium.reset();
        core.on_encoded(wire_rows(std::move(rows)), now() - start);
        return true;
      });
}

}  // namespace outrider
