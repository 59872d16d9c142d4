#include "coordinator-node/sessions.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace outrider {
namespace {

/// Time without a client's step after which a stepwise sequence loses its place if another needs it.
constexpr Duration kStepTimeout = std::chrono::seconds(10);
/// Time that an answer begun elsewhere waits for the verifier with its K/V: after a restart they join one by one.
constexpr Duration kReturnGrace = std::chrono::seconds(2);
/// Queued sequences without room that are tried at a time: each costs a look at all clients.
constexpr std::size_t kLackingMax = 16;

}  // namespace

Session* Sessions::find(SessionId id) const {
  const auto found = all_.find(id);
  return found == all_.end() ? nullptr : found->second.get();
}

Session* Sessions::find(const PeerId& client, SessionId request_id) const {
  const auto found = std::ranges::find_if(all_, [&](const auto& entry) {
    const SessionState& state = entry.second->state();
    return state.client == client && state.request_id == request_id;
  });
  return found == all_.end() ? nullptr : found->second.get();
}

bool Sessions::open(const PeerId& client, SessionId request_id, Generate request) {
  if (find(client, request_id) != nullptr) return false;  // repeated
  const std::string on_behalf_of = request.on_behalf_of;
  const SessionId id{next_};
  auto session = request.stepwise
                     ? std::make_unique<StepwiseSession>(environment_, id, client, request_id, std::move(request))
                     : std::make_unique<Session>(environment_, id, client, request_id, std::move(request));
  const SessionState& state = session->state();
  Result<void> taken = state.check(environment_.fleet.facts());
  if (taken) taken = queue_.enter(id, client, on_behalf_of, state.sequence.prompt_bytes());
  if (!taken) {
    state.reply(Failed{taken.error().code, taken.error().message});
    return false;
  }
  ++next_;
  state.reply(Heartbeat{});  // accepted
  all_.emplace(id, std::move(session));
  start_waiting();
  return true;
}

void Sessions::start_waiting() {
  awaited_.clear();
  for (auto next = all_.begin(); next != all_.end();) {
    const auto& [id, session] = *next++;
    const SessionState& state = session->state();
    if (state.phase != Phase::kMoving || state.client.empty()) continue;
    session->start(&awaited_);
    reap(id);
  }
  const auto is_taken = [&](const auto& entry) {
    return !entry.second.verifies() || entry.second.draining || awaited_.contains(entry.first);
  };
  std::set<SessionId> lacking;
  while (const std::optional<SessionId> next = next_queued(lacking)) {
    if (find(*next)->start(&awaited_)) {
      queue_.admit(*next);
      reap(*next);
    } else {  // on_hello or on_tick try again
      lacking.insert(*next);
      if (lacking.size() == kLackingMax || std::ranges::all_of(environment_.fleet.workers(), is_taken)) return;
    }
  }
}

std::optional<SessionId> Sessions::next_queued(const std::set<SessionId>& lacking) const {
  // Sequences that began elsewhere, or have pictures, may need a missing worker: only their own clients wait with them.
  return queue_.next([&](SessionId id) {
    if (lacking.contains(id)) return false;
    const SessionState& state = find(id)->state();
    Fleet::Requirements wanted = state.verifier.requirements();
    if (!state.sequence.has_token() && !wanted.media) return true;
    wanted.only_name = !wanted.name.empty() && environment_.now - state.ledger.opened < kReturnGrace;
    return environment_.fleet.has_verifier(wanted);
  });
}

void Sessions::make_room() {
  // If the queue is full, the end of any sequence helps.
  const bool is_full = queue_.waiting() > 0 && queue_.is_full() && environment_.fleet.has_verifier({});
  const auto idle = [&](const auto& entry) {
    const SessionState& state = entry.second->state();
    const Duration paused = state.paused_for();
    if (paused < kStepTimeout) return Duration::zero();
    return is_full || awaited_.contains(state.verifier.peer()) ? paused : Duration::zero();
  };
  const auto longest = std::ranges::max_element(all_, {}, idle);
  if (longest == all_.end() || idle(*longest) == Duration::zero()) return;
  const Duration paused = longest->second->state().paused_for();
  const std::string why = fmt::format("no step for {:.0f} s, and others wait for the place", to_seconds(paused));
  longest->second->finish(Failed{Errc::kUnavailable, why});
  reap(longest->first);
}

void Sessions::reap(SessionId id) {
  const auto entry = all_.find(id);
  const SessionState& state = entry->second->state();
  const bool was_queued = !state.client.empty();
  if (was_queued && state.has_started()) queue_.started(id);
  if (was_queued) queue_.resize(id, state.sequence.prompt_bytes());
  if (state.phase != Phase::kEnded) return;
  if (was_queued) queue_.leave(id);
  if (auditor_.wants())
    if (std::optional<Audit> audit = state.audit()) auditor_.add(std::move(*audit));
  all_.erase(entry);
}

void Sessions::reap_all() {
  for (auto session = all_.begin(); session != all_.end();) reap((session++)->first);
}

void Sessions::audit(bool again) {
  if (const std::optional<SessionId> id = auditor_.session()) {
    Session* const session = find(*id);
    // Other sequences without a verifier wait for room. This one does not.
    if (session != nullptr && session->state().phase == Phase::kMoving)
      session->finish(Failed{Errc::kUnavailable, "its verifier left it"});
    for (const Message& word : std::exchange(environment_.to_auditor, {})) {
      const auto reply = auditor_.on_message(word);
      const auto* step = std::get_if<Step>(&reply);
      if (session == nullptr) continue;
      if (step != nullptr && session->state().phase == Phase::kPaused) session->on_step(*step);
      if (std::holds_alternative<Cancel>(reply) && session->state().phase != Phase::kEnded)
        session->on_cancel(Cancel{});
    }
    if (session != nullptr) reap(*id);
  }
  if (again || !audit_lacks_room_) begin_audit();
  environment_.to_auditor.clear();  // the end of one that the auditor cancelled
  for (Notice& notice : auditor_.take_notices()) environment_.output.notices.push_back(std::move(notice));
}

void Sessions::begin_audit() {
  const Audit* audit = auditor_.next();
  if (audit == nullptr || queue_.waiting() > 0) return;
  const SessionId id{next_};
  auto session = std::make_unique<StepwiseSession>(environment_, id, *audit);
  if (!session->state().has_verifier()) {
    return auditor_.skip(fmt::format("there is no other verifier of class '{}' than {} to verify its answers again",
                                     audit->numeric_class, audit->verifier));
  }
  std::set<PeerId> awaited = awaited_;
  audit_lacks_room_ = !session->start(&awaited);
  if (audit_lacks_room_) return;
  if (session->state().phase == Phase::kEnded) return auditor_.skip("another verifier refused the sequence");
  ++next_;
  auditor_.begin(id);
  all_.emplace(id, std::move(session));
}

void Sessions::stop() {
  for (const auto& [id, session] : all_) session->finish(WhoAreYou{});
  reap_all();
}

void Sessions::describe(Status& status) const {
  status.sessions = static_cast<std::int32_t>(all_.size());
  status.waiting = static_cast<std::int32_t>(queue_.waiting());
  status.audits = auditor_.counts();
}

}  // namespace outrider
