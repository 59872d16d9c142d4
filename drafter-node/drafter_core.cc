#include "drafter-node/drafter_core.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/wire/messages/donor_rows.h"

namespace outrider {

DrafterCore::DrafterCore(const DrafterConfig& config, Hello hello)
    : config_(config),
      needs_(hello.needs),
      own_kv_(hello.needs == DraftInput::kTokens || takes_hidden_rows(hello.facts)),
      membership_(config.link, std::move(hello), {config.sessions_max, config.kv_cost, config.kv_bytes_max}) {}

void DrafterCore::on_message(Message message, TimePoint now) {
  const Membership::Event event = membership_.on_message(message, now);
  while (event == Membership::Event::kForgetSessions && !sessions_.empty()) free(sessions_.begin()->first);
  if (event != Membership::Event::kSession) return;
  if (std::holds_alternative<Draft>(message.body)) return on_draft(std::move(message), now);
  if (auto* chunk = std::get_if<KvChunk>(&message.body)) {
    // Rows after those of a draft belong to a later round: the draft is not wanted any more.
    if (Session* session = find_or_open(message.session, now);
        session != nullptr && extend(*session, message.session, std::move(chunk->kv))) {
      drop_job(message.session);
      catch_up(*session, message.session);
    }
    return;
  }
  if (std::holds_alternative<Free>(message.body)) return free(message.session);
  membership_.warn(fmt::format("a drafter has no use for '{}'; dropped", name_of(message)), message.session);
}

DrafterCore::Session* DrafterCore::find_or_open(SessionId id, TimePoint now) {
  // A late duplicate may open a freed session again; it ends idle. A session that moved to another drafter may really
  // come back.
  if (!sessions_.contains(id) && std::ssize(sessions_) >= config_.sessions_max) return nullptr;
  Session& session = sessions_[id];
  session.last_message = now;
  return &session;
}

Result<void> DrafterCore::set_aside(Session& session, Position positions, std::int64_t waiting) {
  const std::int64_t kv_bytes = std::max(session.kv_bytes, config_.kv_cost.bytes(positions)),
                     left = config_.kv_bytes_max - (kv_bytes_ - session.kv_bytes);
  const bool rows_fit = waiting == 0 || waiting_bytes_ == 0 || kv_bytes + waiting_bytes_ + waiting <= left;
  if (kv_bytes > left || !rows_fit) {
    const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    return Error(Errc::kUnavailable,
                 "{} positions need {:.1f} MiB of K/V, {:.1f} MiB are left of this drafter's {:.1f}", positions,
                 mib(kv_bytes), mib(left), mib(config_.kv_bytes_max));
  }
  kv_bytes_ += kv_bytes - session.kv_bytes;
  waiting_bytes_ += waiting;
  session.kv_bytes = kv_bytes;
  session.waiting_bytes += waiting;
  return {};
}

bool DrafterCore::accept_rows(const Session& session, SessionId id, const KvRows& kv) {
  if (kv.from > session.replica_end) return false;  // earlier rows were lost
  if (takes_hidden_rows(membership_.facts()) && !kv.empty() && kv.tokens.empty()) {
    membership_.warn(fmt::format("hidden rows with 0 tokens, wanted {}; dropped", kv.to - kv.from), id);
    return false;
  }
  if (auto ok = check_rows(membership_.facts(), kv, needs_); !ok) {
    membership_.warn(ok.error().message + "; dropped", id);
    return false;
  }
  return true;
}

bool DrafterCore::extend(Session& session, SessionId id, KvRows kv) {
  if (kv.empty() || !accept_rows(session, id, kv) || kv.to <= session.replica_end) return false;
  session.no_room = !set_aside(session, kv.to, own_kv_ ? bytes_of(kv) : 0);  // without K/V its Draft gets the error
  if (session.no_room) return false;
  if (own_kv_) session.behind += kv.to - session.replica_end;
  session.has_new_rows = true;
  session.replica_end = kv.to;
  next_work_.push_back({.kind = DraftWork::Kind::kExtend, .session = id, .kv = std::move(kv)});
  return true;
}

std::vector<DrafterCore::Job>::iterator DrafterCore::find_job(SessionId id) {
  return std::ranges::find_if(jobs_, [&](const Job& job) { return job.turn.session == id; });
}

bool DrafterCore::drop_job(SessionId id) {
  const auto job = find_job(id);
  if (job == jobs_.end()) return false;
  jobs_.erase(job);
  return true;
}

Result<void> DrafterCore::check_draft(const Draft& draft, Position base) const {
  const PairFacts& facts = membership_.facts();
  if (needs_ == DraftInput::kTargetRows) {
    if (!draft.hidden) return Error(Errc::kMismatch, "no hidden row, wanted one");
    RETURN_IF_ERROR(check_hidden(facts, *draft.hidden));
  } else {
    if (draft.hidden) return Error(Errc::kMismatch, "a hidden row, wanted none");
    if (draft.tree) return Error(Errc::kMismatch, "a tree, wanted a chain");
    if (base + draft.draft_length > facts.context_max)
      return Error(Errc::kUnavailable, "{} drafts after position {}, the drafter's context has {}", draft.draft_length,
                   base, facts.context_max);
  }
  const TokenId highest = std::max(draft.token, draft.known.empty() ? TokenId{0} : std::ranges::max(draft.known));
  if (highest >= facts.vocab_size)
    return Error(Errc::kMismatch, "draft after token {}, wanted one below {}", highest, facts.vocab_size);
  if (draft.sampling) RETURN_IF_ERROR(check_sampling(*draft.sampling, facts.vocab_size));
  if (draft.draft_length < 1) return Error(Errc::kMismatch, "{} drafts, wanted one or more", draft.draft_length);
  if (draft.tree && (draft.ahead > 0 || !draft.known.empty()))
    return Error(Errc::kMismatch, "a tree that is to be gone on from, wanted a chain");
  return {};
}

void DrafterCore::abandon(Session& session, SessionId id) {
  if (!drop_job(id) || session.behind == 0) return;
  // Its rows still lack their K/V, and rows that come later may find no room until they have it.
  next_work_.push_back({.kind = DraftWork::Kind::kAbandon, .session = id});
  session.has_new_rows = true;
}

void DrafterCore::catch_up(const Session& session, SessionId id) {
  if (session.behind > 0 && session.has_new_rows)
    jobs_.push_back({.turn = {id, session.round, session.replica_end}, .asked = false});
}

void DrafterCore::on_draft(Message message, TimePoint now) {
  const auto answer = [&](Body body) { membership_.answer(message, std::move(body)); };
  Session* session = find_or_open(message.session, now);
  if (session == nullptr) {
    return answer(Failed{Errc::kUnavailable,
                         fmt::format("{} sessions, this drafter takes {}", sessions_.size(), config_.sessions_max)});
  }
  if (message.round < session->round) return;  // late
  if (message.round == session->round && session->last_answer) return membership_.send(*session->last_answer);
  if (message.round == session->round && find_job(message.session) != jobs_.end()) return;  // repeated
  abandon(*session, message.session);
  auto& draft = std::get<Draft>(message.body);
  Result<void> fits = check_draft(draft, message.base);
  if (fits) fits = set_aside(*session, message.base + draft.draft_length);
  if (!fits) return answer(Failed{fits.error().code, fits.error().message});
  session->round = message.round;
  session->last_answer.reset();
  // A delta was lost or is late: requests the missing rows. Rows that did arrive are kept. Rows that had no room are
  // requested once the rows before them have their K/V.
  const bool far_behind = session->behind > kCatchUpRows, waits = session->no_room && far_behind,
             lacks_rows = !waits && (session->replica_end != message.base || message.base == 0);
  if (lacks_rows || far_behind) {
    catch_up(*session, message.session);
    return answer(NeedKv{lacks_rows ? std::min(session->replica_end, message.base) : message.base});
  }
  session->has_new_rows = false;
  if (draft.known.empty()) session->asked = ++asked_;
  if (draft.known.empty() || draft.ahead > 0) {
    jobs_.push_back({.turn = {message.session, message.round, message.base},
                     .rows = draft.tree ? kTreeStepRows : 1,
                     .asked = draft.known.empty(),
                     .halves = draft.halves});
  }
  next_work_.push_back({.kind = DraftWork::Kind::kDraft,
                        .session = message.session,
                        .round = message.round,
                        .base = message.base,
                        .draft = std::move(draft)});
}

void DrafterCore::on_turn(const DraftTurn& turn, DraftProgress progress) {
  in_pass_ = false;
  const auto job = find_job(turn.session);
  if (job == jobs_.end() || job->turn != turn) return;  // freed or overtaken meanwhile
  const bool asked = job->asked;
  Session& session = sessions_.at(turn.session);
  session.behind = progress.behind;
  waiting_bytes_ -= session.waiting_bytes - progress.waiting_bytes;
  session.waiting_bytes = progress.waiting_bytes;
  for (Candidates& drafts : progress.drafts) {
    Message answer{.session = turn.session, .round = turn.round, .base = turn.base, .body = std::move(drafts)};
    if (asked) session.last_answer = answer;
    membership_.send(std::move(answer));
    job->asked = false;
  }
  if (!progress.more) {
    jobs_.erase(job);
  } else if (!asked) {
    std::rotate(job, job + 1, jobs_.end());
  }
}

bool DrafterCore::decline() {
  in_pass_ = false;
  std::vector<DraftTurn> declined;
  for (const Job& job : jobs_)
    if (job.asked) declined.push_back(job.turn);
  for (const DraftTurn& turn : declined) {
    Session& session = sessions_.at(turn.session);
    Message none{.session = turn.session, .round = turn.round, .base = turn.base, .body = Candidates{}};
    session.last_answer = none;
    membership_.send(std::move(none));
    abandon(session, turn.session);
    catch_up(session, turn.session);
  }
  return !declined.empty();
}

std::size_t DrafterCore::drafting() const {
  constexpr std::uint64_t kLately = 64;
  return static_cast<std::size_t>(std::ranges::count_if(
      sessions_, [&](const auto& entry) { return entry.second.asked > 0 && asked_ - entry.second.asked < kLately; }));
}

std::vector<DraftTurn> DrafterCore::next_pass() {
  const auto behind = std::ranges::find_if(
      jobs_, [&](const Job& job) { return !job.asked && sessions_.at(job.turn.session).behind > 0; });
  if (behind == jobs_.end()) {
    catch_up_waits_ = 0;
  } else if (++catch_up_waits_ == kCatchUpWaitsMax) {
    catch_up_waits_ = 0;
    return {behind->turn};
  }
  std::vector<DraftTurn> pass;
  std::size_t rows = 0, width = kPassRowsMax;
  for (const Job& job : jobs_) {
    if (!job.asked) continue;
    if (pass.empty() && job.halves) width = std::min(width, (drafting() + 1) / 2);
    rows += job.rows;
    if (!pass.empty() && rows > width) return pass;
    pass.push_back(job.turn);
  }
  if (pass.empty() && !jobs_.empty()) pass.push_back(jobs_.front().turn);
  return pass;
}

void DrafterCore::on_tick(TimePoint now) {
  membership_.on_tick(now);
  std::vector<SessionId> idle;
  for (const auto& [id, session] : sessions_) {
    if (now - session.last_message > config_.session_idle_max) idle.push_back(id);
  }
  for (const SessionId id : idle) free(id);
  if (in_pass_ || !work_.empty() || !pass_.empty()) return;
  work_ = std::exchange(next_work_, {});
  pass_ = next_pass();
}

void DrafterCore::free(SessionId id) {
  const auto known = sessions_.find(id);
  if (known == sessions_.end()) return;
  kv_bytes_ -= known->second.kv_bytes;
  waiting_bytes_ -= known->second.waiting_bytes;
  sessions_.erase(known);
  drop_job(id);
  next_work_.push_back({.kind = DraftWork::Kind::kRelease, .session = id});
}

}  // namespace outrider
