#include "common/protocol/verifier_core.h"

#include <algorithm>

namespace outrider {
namespace {

Hello with_capacity(Hello hello, const Capacity& capacity) {
  hello.capacity = capacity;
  return hello;
}

/// How many tokens two texts have in common at their start.
Position common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace

VerifierCore::VerifierCore(const VerifierConfig& config, Hello hello)
    : config_(config), facts_(hello.facts), link_(config.link, with_capacity(std::move(hello), config.capacity)) {}

void VerifierCore::on_message(Message message, TimePoint now) {
  WorkerLink::Event event;
  if (link_.on_message(message, now, &event, &outgoing_)) {
    if (event == WorkerLink::Event::kForgetSessions) forget_all();
    return;
  }
  if (const auto* prefill = std::get_if<Prefill>(&message.body)) return on_prefill(message, *prefill, now);
  if (const auto* verify = std::get_if<Verify>(&message.body)) return on_verify(message, *verify, now);
  if (std::holds_alternative<Free>(message.body)) {
    freed_.add(message.session);
    return free(message.session);
  }
  notices_.push_back({true, fmt::format("a verifier has no use for '{}'; dropped", name_of(message))});
}

Result<void> VerifierCore::check_ids(const char* what, const std::vector<TokenId>& tokens) const {
  for (const TokenId token : tokens) {
    if (token < 0 || token >= facts_.vocab_size) {
      return Error{Errc::kInvalidArgument, fmt::format("{} id {}, vocabulary has {}", what, token, facts_.vocab_size)};
    }
  }
  return {};
}

Result<void> VerifierCore::check_tokens(const std::vector<TokenId>& tokens, Position base) const {
  RETURN_IF_ERROR(check_ids("token", tokens));
  const Position end = base + static_cast<Position>(tokens.size());
  if (end > facts_.context_max) {
    return Error{Errc::kOutOfRange, fmt::format("position {}, the context holds {}", end, facts_.context_max)};
  }
  return {};
}

Result<std::int64_t> VerifierCore::set_aside(std::int64_t held, Position positions) {
  const std::int64_t needed = config_.capacity.kv_cost.bytes(std::min(positions, facts_.context_max));
  if (needed <= held) return held;
  const std::int64_t left = config_.capacity.kv_bytes_max - (kv_bytes_ - held);
  if (needed > left) {
    const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    // Alone it would fit: then it is worth another try.
    return Error{
        needed > config_.capacity.kv_bytes_max ? Errc::kOutOfRange : Errc::kUnavailable,
        fmt::format("{} positions need {:.1f} MiB of K/V, {:.1f} MiB are left of this verifier's {:.1f} MiB: {:.1f} "
                    "MiB are missing",
                    positions, mib(needed), mib(left), mib(config_.capacity.kv_bytes_max), mib(needed - left))};
  }
  kv_bytes_ += needed - held;
  return needed;
}

void VerifierCore::on_prefill(const Message& message, const Prefill& prefill, TimePoint now) {
  if (freed_.contains(message.session)) return;
  if (const auto known = sessions_.find(message.session); known != sessions_.end()) {
    known->second.heard = now;
    const auto& verdict = known->second.last_verdict;
    if (verdict && verdict->round == message.round) reply(*verdict);
    return;
  }
  if (value(message.session) >= kFirstKept) {
    return fail(message,
                {Errc::kInvalidArgument, fmt::format("session {}, wanted one below 2^63", value(message.session))});
  }
  if (auto fine = check_tokens(prefill.tokens, 0); !fine) return fail(message, fine.error());
  if (auto fine = check_ids("stop token", prefill.stop_ids); !fine) return fail(message, fine.error());
  if (auto fine = check_sampling(prefill.sampling, facts_.vocab_size); !fine) return fail(message, fine.error());
  // As with memory, one that is freed counts no more, though its rows may be in the batch that is out.
  const auto open =
      std::count_if(sessions_.begin(), sessions_.end(), [](const auto& entry) { return !entry.second.freed; });
  if (open >= config_.capacity.sessions_max) {
    return fail(message, {Errc::kUnavailable,
                          fmt::format("{} sessions, this verifier takes {}", open, config_.capacity.sessions_max)});
  }
  // Numbers are not used twice, but who knows what a coordinator does.
  if (const auto old = std::find_if(cached_.begin(), cached_.end(),
                                    [&](const CachedText& text) { return text.id == message.session; });
      old != cached_.end()) {
    drop(old);
  }
  const Result<std::int64_t> kv_bytes =
      set_aside(0, std::max(prefill.positions_max, static_cast<Position>(prefill.tokens.size())));
  if (!kv_bytes) return fail(message, kv_bytes.error());
  Session& session = sessions_[message.session];
  session.kv_bytes = *kv_bytes;
  session.rejection = !prefill.sampling.greedy() && prefill.sampling.rule == SamplingRule::kRejection;
  session.round = message.round;
  session.heard = now;
  session.compute_all = prefill.compute_all;
  session.request = VerifyWork{.session = message.session,
                               .round = message.round,
                               .base = 0,
                               .tokens = prefill.tokens,
                               .prefill = true,
                               .kv_from = prefill.want_kv ? std::optional<Position>(0) : std::nullopt,
                               .sampling = prefill.sampling,
                               .stop_ids = prefill.stop_ids};
  queue_.push_back(message.session);
}

void VerifierCore::on_verify(const Message& message, const Verify& verify, TimePoint now) {
  const auto known = sessions_.find(message.session);
  if (known == sessions_.end()) {
    // A late duplicate, or this verifier was restarted; the coordinator knows which.
    return fail(message, {Errc::kNotFound, fmt::format("session {} is not known here", value(message.session))});
  }
  Session& session = known->second;
  session.heard = now;
  if (message.round < session.round || session.freed) return;  // late
  if (message.round == session.round) {                        // repeated: in work, or answered already
    if (session.last_verdict && session.last_verdict->round == message.round) reply(*session.last_verdict);
    return;
  }
  if (session.request) return;  // a coordinator never overtakes its own round
  if (message.base != std::ssize(session.text)) {
    return fail(message, {Errc::kMismatch,
                          fmt::format("verify at position {}, committed are {}", message.base, session.text.size())});
  }
  if (static_cast<std::int64_t>(verify.tokens.size()) > config_.rows_max) {
    return fail(message, {Errc::kOutOfRange, fmt::format("{} rows to verify, this verifier takes {}",
                                                         verify.tokens.size(), config_.rows_max)});
  }
  if (auto fine = check_tokens(verify.tokens, message.base); !fine) return fail(message, fine.error());
  if (verify.kv_from && (*verify.kv_from < 0 || *verify.kv_from > message.base)) {
    return fail(message, {Errc::kOutOfRange,
                          fmt::format("K/V wanted from {}, committed are {}", *verify.kv_from, message.base)});
  }
  if (!verify.q.empty() && (!session.rejection || verify.q.size() + 1 != verify.tokens.size())) {
    return fail(message,
                {Errc::kMismatch,
                 fmt::format("{} distributions for {} drafts, wanted {}", verify.q.size(), verify.tokens.size() - 1,
                             session.rejection ? "as many or none" : "none: the rule is not rejection")});
  }
  const Result<std::int64_t> kv_bytes =
      set_aside(session.kv_bytes, message.base + static_cast<Position>(verify.tokens.size()));
  if (!kv_bytes) return fail(message, kv_bytes.error());
  session.kv_bytes = *kv_bytes;
  session.round = message.round;
  session.request = VerifyWork{.session = message.session,
                               .round = message.round,
                               .base = message.base,
                               .tokens = verify.tokens,
                               .kv_from = verify.kv_from,
                               .q = verify.q};
  queue_.push_back(message.session);
}

std::vector<VerifyWork> VerifierCore::take_batch() {
  std::vector<VerifyWork> batch;
  if (batch_out_ || queue_.empty()) return batch;
  std::int64_t rows = 0;
  std::vector<CachedText> kept;  // there once the batch has run, so not for its own prompts
  const auto take = [&](bool prefill) {
    for (auto it = queue_.begin(); it != queue_.end();) {
      Session& session = sessions_.at(*it);
      const VerifyWork& request = *session.request;
      const auto total = static_cast<std::int64_t>(request.tokens.size()), room = config_.rows_max - rows;
      if (request.prefill != prefill || room < (prefill ? 1 : total)) {
        ++it;
        continue;
      }
      VerifyWork work = request;
      std::int64_t count = total;
      if (prefill) {
        if (session.prompt_done == 0 && !session.compute_all && !begin_prompt(session, &work)) {
          ++it;
          continue;
        }
        const std::int64_t done = session.prompt_done;
        count = std::min({total - done, config_.prefill_chunk, room});
        if (session.keep_at > done) count = std::min(count, session.keep_at - done);
        const auto first = request.tokens.begin() + done;
        work.tokens.assign(first, first + count);
        work.base = done;
        work.last = done + count == total;
        if (request.kv_from) work.kv_from = session.kv_sent;
        if (done + count == session.keep_at &&
            kv_bytes_ + config_.capacity.kv_cost.bytes(session.keep_at) <= config_.capacity.kv_bytes_max) {
          work.keep_as = SessionId{next_kept_++};
          kept.push_back({.id = *work.keep_as,
                          .tokens = {request.tokens.begin(), first + count},
                          .written = std::max(session.written, done + count),
                          .shared = true});
        }
      }
      session.in_batch = true;
      session.rows_out = count;
      rows += count;
      batch.push_back(std::move(work));
      it = queue_.erase(it);
    }
  };
  // Verifies are short and somebody reads their text as it comes; prompts fill up. But not even a hundred texts may
  // keep prompts out: where the verifies left less than a chunk of a full forward, prompts go first in the next one.
  const bool prompts_first = std::exchange(prompts_first_, false);
  take(prompts_first);
  take(!prompts_first);
  std::int64_t prompt_rows = 0;
  for (const VerifyWork& work : batch) prompt_rows += work.prefill ? std::ssize(work.tokens) : 0;
  prompts_first_ = !prompts_first && rows == config_.rows_max && prompt_rows < config_.prefill_chunk;
  for (CachedText& text : kept) cache(std::move(text));
  trim_cache(&batch);
  batch_out_ = !batch.empty();
  return batch;
}

bool VerifierCore::holds(Position written, Position length) const {
  const std::int64_t ring = config_.capacity.kv_cost.ring_rows;
  return ring == 0 || written <= ring || length + config_.rows_max >= written;
}

bool VerifierCore::begin_prompt(Session& session, VerifyWork* work) {
  // The last token's row is computed in any case: its logits are wanted.
  const std::span<const TokenId> prompt(session.request->tokens.data(), session.request->tokens.size() - 1);
  Position best = 0, soon = 0, common_max = 0;
  SessionId from{};
  Position written = 0;
  const auto consider = [&](SessionId id, std::span<const TokenId> tokens, Position have, Position have_written,
                            bool under_way) {
    const Position common = common_prefix(prompt, tokens), usable = std::min(common, have);
    common_max = std::max(common_max, common);
    if (under_way && common > have) soon = std::max(soon, common);
    if (usable > best && holds(have_written, usable)) best = usable, from = id, written = have_written;
  };
  for (const CachedText& text : cached_) consider(text.id, text.tokens, std::ssize(text.tokens), text.written, false);
  for (const auto& [id, other] : sessions_) {
    if (&other == &session) continue;
    const bool under_way = other.request && other.request->prefill && (other.in_batch || other.prompt_done > 0);
    consider(id, under_way ? other.request->tokens : other.text, std::ssize(other.text), other.written, under_way);
  }
  if (soon >= best + config_.reuse_min) return false;
  if (best < config_.reuse_min) best = 0;
  // A start that texts have in common and that none can give any more, their rings having gone on: the next
  // one finds it kept.
  session.keep_at = common_max >= best + config_.reuse_min ? common_max : 0;
  if (best == 0) return true;

  work->reuse = Reuse{.from = from, .tokens = {prompt.begin(), prompt.begin() + best}};
  session.prompt_done = session.cached_tokens = best;
  session.written = written;
  const auto source =
      std::find_if(cached_.begin(), cached_.end(), [&](const CachedText& text) { return text.id == from; });
  if (source == cached_.end()) return true;  // of a session that goes on
  if (!source->shared && std::ssize(source->tokens) == best) {
    // A conversation goes on: the new text will be all of the old one and more.
    work->reuse->take = true;
    cached_bytes_ -= config_.capacity.kv_cost.bytes(source->written);
    cached_.erase(source);
  } else {
    cached_.splice(cached_.end(), cached_, source);
  }
  return true;
}

void VerifierCore::cache(CachedText text) {
  cached_bytes_ += config_.capacity.kv_cost.bytes(text.written);
  cached_.push_back(std::move(text));
}

void VerifierCore::drop(std::list<CachedText>::iterator text) {
  cached_bytes_ -= config_.capacity.kv_cost.bytes(text->written);
  released_.push_back(text->id);
  cached_.erase(text);
}

void VerifierCore::trim_cache(std::vector<VerifyWork>* batch) {
  while (!cached_.empty() && (cached_bytes_ > config_.capacity.kv_bytes_max - kv_bytes_ ||
                              std::ssize(cached_) > config_.capacity.sessions_max)) {
    const SessionId id = cached_.front().id;
    drop(cached_.begin());
    const auto user = std::find_if(batch->rbegin(), batch->rend(),
                                   [&](const VerifyWork& work) { return work.reuse && work.reuse->from == id; });
    const auto maker =
        std::find_if(batch->begin(), batch->end(), [&](const VerifyWork& work) { return work.keep_as == id; });
    if (user != batch->rend()) user->reuse->take = true;
    if (maker != batch->end()) maker->keep_as.reset();
    if (user != batch->rend() || maker != batch->end()) released_.pop_back();
  }
}

void VerifierCore::on_batch_done(std::vector<VerifyResult> results, TimePoint now) {
  batch_out_ = false;
  for (VerifyResult& result : results) {
    const auto known = sessions_.find(result.session);
    CHECK(known != sessions_.end(), "result for session {}, which left during its batch", value(result.session));
    Session& session = known->second;
    session.in_batch = false;
    session.heard = now;
    const VerifyWork& request = *session.request;
    if (result.error) {
      if (!session.freed) {
        reply({.session = result.session,
               .round = result.round,
               .base = request.base,
               .body = Failed{result.error->code, std::move(result.error->message)}});
      }
      release(known, false);
      continue;
    }
    // What the engine has committed now. A prompt's tokens are all in the request, also those that were reused.
    session.prompt_done += request.prefill ? session.rows_out : 0;
    const auto first = request.tokens.begin() + (request.prefill ? std::ssize(session.text) : 0);
    const auto end = request.tokens.begin() + (request.prefill ? session.prompt_done : result.accepted + 1);
    session.text.insert(session.text.end(), first, end);
    session.written = std::max<Position>(
        {session.written, std::ssize(session.text), request.base + (request.prefill ? 0 : session.rows_out)});
    if (session.freed) {
      release(known, true);
      continue;
    }
    if (request.prefill) {
      session.kv_sent = std::max(session.kv_sent, result.kv.to);
      if (session.prompt_done < std::ssize(request.tokens)) {
        if (!result.kv.empty()) {
          reply({.session = result.session,
                 .round = result.round,
                 .base = result.kv.from,
                 .body = KvChunk{std::move(result.kv)}});
        }
        queue_.push_back(result.session);
        continue;
      }
    }
    session.last_verdict = Message{.session = result.session,
                                   .round = result.round,
                                   .base = request.base,
                                   .body = Verdict{.accepted = result.accepted,
                                                   .next_token = result.next_token,
                                                   .committed = std::ssize(session.text),
                                                   .hidden = std::move(result.hidden),
                                                   .kv = std::move(result.kv),
                                                   .verify_ns = result.verify_ns,
                                                   .logprobs = std::move(result.logprobs),
                                                   .cached_tokens = request.prefill ? session.cached_tokens : 0}};
    session.request.reset();
    session.prompt_done = 0;
    reply(*session.last_verdict);
  }
}

void VerifierCore::on_tick(TimePoint now) {
  link_.on_tick(now, &outgoing_, &notices_);
  std::vector<SessionId> idle;
  for (const auto& [id, session] : sessions_) {
    if (!session.request && now - session.heard > config_.session_idle_max) idle.push_back(id);
  }
  for (const SessionId id : idle) {
    notices_.push_back({true, fmt::format("session {} silent for {:.0f} s; dropped", value(id),
                                          to_seconds(config_.session_idle_max))});
    free(id);
  }
}

void VerifierCore::fail(const Message& request, Error error) {
  reply({.session = request.session,
         .round = request.round,
         .base = request.base,
         .body = Failed{error.code, std::move(error.message)}});
}

void VerifierCore::free(SessionId id) {
  const auto known = sessions_.find(id);
  if (known == sessions_.end()) return;
  known->second.freed = true;
  // At once, though its rows may be in the batch that is out: whoever gets the memory runs after it.
  kv_bytes_ -= std::exchange(known->second.kv_bytes, 0);
  if (!known->second.in_batch) release(known, true);
}

void VerifierCore::release(std::map<SessionId, Session>::iterator session, bool keep) {
  const auto& [id, ended] = *session;
  std::erase(queue_, id);
  kv_bytes_ -= ended.kv_bytes;
  if (keep && std::ssize(ended.text) >= config_.reuse_min) {
    cache({.id = id, .tokens = std::move(session->second.text), .written = ended.written});
  } else {
    released_.push_back(id);
  }
  sessions_.erase(session);
}

void VerifierCore::forget_all() {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_) ids.push_back(id);
  for (const SessionId id : ids) free(id);
}

}  // namespace outrider
