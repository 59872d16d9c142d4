#include "coordinator-node/coordinator_node.h"

#include <optional>
#include <random>
#include <set>
#include <utility>

#include "common/decoding/drafting/draft_table.h"
#include "common/os/files.h"
#include "common/os/logging.h"
#include "common/wire/transport/pump.h"
#include "coordinator-node/rejection_log.h"

namespace outrider {
Result<void> run_coordinator(TransportContext& context, const CoordinatorOptions& options, std::stop_token stop,
                             const std::function<void(const std::string& address)>& on_listening) {
  ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint, Endpoint::bind(context, options.listen));
  CoordinatorConfig config = options.core;
  std::random_device random;
  const auto draw = [&] { return static_cast<std::uint64_t>(random()) << 32 | random(); };
  if (config.instance == 0) config.instance = draw() >> 1;
  config.audit.seed = draw();
  std::optional<RejectionLog> rejection_log;
  if (!options.rejection_log.empty()) {
    ASSIGN_OR_RETURN(rejection_log, RejectionLog::open(options.rejection_log));
  }
  std::optional<MappedFile> table_file;
  std::optional<DraftTable> table;
  if (!options.draft_table.empty()) {
    ASSIGN_OR_RETURN(table_file, MappedFile::open(options.draft_table));
    auto opened = DraftTable::of(table_file->bytes());
    if (!opened) return Error{opened.error().code, options.draft_table.string() + ": " + opened.error().message};
    config.table = &table.emplace(*opened);
  }
  config.link.peer_timeout = std::chrono::seconds(options.peer_timeout_s);
  config.failover.wait = std::chrono::seconds(options.failover_wait_s);
  config.want_rejections = rejection_log.has_value();
  if (options.requests_max > 0) config.queue.open_max = static_cast<std::size_t>(options.requests_max);
  CoordinatorCore core(config);
  Pump pump(*endpoint);
  LoopClock clock;
  log_info("event=listening address={}", endpoint->address());
  on_listening(endpoint->address());
  const std::stop_callback wake_on_stop(stop, [&] { endpoint->wake(); });
  std::set<PeerId> gone;  // found when sending; their last messages may still be unread
  const auto act = [&] {
    const CoordinatorOutput output = core.take_output();
    pump.send(
        output.send, [&](const Message& sent, std::size_t bytes) { core.on_sent(sent, bytes); },
        [&](const PeerId& peer) { gone.insert(peer); });
    pump.log(output.notices);
    if (rejection_log) rejection_log->write(output.rejections);
    return output.due;
  };
  while (!stop.stop_requested()) {
    pump.receive(
        [&](const PeerId& from, Message message) {
          const bool of_use = core.on_message(from, std::move(message), clock.now());
          act();  // at once, not after the burst: each message is a step of some round
          if (!of_use && endpoint->count_useless_message()) gone.insert(from);
        },
        [&](const PeerId& from) { core.on_peer_gone(from, clock.now()); },
        [&](const PeerId& from, SessionId about) {
          core.on_malformed(from, about, clock.now());
          act();
        });
    for (const PeerId& peer : endpoint->arriving()) core.on_arriving(peer, clock.now());
    for (const PeerId& peer : endpoint->leaving()) core.on_leaving(peer, clock.now());
    for (const PeerId& peer : std::exchange(gone, {})) core.on_peer_gone(peer, clock.now());
    core.on_tick(clock.now());
    const std::optional<TimePoint> due = act();
    pump.wait(due, clock.now());
  }
  core.stop(clock.now());
  act();
  return {};
}

}  // namespace outrider
