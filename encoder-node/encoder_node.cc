#include "encoder-node/encoder_node.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>

#include "common/checkpoint/pack.h"
#include "common/kernels/isa.h"
#include "common/kernels/team.h"
#include "common/logging/logging.h"
#include "common/pair/pair_files.h"
#include "common/tokenizer/tokenizer.h"
#include "common/towers/towers.h"
#include "common/transport/pump.h"

namespace outrider {
namespace {

/// Longest sleep of the loop: how late a tick or a stop may be seen.
constexpr Duration kTick = std::chrono::milliseconds(20);
/// After a stop: how long what is here may take to its end.
constexpr Duration kDrainWait = std::chrono::seconds(20);

WireTensor wire_rows(const Tensor& rows) {
  const std::size_t bytes = static_cast<std::size_t>(rows.rows() * rows.view().size(1)) * sizeof(float);
  const std::shared_ptr<std::byte[]> owner(new std::byte[bytes]);
  std::memcpy(owner.get(), rows.view().data(), bytes);
  return {.dtype = DType::kF32,
          .shape = {rows.rows(), rows.view().size(1)},
          .data = SharedBytes(owner, {owner.get(), bytes})};
}

/// The node's loop, as run_encoder() says.
Result<void> serve(EncoderCore& core, Towers& towers, Endpoint& endpoint, const WorkerOptions& options,
                   std::stop_token stop) {
  Pump pump(endpoint);
  LoopClock clock;
  Solitude solitude(options);
  TimePoint pumped = now();
  std::optional<TimePoint> drain_until;
  std::optional<WireMedium> work;
  const auto hand_over = [&] {
    EncoderCore::Output output = core.take_output();
    pump.deliver(output);
    if (output.work) work = std::move(output.work);
  };
  const auto exchange = [&] {
    pump.receive([&](const PeerId&, Message message) { core.on_message(std::move(message), clock.now()); });
    core.on_tick(clock.now());
    pumped = now();
    hand_over();
  };
  const std::function<void()> between_steps = [&] {
    if (now() - pumped > kTick) exchange();
  };

  const std::stop_callback wake_on_stop(stop, [&] { endpoint.wake(); });
  while (!core.membership().refusal() && !pump.version_mismatch()) {
    if (stop.stop_requested()) {
      if (!drain_until) {
        drain_until = now() + kDrainWait;
        core.drain();
      }
      if (core.session_count() == 0 || !core.membership().joined() || now() > *drain_until) break;
    }
    RETURN_IF_ERROR(solitude.check(core.membership().joined(), clock.now()));
    exchange();
    if (!work) {
      endpoint.wait(kTick);
      continue;
    }
    const WireMedium medium = *std::exchange(work, {});
    const TimePoint start = now();
    auto rows = no_throw([&] { return Result<Tensor>(towers.encode(medium, between_steps)); });
    if (!rows) return Error{rows.error().code, "the towers stopped: " + rows.error().message};
    core.on_encoded(wire_rows(*rows), now() - start);
    hand_over();
  }
  if (pump.version_mismatch()) return *pump.version_mismatch();
  if (core.membership().refusal()) return *core.membership().refusal();
  hand_over();
  return {};
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
    return Error{Errc::kUnsupported, fmt::format("nothing to encode with: {}; {}", towers.vision.error().message,
                                                 towers.audio.error().message)};
  std::string encoding_class = towers.encoding_class(options.weight_type, weights->fingerprint());
  log_info("event=loaded model={} dtype={} isa={} threads={} pictures={} sounds={}", options.backbone.string(),
           to_string(options.weight_type), to_string(active_isa()), team_size(), towers.vision.has_value(),
           towers.audio.has_value());
  log_info("event=encoding_class class=\"{}\"", encoding_class);
  ASSIGN_OR_RETURN(std::string name, chosen_name(options.worker, node_name("encoder")));
  ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint, Endpoint::connect(context, options.join));
  EncoderConfig core_config = options.core;
  core_config.soft_tokens = [&towers](const WireMedium& medium) { return towers.soft_tokens(medium); };
  EncoderCore core(core_config, {.role = Role::kEncoder,
                                 .name = std::move(name),
                                 .facts = std::move(facts),
                                 .encoding_class = std::move(encoding_class)});
  return serve(core, towers, *endpoint, options.worker, stop);
}

}  // namespace outrider
