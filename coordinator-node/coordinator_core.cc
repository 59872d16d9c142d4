// Routes each event to the session that it concerns, and admits requests. coordinator_workers.cc has the workers' side.
#include "coordinator-node/coordinator_core.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace outrider {
namespace {

/// Whose client takes no step for so long loses his place if somebody else waits for one.
constexpr Duration kStepTimeout = std::chrono::seconds(10);
/// So long an answer that began elsewhere waits for the verifier that has its K/V: after a restart they come one by
/// one.
constexpr Duration kReturnGrace = std::chrono::seconds(2);

}  // namespace

CoordinatorCore::CoordinatorCore(const CoordinatorConfig& config)
    : config_(config),
      environment_(config.instance, config.failover, config.table, config.drafters_per_sequence,
                   config.want_rejections),
      queue_(config.queue),
      auditor_(config.audit),
      next_session_(config.instance) {}

bool CoordinatorCore::on_message(const PeerId& from, Message message, TimePoint now) {
  environment_.now = now;
  const bool of_use = deal_with(from, std::move(message));
  audit();
  return of_use;
}

bool CoordinatorCore::deal_with(const PeerId& from, Message message) {
  // Clients and strangers.
  if (const auto* hello = std::get_if<Hello>(&message.body)) return on_hello(from, *hello);
  if (auto* request = std::get_if<Generate>(&message.body))
    return on_generate(from, message.session, std::move(*request));
  if (const auto* step = std::get_if<Step>(&message.body)) return on_step(from, message.session, *step);
  if (std::holds_alternative<StatusRequest>(message.body)) {
    asked_status_.insert(from);
    return false;
  }
  if (const auto* cancel = std::get_if<Cancel>(&message.body)) {
    const auto session = find_request(from, message.session);
    if (session == sessions_.end()) return false;
    session->second->on_cancel(*cancel);
    reap(session);
    return true;
  }

  Worker* worker = fleet_.find(from);
  if (worker == nullptr) {
    send(from, {.body = WhoAreYou{}});
    return false;
  }
  worker->hear(environment_.now);
  return on_worker(from, *worker, std::move(message));
}

void CoordinatorCore::on_arriving(const PeerId& from, TimePoint now) {
  if (Worker* worker = fleet_.find(from)) worker->hear_bytes(now);
}

void CoordinatorCore::on_leaving(const PeerId& to, TimePoint now) {
  if (Worker* worker = fleet_.find(to)) worker->leaving = now;
}

void CoordinatorCore::on_malformed(const PeerId& from, SessionId about, TimePoint now) {
  environment_.now = now;
  if (fleet_.find(from) == nullptr) return;
  for (auto& [id, session] : sessions_) {
    if (about == SessionId{} || about == id) session->on_unreadable(from);
  }
  reap_all();
  audit();
}

void CoordinatorCore::on_sent(const Message& message, std::size_t bytes) {
  if (const auto session = sessions_.find(message.session); session != sessions_.end())
    session->second->on_sent(message, bytes);
}

CoordinatorOutput CoordinatorCore::take_output() {
  for (const auto& [id, session] : sessions_) {
    const std::optional<TimePoint> due = session->deadline();
    if (due && (!environment_.output.due || *due < *environment_.output.due)) environment_.output.due = due;
  }
  return std::exchange(environment_.output, {});
}

Status CoordinatorCore::status() const {
  Status status{.sessions = static_cast<std::int32_t>(sessions_.size()),
                .waiting = static_cast<std::int32_t>(queue_.waiting()),
                .failovers = environment_.failovers,
                .audits = auditor_.counts()};
  fleet_.describe(status);
  return status;
}

std::map<PeerId, Load> CoordinatorCore::loads() const {
  std::map<PeerId, Load> loads;
  for (const auto& [id, session] : sessions_) session->add_load(loads);
  return loads;
}

// ---- clients ----

CoordinatorCore::Sessions::iterator CoordinatorCore::find_request(const PeerId& client, SessionId request_id) {
  return std::ranges::find_if(sessions_, [&](const auto& entry) {
    return entry.second->client() == client && entry.second->request_id() == request_id;
  });
}

bool CoordinatorCore::on_generate(const PeerId& from, SessionId request_id, Generate request) {
  if (find_request(from, request_id) != sessions_.end()) return false;  // repeated
  const std::string on_behalf_of = request.on_behalf_of;
  const SessionId id{next_session_};
  std::unique_ptr<Session> session = Session::of(environment_, id, from, request_id, std::move(request));
  Result<void> taken = session->check(fleet_.facts());
  if (taken) taken = queue_.enter(id, from, on_behalf_of, session->sequence().prompt_bytes());
  if (!taken) {
    send(from, {.session = request_id, .body = Failed{taken.error().code, taken.error().message}});
    return false;
  }
  ++next_session_;
  sessions_.emplace(id, std::move(session));
  send(from, {.session = request_id, .body = Heartbeat{}});  // taken
  start_waiting();
  return true;
}

bool CoordinatorCore::on_step(const PeerId& from, SessionId request_id, const Step& step) {
  const auto session = find_request(from, request_id);
  if (session == sessions_.end()) {
    send(from, {.session = request_id, .body = Failed{Errc::kNotFound, "a step of a session that is not open"}});
    return false;
  }
  const bool taken = session->second->on_step(step);
  reap(session);
  return taken;
}

void CoordinatorCore::start_waiting() {
  for (auto next = sessions_.begin(); next != sessions_.end();) {
    const auto entry = next++;
    Session& session = *entry->second;
    if (session.phase() != Phase::kMoving || auditor_.session() == entry->first) continue;
    // One that is only short of room is not overtaken by those that come after it.
    if (!session.start() && fleet_.has_verifier(session.requirements())) return;
    reap(entry);
  }
  while (const std::optional<SessionId> next = next_queued()) {
    const auto session = sessions_.find(*next);
    if (!session->second->start()) return;  // on_hello or on_tick come back
    queue_.let_in(*next);
    reap(session);
  }
}

std::optional<SessionId> CoordinatorCore::next_queued() const {
  // Those that began elsewhere, or have pictures, may need what nobody here has: only their own clients wait with them.
  return queue_.next([&](SessionId id) {
    const Session& session = *sessions_.at(id);
    Fleet::Requirements wanted = session.requirements();
    if (!session.sequence().has_token() && !wanted.media) return true;
    wanted.only_name = !wanted.name.empty() && environment_.now - session.opened() < kReturnGrace;
    return fleet_.has_verifier(wanted);
  });
}

void CoordinatorCore::make_room() {
  if (queue_.waiting() == 0 || !fleet_.has_verifier({}) || !(next_queued() || queue_.is_full())) return;
  const auto longest =
      std::ranges::max_element(sessions_, {}, [&](const auto& entry) { return entry.second->resting(); });
  const Duration rested = longest->second->resting();
  if (rested < kStepTimeout) return;
  const std::string why = fmt::format("no step for {:.0f} s, and others wait for the place", to_seconds(rested));
  longest->second->finish(Failed{Errc::kUnavailable, why});
  reap(longest);
}

void CoordinatorCore::reap(Sessions::iterator entry) {
  const SessionId id = entry->first;
  const Session& session = *entry->second;
  const bool was_queued = auditor_.session() != id;
  if (was_queued && session.has_started()) queue_.started(id);
  if (session.phase() != Phase::kEnded) return;
  if (was_queued) queue_.leave(id);
  if (std::optional<Audit> audit = session.audit(); audit && auditor_.wants()) auditor_.add(std::move(*audit));
  sessions_.erase(entry);
}

void CoordinatorCore::reap_all() {
  for (auto session = sessions_.begin(); session != sessions_.end();) reap(session++);
}

void CoordinatorCore::on_peer_gone(const PeerId& peer, TimePoint now) {
  environment_.now = now;
  drop_worker(peer, "closed its connection");
  for (auto& [id, session] : sessions_) {
    if (session->client() == peer) session->finish(Failed{Errc::kCancelled, "the client went away"});
  }
  reap_all();
  audit();
}

// ---- answers that are verified again ----

void CoordinatorCore::audit() {
  if (config_.audit.share <= 0) return;
  if (const std::optional<SessionId> id = auditor_.session()) {
    const auto session = sessions_.find(*id);
    const bool is_open = session != sessions_.end();
    // Others that have lost their verifier wait for room, and hold up who comes after them. This one does not.
    if (is_open && session->second->phase() == Phase::kMoving)
      session->second->finish(Failed{Errc::kUnavailable, "its verifier left it"});
    for (const Message& word : take_words_to_auditor()) {
      const auto reply = auditor_.on_message(word);
      const auto* step = std::get_if<Step>(&reply);
      if (is_open && step != nullptr && session->second->phase() == Phase::kPaused) session->second->on_step(*step);
      if (is_open && std::holds_alternative<Cancel>(reply) && session->second->phase() != Phase::kEnded)
        session->second->on_cancel(Cancel{});
    }
    if (is_open && session->second->phase() == Phase::kEnded) sessions_.erase(session);
  }
  begin_audit();
  take_words_to_auditor();  // the end of one that it wanted no more of
  for (Notice& said : auditor_.take_notices()) environment_.output.notices.push_back(std::move(said));
}

void CoordinatorCore::begin_audit() {
  const Audit* audit = auditor_.next();
  if (audit == nullptr || queue_.waiting() > 0) return;
  const SessionId id{next_session_};
  std::unique_ptr<Session> session = Session::of(environment_, id, *audit);
  if (!fleet_.has_verifier(session->requirements())) {
    return auditor_.skip(fmt::format("there is no other verifier of class '{}' than {} to verify its answers again",
                                     audit->numeric_class, audit->verifier));
  }
  if (!session->start()) return;  // there will be room
  if (session->phase() == Phase::kEnded) return auditor_.skip("another verifier refused the text");
  ++next_session_;
  auditor_.begin(id);
  sessions_.emplace(id, std::move(session));
}

std::vector<Message> CoordinatorCore::take_words_to_auditor() {
  const auto own =
      std::ranges::stable_partition(environment_.output.send, [](const Outgoing& out) { return !out.to.empty(); });
  std::vector<Message> words;
  for (Outgoing& out : own) words.push_back(std::move(out.message));
  environment_.output.send.erase(own.begin(), own.end());
  return words;
}

// ---- time ----

void CoordinatorCore::on_tick(TimePoint now) {
  environment_.now = now;
  for (const PeerId& peer : fleet_.silent(config_.link.peer_timeout, now)) {
    drop_worker(peer, fmt::format("has not been heard for {:.1f} s", to_seconds(config_.link.peer_timeout)));
  }
  start_waiting();
  make_room();
  for (auto& [id, session] : sessions_) session->on_tick();
  reap_all();
  audit();
  if (!asked_status_.empty()) {
    const Status status = this->status();
    for (const PeerId& peer : std::exchange(asked_status_, {})) send(peer, {.body = status});
  }
  if (next_heartbeat_ && now < *next_heartbeat_) return;
  next_heartbeat_ = now + config_.link.heartbeat_interval;
  for (const auto& [peer, worker] : fleet_.workers()) send(peer, {.body = Heartbeat{now.time_since_epoch().count()}});
  for (const auto& [id, session] : sessions_) {
    if (session->phase() != Phase::kPaused && !session->client().empty())
      send(session->client(), {.session = session->request_id(), .body = Heartbeat{}});
  }
}

void CoordinatorCore::stop(TimePoint now) {
  environment_.now = now;
  for (auto& [id, session] : sessions_) session->finish(WhoAreYou{});
  reap_all();
  take_words_to_auditor();
  for (const auto& [peer, worker] : fleet_.workers()) send(peer, {.body = WhoAreYou{}});  // to the next one, all
}

}  // namespace outrider
