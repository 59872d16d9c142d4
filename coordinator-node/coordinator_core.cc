// Routes each event to the session that it concerns.
#include "coordinator-node/coordinator_core.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "coordinator-node/handshake.h"

namespace outrider {
namespace {

void refuse(Environment& environment, const PeerId& peer, const std::string& name, std::string why) {
  environment.warn_of(peer, fmt::format("refused {}: {}", name, why), {});
  environment.send(peer, {.body = Refuse{Errc::kMismatch, std::move(why)}});
}

/// Warns of each encoder and verifier, one of them new, that cannot work together.
void compare_encoding(Environment& environment, const Hello& newcomer) {
  for (const auto& [peer, worker] : environment.fleet.workers()) {
    const bool came = newcomer.role == Role::kEncoder;
    const Hello &encoder = came ? newcomer : worker.hello, &verifier = came ? worker.hello : newcomer;
    if (encoder.role != Role::kEncoder || verifier.role != Role::kVerifier || verifier.no_towers ||
        verifier.encoding_class == encoder.encoding_class)
      continue;
    environment.notice(
        true, fmt::format("{} encodes nothing for {}, whose own towers make other bits: its class is '{}', theirs "
                          "'{}'",
                          encoder.name, verifier.name, encoder.encoding_class, verifier.encoding_class));
  }
}

}  // namespace

bool CoordinatorCore::on_message(const PeerId& from, Message message, TimePoint now) {
  environment_.now = now;
  const bool of_use = handle(from, std::move(message));
  sessions_.audit();
  return of_use;
}

bool CoordinatorCore::handle(const PeerId& from, Message message) {
  // From clients and unknown peers.
  if (const auto* hello = std::get_if<Hello>(&message.body)) return on_hello(from, *hello);
  if (auto* request = std::get_if<Generate>(&message.body))
    return sessions_.open(from, message.session, std::move(*request));
  if (std::holds_alternative<Step>(message.body) || std::holds_alternative<Cancel>(message.body))
    return on_client(from, message);
  if (std::holds_alternative<StatusRequest>(message.body)) {
    asked_status_.insert(from);
    return false;
  }
  Worker* worker = fleet_.find(from);
  if (worker == nullptr) {
    environment_.send(from, {.body = WhoAreYou{}});
    return false;
  }
  worker->on_message(environment_.now);
  return on_worker(from, *worker, std::move(message));
}

bool CoordinatorCore::on_client(const PeerId& from, const Message& message) {
  const auto* step = std::get_if<Step>(&message.body);
  Session* const session = sessions_.find(from, message.session);
  if (session == nullptr) {
    if (step != nullptr)
      environment_.send(from, {.session = message.session,
                               .body = Failed{Errc::kNotFound, "a step of a session that is not open"}});
    return false;
  }
  bool taken = true;
  if (step != nullptr)
    taken = session->on_step(*step);
  else
    session->on_cancel(std::get<Cancel>(message.body));
  sessions_.reap(session->state().id);
  return taken;
}

void CoordinatorCore::on_arriving(const PeerId& from, TimePoint now) {
  if (Worker* worker = fleet_.find(from)) worker->on_bytes(now);
}

void CoordinatorCore::on_leaving(const PeerId& to, TimePoint now) {
  if (Worker* worker = fleet_.find(to)) worker->leaving = now;
}

void CoordinatorCore::on_malformed(const PeerId& from, SessionId about, TimePoint now) {
  environment_.now = now;
  if (fleet_.find(from) == nullptr) return;
  for (const auto& [id, session] : sessions_.all()) {
    if (about == SessionId{} || about == id) session->on_unreadable(from);
  }
  sessions_.reap_all();
  sessions_.audit();
}

void CoordinatorCore::on_sent(const Message& message, std::size_t bytes) {
  if (Session* const session = sessions_.find(message.session)) session->on_sent(message, bytes);
}

CoordinatorOutput CoordinatorCore::take_output() {
  for (const auto& [id, session] : sessions_.all()) {
    const std::optional<TimePoint> due = session->deadline();
    if (due && (!environment_.output.due || *due < *environment_.output.due)) environment_.output.due = due;
  }
  return std::exchange(environment_.output, {});
}

Status CoordinatorCore::status() const {
  Status status{.failovers = environment_.failovers,
                .drafts_made = environment_.drafts_made,
                .drafts_missed = environment_.drafts_missed};
  sessions_.describe(status);
  fleet_.describe(status);
  return status;
}

std::map<PeerId, Load> CoordinatorCore::loads() const {
  std::map<PeerId, Load> loads;
  for (const auto& [id, session] : sessions_.all()) session->state().add_load(loads);
  return loads;
}

void CoordinatorCore::on_peer_gone(const PeerId& peer, TimePoint now) {
  environment_.now = now;
  drop_worker(peer, "closed its connection");
  for (const auto& [id, session] : sessions_.all()) {
    if (session->state().client == peer) session->finish(Failed{Errc::kCancelled, "the client went away"});
  }
  sessions_.reap_all();
  sessions_.audit();
}

void CoordinatorCore::on_tick(TimePoint now) {
  environment_.now = now;
  for (const PeerId& peer : fleet_.silent(config_.link.peer_timeout, now)) {
    drop_worker(peer, fmt::format("has not been heard for {:.1f} s", to_seconds(config_.link.peer_timeout)));
  }
  sessions_.start_waiting();
  sessions_.make_room();
  for (const auto& [id, session] : sessions_.all()) session->on_tick();
  sessions_.reap_all();
  const bool beats = !next_heartbeat_ || now >= *next_heartbeat_;
  sessions_.audit(/*again=*/beats);
  if (!asked_status_.empty()) {
    const Status status = this->status();
    for (const PeerId& peer : std::exchange(asked_status_, {})) environment_.send(peer, {.body = status});
  }
  if (!beats) return;
  next_heartbeat_ = now + config_.link.heartbeat_interval;
  for (const auto& [peer, worker] : fleet_.workers())
    environment_.send(peer, {.body = Heartbeat{now.time_since_epoch().count()}});
  for (const auto& [id, session] : sessions_.all()) {
    const SessionState& state = session->state();
    if (state.phase != Phase::kPaused && !state.client.empty()) state.reply(Heartbeat{});
  }
}

void CoordinatorCore::stop(TimePoint now) {
  environment_.now = now;
  sessions_.stop();
  // All of them move to the next coordinator.
  for (const auto& [peer, worker] : fleet_.workers()) environment_.send(peer, {.body = WhoAreYou{}});
}

// ---- workers ----

bool CoordinatorCore::on_hello(const PeerId& from, const Hello& hello) {
  const Worker* before = fleet_.find(from);
  if (before != nullptr &&
      (before->hello.role != hello.role || before->hello.facts != hello.facts ||
       before->hello.numeric_class != hello.numeric_class || before->hello.encoding_class != hello.encoding_class ||
       before->hello.needs != hello.needs)) {
    drop_worker(from, "introduced itself as something else");
    before = nullptr;
  }
  if (const PairFacts* facts = fleet_.facts(); facts != nullptr && before == nullptr) {
    const char* who = hello.role == Role::kVerifier ? "this verifier" : to_string(hello.role);
    if (auto why = mismatch(*facts, hello.facts, who, hello.needs)) {
      refuse(environment_, from, hello.name, *why);
      return false;
    }
  }
  environment_.send(from, {.body = Welcome{fleet_.join(from, hello, environment_.now).membership}});
  if (before != nullptr) return false;
  environment_.notice(false, fmt::format("{} joined as {}", hello.name, to_string(hello.role)));
  if (hello.role == Role::kDrafter) {
    if (hello.unproven)
      environment_.notice(
          true, fmt::format("{} is on another machine and has no key: it drafts for no sequence in which drafts have a "
                            "say (rejection, typical; docs/security.md)",
                            hello.name));
    if (const PairFacts* facts = fleet_.facts()) fleet_.keep_facts(*facts);  // the first pair's
  }
  compare_encoding(environment_, hello);
  if (hello.role == Role::kEncoder) sessions_.start_waiting();
  if (hello.role != Role::kVerifier) return true;
  if (config_.table != nullptr && config_.table->fingerprint() != hello.facts.backbone_fingerprint)
    environment_.notice(
        true, fmt::format("the draft table is not used for {}: it is of a model with the fingerprint {:016x}, this "
                          "one's is {:016x}",
                          hello.name, config_.table->fingerprint(), hello.facts.backbone_fingerprint));
  // Others may have joined before the first verifier, whose facts decide.
  std::vector<PeerId> unfit;
  for (const auto& [peer, other] : fleet_.workers()) {
    const auto why = other.verifies()
                         ? std::nullopt
                         : mismatch(hello.facts, other.hello.facts, to_string(other.hello.role), other.hello.needs);
    if (!why) continue;
    refuse(environment_, peer, other.hello.name, *why);
    unfit.push_back(peer);
  }
  for (const PeerId& peer : unfit) drop_worker(peer, "does not fit");
  if (std::ranges::any_of(fleet_.workers(), [](const auto& entry) { return entry.second.drafts(); }))
    fleet_.keep_facts(hello.facts);
  sessions_.start_waiting();
  return true;
}

bool CoordinatorCore::on_worker(const PeerId& from, Worker& worker, Message message) {
  const auto* heartbeat = std::get_if<Heartbeat>(&message.body);
  if (heartbeat != nullptr && message.session == SessionId{}) {
    const Duration time = environment_.now.time_since_epoch() - Duration(heartbeat->sent_ns);
    if (heartbeat->sent_ns > 0 && time > Duration::zero() && time <= config_.link.peer_timeout) worker.measure(time);
    return false;
  }
  if (std::holds_alternative<Drain>(message.body)) {
    if (std::exchange(worker.draining, true)) return false;  // already known
    environment_.notice(false, fmt::format("{} is draining", worker.hello.name));
    return true;
  }
  Session* const session = sessions_.find(message.session);
  if (session == nullptr) return false;  // an answer to a session that has ended
  const auto* failed = std::get_if<Failed>(&message.body);
  if (failed != nullptr && failed->code != Errc::kUnavailable && session->state().is_drafter(from, message.round)) {
    // A drafter's failure in one session will repeat in the next.
    environment_.send(from, {.body = Refuse{failed->code, failed->message}});
    drop_worker(from, fmt::format("failed ({})", failed->message));
    return true;
  }
  const std::string name = name_of(message);
  const SessionId id = message.session;
  const bool makes_sense = session->on_worker(from, std::move(message));
  if (!makes_sense)
    environment_.notice(true, fmt::format("'{}' from {} makes no sense here; dropped", name, worker.hello.name), id);
  sessions_.reap(id);
  return makes_sense;
}

void CoordinatorCore::drop_worker(const PeerId& peer, const std::string& why) {
  const auto gone = fleet_.remove(peer);  // its sessions' policies refer to it until the sessions end below
  if (gone.empty()) return;
  const Worker& worker = gone.mapped();
  const std::string what = fmt::format("{} {} {}", to_string(worker.hello.role), worker.hello.name, why);
  if (!worker.suspect) {  // otherwise a warning was logged
    const bool goes_on = !worker.verifies() && !worker.draining;
    environment_.notice(!worker.draining, what + (goes_on ? "; going on without it" : ""));
  }
  // Clients get no names.
  const std::string without_name = fmt::format("the {} {}", to_string(worker.hello.role), why);
  for (const auto& [id, session] : sessions_.all()) session->on_worker_gone(peer, without_name);
  sessions_.reap_all();
}

}  // namespace outrider
