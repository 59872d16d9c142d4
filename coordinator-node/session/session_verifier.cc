// A session's verifier, and the encoder before it: its prompt, its answers, and how the sequence goes on without the
// worker that it had.
#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "coordinator-node/session/session.h"

namespace outrider {

void Session::send_prefill() {
  verifier_.leave_if_draining(encoder_, round_.id);
  if (verifier_.peer().empty()) return move_to_another_verifier();
  const Generate& request = sequence_.request;
  const PairFacts& facts = verifier_.hello().facts;
  verifier_.scored = 1;
  enter(Phase::kPrefill);
  // All that a verifier of this sequence has K/V of: everything but the last token of an answer that has begun.
  const Position end = sequence_.has_token() ? sequence_.base() : sequence_.prompt_size;
  Prefill prefill{.tokens = {sequence_.tokens.begin(), sequence_.tokens.begin() + end},
                  .answered = end - sequence_.prompt_size,
                  .kv_from = drafters_.rows_wanted(),
                  .positions_max = request.stepwise ? 0 : std::min(sequence_.positions(), facts.context_max),
                  .sampling = request.sampling,
                  .cache_scope = request.cache_scope,
                  .media = request.media,
                  .wire = drafters_.wire_form()};
  if (sequence_.has_token()) prefill.sampling.prompt_logprobs.reset();  // the client has them
  if (prefill.sampling.min_tokens > 0 || !prefill.sampling.grammar.empty()) {
    // A stop id beyond the vocabulary never comes.
    std::ranges::copy_if(request.stop_ids, std::back_inserter(prefill.stop_ids),
                         [&](TokenId id) { return id < facts.vocab_size; });
  }
  pending_.ask(environment_, verifier_.peer(), {.session = id_, .round = round_.id, .body = std::move(prefill)});
}

void Session::on_unanswered() {
  const bool encodes = phase_ == Phase::kEncoding;
  const Worker* worker = environment_.fleet.find(asked());
  if (worker != nullptr && worker->arriving.now(environment_.now)) {
    // The answer, or what it waits behind, is on its way.
    const std::optional<TimePoint> since = worker->arriving.since;
    if (!encodes && since && environment_.now - *since >= PendingRequest::kResend) spare_rows();
    return;
  }
  if (worker != nullptr && worker->leaving != TimePoint() && environment_.now - worker->leaving < Worker::kLeaving)
    pending_.wait_from(environment_.now);
  if (auto why = pending_.on_tick(environment_, asked()))
    encodes ? follow(encoder_.distrust(std::move(*why))) : distrust_verifier(std::move(*why));
}

void Session::spare_rows() {
  std::vector<PeerId> with_rows;
  for (const DrafterSeats::Replica& replica : drafters_.replicas()) {
    const Worker* drafter = replica.place.worker();
    if (drafter == nullptr || drafter->needs_rows()) with_rows.push_back(replica.peer());
  }
  if (with_rows.empty()) return;
  Worker& verifier = verifier_.worker();
  if (environment_.now >= verifier.rows_again) verifier.pause_rows(environment_.now);
  environment_.warn_of(
      verifier_.peer(),
      fmt::format("verifier {}: its K/V rows take more than {:.0f} s on their way here; no drafts for "
                  "its texts for {:.0f} s",
                  verifier.hello.name, to_seconds(PendingRequest::kResend), to_seconds(verifier.rows_pause)),
      id_);
  for (const PeerId& drafter : with_rows) drafters_.release(drafter, true);
  drafters_.take_no_more();
  if (phase_ == Phase::kPrefill) pending_.repeat_without_rows(environment_, verifier_.peer());
}

bool Session::on_verifier(Message message) {
  const bool asked = phase_ == Phase::kPrefill || phase_ == Phase::kVerifying;
  pending_.heard();
  if (std::holds_alternative<Heartbeat>(message.body)) return true;  // in work
  if (auto* chunk = std::get_if<KvChunk>(&message.body)) {
    pending_.wait_from(environment_.now);
    forward(std::move(chunk->kv));
  } else if (auto* scores = std::get_if<PromptScores>(&message.body)) {
    if (!asked) return true;
    if (phase_ == Phase::kPrefill && verifier_.take_scores(*scores)) {
      reply(std::move(*scores));
      return true;
    }
    environment_.warn_of(
        verifier_.peer(),
        fmt::format("verifier {}: log-probabilities of the prompt's tokens {} to {}, or not those that "
                    "were asked for, wanted them from {} to {}; dropped",
                    verifier_.hello().name, scores->first, scores->first + std::ssize(scores->logprobs),
                    verifier_.scored, sequence_.prompt_size),
        id_);
  } else if (auto* verdict = std::get_if<Verdict>(&message.body)) {
    if (asked) on_verdict(std::move(*verdict));
  } else if (const auto* failed = std::get_if<Failed>(&message.body)) {
    // The verifier may not have room that we think it has: a Free was lost, and it will notice. The prompt is repeated
    // until then.
    const bool may_come = phase_ == Phase::kPrefill && failed->code == Errc::kUnavailable;
    if (!asked || may_come) return true;
    Error error = environment_.for_client(verifier_.peer(), *failed, id_);
    // kNotFound: it was restarted, say.
    failed->code == Errc::kNotFound ? lose_verifier(std::move(error)) : fail(std::move(error));
  } else {
    return false;
  }
  return true;
}

void Session::lose_verifier(Error why) {
  verifier_.count_loss(why.code);
  encoder_.leave();
  verifier_.leave(round_.id);
  if (auto error = verifier_.lose(std::move(why))) return fail(std::move(*error));
  // Who drafts, or waits for its client, needs no verifier until it has something to verify.
  if (phase_ == Phase::kEncoding || phase_ == Phase::kPrefill || phase_ == Phase::kVerifying)
    move_to_another_verifier();
}

void Session::distrust_verifier(Error why) {
  Worker& verifier = verifier_.worker();
  verifier.suspect = true;
  environment_.warn_of(verifier_.peer(), fmt::format("verifier {}: {}", verifier.hello.name, why.message), id_);
  why.message = "the verifier: " + why.message;
  lose_verifier(std::move(why));
}

void Session::move_to_another_verifier() {
  enter(Phase::kMoving);
  round_.renumber();
  round_.moved = true;
  start();  // else its coordinator starts it as soon as somebody has room
}

void Session::on_moved(Verdict verdict) {
  const Hello& verifier = verifier_.hello();
  if (verifier_.contradicts(verdict)) {
    return distrust_verifier({Errc::kMismatch, "token {} where another of class '{}' chose {}", verdict.next_token,
                              verifier.numeric_class, sequence_.tokens.back()});
  }
  verifier_.count_failover(ledger_);
  verifier_.keep_class(verifier);
  forward(std::move(verdict.kv));
  round_.renumber();
  send_verify();
}

void Session::on_resumed(Verdict verdict) {
  if (verifier_.contradicts(verdict)) {
    // The client's word stands against the verifier's: nobody's fault but this request's.
    return fail(Errc::kMismatch, fmt::format("the answer so far ends with token {}, wanted {}", sequence_.tokens.back(),
                                             verdict.next_token));
  }
  const Hello& verifier = verifier_.hello();
  verifier_.resuming = false;
  verifier_.keep_class(verifier);
  if (sequence_.has_media()) encoder_.encoding_class = verifier.encoding_class;
  environment_.fleet.keep_facts(verifier.facts);
  ++environment_.failovers.resumed;
  ledger_.on_first_token(environment_.now, std::min(verdict.cached_tokens, sequence_.prompt_size));
  on_resumed_tokens();
  round_.hidden = std::move(verdict.hidden);
  next_round(std::move(verdict.kv));
}

void Session::encode_at(const PeerId& encoder) {
  enter(Phase::kEncoding);
  encoder_.sit_at(encoder);
}

void Session::follow(EncoderSeat::Next next) {
  using What = EncoderSeat::Next::What;
  if (next.what == What::kPrefill) send_prefill();
  if (next.what == What::kElsewhere) encode_elsewhere(std::move(next.why));
  if (next.what == What::kFail) fail(std::move(next.why));
}

void Session::encode_elsewhere(Error why) {
  const Hello& verifier = verifier_.hello();
  const PeerId other = environment_.fleet.choose_encoder(verifier, encoder_.encoding_class);
  if (!other.empty()) return encode_at(other);
  if (!verifier.no_towers) return send_prefill();  // its towers make the same bits
  verifier_.why = std::move(why);
  verifier_.leave(round_.id);
  const bool moved = round_.moved;
  move_to_another_verifier();
  round_.moved = moved;  // its verifier is well
}

void Session::on_unassigned(Duration alone) {
  if (phase_ != Phase::kWaiting || sequence_.has_token()) {
    if (auto error = verifier_.on_unassigned(encoder_, alone)) fail(std::move(*error));
    return;
  }
  if (alone < std::chrono::milliseconds(sequence_.request.wait_ms)) return;
  const bool blind = environment_.fleet.has_verifier({});
  fail(Errc::kUnavailable, fmt::format("no {} joined within {:.1f} s{}", blind ? "encoder" : "verifier",
                                       to_seconds(alone), blind ? ", and there is no verifier with towers" : ""));
}

}  // namespace outrider
