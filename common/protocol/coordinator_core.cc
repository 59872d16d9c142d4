#include "common/protocol/coordinator_core.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/protocol/handshake.h"

namespace outrider {
namespace {

/// Whose client takes no step for so long loses his place if somebody else waits for one.
constexpr Duration kStepPatience = std::chrono::seconds(10);
/// So long an answer that began elsewhere waits for the verifier that has its K/V: after a restart they come one by
/// one.
constexpr Duration kHomecoming = std::chrono::seconds(2);

}  // namespace

CoordinatorCore::CoordinatorCore(const CoordinatorConfig& config)
    : config_(config),
      fleet_(config.instance),
      line_(config.line),
      policies_(config.instance, config.table != nullptr),
      auditor_(config.audit),
      next_session_(config.instance) {}

bool CoordinatorCore::on_message(const PeerId& from, Message message, TimePoint now) {
  const bool of_use = deal_with(from, std::move(message), now);
  audit(now);
  return of_use;
}

bool CoordinatorCore::deal_with(const PeerId& from, Message message, TimePoint now) {
  // Clients and strangers.
  if (const auto* hello = std::get_if<Hello>(&message.body)) return on_hello(from, *hello, now);
  if (auto* request = std::get_if<Generate>(&message.body))
    return on_generate(from, message.session, std::move(*request), now);
  if (const auto* step = std::get_if<Step>(&message.body)) return on_step(from, message.session, *step, now);
  if (std::holds_alternative<StatusRequest>(message.body)) {
    asked_status_.insert(from);
    return false;
  }
  if (const auto* cancel = std::get_if<Cancel>(&message.body)) {
    const auto session = find_request(from, message.session);
    if (session == sessions_.end()) return false;
    session->second.on_cancel(desk(now), *cancel);
    settle(session);
    return true;
  }

  Worker* worker = fleet_.find(from);
  if (worker == nullptr) {
    send(from, {.body = WhoAreYou{}});
    return false;
  }
  worker->hear(now);
  return on_worker(from, *worker, std::move(message), now);
}

void CoordinatorCore::on_sent(const Message& message, std::size_t bytes) {
  if (const auto session = sessions_.find(message.session); session != sessions_.end())
    session->second.on_sent(message, bytes);
}

CoordinatorOutput CoordinatorCore::take_output() {
  for (const auto& [id, session] : sessions_) {
    const std::optional<TimePoint> due = session.deadline();
    if (due && (!output_.due || *due < *output_.due)) output_.due = due;
  }
  return std::exchange(output_, {});
}

Status CoordinatorCore::status() const {
  Status status{.sessions = static_cast<std::int32_t>(sessions_.size()),
                .waiting = static_cast<std::int32_t>(line_.waiting()),
                .failovers = failovers_,
                .audits = auditor_.counts()};
  fleet_.describe(status);
  return status;
}

std::map<PeerId, Load> CoordinatorCore::loads() const {
  std::map<PeerId, Load> loads;
  for (const auto& [id, session] : sessions_) session.add_to(loads);
  return loads;
}

// ---- clients ----

CoordinatorCore::Sessions::iterator CoordinatorCore::find_request(const PeerId& client, SessionId request_id) {
  return std::ranges::find_if(sessions_, [&](const auto& entry) {
    return entry.second.client() == client && entry.second.request_id() == request_id;
  });
}

bool CoordinatorCore::on_generate(const PeerId& from, SessionId request_id, Generate request, TimePoint now) {
  if (find_request(from, request_id) != sessions_.end()) return false;  // repeated
  const std::string on_behalf_of = request.on_behalf_of;
  const SessionId id{next_session_};
  Session session(id, from, request_id, std::move(request), now);
  Result<void> taken = session.check(fleet_.facts());
  if (taken) taken = line_.enter(id, from, on_behalf_of, session.prompt_bytes());
  if (!taken) {
    send(from, {.session = request_id, .body = Failed{taken.error().code, taken.error().message}});
    return false;
  }
  ++next_session_;
  sessions_.emplace(id, std::move(session));
  send(from, {.session = request_id, .body = Heartbeat{}});  // taken
  start_waiting(now);
  return true;
}

bool CoordinatorCore::on_step(const PeerId& from, SessionId request_id, const Step& step, TimePoint now) {
  const auto session = find_request(from, request_id);
  if (session == sessions_.end()) {
    send(from, {.session = request_id, .body = Failed{Errc::kNotFound, "a step of a session that is not open"}});
    return false;
  }
  const bool taken = session->second.on_step(desk(now), step);
  settle(session);
  return taken;
}

void CoordinatorCore::start_waiting(TimePoint now) {
  for (auto next = sessions_.begin(); next != sessions_.end();) {
    const auto session = next++;
    Session& text = session->second;
    if (text.phase() != Session::Phase::kMoving || auditor_.session() == session->first) continue;
    // One that is only short of room is not overtaken by those that come after it.
    if (!text.start(desk(now)) && fleet_.has_verifier(text.wanted())) return;
    settle(session);
  }
  while (const std::optional<SessionId> next = next_in_line(now)) {
    const auto session = sessions_.find(*next);
    if (!session->second.start(desk(now))) return;  // on_hello or on_tick come back
    line_.let_in(*next);
    settle(session);
  }
}

std::optional<SessionId> CoordinatorCore::next_in_line(TimePoint now) const {
  // Those that began elsewhere, or have pictures, may need what nobody here has: only their own clients wait with them.
  return line_.next([&](SessionId id) {
    const Session& text = sessions_.at(id);
    Fleet::Wanted wanted = text.wanted();
    if (!text.has_token() && !wanted.media) return true;
    wanted.only_name = !wanted.name.empty() && now - text.opened() < kHomecoming;
    return fleet_.has_verifier(wanted);
  });
}

void CoordinatorCore::make_room(TimePoint now) {
  if (line_.waiting() == 0 || !fleet_.has_verifier({}) || !(next_in_line(now) || line_.is_full())) return;
  const auto longest =
      std::ranges::max_element(sessions_, {}, [&](const auto& entry) { return entry.second.resting(now); });
  const Duration rested = longest->second.resting(now);
  if (rested < kStepPatience) return;
  const std::string why = fmt::format("no step for {:.0f} s, and others wait for the place", to_seconds(rested));
  longest->second.finish(desk(now), Failed{Errc::kUnavailable, why});
  settle(longest);
}

void CoordinatorCore::settle(Sessions::iterator session) {
  const auto& [id, text] = *session;
  const bool was_in_line = auditor_.session() != id;
  if (was_in_line && text.has_started()) line_.started(id);
  if (text.phase() != Session::Phase::kEnded) return;
  if (was_in_line) line_.leave(id);
  if (std::optional<Audit> audit = text.audit(); audit && auditor_.wants()) auditor_.add(std::move(*audit));
  sessions_.erase(session);
}

void CoordinatorCore::settle_all() {
  for (auto session = sessions_.begin(); session != sessions_.end();) settle(session++);
}

void CoordinatorCore::on_peer_gone(const PeerId& peer, TimePoint now) {
  drop_worker(peer, "closed its connection", now);
  for (auto& [id, session] : sessions_) {
    if (session.client() == peer) session.finish(desk(now), Failed{Errc::kCancelled, "the client went away"});
  }
  settle_all();
  audit(now);
}

// ---- answers that are verified again ----

void CoordinatorCore::audit(TimePoint now) {
  if (config_.audit.share <= 0) return;
  if (const std::optional<SessionId> id = auditor_.session()) {
    const auto text = sessions_.find(*id);
    const bool is_open = text != sessions_.end();
    // Others that have lost their verifier wait for room, and hold up who comes after them. This one does not.
    if (is_open && text->second.phase() == Session::Phase::kMoving)
      text->second.finish(desk(now), Failed{Errc::kUnavailable, "its verifier left it"});
    for (const Message& word : take_words_to_auditor()) {
      const auto reply = auditor_.on_message(word);
      const auto* step = std::get_if<Step>(&reply);
      if (is_open && step != nullptr && text->second.phase() == Session::Phase::kPaused)
        text->second.on_step(desk(now), *step);
      if (is_open && std::holds_alternative<Cancel>(reply)) text->second.on_cancel(desk(now), Cancel{});
    }
    if (is_open && text->second.phase() == Session::Phase::kEnded) sessions_.erase(text);
  }
  begin_audit(now);
  take_words_to_auditor();  // the end of one that it wanted no more of
  for (Notice& said : auditor_.take_notices()) output_.notices.push_back(std::move(said));
}

void CoordinatorCore::begin_audit(TimePoint now) {
  const Audit* audit = auditor_.next();
  if (audit == nullptr || line_.waiting() > 0) return;
  const SessionId id{next_session_};
  Session text(id, *audit, now);
  if (!fleet_.has_verifier(text.wanted())) {
    return auditor_.skip(fmt::format("there is no other verifier of class '{}' than {} to verify its answers again",
                                     audit->numeric_class, audit->verifier));
  }
  if (!text.start(desk(now))) return;  // there will be room
  if (text.phase() == Session::Phase::kEnded) return auditor_.skip("another verifier refused the text");
  ++next_session_;
  auditor_.begin(id);
  sessions_.emplace(id, std::move(text));
}

std::vector<Message> CoordinatorCore::take_words_to_auditor() {
  const auto own = std::ranges::stable_partition(output_.send, [](const Outgoing& out) { return !out.to.empty(); });
  std::vector<Message> words;
  for (Outgoing& out : own) words.push_back(std::move(out.message));
  output_.send.erase(own.begin(), own.end());
  return words;
}

// ---- workers ----

bool CoordinatorCore::on_hello(const PeerId& from, const Hello& hello, TimePoint now) {
  const Worker* before = fleet_.find(from);
  if (before != nullptr &&
      (before->hello.role != hello.role || before->hello.facts != hello.facts ||
       before->hello.numeric_class != hello.numeric_class || before->hello.encoding_class != hello.encoding_class)) {
    drop_worker(from, "introduced itself as something else", now);
    before = nullptr;
  }
  if (const PairFacts* facts = fleet_.facts(); facts != nullptr && before == nullptr) {
    const char* who = hello.role == Role::kVerifier ? "this verifier" : to_string(hello.role);
    if (auto why = mismatch(*facts, hello.facts, who)) {
      refuse(from, hello.name, *why, now);
      return false;
    }
  }
  send(from, {.body = Welcome{fleet_.join(from, hello, now).membership}});
  if (before != nullptr) return false;
  notice(false, fmt::format("{} joined as {}", hello.name, to_string(hello.role)));
  if (hello.role == Role::kDrafter) {
    if (hello.unproven)
      notice(true, fmt::format("{} is on another machine and has no key: it drafts for no text in which drafts have a "
                               "say (rejection, typical, unverified; docs/security.md)",
                               hello.name));
    if (const PairFacts* facts = fleet_.facts()) fleet_.keep_facts(*facts);  // the first pair's
  }
  compare_encoding(hello);
  if (hello.role == Role::kEncoder) start_waiting(now);
  if (hello.role != Role::kVerifier) return true;
  if (config_.table != nullptr && config_.table->fingerprint() != hello.facts.backbone_fingerprint)
    notice(true, fmt::format("the draft table is not used for {}: it is of a model with the fingerprint {:016x}, this "
                             "one's is {:016x}",
                             hello.name, config_.table->fingerprint(), hello.facts.backbone_fingerprint));
  // Others may have come before the first verifier; it is the authority.
  std::vector<PeerId> unfit;
  for (const auto& [peer, other] : fleet_.workers()) {
    const auto why =
        other.verifies() ? std::nullopt : mismatch(hello.facts, other.hello.facts, to_string(other.hello.role));
    if (!why) continue;
    refuse(peer, other.hello.name, *why, now);
    unfit.push_back(peer);
  }
  for (const PeerId& peer : unfit) drop_worker(peer, "does not fit", now);
  if (std::ranges::any_of(fleet_.workers(), [](const auto& entry) { return entry.second.drafts(); }))
    fleet_.keep_facts(hello.facts);
  start_waiting(now);
  return true;
}

void CoordinatorCore::compare_encoding(const Hello& newcomer) {
  for (const auto& [peer, worker] : fleet_.workers()) {
    const bool came = newcomer.role == Role::kEncoder;
    const Hello &encoder = came ? newcomer : worker.hello, &verifier = came ? worker.hello : newcomer;
    if (encoder.role != Role::kEncoder || verifier.role != Role::kVerifier || verifier.no_towers ||
        verifier.encoding_class == encoder.encoding_class)
      continue;
    notice(true, fmt::format("{} encodes nothing for {}, whose own towers make other bits: its class is '{}', theirs "
                             "'{}'",
                             encoder.name, verifier.name, encoder.encoding_class, verifier.encoding_class));
  }
}

void CoordinatorCore::refuse(const PeerId& peer, const std::string& name, std::string why, TimePoint now) {
  std::string text = fmt::format("refused {}: {}", name, why);
  if (fleet_.is_news(peer, text, now)) notice(true, std::move(text));
  send(peer, {.body = Refuse{Errc::kMismatch, std::move(why)}});
}

bool CoordinatorCore::on_worker(const PeerId& from, Worker& worker, Message message, TimePoint now) {
  const auto* heartbeat = std::get_if<Heartbeat>(&message.body);
  if (heartbeat != nullptr && message.session == SessionId{}) {
    const Duration time = now.time_since_epoch() - Duration(heartbeat->sent_ns);
    if (heartbeat->sent_ns > 0 && time > Duration::zero() && time <= config_.link.peer_timeout) worker.measure(time);
    return false;
  }
  if (std::holds_alternative<Drain>(message.body)) {
    if (std::exchange(worker.draining, true)) return false;  // said
    notice(false, fmt::format("{} is draining", worker.hello.name));
    return true;
  }
  const auto session = sessions_.find(message.session);
  if (session == sessions_.end()) return false;  // an answer to a session that has ended
  const auto* failed = std::get_if<Failed>(&message.body);
  if (failed != nullptr && failed->code != Errc::kUnavailable && session->second.is_drafter(from, message.round)) {
    // What a drafter cannot do for one session it cannot do for the next.
    send(from, {.body = Refuse{failed->code, failed->message}});
    drop_worker(from, fmt::format("failed ({})", failed->message), now);
    return true;
  }
  const std::string name = name_of(message);
  const bool makes_sense = session->second.on_worker(desk(now), from, std::move(message));
  if (!makes_sense)
    notice(true, fmt::format("'{}' from {} makes no sense here; dropped", name, worker.hello.name), session->first);
  settle(session);
  return makes_sense;
}

void CoordinatorCore::drop_worker(const PeerId& peer, const std::string& why, TimePoint now) {
  const auto gone = fleet_.remove(peer);  // policies of its sessions refer to it until these have ended below
  if (gone.empty()) return;
  const Worker& worker = gone.mapped();
  const std::string what = fmt::format("{} {} {}", to_string(worker.hello.role), worker.hello.name, why);
  if (!worker.suspect) {  // else it was warned of
    const bool goes_on = !worker.verifies() && !worker.draining;
    notice(!worker.draining, what + (goes_on ? "; going on without it" : ""));
  }
  for (auto& [id, session] : sessions_) session.on_worker_gone(desk(now), peer, what);
  settle_all();
}

// ---- time ----

void CoordinatorCore::on_tick(TimePoint now) {
  for (const PeerId& peer : fleet_.silent(config_.link.peer_timeout, now)) {
    drop_worker(peer, fmt::format("has not been heard for {:.1f} s", to_seconds(config_.link.peer_timeout)), now);
  }
  start_waiting(now);
  make_room(now);
  for (auto& [id, session] : sessions_) session.on_tick(desk(now));
  settle_all();
  audit(now);
  if (!asked_status_.empty()) {
    const Status status = this->status();
    for (const PeerId& peer : std::exchange(asked_status_, {})) send(peer, {.body = status});
  }
  if (next_heartbeat_ && now < *next_heartbeat_) return;
  next_heartbeat_ = now + config_.link.heartbeat_interval;
  for (const auto& [peer, worker] : fleet_.workers()) send(peer, {.body = Heartbeat{now.time_since_epoch().count()}});
  for (const auto& [id, session] : sessions_) {
    if (session.phase() != Session::Phase::kPaused && !session.client().empty())
      send(session.client(), {.session = session.request_id(), .body = Heartbeat{}});
  }
}

void CoordinatorCore::stop(TimePoint now) {
  for (auto& [id, session] : sessions_) session.finish(desk(now), WhoAreYou{});
  settle_all();
  take_words_to_auditor();
  for (const auto& [peer, worker] : fleet_.workers()) send(peer, {.body = WhoAreYou{}});  // to the next one, all
}

}  // namespace outrider
