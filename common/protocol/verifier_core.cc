#include "common/protocol/verifier_core.h"

#include <algorithm>

namespace outrider {

VerifierCore::VerifierCore(const VerifierConfig& config, Hello hello)
    : config_(config), facts_(hello.facts), link_(config.link, std::move(hello)) {}

void VerifierCore::on_message(Message message, TimePoint now) {
  WorkerLink::Event event;
  if (link_.on_message(message, now, &event)) {
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
  const std::int64_t needed = config_.kv_cost.bytes(std::min(positions, facts_.context_max));
  if (needed <= held) return held;
  const std::int64_t left = config_.kv_bytes_max - (kv_bytes_ - held);
  if (needed > left) {
    const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    // Alone it would fit: then it is worth another try.
    return Error{needed > config_.kv_bytes_max ? Errc::kOutOfRange : Errc::kUnavailable,
                 fmt::format("{} positions need {:.1f} MiB of K/V, {:.1f} MiB are left of this verifier's {:.1f} MiB: {:.1f} MiB are missing",
                             positions, mib(needed), mib(left), mib(config_.kv_bytes_max), mib(needed - left))};
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
  if (auto fine = check_tokens(prefill.tokens, 0); !fine) return fail(message, fine.error());
  if (auto fine = check_ids("stop token", prefill.stop_ids); !fine) return fail(message, fine.error());
  if (auto fine = check_sampling(prefill.sampling, facts_.vocab_size); !fine) return fail(message, fine.error());
  if (sessions_.size() >= config_.sessions_max) {
    return fail(message, {Errc::kUnavailable, fmt::format("{} sessions, this verifier takes {}", sessions_.size(), config_.sessions_max)});
  }
  const Result<std::int64_t> kv_bytes = set_aside(0, std::max(prefill.positions_max, static_cast<Position>(prefill.tokens.size())));
  if (!kv_bytes) return fail(message, kv_bytes.error());
  Session& session = sessions_[message.session];
  session.kv_bytes = *kv_bytes;
  session.rejection = !prefill.sampling.greedy() && prefill.sampling.rule == SamplingRule::kRejection;
  session.round = message.round;
  session.heard = now;
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
  if (message.base != session.committed) {
    return fail(message, {Errc::kMismatch, fmt::format("verify at position {}, committed are {}", message.base, session.committed)});
  }
  if (static_cast<std::int64_t>(verify.tokens.size()) > config_.rows_max) {
    return fail(message, {Errc::kOutOfRange, fmt::format("{} rows to verify, this verifier takes {}", verify.tokens.size(), config_.rows_max)});
  }
  if (auto fine = check_tokens(verify.tokens, message.base); !fine) return fail(message, fine.error());
  if (verify.kv_from && (*verify.kv_from < 0 || *verify.kv_from > message.base)) {
    return fail(message, {Errc::kOutOfRange, fmt::format("K/V wanted from {}, committed are {}", *verify.kv_from, message.base)});
  }
  if (!verify.q.empty() && (!session.rejection || verify.q.size() + 1 != verify.tokens.size())) {
    return fail(message, {Errc::kMismatch, fmt::format("{} distributions for {} drafts, wanted {}", verify.q.size(), verify.tokens.size() - 1,
                                                       session.rejection ? "as many or none" : "none: the rule is not rejection")});
  }
  const Result<std::int64_t> kv_bytes = set_aside(session.kv_bytes, message.base + static_cast<Position>(verify.tokens.size()));
  if (!kv_bytes) return fail(message, kv_bytes.error());
  session.kv_bytes = *kv_bytes;
  session.round = message.round;
  session.request = VerifyWork{.session = message.session, .round = message.round, .base = message.base,
                               .tokens = verify.tokens, .kv_from = verify.kv_from, .q = verify.q};
  queue_.push_back(message.session);
}

std::vector<VerifyWork> VerifierCore::take_batch() {
  std::vector<VerifyWork> batch;
  if (batch_out_ || queue_.empty()) return batch;
  std::int64_t rows = 0;
  const auto take = [&](bool prefill) {
    for (auto it = queue_.begin(); it != queue_.end();) {
      Session& session = sessions_.at(*it);
      const VerifyWork& request = *session.request;
      std::int64_t count = static_cast<std::int64_t>(request.tokens.size()) - session.prompt_done;
      if (prefill) count = std::min({count, config_.prefill_chunk, config_.rows_max - rows});
      if (request.prefill != prefill || count <= 0 || rows + count > config_.rows_max) {
        ++it;
        continue;
      }
      VerifyWork work = request;
      if (prefill) {
        const auto first = request.tokens.begin() + session.prompt_done;
        work.tokens.assign(first, first + count);
        work.base = session.prompt_done;
        work.last = session.prompt_done + count == static_cast<std::int64_t>(request.tokens.size());
        if (request.kv_from) work.kv_from = session.prompt_done;
      }
      session.in_batch = true;
      session.rows_out = count;
      rows += count;
      batch.push_back(std::move(work));
      it = queue_.erase(it);
    }
  };
  take(false);
  take(true);
  batch_out_ = !batch.empty();
  return batch;
}

void VerifierCore::on_batch_done(std::vector<VerifyResult> results, TimePoint now) {
  batch_out_ = false;
  for (VerifyResult& result : results) {
    const auto known = sessions_.find(result.session);
    CHECK(known != sessions_.end(), "result for session {}, which left during its batch", value(result.session));
    Session& session = known->second;
    session.in_batch = false;
    session.heard = now;
    if (session.freed) {
      release(known);
      continue;
    }
    const VerifyWork& request = *session.request;
    if (result.error) {
      reply({.session = result.session, .round = result.round, .base = request.base,
             .body = Failed{result.error->code, std::move(result.error->message)}});
      release(known);
      continue;
    }
    if (request.prefill) {
      const auto total = static_cast<std::int64_t>(request.tokens.size());
      session.prompt_done += session.rows_out;
      session.committed = session.prompt_done;
      if (session.prompt_done < total) {
        if (!result.kv.empty()) {
          reply({.session = result.session, .round = result.round, .base = result.kv.from, .body = KvChunk{std::move(result.kv)}});
        }
        queue_.push_back(result.session);
        continue;
      }
    } else {
      session.committed = request.base + result.accepted + 1;
    }
    session.last_verdict = Message{.session = result.session,
                                   .round = result.round,
                                   .base = request.base,
                                   .body = Verdict{.accepted = result.accepted,
                                                   .next_token = result.next_token,
                                                   .committed = session.committed,
                                                   .hidden = std::move(result.hidden),
                                                   .kv = std::move(result.kv),
                                                   .verify_ns = result.verify_ns,
                                                   .logprobs = std::move(result.logprobs)}};
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
    notices_.push_back({true, fmt::format("session {} silent for {:.0f} s; dropped", value(id), to_seconds(config_.session_idle_max))});
    free(id);
  }
}

void VerifierCore::fail(const Message& request, Error error) {
  reply({.session = request.session, .round = request.round, .base = request.base,
         .body = Failed{error.code, std::move(error.message)}});
}

void VerifierCore::free(SessionId id) {
  const auto known = sessions_.find(id);
  if (known == sessions_.end()) return;
  known->second.freed = true;
  if (!known->second.in_batch) release(known);
}

void VerifierCore::release(std::map<SessionId, Session>::iterator session) {
  std::erase(queue_, session->first);
  released_.push_back(session->first);
  kv_bytes_ -= session->second.kv_bytes;
  sessions_.erase(session);
}

void VerifierCore::forget_all() {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_) ids.push_back(id);
  for (const SessionId id : ids) free(id);
}

}  // namespace outrider
