#include "common/protocol/coordinator_core.h"

#include <algorithm>
#include <iterator>

#include "common/policy/ngram.h"
#include "common/protocol/facts.h"

namespace outrider {
namespace {

/// Position of the last emitted token: the first one whose K/V the target does not have yet. Where nobody verifies, the
/// target goes no further than the prompt.
template <typename Session>
Position base_of(const Session& session) {
  return session.request.unverified ? session.prompt_size : static_cast<Position>(session.text.size()) - 1;
}

/// Tokens of the answer so far.
template <typename Session>
std::int64_t answered(const Session& session) {
  return std::ssize(session.text) - session.prompt_size;
}

template <typename Session>
std::int64_t tokens_left(const Session& session) {
  return session.request.max_tokens - answered(session);
}

/// Whether a verdict's logprobs are what the request asked for.
bool fits(const std::vector<TokenLogprobs>& logprobs, std::optional<std::int32_t> wanted, std::size_t tokens,
          std::int32_t vocab_size) {
  if (!wanted) return logprobs.empty();
  return logprobs.size() == tokens && std::all_of(logprobs.begin(), logprobs.end(), [&](const TokenLogprobs& token) {
           return token.top.size() == static_cast<std::size_t>(std::min(*wanted, vocab_size)) &&
                  std::all_of(token.top.begin(), token.top.end(),
                              [&](const Logprob& entry) { return entry.token < vocab_size; });
         });
}

/// Drafts that the answer, and so the context, has room for; a verdict adds a token of its own.
template <typename Session>
std::int64_t drafts_left(const Session& session) {
  return tokens_left(session) - (session.request.unverified ? 0 : 1);
}

/// Whether a model with these facts can go on from the prompt.
Result<void> check_request(std::span<const TokenId> prompt, const SamplingParams& sampling, const PairFacts& facts) {
  for (const TokenId token : prompt) {
    if (token >= facts.vocab_size) {
      return Error{Errc::kInvalidArgument,
                   fmt::format("prompt token id {}, the vocabulary has {}", token, facts.vocab_size)};
    }
  }
  if (std::ssize(prompt) + 1 > facts.context_max) {
    return Error{Errc::kOutOfRange, fmt::format("the prompt has {} tokens, the context holds {} with the answer",
                                                prompt.size(), facts.context_max)};
  }
  return check_sampling(sampling, facts.vocab_size);
}

/// K/V rows that a session can come to need. Nobody knows how long a stepwise text gets: its room grows with each
/// verify.
Position positions_max(Position prompt, const Generate& request, const PairFacts& facts) {
  return request.stepwise ? prompt
                          : std::min(prompt + std::min(request.max_tokens, facts.context_max) - 1, facts.context_max);
}

/// Rows of one forward pass that `auto` fills with the drafts of all sessions together: T(16) is the last cheap step of
/// int8 and int4 on every instruction set measured.
constexpr std::int64_t kSharedRows = 16;

bool contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

CoordinatorCore::CoordinatorCore(const CoordinatorConfig& config)
    : config_(config), policies_(config.instance), next_session_(config.instance), next_membership_(config.instance) {}

void CoordinatorCore::on_message(const PeerId& from, Message message, TimePoint now) {
  // Clients and strangers.
  if (const auto* hello = std::get_if<Hello>(&message.body)) return on_hello(from, *hello, now);
  if (std::holds_alternative<Generate>(message.body)) return on_generate(from, message, now);
  if (std::holds_alternative<Step>(message.body)) return on_step(from, message, now);
  if (const auto* cancel = std::get_if<Cancel>(&message.body)) return on_client_cancel(from, message.session, *cancel);
  if (std::holds_alternative<StatusRequest>(message.body)) return send(from, {.body = status()});

  const auto worker = workers_.find(from);
  if (worker == workers_.end()) return send(from, {.body = WhoAreYou{}});
  worker->second.heard = now;
  if (now >= worker->second.ask_again) worker->second.suspect = false;
  if (const auto* heartbeat = std::get_if<Heartbeat>(&message.body))
    return on_heartbeat(worker->second, *heartbeat, now);
  if (std::holds_alternative<Drain>(message.body)) {
    worker->second.draining = true;
    return inform(fmt::format("{} is draining", worker->second.hello.name));
  }

  const auto it = sessions_.find(message.session);
  if (it == sessions_.end()) return;  // an answer to a session that has ended
  Session& session = it->second;
  const bool from_verifier = from == session.verifier;
  const bool from_drafter = from == session.drafter;
  if (!from_verifier && !from_drafter) return;  // a worker this session has left
  if (message.round != session.round) return;   // late

  if (auto* chunk = std::get_if<KvChunk>(&message.body); chunk != nullptr && from_verifier) {
    return on_kv_chunk(session, it->first, std::move(chunk->kv));
  }
  if (std::holds_alternative<Verdict>(message.body) && from_verifier) {
    if (session.phase != Phase::kPrefill && session.phase != Phase::kVerifying) return;
    return on_verdict(it, std::move(message), now);
  }
  if (auto* candidates = std::get_if<Candidates>(&message.body); candidates != nullptr && from_drafter) {
    if (session.phase != Phase::kDrafting) return;
    worker->second.retry = {};
    return on_candidates(it, std::move(*candidates), now);
  }
  if (const auto* need = std::get_if<NeedKv>(&message.body); need != nullptr && from_drafter) {
    if (session.phase != Phase::kDrafting) return;
    worker->second.retry = {};
    session.replica_end = std::clamp<Position>(need->have, 0, base_of(session));
    session.outcome.draft_wire_s = to_seconds(now - session.asked);
    return end_drafting(session, it->first, now);
  }
  if (const auto* failed = std::get_if<Failed>(&message.body)) {
    if (from_verifier) {
      // Its books say otherwise than ours: a Free was lost, and it will notice. The request is repeated until then.
      if (session.phase == Phase::kPrefill && failed->code == Errc::kUnavailable) return;
      const bool waiting = session.phase == Phase::kPrefill || session.phase == Phase::kVerifying;
      if (waiting) fail(it, failed->code, fmt::format("verifier {}: {}", worker->second.hello.name, failed->message));
      return;
    }
    if (failed->code == Errc::kUnavailable) {  // as above. The rows of a whole text are too many to try again and again
      session.no_drafter = true;
      unassign_drafter(session, it->first, false);
      if (session.phase == Phase::kDrafting) end_drafting(session, it->first, now);
      return;
    }
    // What a drafter cannot do for one session it cannot do for the next.
    send(from, {.body = Refuse{failed->code, failed->message}});
    drop_worker(from, fmt::format("failed ({})", failed->message), now);
    return;
  }
  warn(fmt::format("'{}' from {} makes no sense here; dropped", name_of(message), worker->second.hello.name));
}

// ---- workers ----

const PairFacts* CoordinatorCore::verifier_facts() const {
  for (const auto& [peer, worker] : workers_) {
    if (worker.hello.role == Role::kVerifier) return &worker.hello.facts;
  }
  return nullptr;
}

void CoordinatorCore::warn_of_peer(const PeerId& peer, std::string text, TimePoint now) {
  std::erase_if(warnings_, [&](const auto& said) { return now - said.second.when > kWarningRepeat; });
  const auto said = warnings_.find(peer);
  if (said != warnings_.end() && said->second.text == text) return;
  if (said != warnings_.end() || warnings_.size() < kWarningsMax) warnings_[peer] = {text, now};
  warn(std::move(text));
}

void CoordinatorCore::on_hello(const PeerId& from, const Hello& hello, TimePoint now) {
  const auto refuse = [&](const PeerId& peer, const std::string& name, std::string why) {
    warn_of_peer(peer, fmt::format("refused {}: {}", name, why), now);
    send(peer, {.body = Refuse{Errc::kMismatch, std::move(why)}});
  };
  if (const auto worker = workers_.find(from); worker != workers_.end()) {
    const Hello& before = worker->second.hello;
    if (before.role != hello.role || !(before.facts == hello.facts))
      drop_worker(from, "introduced itself as something else", now);
  }
  if (const PairFacts* facts = verifier_facts(); facts != nullptr && !workers_.contains(from)) {
    if (auto why = mismatch(*facts, hello.facts)) return refuse(from, hello.name, *why);
  }
  const bool known = workers_.contains(from);
  Worker& worker = workers_[from];
  worker.hello = hello;
  worker.heard = now;
  if (!known) worker.membership = next_membership_++;
  send(from, {.body = Welcome{worker.membership}});
  if (known) return;
  inform(fmt::format("{} joined as {}", hello.name, hello.role == Role::kVerifier ? "verifier" : "drafter"));
  if (hello.role == Role::kDrafter) return;

  // Drafters may have come before the first verifier; it is the authority.
  std::vector<PeerId> unfit;
  for (const auto& [peer, other] : workers_) {
    if (other.hello.role != Role::kDrafter) continue;
    if (auto why = mismatch(hello.facts, other.hello.facts)) {
      refuse(peer, other.hello.name, *why);
      unfit.push_back(peer);
    }
  }
  for (const PeerId& peer : unfit) drop_worker(peer, "does not fit", now);
  start_waiting(now);
}

void CoordinatorCore::on_heartbeat(Worker& worker, const Heartbeat& heartbeat, TimePoint now) {
  const Duration rtt = now.time_since_epoch() - Duration(heartbeat.sent_ns);
  if (heartbeat.sent_ns <= 0 || rtt <= Duration::zero() || rtt > config_.link.peer_timeout) return;
  // Why not the mean: a worker in the middle of a forward pass answers late, which is not the way's fault. So the
  // estimate falls at once and rises by an eighth.
  worker.rtt = worker.rtt == Duration::zero() ? rtt : std::min(rtt, worker.rtt + (rtt - worker.rtt) / 8);
}

void CoordinatorCore::drop_worker(const PeerId& peer, const std::string& why, TimePoint now) {
  const auto worker = workers_.find(peer);
  if (worker == workers_.end()) return;
  const bool verifier = worker->second.hello.role == Role::kVerifier;
  const std::string name = worker->second.hello.name;
  const bool announced = worker->second.draining, warned_already = worker->second.suspect;
  const auto gone = workers_.extract(worker);  // policies of its sessions refer to it until these have ended below
  if (!warned_already) {
    notices_.push_back({!announced, fmt::format("{} {} {}{}", verifier ? "verifier" : "drafter", name, why,
                                                verifier || announced ? "" : "; going on without it")});
  }
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const auto current = it++;
    Session& session = current->second;
    if (verifier && session.verifier == peer) {
      fail(current, Errc::kPeerGone, fmt::format("verifier {} {}", name, why));
    } else if (!verifier && session.drafter == peer) {
      unassign_drafter(session, current->first, false);
      if (session.phase == Phase::kDrafting) end_drafting(session, current->first, now);
    }
  }
}

void CoordinatorCore::on_peer_gone(const PeerId& peer, TimePoint now) {
  drop_worker(peer, "closed its connection", now);
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const auto current = it++;
    if (current->second.client == peer) finish(current, Failed{Errc::kCancelled, "the client went away"});
  }
}

void CoordinatorCore::assign_drafter(Session& session) {
  if (!session.drafter.empty() || session.no_drafter) return;
  Worker* best = nullptr;
  for (auto& [peer, worker] : workers_) {
    if (!worker.may_draft()) continue;
    if (best != nullptr && best->sessions <= worker.sessions) continue;
    best = &worker;
    session.drafter = peer;
  }
  if (best == nullptr) return;
  ++best->sessions;
  session.replica_end = 0;
  session.kv = {};
}

void CoordinatorCore::unassign_drafter(Session& session, SessionId id, bool tell) {
  if (session.drafter.empty()) return;
  if (const auto worker = workers_.find(session.drafter); worker != workers_.end()) {
    --worker->second.sessions;
    if (tell) send(session.drafter, {.session = id, .body = Free{}});
  }
  session.drafter.clear();
  session.replica_end = 0;
  session.kv = {};
}

CoordinatorCore::Worker* CoordinatorCore::usable_drafter(const Session& session) {
  const auto worker = workers_.find(session.drafter);
  return worker == workers_.end() || worker->second.suspect ? nullptr : &worker->second;
}

// ---- sessions ----

void CoordinatorCore::on_generate(const PeerId& from, const Message& message, TimePoint now) {
  const auto& request = std::get<Generate>(message.body);
  const auto refuse = [&](Errc code, std::string why) {
    send(from, {.session = message.session, .body = Failed{code, std::move(why)}});
  };
  for (const auto& [id, session] : sessions_) {
    if (session.client == from && session.request_id == message.session) return;  // repeated
  }
  if (request.prompt.empty()) return refuse(Errc::kInvalidArgument, "the prompt is empty, wanted at least one token");
  if (request.max_tokens < 1) {
    return refuse(Errc::kInvalidArgument, fmt::format("max_tokens {}, wanted at least 1", request.max_tokens));
  }
  if (request.unverified && (request.draft_length < 1 || request.policy != DraftPolicy::kFixed || request.stepwise ||
                             request.sampling.logprobs)) {
    return refuse(Errc::kInvalidArgument,
                  "an unverified answer wants drafts of a fixed length, no steps and no log-probabilities");
  }
  if (const PairFacts* facts = verifier_facts()) {
    if (auto fine = check_request(request.prompt, request.sampling, *facts); !fine)
      return refuse(fine.error().code, fine.error().message);
  }
  if (waiting() >= config_.waiting_max) {
    return refuse(Errc::kUnavailable, fmt::format("{} requests are waiting, this coordinator lets {} wait", waiting(),
                                                  config_.waiting_max));
  }
  std::int64_t waiting_tokens = 0;
  for (const auto& [id, session] : sessions_)
    waiting_tokens += session.phase == Phase::kWaiting ? session.prompt_size : 0;
  if (waiting_tokens >= config_.waiting_tokens_max) {
    return refuse(Errc::kUnavailable, fmt::format("prompts of {} tokens are waiting, this coordinator lets {} wait",
                                                  waiting_tokens, config_.waiting_tokens_max));
  }
  // Fair queueing: one request of each client that waits, then the next of each.
  std::uint64_t last_turn = turn_;
  for (const auto& [id, session] : sessions_) {
    if (session.client == from) last_turn = std::max(last_turn, session.turn);
  }
  const auto it = sessions_.emplace(SessionId{next_session_++}, Session{}).first;
  Session& session = it->second;
  session.client = from;
  session.turn = last_turn + 1;
  session.request_id = message.session;
  session.request = request;
  session.text = std::move(session.request.prompt);
  session.prompt_size = std::ssize(session.text);
  session.opened = session.phase_since = now;
  send(from, {.session = message.session, .body = Heartbeat{}});  // taken
  start_waiting(now);
}

std::size_t CoordinatorCore::waiting() const {
  return static_cast<std::size_t>(std::count_if(
      sessions_.begin(), sessions_.end(), [](const auto& entry) { return entry.second.phase == Phase::kWaiting; }));
}

void CoordinatorCore::start_waiting(TimePoint now) {
  while (sessions_.size() - waiting() < config_.sessions_max) {
    auto first = sessions_.end();  // of two with the same turn the one that came first
    for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
      if (it->second.phase == Phase::kWaiting && (first == sessions_.end() || it->second.turn < first->second.turn))
        first = it;
    }
    // A large one is not overtaken by smaller ones, or it might never find room.
    if (first == sessions_.end() || !start(first, now)) return;
  }
}

std::int64_t CoordinatorCore::max_tokens_that_fit(std::int64_t prompt) const {
  std::int64_t most = 0;
  for (const auto& [peer, worker] : workers_) {
    if (worker.hello.role != Role::kVerifier || worker.draining) continue;
    const Capacity& capacity = worker.hello.capacity;
    const Position positions =
        std::min(capacity.kv_cost.positions(capacity.kv_bytes_max), worker.hello.facts.context_max);
    most = std::max(most, positions - prompt + 1);  // the last token of an answer needs no K/V
  }
  return most;
}

bool CoordinatorCore::start(Sessions::iterator it, TimePoint now) {
  Session& session = it->second;
  const std::int64_t asked = session.request.max_tokens,
                     fitting = session.request.shorten ? max_tokens_that_fit(session.prompt_size) : asked;
  if (fitting >= 1) session.request.max_tokens = std::min(asked, fitting);
  Worker* best = nullptr;
  PeerId best_peer;
  bool best_refuses = false, worth_waiting = false;
  for (auto& [peer, worker] : workers_) {
    if (worker.hello.role != Role::kVerifier || worker.draining) continue;
    const Capacity& capacity = worker.hello.capacity;
    const std::int64_t bytes =
        capacity.kv_cost.bytes(positions_max(session.prompt_size, session.request, worker.hello.facts));
    // What never fits is sent all the same: the verifier says best what is missing.
    const bool refuses = bytes > capacity.kv_bytes_max;
    worth_waiting = worth_waiting || !refuses;
    if (!refuses && (worker.sessions >= capacity.sessions_max || bytes > capacity.kv_bytes_max - worker.kv_bytes))
      continue;
    if (best != nullptr && std::pair(best_refuses, best->sessions) <= std::pair(refuses, worker.sessions)) continue;
    best = &worker;
    best_peer = peer;
    best_refuses = refuses;
  }
  if (best == nullptr || (best_refuses && worth_waiting)) {
    session.request.max_tokens = asked;
    return false;  // on_hello or on_tick come back
  }
  turn_ = std::max(turn_, session.turn);
  const PairFacts& facts = best->hello.facts;
  if (auto fine = check_request(session.text, session.request.sampling, facts); !fine) {
    fail(it, fine.error().code, fine.error().message);
    return true;
  }
  // The last token of an answer needs no K/V, so prompt + answer may be one longer than the context.
  session.request.max_tokens =
      std::min<std::int64_t>(session.request.max_tokens, facts.context_max - session.prompt_size + 1);
  session.verifier = best_peer;
  ++best->sessions;
  if (!session.request.stepwise)
    session.policy = policies_.make(session.request.policy, session.request.draft_length, best->costs);
  if (draft_room(session) > 0) assign_drafter(session);
  session.phase = Phase::kPrefill;
  if (!best_refuses) set_aside(session, positions_max(session.prompt_size, session.request, facts));
  Prefill prefill{.tokens = session.text,
                  .want_kv = !session.drafter.empty(),
                  .positions_max = session.request.stepwise ? 0 : session.prompt_size + session.request.max_tokens - 1,
                  .sampling = session.request.sampling,
                  .compute_all = session.request.unverified};
  if (prefill.sampling.min_tokens > 0) {
    // A stop id beyond the vocabulary never comes.
    std::copy_if(session.request.stop_ids.begin(), session.request.stop_ids.end(), std::back_inserter(prefill.stop_ids),
                 [&](TokenId id) { return id < facts.vocab_size; });
  }
  ask_verifier(session, {.session = it->first, .round = session.round, .base = 0, .body = std::move(prefill)}, now);
  return true;
}

void CoordinatorCore::set_aside(Session& session, Position positions) {
  Worker& verifier = workers_.at(session.verifier);
  const std::int64_t more = verifier.hello.capacity.kv_cost.bytes(positions) - session.kv_bytes;
  if (more <= 0) return;
  session.kv_bytes += more;
  verifier.kv_bytes += more;
}

void CoordinatorCore::ask_verifier(Session& session, Message message, TimePoint now) {
  session.outstanding = message;
  session.phase_since = session.asked = session.kept_alive = now;
  send(session.verifier, std::move(message));
}

void CoordinatorCore::on_kv_chunk(Session& session, SessionId id, KvRows kv) {
  if (usable_drafter(session) == nullptr || kv.empty() || kv.from != session.replica_end) return;
  session.replica_end = kv.to;
  send(session.drafter, {.session = id, .round = session.round, .base = kv.from, .body = KvChunk{std::move(kv)}});
}

void CoordinatorCore::on_candidates(Sessions::iterator it, Candidates candidates, TimePoint now) {
  Session& session = it->second;
  const PairFacts& facts = workers_.at(session.verifier).hello.facts;
  const auto limit =
      static_cast<std::size_t>(std::min<std::int64_t>(session.request.draft_length, drafts_left(session)));
  const bool sound =
      candidates.tokens.size() <= limit && (candidates.q.empty() || candidates.q.size() == candidates.tokens.size()) &&
      std::all_of(candidates.tokens.begin(), candidates.tokens.end(), [&](TokenId t) { return t < facts.vocab_size; });
  const std::int64_t waited = (now - session.asked).count(),
                     drafting = std::clamp<std::int64_t>(candidates.draft_ns, 0, waited);
  session.metrics.draft_ns += drafting;
  session.metrics.wire_ns += waited - drafting;
  session.outcome.draft_s = to_seconds(Duration(drafting));
  session.outcome.draft_wire_s = to_seconds(Duration(waited - drafting));
  if (sound) {
    session.drafts = std::move(candidates.tokens);
    session.q = std::move(candidates.q);
  } else {
    warn(fmt::format("{} candidates with {} distributions, or ids beyond the vocabulary of {}: dropped",
                     candidates.tokens.size(), candidates.q.size(), facts.vocab_size));
  }
  if (!session.request.unverified || session.drafts.empty()) return end_drafting(session, it->first, now);
  session.metrics.drafting_rounds += 1;
  session.metrics.drafted_tokens += std::ssize(session.drafts);
  session.hidden = std::move(candidates.state);
  if (!emit(it, std::move(session.drafts), {}, {}, now)) next_round(session, it->first, now, false);
}

void CoordinatorCore::send_verify(Session& session, SessionId id, TimePoint now) {
  // A policy that wants plain rounds is spared the drafter's input; when it wants drafts again, one round fetches it.
  const bool wanted = session.policy == nullptr || session.choice.length > 0;
  const bool drafting_goes_on = wanted && usable_drafter(session) != nullptr && tokens_left(session) > 1;
  std::vector<TokenId> tokens = {session.text.back()};
  tokens.insert(tokens.end(), session.drafts.begin(), session.drafts.end());
  session.phase = Phase::kVerifying;
  if (session.request.stepwise) set_aside(session, base_of(session) + std::ssize(tokens));
  Verify verify{.tokens = std::move(tokens),
                .kv_from = drafting_goes_on ? std::optional(session.replica_end) : std::nullopt};
  const SamplingParams& sampling = session.request.sampling;
  if (!sampling.greedy() && sampling.rule == SamplingRule::kRejection) verify.q = session.q;  // else drafts must match
  ask_verifier(session, {.session = id, .round = session.round, .base = base_of(session), .body = std::move(verify)},
               now);
}

std::int64_t CoordinatorCore::draft_room(const Session& session) const {
  const std::int64_t room = std::min<std::int64_t>(session.request.draft_length, drafts_left(session));
  if (session.request.policy != DraftPolicy::kAuto) return room;
  // Rows of all sessions share forward passes, and what drafts gain one session the others lose, which no session's own
  // policy can see.
  const auto others = std::count_if(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    const Session& other = entry.second;
    return &other != &session && other.verifier == session.verifier &&
           (other.phase == Phase::kDrafting || other.phase == Phase::kVerifying);
  });
  return std::min<std::int64_t>(room, kSharedRows / (others + 1) - 1);
}

void CoordinatorCore::next_round(Session& session, SessionId id, TimePoint now, bool catch_up) {
  session.round = next(session.round);
  session.drafts.clear();
  session.q.clear();
  session.asked_drafter = false;
  session.outcome = {};
  session.round_began = now;
  const std::int64_t room = draft_room(session);
  if (room > 0) {
    const bool other =
        std::any_of(workers_.begin(), workers_.end(), [](const auto& entry) { return entry.second.may_draft(); });
    if (usable_drafter(session) == nullptr && other) unassign_drafter(session, id, true);
    assign_drafter(session);
    const Worker* drafter = usable_drafter(session);
    if (drafter != nullptr && drafter->draining) {
      unassign_drafter(session, id, true);
    } else if (drafter != nullptr && session.kv.from == session.replica_end &&
               (catch_up || session.kv.to < base_of(session))) {
      // Such rows travel by themselves, so that a round's bytes can be told from them.
      // A long history comes in pieces, one a round, and ends short of base until the last.
      on_kv_chunk(session, id, std::exchange(session.kv, {}));
    }
  }
  if (!session.request.stepwise) return draft(session, id, std::max<std::int64_t>(room, 0), now);
  session.phase = Phase::kPaused;
  session.phase_since = now;
}

void CoordinatorCore::draft(Session& session, SessionId id, std::int64_t room, TimePoint now) {
  std::span<const TokenId> ngram;
  if (room > 0 && Policies::takes_ngram(session.request.policy))
    ngram = ngram_draft(session.text, static_cast<std::size_t>(room));
  session.choice = session.policy->choose({.assistant = usable_drafter(session) != nullptr ? static_cast<int>(room) : 0,
                                           .ngram = static_cast<int>(ngram.size())});
  session.outcome.source = session.choice.source;
  session.outcome.arm = session.choice.arm;
  if (session.choice.source == DraftSource::kAssistant) return ask_drafter(session, id, session.choice.length, now);
  session.drafts.assign(ngram.begin(), ngram.begin() + session.choice.length);
  end_drafting(session, id, now);
}

void CoordinatorCore::ask_drafter(Session& session, SessionId id, std::int64_t draft_length, TimePoint now) {
  const Position base = base_of(session);
  const bool continues = session.kv.from == session.replica_end && session.kv.to == base,
             up_to_date = session.replica_end == base;
  if (draft_length <= 0 || usable_drafter(session) == nullptr || !session.hidden || (!continues && !up_to_date)) {
    return end_drafting(session, id, now);
  }
  session.phase = Phase::kDrafting;
  session.phase_since = session.asked = now;
  session.replica_end = base;
  session.outcome.draft_rows = static_cast<int>(up_to_date ? 0 : base - session.kv.from);
  SamplingParams sampling = session.request.sampling;
  sampling.logprobs.reset();  // the target's matter
  send(session.drafter,
       {.session = id,
        .round = session.round,
        .base = base,
        .body = Draft{.token = session.text.back(),
                      .draft_length = static_cast<std::int32_t>(draft_length),
                      .hidden = std::move(*session.hidden),
                      .kv = up_to_date ? KvRows{.from = base, .to = base, .donors = {}} : std::move(session.kv),
                      .sampling = sampling == SamplingParams{} ? std::nullopt : std::optional(std::move(sampling)),
                      .index = answered(session),
                      .want_state = session.request.unverified,
                      .want_q = logs_rejections(session)}});
  session.hidden.reset();
  session.kv = {};
}

void CoordinatorCore::end_drafting(Session& session, SessionId id, TimePoint now) {
  if (session.request.unverified)
    return fail(sessions_.find(id), Errc::kUnavailable,
                "no drafter has drafted: without a verifier the answer ends here");
  if (!session.request.stepwise) return send_verify(session, id, now);
  session.phase = Phase::kPaused;
  session.phase_since = now;
  send(session.client, {.session = session.request_id, .body = Candidates{.tokens = session.drafts}});
}

void CoordinatorCore::on_step(const PeerId& from, const Message& message, TimePoint now) {
  const auto& step = std::get<Step>(message.body);
  const auto refuse = [&](Errc code, std::string why) {
    send(from, {.session = message.session, .body = Failed{code, std::move(why)}});
  };
  const auto it = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return entry.second.client == from && entry.second.request_id == message.session;
  });
  if (it == sessions_.end()) return refuse(Errc::kNotFound, "a step of a session that is not open");
  Session& session = it->second;
  if (session.phase != Phase::kPaused) return refuse(Errc::kInvalidArgument, "a step of a session that waits for none");
  session.keep_alives = 0;
  if (step.draft_length > 0) {
    // A second draft of one round shows the first again: its hidden row and K/V are the same.
    session.request.draft_length = step.draft_length;
    if (std::exchange(session.asked_drafter, true)) {
      session.drafts.resize(std::min(session.drafts.size(), static_cast<std::size_t>(step.draft_length)));
      return end_drafting(session, it->first, now);
    }
    return ask_drafter(session, it->first, draft_room(session), now);
  }
  const PairFacts& facts = workers_.at(session.verifier).hello.facts;
  for (const TokenId token : step.drafts) {
    if (token >= facts.vocab_size) {
      return refuse(Errc::kInvalidArgument,
                    fmt::format("draft token id {}, the vocabulary has {}", token, facts.vocab_size));
    }
  }
  if (std::ssize(step.drafts) > tokens_left(session) - 1) {
    return refuse(Errc::kInvalidArgument,
                  fmt::format("{} drafts, the context has room for {}", step.drafts.size(), tokens_left(session) - 1));
  }
  session.drafts = step.drafts;
  session.q.clear();  // the client says what it drafts, not from what
  send_verify(session, it->first, now);
}

void CoordinatorCore::on_verdict(Sessions::iterator it, Message message, TimePoint now) {
  Session& session = it->second;
  auto& verdict = std::get<Verdict>(message.body);
  Worker& verifier = workers_.at(session.verifier);
  const bool prefill = session.phase == Phase::kPrefill;
  const Position committed = prefill ? session.prompt_size : base_of(session) + verdict.accepted + 1;
  if (verdict.accepted < 0 || verdict.accepted > static_cast<std::int64_t>(session.drafts.size()) ||
      verdict.committed != committed || verdict.next_token < 0 ||
      verdict.next_token >= verifier.hello.facts.vocab_size) {
    return fail(it, Errc::kMalformed,
                fmt::format("verifier {} accepted {} of {} drafts and committed {}, wanted {}", verifier.hello.name,
                            verdict.accepted, session.drafts.size(), verdict.committed, committed));
  }
  if (!fits(verdict.logprobs, session.request.sampling.logprobs, static_cast<std::size_t>(verdict.accepted) + 1,
            verifier.hello.facts.vocab_size)) {
    return fail(it, Errc::kMalformed,
                fmt::format("verifier {} sent {} logprobs for {} tokens, or not those that were asked for",
                            verifier.hello.name, verdict.logprobs.size(), verdict.accepted + 1));
  }
  RequestMetrics& metrics = session.metrics;
  if (prefill) {
    session.first_token = now;
    metrics.prefill_ns = (now - session.opened).count();
    metrics.cached_prompt_tokens = std::min(verdict.cached_tokens, committed);
  } else {
    ++metrics.rounds;
    const std::int64_t waited = (now - session.asked).count(),
                       verifying = std::clamp<std::int64_t>(verdict.verify_ns, 0, waited);
    metrics.verify_ns += verifying;
    metrics.wire_ns += waited - verifying;
    session.outcome.drafted = static_cast<int>(session.drafts.size());
    session.outcome.accepted = verdict.accepted;
    session.outcome.verify_s = to_seconds(Duration(verifying));
    session.outcome.round_s = to_seconds(now - session.round_began);
    if (session.policy != nullptr) {
      verifier.costs.observe(session.outcome);
      session.policy->observe(session.outcome);
    }
    if (!session.drafts.empty()) {
      ++metrics.drafting_rounds;
      const std::size_t drafted = session.drafts.size();
      if (session.outcome.source == DraftSource::kNgram) {
        ++metrics.ngram_rounds;
        metrics.ngram_drafted_tokens += session.outcome.drafted;
        metrics.ngram_accepted_tokens += session.outcome.accepted;
      }
      metrics.drafted_tokens += static_cast<std::int64_t>(drafted);
      if (metrics.drafted_per_position.size() < drafted) {
        metrics.drafted_per_position.resize(drafted);
        metrics.accepted_per_position.resize(drafted);
      }
      for (std::size_t i = 0; i < drafted; ++i) ++metrics.drafted_per_position[i];
      for (std::int32_t i = 0; i < verdict.accepted; ++i) ++metrics.accepted_per_position[static_cast<std::size_t>(i)];
      metrics.accepted_tokens += verdict.accepted;
      const auto slot = static_cast<std::size_t>(verdict.accepted);
      if (logs_rejections(session) && slot < drafted) {
        Rejection& rejection = rejections_.emplace_back(Rejection{.session = it->first,
                                                                  .round = session.round,
                                                                  .base = base_of(session),
                                                                  .source = session.outcome.source,
                                                                  .slot = verdict.accepted,
                                                                  .draft = session.drafts[slot],
                                                                  .target = verdict.next_token});
        if (!session.q.empty()) compare(rejection, session.q[slot]);
      }
    }
  }

  // The accepted drafts and the target's own token.
  std::vector<TokenId> fresh(session.drafts.begin(), session.drafts.begin() + verdict.accepted);
  fresh.push_back(verdict.next_token);
  std::optional<RoundReport> report;
  if (session.request.report_rounds && !prefill)
    report = {.draft_length = session.choice.length, .drafts = session.drafts, .outcome = session.outcome};
  if (emit(it, std::move(fresh), std::move(verdict.logprobs), std::move(report), now)) return;

  session.hidden = std::move(verdict.hidden);
  session.kv = {};
  if (auto fine = check_rows(verifier.hello.facts, verdict.kv); !fine) {
    warn(fmt::format("verifier {}: {}; dropped", verifier.hello.name, fine.error().message));
  } else {
    session.kv = std::move(verdict.kv);
  }
  next_round(session, it->first, now, prefill || session.request.stepwise || session.kv.from < message.base);
}

bool CoordinatorCore::emit(Sessions::iterator it, std::vector<TokenId> fresh, std::vector<TokenLogprobs> logprobs,
                           std::optional<RoundReport> round, TimePoint now) {
  Session& session = it->second;
  const auto stop =
      std::find_if(fresh.begin(), fresh.end(), [&](TokenId t) { return contains(session.request.stop_ids, t); });
  const bool stopped = stop != fresh.end();
  if (stopped) fresh.erase(stop + 1, fresh.end());
  if (!logprobs.empty()) logprobs.resize(fresh.size());
  CHECK(static_cast<std::int64_t>(fresh.size()) <= tokens_left(session), "{} tokens, {} left", fresh.size(),
        tokens_left(session));
  const std::int64_t index = answered(session);
  session.text.insert(session.text.end(), fresh.begin(), fresh.end());
  session.last_token = now;
  session.metrics.decode_ns = (now - session.first_token).count();
  send(session.client,
       {.session = session.request_id, .body = Tokens{index, std::move(fresh), std::move(logprobs), std::move(round)}});
  if (!stopped && tokens_left(session) > 0) return false;
  finish(it, Done{stopped ? FinishReason::kStop : FinishReason::kLength, session.metrics});
  return true;
}

void CoordinatorCore::on_client_cancel(const PeerId& from, SessionId request_id, const Cancel& cancel) {
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    if (it->second.client != from || it->second.request_id != request_id) continue;
    if (!cancel.keep) return finish(it, Failed{Errc::kCancelled, "cancelled"});
    if (const std::int64_t had = answered(it->second); *cancel.keep > had) {
      return fail(it, Errc::kInvalidArgument, fmt::format("{} tokens to keep, the answer has {}", *cancel.keep, had));
    }
    return finish(it, Done{FinishReason::kStop, it->second.metrics});
  }
}

void CoordinatorCore::finish(Sessions::iterator it, Body last) {
  Session& session = it->second;
  unassign_drafter(session, it->first, true);
  if (const auto worker = workers_.find(session.verifier); worker != workers_.end()) {
    --worker->second.sessions;
    worker->second.kv_bytes -= session.kv_bytes;
    send(session.verifier, {.session = it->first, .body = Free{}});
  }
  send(session.client, {.session = session.request_id, .body = std::move(last)});
  sessions_.erase(it);
}

void CoordinatorCore::fail(Sessions::iterator it, Errc code, std::string message) {
  finish(it, Failed{code, std::move(message)});
}

// ---- time ----

void CoordinatorCore::on_tick(TimePoint now) {
  std::vector<PeerId> silent;
  for (const auto& [peer, worker] : workers_) {
    if (now - worker.heard > config_.link.peer_timeout) silent.push_back(peer);
  }
  for (const PeerId& peer : silent) {
    drop_worker(peer, fmt::format("has not been heard for {:.1f} s", to_seconds(config_.link.peer_timeout)), now);
  }
  start_waiting(now);
  const bool some_verifier = std::any_of(workers_.begin(), workers_.end(), [](const auto& entry) {
    return entry.second.hello.role == Role::kVerifier && !entry.second.draining;
  });
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const auto current = it++;
    Session& session = current->second;
    if (session.phase == Phase::kWaiting && some_verifier) session.phase_since = now;  // for room; nobody says how long
    const Duration waited = now - session.phase_since;
    switch (session.phase) {
      case Phase::kWaiting:
        if (!some_verifier && waited >= std::chrono::milliseconds(session.request.wait_ms)) {
          fail(current, Errc::kUnavailable, fmt::format("no verifier joined within {:.1f} s", to_seconds(waited)));
        }
        break;
      case Phase::kDrafting:
        if (waited < config_.draft_timeout && to_seconds(waited) < session.choice.patience_s) break;
        session.outcome.draft_wire_s = to_seconds(waited);
        if (waited < config_.draft_timeout) {  // the drafter may be well; these drafts are not worth the wait
          end_drafting(session, current->first, now);
          break;
        }
        if (Worker* drafter = usable_drafter(session)) {
          drafter->suspect = true;
          drafter->ask_again = now + drafter->retry;
          drafter->retry = std::clamp(2 * drafter->retry, config_.draft_retry_min, config_.draft_retry_max);
          warn_of_peer(session.drafter,
                       fmt::format("drafter {} did not answer within {:.1f} s; going on without it",
                                   drafter->hello.name, to_seconds(config_.draft_timeout)),
                       now);
        }
        end_drafting(session, current->first, now);
        break;
      case Phase::kPaused:
        if (now - session.kept_alive < config_.keep_alive) break;
        if (++session.keep_alives > config_.keep_alives_max) {
          fail(current, Errc::kTimeout,
               fmt::format("no step for {:.0f} s", to_seconds(config_.keep_alive * session.keep_alives)));
          break;
        }
        session.kept_alive = now;
        send(session.verifier, *session.outstanding);
        send(session.client, {.session = session.request_id, .body = Heartbeat{}});
        break;
      case Phase::kPrefill:
      case Phase::kVerifying:
        if (waited < config_.verify_resend) break;
        session.phase_since = now;
        send(session.verifier, *session.outstanding);
        break;
    }
  }
  if (next_heartbeat_ && now < *next_heartbeat_) return;
  next_heartbeat_ = now + config_.link.heartbeat_interval;
  for (const auto& [peer, worker] : workers_) send(peer, {.body = Heartbeat{now.time_since_epoch().count()}});
  for (const auto& [id, session] : sessions_) {
    if (session.phase != Phase::kPaused) send(session.client, {.session = session.request_id, .body = Heartbeat{}});
  }
}

std::optional<TimePoint> CoordinatorCore::next_deadline() const {
  std::optional<TimePoint> first;
  for (const auto& [id, session] : sessions_) {
    if (session.phase != Phase::kDrafting || session.choice.patience_s >= to_seconds(config_.draft_timeout)) continue;
    const TimePoint due = session.phase_since + std::chrono::duration_cast<Duration>(
                                                    std::chrono::duration<double>(session.choice.patience_s));
    if (!first || due < *first) first = due;
  }
  return first;
}

void CoordinatorCore::on_sent(const Message& message, std::size_t bytes) {
  const auto it = sessions_.find(message.session);
  if (it == sessions_.end()) return;
  RequestMetrics& metrics = it->second.metrics;
  const auto count = static_cast<std::int64_t>(bytes);
  if (std::holds_alternative<Draft>(message.body)) {
    metrics.wire_bytes_to_drafter += count;
    it->second.outcome.draft_bytes = count;
  }
  if (std::holds_alternative<KvChunk>(message.body)) metrics.wire_bytes_to_drafter_prompt += count;
  if (std::holds_alternative<Verify>(message.body) || std::holds_alternative<Prefill>(message.body)) {
    metrics.wire_bytes_to_verifier += count;
  }
}

Status CoordinatorCore::status() const {
  Status status{.sessions = static_cast<std::int32_t>(sessions_.size()),
                .waiting = static_cast<std::int32_t>(waiting())};
  for (const auto& [peer, worker] : workers_) {
    ++(worker.hello.role == Role::kVerifier ? status.verifiers : status.drafters);
    if (status.workers.size() == kWorkersMax) continue;
    // Two hosts may have one name, and one worker is here twice after a reconnect, until the old peer counts as gone.
    std::string name = worker.hello.name;
    const auto is_taken = [&] {
      return std::ranges::any_of(status.workers, [&](const WorkerStatus& other) { return other.name == name; });
    };
    for (int n = 2; is_taken(); ++n) name = fmt::format("{}#{}", worker.hello.name, n);
    status.workers.push_back(
        {.role = worker.hello.role,
         .name = std::move(name),
         .sessions = worker.sessions,
         .draining = worker.draining,
         .rtt_ns = worker.rtt.count(),
         .kv_bytes = worker.kv_bytes,
         .kv_bytes_max = worker.hello.role == Role::kVerifier ? worker.hello.capacity.kv_bytes_max : 0});
  }
  return status;
}

}  // namespace outrider
