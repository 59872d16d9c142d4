#include "verifier-node/verifier_core.h"

#include <span>
#include <utility>

#include <fmt/format.h>

#include "common/base/token_tree.h"
#include "common/wire/messages/donor_rows.h"

namespace outrider {
VerifierCore::VerifierCore(const VerifierConfig& config, Hello hello)
    : config_(config), membership_(config.link, std::move(hello), config.capacity), cache_(config.capacity.kv_cost) {}

void VerifierCore::on_message(Message message, TimePoint now) {
  const Membership::Event event = membership_.on_message(message, now);
  if (event == Membership::Event::kForgetSessions) forget_all();
  if (event != Membership::Event::kSession) return;
  if (std::holds_alternative<Prefill>(message.body)) return admit(std::move(message), now);
  if (const auto* verify = std::get_if<Verify>(&message.body)) return on_verify(message, *verify, now);
  if (std::holds_alternative<Free>(message.body)) {
    freed_.add(message.session, message.round);
    // A session that has come back since, in a later round, stays.
    const auto ends = [&](RoundId round) { return round <= message.round; };
    if (const auto held = held_.find(message.session); held != held_.end() && ends(held->second.message.round))
      held_.erase(held);
    const auto known = sessions_.find(message.session);
    if (known != sessions_.end() && ends(known->second.round)) free(message.session);
    return;
  }
  membership_.warn(fmt::format("a verifier has no use for '{}'; dropped", name_of(message)), message.session);
}

Result<void> VerifierCore::check_ids(const char* what, const std::vector<TokenId>& tokens) const {
  for (const TokenId token : tokens) {
    if (token < 0 || token >= membership_.facts().vocab_size)
      return Error(Errc::kInvalidArgument, "{} id {}, vocabulary has {}", what, token, membership_.facts().vocab_size);
  }
  return {};
}

Result<void> VerifierCore::check_tokens(const std::vector<TokenId>& tokens, Position base) const {
  RETURN_IF_ERROR(check_ids("token", tokens));
  const Position end = base + static_cast<Position>(tokens.size());
  if (end > membership_.facts().context_max)
    return Error(Errc::kOutOfRange, "position {}, the context holds {}", end, membership_.facts().context_max);
  return {};
}

Result<SoftTokens> VerifierCore::soft_tokens(const WireMedium& medium) const {
  if (medium.is_encoded()) {
    RETURN_IF_ERROR(check_encoded(membership_.facts(), medium));
    return SoftTokens{.count = medium.content.shape[0], .together = medium.together};
  }
  if (config_.soft_tokens) return config_.soft_tokens(medium);
  return Error(Errc::kUnsupported, "this verifier takes no {}s but those of an encoder",
               medium.is_sound() ? "sound" : "picture");
}

Result<std::vector<PromptMedium>> VerifierCore::place_media(const Prefill& prefill) const {
  std::vector<PromptMedium> media;
  const Position prompt_end = std::ssize(prefill.tokens) - prefill.answered;
  for (const WireMedium& medium : prefill.media) {
    const char* const what = medium.is_encoded() ? "picture or sound" : medium.is_sound() ? "sound" : "picture";
    ASSIGN_OR_RETURN(const SoftTokens soft, soft_tokens(medium));
    const Position begin = media.empty() ? 0 : media.back().end;
    if (medium.first < begin || medium.first + soft.count >= prompt_end) {
      return Error(Errc::kInvalidArgument,
                   "a {} of {} soft tokens at position {}, wanted between {} and the prompt's last "
                   "token, {}",
                   what, soft.count, medium.first, begin, prompt_end - 1);
    }
    if (soft.together && soft.count > config_.rows_max) {
      return Error(Errc::kUnsupported,
                   "a {} of {} soft tokens, a forward pass of this verifier takes "
                   "{}: choose a smaller number of soft tokens",
                   what, soft.count, config_.rows_max);
    }
    media.push_back({medium, medium.first + soft.count, soft.together});
  }
  return media;
}

Result<std::int64_t> VerifierCore::set_aside(std::int64_t held, Position positions,
                                             const std::vector<WireMedium>& media) {
  const std::int64_t needed =
      config_.capacity.kv_cost.bytes(std::min(positions, membership_.facts().context_max)) + media_bytes(media);
  if (needed <= held) return held;
  const std::int64_t left = config_.capacity.kv_bytes_max - (kv_bytes_ - held);
  if (needed > left) {
    const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    // It would fit alone, and so may be retried.
    return Error(needed > config_.capacity.kv_bytes_max ? Errc::kUnsupported : Errc::kUnavailable,
                 "{} positions need {:.1f} MiB of K/V and media, {:.1f} MiB are left of this verifier's {:.1f} MiB: "
                 "{:.1f} MiB are missing",
                 positions, mib(needed), mib(left), mib(config_.capacity.kv_bytes_max), mib(needed - left));
  }
  kv_bytes_ += needed - held;
  return needed;
}

void VerifierCore::admit(Message message, TimePoint now) {
  const auto& prefill = std::get<Prefill>(message.body);
  const std::string& grammar = prefill.sampling.grammar;
  VerifierConfig::GrammarWait wait;
  if (!grammar.empty()) {
    if (!config_.want_grammar) return fail(message, {Errc::kUnsupported, "this verifier follows no grammars"});
    wait = config_.want_grammar(grammar, prefill.cache_scope);
  }
  Held held{std::move(message), std::move(wait)};
  if (try_admit(held, now)) return;
  membership_.answer(held.message, Heartbeat{});  // in work, however often it is repeated
  const SessionId id = held.message.session;
  held_.insert_or_assign(id, std::move(held));
}

bool VerifierCore::try_admit(const Held& held, TimePoint now) {
  const SessionId id = held.message.session;
  if (const auto known = sessions_.find(id); known != sessions_.end() && known->second.round < held.message.round) {
    free(id);  // it was elsewhere and is back
    if (sessions_.contains(id)) return false;
  }
  Result<std::shared_ptr<const Grammar>> grammar = std::shared_ptr<const Grammar>();
  if (held.grammar) grammar = held.grammar();
  if (held.grammar && grammar && *grammar == nullptr) return false;
  if (grammar)
    on_prefill(held.message, *std::move(grammar), now);
  else
    fail(held.message, grammar.error());
  return true;
}

void VerifierCore::on_prefill(const Message& message, std::shared_ptr<const Grammar> grammar, TimePoint now) {
  const auto& prefill = std::get<Prefill>(message.body);
  if (freed_.contains(message.session, message.round)) return;
  if (const auto known = sessions_.find(message.session); known != sessions_.end()) {
    std::optional<VerifyWork>& request = known->second.request;
    if (!request) known->second.since = now;
    if (message.round < known->second.round) return;  // late
    if (request && !prefill.kv_from) request->kv_from.reset();  // its rows are not needed any more
    return on_repeated(known->second, message);
  }
  if (value(message.session) >= kFirstKept) {
    return fail(message,
                {Errc::kInvalidArgument, fmt::format("session {}, wanted one below 2^63", value(message.session))});
  }
  if (auto ok = check_tokens(prefill.tokens, 0); !ok) return fail(message, ok.error());
  if (prefill.answered >= std::ssize(prefill.tokens)) {
    return fail(message, {Errc::kInvalidArgument, "{} tokens of an answer, wanted fewer than all {}", prefill.answered,
                          prefill.tokens.size()});
  }
  if (prefill.kv_from && *prefill.kv_from > std::ssize(prefill.tokens)) {
    return fail(message,
                {Errc::kOutOfRange, "K/V wanted from {}, there will be {}", *prefill.kv_from, prefill.tokens.size()});
  }
  if (auto ok = check_ids("stop token", prefill.stop_ids); !ok) return fail(message, ok.error());
  if (auto ok = check_sampling(prefill.sampling, membership_.facts().vocab_size); !ok) return fail(message, ok.error());
  if (prefill.sampling.prompt_logprobs && !prefill.media.empty())
    return fail(message, {Errc::kUnsupported, "log-probabilities of a prompt with pictures or sounds"});
  Result<std::vector<PromptMedium>> media = place_media(prefill);
  if (!media) return fail(message, media.error());
  // As with memory, a freed session does not count, although its rows may be in the current batch.
  const auto open =
      std::count_if(sessions_.begin(), sessions_.end(), [](const auto& entry) { return !entry.second.freed; });
  if (open >= config_.capacity.sessions_max) {
    return fail(message,
                {Errc::kUnavailable, "{} sessions, this verifier takes {}", open, config_.capacity.sessions_max});
  }
  if (const SessionId kept{next_kept_}; cache_.rename(message.session, kept)) {  // it is back
    renamed_.emplace_back(message.session, kept);
    ++next_kept_;
  }
  const Result<std::int64_t> kv_bytes =
      set_aside(0, std::max(prefill.positions_max, static_cast<Position>(prefill.tokens.size())), prefill.media);
  if (!kv_bytes) return fail(message, kv_bytes.error());
  Session& session = sessions_[message.session];
  session.kv_bytes = *kv_bytes;
  session.rejection = !prefill.sampling.greedy() && prefill.sampling.rule == SamplingRule::kRejection;
  session.round = message.round;
  session.since = now;
  session.prompt = {.kv_sent = prefill.kv_from.value_or(0), .scored = prefill.sampling.prompt_logprobs.has_value()};
  session.cache_scope = prefill.cache_scope;
  session.media = prefill.media;
  session.request = VerifyWork{.session = message.session,
                               .round = message.round,
                               .base = 0,
                               .tokens = prefill.tokens,
                               .prefill = true,
                               .answered = prefill.answered,
                               .kv_from = prefill.kv_from,
                               .wire = prefill.wire,
                               .sampling = prefill.sampling,
                               .grammar = std::move(grammar),
                               .stop_ids = prefill.stop_ids,
                               .media = *std::move(media)};
  queue_.push_back(message.session);
}

void VerifierCore::on_repeated(const Session& session, const Message& request) {
  if (session.freed) return;
  if (session.last_verdict && session.last_verdict->round == request.round)
    return membership_.send(*session.last_verdict);
  membership_.answer(request, Heartbeat{});
}

void VerifierCore::on_verify(const Message& message, const Verify& verify, TimePoint now) {
  const auto known = sessions_.find(message.session);
  if (known == sessions_.end()) {
    // A late duplicate, or this verifier was restarted; the coordinator can tell.
    return fail(message, {Errc::kNotFound, "session {} is not known here", value(message.session)});
  }
  Session& session = known->second;
  if (!session.request) session.since = now;
  if (message.round < session.round || session.freed) return;  // late
  if (message.round == session.round) return on_repeated(session, message);
  if (session.request) return;  // a coordinator never overtakes its own round
  if (message.base != std::ssize(session.committed)) {
    return fail(message,
                {Errc::kMismatch, "verify at position {}, committed are {}", message.base, session.committed.size()});
  }
  if (static_cast<std::int64_t>(verify.tokens.size()) > config_.rows_max) {
    return fail(message, {Errc::kOutOfRange, "{} rows to verify, this verifier takes {}", verify.tokens.size(),
                          config_.rows_max});
  }
  if (auto ok = check_tokens(verify.tokens, message.base); !ok) return fail(message, ok.error());
  if (auto ok = TokenTree(std::ssize(verify.tokens) - 1, verify.depths).check(); !ok)
    return fail(message, {Errc::kMismatch, ok.error().message});
  if (verify.kv_from && (*verify.kv_from < 0 || *verify.kv_from > message.base))
    return fail(message, {Errc::kOutOfRange, "K/V wanted from {}, committed are {}", *verify.kv_from, message.base});
  if (!verify.q.empty() && (!session.rejection || verify.q.size() + 1 != verify.tokens.size())) {
    return fail(message,
                {Errc::kMismatch,
                 fmt::format("{} distributions for {} drafts, wanted {}", verify.q.size(), verify.tokens.size() - 1,
                             session.rejection ? "as many or none" : "none: the rule is not rejection")});
  }
  const Result<std::int64_t> kv_bytes =
      set_aside(session.kv_bytes, message.base + static_cast<Position>(verify.tokens.size()), session.media);
  if (!kv_bytes) return fail(message, kv_bytes.error());
  session.kv_bytes = *kv_bytes;
  session.round = message.round;
  session.request = VerifyWork{.session = message.session,
                               .round = message.round,
                               .base = message.base,
                               .tokens = verify.tokens,
                               .kv_from = verify.kv_from,
                               .wire = verify.wire,
                               .q = verify.q,
                               .depths = verify.depths};
  queue_.push_back(message.session);
  window_.returned(message.session, std::ssize(verify.tokens), now);
}

std::int64_t VerifierCore::prompt_rows_max() const {
  return sessions_.size() > 1 ? config_.prefill_chunk : config_.rows_max;
}

Duration VerifierCore::window(TimePoint now) const {
  std::int64_t rows = 0;
  const std::int64_t prompt_rows = prompt_rows_max();
  for (const SessionId id : queue_) {
    const Session& session = sessions_.at(id);
    const std::int64_t left = std::ssize(session.request->tokens) - session.prompt.done;
    rows += session.request->prefill ? std::min(left, prompt_rows) : left;
  }
  return window_.wait(std::ssize(queue_), rows, now);
}

void VerifierCore::form_batch(TimePoint now) {
  due_.reset();
  if (forward_.out || queue_.empty()) return;
  if (const Duration wait = window(now); wait > Duration::zero()) {
    due_ = now + wait;
    return;
  }
  forward_.began = now;
  Batch batch;
  batch.room = config_.rows_max;
  batch.scored_room = config_.scored_rows_max;
  // Verifies go first, since they are short and their answers are streamed; prompts get the remaining rows. If verifies
  // left less than a chunk of a full forward, prompts go first next time, so that they do not starve.
  const bool prompts_first = std::exchange(prompts_first_, false);
  take_requests(prompts_first, batch);
  take_requests(!prompts_first, batch);
  const bool starved = batch.room == 0 && batch.prompt_rows < config_.prefill_chunk;
  prompts_first_ = !prompts_first && (starved || batch.medium_kept_out);
  for (KeptSequence& sequence : batch.kept) cache_.keep(std::move(sequence));
  trim_cache(batch.work);
  forward_.work = std::move(batch.work);
  forward_.rows = config_.rows_max - batch.room;
  forward_.prompts = batch.prompt_rows > 0;
  forward_.out = !forward_.work.empty();
  if (!forward_.out) return;
  ++forward_.number;
  window_.forward_began(now);
}

void VerifierCore::take_requests(bool prefill, Batch& batch) {
  for (auto it = queue_.begin(); it != queue_.end();) {
    Session& session = sessions_.at(*it);
    const VerifyWork& request = *session.request;
    std::optional<VerifyWork> work;
    if (request.prefill == prefill && batch.room >= (prefill ? 1 : std::ssize(request.tokens)))
      work = prefill ? next_chunk(session, batch) : request;
    if (!work) {
      ++it;
      continue;
    }
    session.rows_out = std::ssize(work->tokens);
    batch.room -= session.rows_out;
    if (prefill) batch.prompt_rows += session.rows_out;
    if (prefill && session.prompt.scored) batch.scored_room -= session.rows_out;
    batch.work.push_back(std::move(*work));
    it = queue_.erase(it);
  }
}

std::int64_t VerifierCore::whole_media(const VerifyWork& request, std::int64_t done, std::int64_t count,
                                       std::int64_t room) const {
  for (const PromptMedium& medium : request.media) {
    const Position first = medium.medium.first, end = done + count;
    if (medium.together && first < end && end < medium.end) count = (first > done ? first : medium.end) - done;
  }
  return count <= room ? count : 0;
}

std::optional<VerifyWork> VerifierCore::next_chunk(Session& session, Batch& batch) {
  const VerifyWork& request = *session.request;
  // Before another sequence's K/V is reused: the first chunk after that may be a whole picture.
  if (std::ranges::any_of(request.media, [&](const PromptMedium& medium) {
        return medium.together && medium.end > session.prompt.done && medium.end - medium.medium.first > batch.room;
      })) {
    batch.medium_kept_out = true;
    return std::nullopt;
  }
  if (session.prompt.scored && batch.scored_room == 0) return std::nullopt;
  VerifyWork work = request;
  if (session.prompt.done == 0 && !session.prompt.scored && !begin_prompt(session, &work)) return std::nullopt;
  const std::int64_t done = session.prompt.done, total = std::ssize(request.tokens);
  std::int64_t count = std::min({total - done, prompt_rows_max(), batch.room});
  if (session.prompt.scored) count = std::min(count, batch.scored_room);
  if (session.prompt.keep_at > done) count = std::min(count, session.prompt.keep_at - done);
  count = whole_media(request, done, count, batch.room);
  if (count == 0) return std::nullopt;
  const auto first = request.tokens.begin() + done;
  work.tokens.assign(first, first + count);
  work.base = done;
  work.last = done + count == total;
  const std::int64_t scored_end = std::min(done + count + 1, total - request.answered);
  if (session.prompt.scored && done + 1 < scored_end)
    work.scored.assign(first + 1, request.tokens.begin() + scored_end);
  // Returns the number of the answer's tokens among the first `end`.
  const auto answered = [&](Position end) { return std::max<std::int64_t>(0, end - (total - request.answered)); };
  work.answered = answered(done + count) - answered(done);
  if (work.reuse) work.reuse->answered = answered(done);
  work.kv_from.reset();
  if (request.kv_from && (work.last || done + count > session.prompt.kv_sent)) work.kv_from = session.prompt.kv_sent;
  if (done + count == session.prompt.keep_at &&
      kv_bytes_ + config_.capacity.kv_cost.bytes(session.prompt.keep_at) <= config_.capacity.kv_bytes_max) {
    work.keep_as = SessionId{next_kept_++};
    batch.kept.push_back({.id = *work.keep_as,
                          .tokens = {request.tokens.begin(), first + count},
                          .written = std::max(session.written, done + count),
                          .shared = true,
                          .scope = session.cache_scope,
                          .media = session.media});
  }
  return work;
}

bool VerifierCore::begin_prompt(Session& session, VerifyWork* work) {
  // The last token's row is always computed, since its logits are needed.
  const std::span<const TokenId> prompt(session.request->tokens.data(), session.request->tokens.size() - 1);
  PrefixSearch search(prompt, session.cache_scope, config_.capacity.kv_cost.ring_rows, config_.rows_max, session.media);
  cache_.offer_all(search);
  for (const auto& [id, other] : sessions_) {
    if (&other == &session) continue;
    const bool under_way = other.request && other.request->prefill && (other.rows_out > 0 || other.prompt.done > 0);
    search.offer({.id = id,
                  .scope = other.cache_scope,
                  .tokens = under_way ? other.request->tokens : other.committed,
                  .have = std::ssize(other.committed),
                  .written = other.written,
                  .under_way = under_way,
                  .media = other.media});
  }
  if (search.soon() >= search.best() + config_.reuse_min) return false;
  const Position best = search.best() < config_.reuse_min ? 0 : search.best();
  // A common prefix that no sequence can provide any more, because their rings have moved on, is kept for the next
  // sequence.
  session.prompt.keep_at = search.common() >= best + config_.reuse_min ? search.common() : 0;
  if (best == 0) return true;

  work->reuse = Reuse{.from = search.from(),
                      .tokens = {prompt.begin(), prompt.begin() + best},
                      .take = cache_.use(search.from(), best)};
  session.prompt.done = session.prompt.cached_tokens = best;
  session.written = search.written();
  return true;
}

void VerifierCore::trim_cache(std::vector<VerifyWork>& batch) {
  for (const SessionId id : cache_.trim(config_.capacity.kv_bytes_max - kv_bytes_, config_.capacity.sessions_max)) {
    const auto user = std::find_if(batch.rbegin(), batch.rend(),
                                   [&](const VerifyWork& work) { return work.reuse && work.reuse->from == id; });
    const auto maker =
        std::find_if(batch.begin(), batch.end(), [&](const VerifyWork& work) { return work.keep_as == id; });
    if (user != batch.rend()) user->reuse->take = true;
    if (maker != batch.end()) maker->keep_as.reset();
    if (user == batch.rend() && maker == batch.end()) released_.push_back(id);
  }
}

void VerifierCore::on_batch_done(std::vector<VerifyResult> results, TimePoint now) {
  forward_.out = false;
  window_.forward_ended(forward_.prompts ? 0 : forward_.rows, now);
  for (VerifyResult& result : results) {
    const auto known = sessions_.find(result.session);
    CHECK(known != sessions_.end(), "result for session {}, which left during its batch", value(result.session));
    Session& session = known->second;
    const Duration waited = forward_.began - std::exchange(session.since, now);
    Message reply{.session = result.session, .round = result.round, .base = session.request->base, .body = {}};
    const std::int64_t rows = std::exchange(session.rows_out, 0);
    if (!result.error) commit(session, result, rows);
    if (result.error || session.freed) {
      if (!session.freed) fail(reply, *result.error);
      release(known, !result.error);
      continue;
    }
    const bool prompt = session.request->prefill;
    Verdict& verdict = result.verdict;
    if (prompt) session.prompt.kv_sent = std::max(session.prompt.kv_sent, verdict.kv.to);
    if (!result.scores.empty())
      membership_.answer(reply, PromptScores{session.prompt.done - rows + 1, std::move(result.scores)});
    if (prompt && session.prompt.done < std::ssize(session.request->tokens)) {
      reply.base = verdict.kv.from;
      if (!verdict.kv.empty()) membership_.answer(reply, KvChunk{std::move(verdict.kv)});
      queue_.push_back(result.session);
      continue;
    }
    verdict.committed = std::ssize(session.committed);
    verdict.cached_tokens = prompt ? session.prompt.cached_tokens : 0;
    verdict.waited_ns = std::max(waited, Duration::zero()).count();
    verdict.batch_rows = forward_.rows;
    verdict.pass = forward_.number;
    reply.body = std::move(verdict);
    session.last_verdict = std::move(reply);
    session.request.reset();
    session.prompt.done = 0;
    membership_.send(*session.last_verdict);
    window_.left(result.session, now);
  }
}

void VerifierCore::commit(Session& session, const VerifyResult& result, std::int64_t rows) {
  const VerifyWork& request = *session.request;
  // All of a prompt's tokens are in the request, including the reused ones.
  session.prompt.done += request.prefill ? rows : 0;
  if (request.prefill) {
    session.committed.insert(session.committed.end(), request.tokens.begin() + std::ssize(session.committed),
                             request.tokens.begin() + session.prompt.done);
  } else {
    const std::int64_t last = request.depths.empty() ? result.verdict.accepted : result.verdict.row;
    for (const std::int64_t row : TokenTree(std::ssize(request.tokens) - 1, request.depths).path(last))
      session.committed.push_back(request.tokens[static_cast<std::size_t>(row)]);
  }
  session.written =
      std::max<Position>({session.written, std::ssize(session.committed), request.base + (request.prefill ? 0 : rows)});
}

VerifierCore::Output VerifierCore::take_output() {
  Output output{membership_.take_output(), {}, {}, {}};
  output.due = due_;  // a batch waits for more
  if (forward_.out && forward_.work.empty()) return output;
  output.renamed = std::exchange(renamed_, {});
  output.released = std::exchange(released_, {});
  output.batch = std::exchange(forward_.work, {});
  return output;
}

void VerifierCore::on_tick(TimePoint now) {
  membership_.on_tick(now);
  for (auto it = held_.begin(); it != held_.end();) {
    it = try_admit(it->second, now) ? held_.erase(it) : std::next(it);
  }
  std::vector<SessionId> idle;
  for (const auto& [id, session] : sessions_) {
    if (!session.request && now - session.since > config_.session_idle_max) idle.push_back(id);
  }
  for (const SessionId id : idle) {
    membership_.warn(fmt::format("silent for {:.0f} s; dropped", to_seconds(config_.session_idle_max)), id);
    free(id);
  }
  form_batch(now);
}

void VerifierCore::free(SessionId id) {
  const auto known = sessions_.find(id);
  if (known == sessions_.end()) return;
  known->second.freed = true;
  // Freed at once, although its rows may be in the current batch: later users of the memory run after that batch.
  kv_bytes_ -= std::exchange(known->second.kv_bytes, 0);
  if (known->second.rows_out == 0) release(known, true);
}

void VerifierCore::release(std::map<SessionId, Session>::iterator session, bool keep) {
  const auto& [id, ended] = *session;
  std::erase(queue_, id);
  window_.forget(id);
  kv_bytes_ -= ended.kv_bytes;
  if (keep && std::ssize(ended.committed) >= config_.reuse_min) {
    cache_.keep({.id = id,
                 .tokens = std::move(session->second.committed),
                 .written = ended.written,
                 .scope = std::move(session->second.cache_scope),
                 .media = std::move(session->second.media)});
  } else {
    released_.push_back(id);
  }
  sessions_.erase(session);
}

void VerifierCore::forget_all() {
  held_.clear();
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_) ids.push_back(id);
  for (const SessionId id : ids) free(id);
}

}  // namespace outrider
