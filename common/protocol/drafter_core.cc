#include "common/protocol/drafter_core.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "common/protocol/donor_rows.h"

namespace outrider {

DrafterCore::DrafterCore(const DrafterConfig& config, Hello hello)
    : config_(config), membership_(config.link, std::move(hello), {.sessions_max = config.sessions_max}) {}

void DrafterCore::on_message(Message message, TimePoint now) {
  const Membership::Event event = membership_.on_message(message, now);
  while (event == Membership::Event::kForgetSessions && !sessions_.empty()) free(sessions_.begin()->first);
  if (event != Membership::Event::kSession) return;
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
  membership_.warn(fmt::format("a drafter has no use for '{}'; dropped", name_of(message)));
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
  if (auto fine = check_rows(membership_.facts(), kv); !fine) {
    membership_.warn(fine.error().message + "; dropped");
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
  const auto same = [&](const DraftWork& work) { return work.session == id; };
  return std::ranges::any_of(drafts_, same) || std::ranges::any_of(ahead_, same);
}

void DrafterCore::drop_draft(SessionId id) {
  for (std::vector<DraftWork>* works : {&drafts_, &ahead_})
    std::erase_if(*works, [&](const DraftWork& work) { return work.session == id; });
}

void DrafterCore::on_draft(Message message, TimePoint now) {
  const PairFacts& facts = membership_.facts();
  const auto answer = [&](Body body) { membership_.answer(message, std::move(body)); };
  Session* session = find_or_open(message.session, now);
  if (session == nullptr) {
    return answer(Failed{Errc::kUnavailable,
                         fmt::format("{} sessions, this drafter takes {}", sessions_.size(), config_.sessions_max)});
  }
  if (message.round < session->round) return;  // late
  if (message.round == session->round && session->last_answer) return membership_.send(*session->last_answer);
  if (message.round == session->round && waits(message.session)) return;  // repeated
  drop_draft(message.session);                                            // overtaken
  auto& draft = std::get<Draft>(message.body);
  if (auto fine = check_hidden(facts, draft.hidden); !fine)
    return answer(Failed{Errc::kMismatch, fine.error().message});
  const TokenId highest = std::accumulate(draft.known.begin(), draft.known.end(), draft.token,
                                          [](TokenId a, TokenId b) { return std::max(a, b); });
  if (highest >= facts.vocab_size) {
    return answer(
        Failed{Errc::kMismatch, fmt::format("draft after token {}, wanted one below {}", highest, facts.vocab_size)});
  }
  if (draft.sampling) {
    if (auto fine = check_sampling(*draft.sampling, facts.vocab_size); !fine)
      return answer(Failed{Errc::kMismatch, fine.error().message});
  }
  if (draft.draft_length < 1) {
    return answer(Failed{Errc::kMismatch, fmt::format("{} drafts, wanted one or more", draft.draft_length)});
  }
  if (draft.tree && (draft.ahead > 0 || draft.want_state || !draft.known.empty()))
    return answer(Failed{Errc::kMismatch, "a tree that is to be gone on from, wanted a chain"});
  session->round = message.round;
  session->last_answer.reset();
  // A lost or late delta: say from where to send again. What did arrive is kept.
  if (session->replica_end != message.base || message.base == 0)
    return answer(NeedKv{std::min(session->replica_end, message.base)});
  drafts_.push_back({.kind = DraftWork::Kind::kDraft,
                     .session = message.session,
                     .round = message.round,
                     .base = message.base,
                     .draft = std::move(draft)});
}

void DrafterCore::on_drafted(const DraftWork& work, Candidates drafts) {
  const auto known = sessions_.find(work.session);
  if (known == sessions_.end() || known->second.round != work.round) return;  // freed or overtaken meanwhile
  // Rows that came meanwhile are of a later round.
  if (work.draft.ahead > 0 && known->second.replica_end == work.base) {
    ahead_.push_back(
        {.kind = DraftWork::Kind::kAhead, .session = work.session, .round = work.round, .base = work.base});
  }
  if (!work.draft.known.empty()) return;
  known->second.last_answer =
      Message{.session = work.session, .round = work.round, .base = work.base, .body = std::move(drafts)};
  membership_.send(*known->second.last_answer);
}

void DrafterCore::on_ahead(const DraftWork& work, AheadStep step) {
  const auto same = [&](const DraftWork& other) { return other.session == work.session && other.round == work.round; };
  const auto place = std::ranges::find_if(ahead_, same);
  if (place == ahead_.end()) return;  // freed or overtaken meanwhile
  if (!step.more) ahead_.erase(place);
  if (!step.guess) return;
  membership_.send({.session = work.session, .round = work.round, .base = work.base, .body = std::move(*step.guess)});
}

void DrafterCore::on_tick(TimePoint now) {
  membership_.on_tick(now);
  std::vector<SessionId> idle;
  for (const auto& [id, session] : sessions_) {
    if (now - session.heard > config_.session_idle_max) idle.push_back(id);
  }
  for (const SessionId id : idle) free(id);
  if (!work_.empty()) return;
  work_ = std::exchange(rows_, {});
  if (!drafts_.empty()) {
    work_.push_back(std::move(drafts_.front()));
    drafts_.erase(drafts_.begin());
  } else if (!ahead_.empty()) {
    work_.push_back(ahead_.front());
    std::ranges::rotate(ahead_, ahead_.begin() + 1);
  }
}

void DrafterCore::free(SessionId id) {
  if (sessions_.erase(id) == 0) return;
  drop_draft(id);
  rows_.push_back({.kind = DraftWork::Kind::kRelease, .session = id});
}

}  // namespace outrider
