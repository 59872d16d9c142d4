#include "common/protocol/drafter_core.h"

#include <algorithm>

#include "common/protocol/facts.h"

namespace outrider {
namespace {

Hello with_sessions_max(Hello hello, std::int64_t sessions_max) {
  hello.capacity.sessions_max = sessions_max;
  return hello;
}

}  // namespace

DrafterCore::DrafterCore(const DrafterConfig& config, Hello hello)
    : config_(config),
      facts_(hello.facts),
      link_(config.link, with_sessions_max(std::move(hello), config.sessions_max)) {}

void DrafterCore::on_message(Message message, TimePoint now) {
  WorkerLink::Event event;
  if (link_.on_message(message, now, &event, &outgoing_)) {
    if (event == WorkerLink::Event::kForgetSessions) {
      while (!sessions_.empty()) free(sessions_.begin()->first);
    }
    return;
  }
  if (std::holds_alternative<Draft>(message.body)) return on_draft(std::move(message), now);
  if (auto* chunk = std::get_if<KvChunk>(&message.body)) {
    // Rows after those that a draft wants are of a later round: nobody waits for it any more.
    if (Session* session = find_or_open(message.session, now);
        session != nullptr && extend(*session, message.session, std::move(chunk->kv))) {
      drop_draft(message.session);
    }
    return;
  }
  if (std::holds_alternative<Free>(message.body)) return free(message.session);
  notices_.push_back({true, fmt::format("a drafter has no use for '{}'; dropped", name_of(message))});
}

DrafterCore::Session* DrafterCore::find_or_open(SessionId id, TimePoint now) {
  // A late duplicate may open a freed session again; it ends idle. A session that left for another
  // drafter may come back in earnest.
  if (!sessions_.contains(id) && std::ssize(sessions_) >= config_.sessions_max) return nullptr;
  Session& session = sessions_[id];
  session.heard = now;
  return &session;
}

bool DrafterCore::accept_rows(const Session& session, const KvRows& kv) {
  if (kv.from > session.replica_end) return false;  // something before it was lost
  if (auto fine = check_rows(facts_, kv); !fine) {
    notices_.push_back({true, fine.error().message + "; dropped"});
    return false;
  }
  return true;
}

bool DrafterCore::extend(Session& session, SessionId id, KvRows kv) {
  if (kv.empty() || !accept_rows(session, kv) || kv.to <= session.replica_end) return false;
  session.replica_end = kv.to;
  rows_.push_back({.kind = DraftWork::Kind::kExtend, .session = id, .kv = std::move(kv)});
  return true;
}

bool DrafterCore::waits(SessionId id) const {
  return std::any_of(drafts_.begin(), drafts_.end(), [&](const DraftWork& work) { return work.session == id; });
}

void DrafterCore::drop_draft(SessionId id) {
  std::erase_if(drafts_, [&](const DraftWork& work) { return work.session == id; });
}

void DrafterCore::on_draft(Message message, TimePoint now) {
  const auto answer = [&](Body body) {
    outgoing_.push_back(
        {"", {.session = message.session, .round = message.round, .base = message.base, .body = std::move(body)}});
  };
  Session* session = find_or_open(message.session, now);
  if (session == nullptr) {
    return answer(Failed{Errc::kUnavailable,
                         fmt::format("{} sessions, this drafter takes {}", sessions_.size(), config_.sessions_max)});
  }
  if (message.round < session->round) return;  // late
  if (message.round == session->round && session->last_answer) {
    outgoing_.push_back({"", *session->last_answer});
    return;
  }
  if (message.round == session->round && waits(message.session)) return;  // repeated
  drop_draft(message.session);                                            // overtaken
  auto& draft = std::get<Draft>(message.body);
  const bool hidden_fits = (draft.hidden.dtype == facts_.hidden_dtype || draft.hidden.dtype == DType::kF32) &&
                           draft.hidden.shape == std::vector<std::int64_t>{facts_.hidden_size};
  if (!hidden_fits || draft.token < 0 || draft.token >= facts_.vocab_size) {
    return answer(
        Failed{Errc::kMismatch,
               fmt::format("draft request with token {} and hidden row [{}], wanted a token below {} and [{}]",
                           draft.token, fmt::join(draft.hidden.shape, ", "), facts_.vocab_size, facts_.hidden_size)});
  }
  if (draft.sampling) {
    if (auto fine = check_sampling(*draft.sampling, facts_.vocab_size); !fine)
      return answer(Failed{Errc::kMismatch, fine.error().message});
  }
  session->round = message.round;
  session->last_answer.reset();
  // A lost or late delta: say from where to send again. What did arrive is kept.
  if (session->replica_end != message.base || message.base == 0)
    return answer(NeedKv{std::min(session->replica_end, message.base)});
  drafts_.push_back({.kind = DraftWork::Kind::kDraft,
                     .session = message.session,
                     .round = message.round,
                     .base = message.base,
                     .token = draft.token,
                     .draft_length = draft.draft_length,
                     .hidden = std::move(draft.hidden),
                     .sampling = std::move(draft.sampling),
                     .index = draft.index,
                     .want_state = draft.want_state,
                     .want_q = draft.want_q});
}

std::vector<DraftWork> DrafterCore::take_work() {
  std::vector<DraftWork> work = std::exchange(rows_, {});
  if (!drafts_.empty()) {
    work.push_back(std::move(drafts_.front()));
    drafts_.erase(drafts_.begin());
  }
  return work;
}

void DrafterCore::on_drafted(const DraftWork& work, Drafts drafts) {
  const auto known = sessions_.find(work.session);
  if (known == sessions_.end() || known->second.round != work.round) return;  // freed or overtaken meanwhile
  Message answer{
      .session = work.session,
      .round = work.round,
      .base = work.base,
      .body = Candidates{std::move(drafts.tokens), drafts.draft_ns, std::move(drafts.q), std::move(drafts.state)}};
  known->second.last_answer = answer;
  outgoing_.push_back({"", std::move(answer)});
}

void DrafterCore::on_tick(TimePoint now) {
  link_.on_tick(now, &outgoing_, &notices_);
  std::vector<SessionId> idle;
  for (const auto& [id, session] : sessions_) {
    if (now - session.heard > config_.session_idle_max) idle.push_back(id);
  }
  for (const SessionId id : idle) free(id);
}

void DrafterCore::free(SessionId id) {
  if (sessions_.erase(id) == 0) return;
  drop_draft(id);
  rows_.push_back({.kind = DraftWork::Kind::kRelease, .session = id});
}

}  // namespace outrider
