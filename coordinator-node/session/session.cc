// A sequence at the coordinator: routes events to its parts, and follows their decisions.
#include "coordinator-node/session/session.h"

#include <algorithm>
#include <utility>

namespace outrider {

bool Session::start(std::set<PeerId>* awaited) {
  Sequence& sequence = state_.sequence;
  Generate& request = sequence.request;
  Fleet& fleet = state_.environment.fleet;
  if (sequence.prefixes.empty()) {
    sequence.prefixes = hash_prefixes(
        std::span(sequence.tokens).first(static_cast<std::size_t>(sequence.prompt_size)), request.cache_scope);
  }
  Fleet::Requirements wanted = state_.verifier.requirements();
  wanted.awaited = awaited;
  // An answer of open length is shortened to the largest verifier's memory.
  const std::int64_t max_tokens = sequence.shortened(fleet.max_tokens_that_fit(wanted));
  const std::optional<Fleet::Offer> offer = fleet.choose_verifier(sequence.positions(max_tokens), wanted);
  if (!offer) return false;
  const Worker& verifier = fleet.at(offer->verifier);
  const PairFacts& facts = verifier.hello.facts;
  if (auto ok = state_.check(&facts); !ok) {
    fail(ok.error());
    return true;
  }
  const bool media = sequence.has_media();
  const PeerId encoder = media ? fleet.choose_encoder(verifier.hello, state_.encoder.encoding_class) : PeerId();
  if (media && encoder.empty() && verifier.hello.no_towers) return false;  // there will be room
  request.max_tokens = std::min<std::int64_t>(max_tokens, facts.context_max - sequence.prompt_size + 1);
  if (sequence.tokens_left() < 1) {  // it began elsewhere: the context is full, or the memory there was larger
    finish(Done{FinishReason::kLength, state_.ledger.metrics});
    return true;
  }
  if (state_.phase == Phase::kWaiting) state_.ledger.metrics.queue_ns = state_.waited().count();
  state_.verifier.take(*offer);
  if (sequence.draft_room() > 0) state_.drafters.assign(verifier);
  state_.verifier.choose_policy(state_.drafters.needs());
  if (!drafting_.drafts_do_not_pay()) state_.drafters.send_tokens(sequence.positions());
  if (encoder.empty())
    follow(verifying_.prefill());
  else
    encode_at(encoder);
  return true;
}

bool Session::follow(Next next) {
  switch (next.what) {
    case Next::What::kNothing: break;
    case Next::What::kNonsense: return false;
    case Next::What::kPrefill: return follow(verifying_.prefill());
    case Next::What::kEncode: encode_elsewhere(std::move(next.why)); break;
    case Next::What::kEndDrafting: end_drafting(); break;
    case Next::What::kVerify: return follow(verifying_.verify());
    case Next::What::kRound:
      drafting_.open_round(std::move(next.kv));
      begin_round();
      break;
    case Next::What::kMove: move_to_another_verifier(); break;
    case Next::What::kFail: fail(std::move(next.why)); break;
    case Next::What::kDone: finish(Done{next.reason, state_.ledger.metrics}); break;
  }
  return true;
}

void Session::end_drafting() {
  add_looked_up(state_);
  follow(verifying_.verify());
}

void Session::encode_at(const PeerId& encoder) {
  state_.enter(Phase::kEncoding);
  state_.encoder.assign(encoder);
}

void Session::encode_elsewhere(Error why) {
  VerifierSeat& verifier = state_.verifier;
  const PeerId other =
      state_.environment.fleet.choose_encoder(verifier.hello(), state_.encoder.encoding_class);
  if (!other.empty()) return encode_at(other);
  if (!verifier.hello().no_towers) {  // its towers make the same bits
    follow(verifying_.prefill());
    return;
  }
  verifier.why = std::move(why);
  verifier.leave();
  const bool moved = state_.round.moved;
  move_to_another_verifier();
  state_.round.moved = moved;  // the verifier is not at fault
}

void Session::move_to_another_verifier() {
  state_.enter(Phase::kMoving);
  state_.round.renumber();
  state_.round.moved = true;
  start();  // otherwise its coordinator starts it as soon as there is room
}

void Session::on_tick() {
  switch (state_.phase) {
    case Phase::kWaiting:
    case Phase::kMoving:  // waits for room without limit, but not for a verifier to join
      if (state_.has_verifier())
        state_.verifier.unassigned_since = state_.environment.now;
      else if (auto why = state_.verifier.on_unassigned(state_.phase == Phase::kWaiting))
        fail(std::move(*why));
      break;
    case Phase::kDrafting: follow(drafting_.on_tick()); break;
    case Phase::kEncoding: follow(state_.encoder.on_tick()); break;
    case Phase::kPrefill:
    case Phase::kVerifying: follow(verifying_.on_tick()); break;
    case Phase::kPaused:
    case Phase::kEnded: break;
  }
}

bool Session::on_worker(const PeerId& from, Message message) {
  DrafterSeats::Replica* const replica = state_.drafters.find(from);
  if (auto* drafts = std::get_if<Candidates>(&message.body); drafts != nullptr && !drafts->after.empty())
    return replica == nullptr || follow(drafting_.on_ahead(from, message.base, std::move(*drafts)));
  if (message.round != state_.round.id) return true;
  if (from == state_.verifier.peer()) return follow(verifying_.on_message(std::move(message)));
  if (from == state_.encoder.peer())
    return follow(state_.encoder.on_message(std::move(message), state_.verifier.hello(), state_.waited()));
  return replica == nullptr || follow(drafting_.on_message(*replica, message));
}

void Session::on_unreadable(const PeerId& from) {
  const Error why{Errc::kMalformed, "an answer that cannot be read"};
  if (from == state_.encoder.peer() && state_.phase == Phase::kEncoding) {
    follow(state_.encoder.distrust(why));
  } else if (from == state_.verifier.peer() && state_.asks_verifier()) {
    follow(verifying_.distrust(why));
  } else if (DrafterSeats::Replica* const replica = state_.drafters.find(from)) {
    follow(drafting_.on_unreadable(*replica));
  }
}

void Session::on_worker_gone(const PeerId& peer, const std::string& what) {
  if (peer == state_.verifier.peer()) {
    follow(verifying_.lose({Errc::kPeerGone, what}));
  } else if (peer == state_.encoder.peer()) {
    follow(state_.encoder.lose({Errc::kPeerGone, what}));
  } else if (state_.drafters.find(peer) != nullptr) {
    follow(drafting_.lose(peer));
  }
}

bool Session::on_step(const Step&) {
  state_.reply(Failed{Errc::kInvalidArgument, "a step of a session that waits for none"});
  return false;
}

void Session::on_cancel(const Cancel& cancel) {
  const std::int64_t answered = state_.sequence.answered();
  if (!cancel.keep) return fail({Errc::kCancelled, "cancelled"});
  if (*cancel.keep > answered)
    return fail({Errc::kInvalidArgument, "{} tokens to keep, the answer has {}", *cancel.keep, answered});
  finish(Done{FinishReason::kStop, state_.ledger.metrics});
}

void Session::on_sent(const Message& message, std::size_t bytes) {
  const auto* chunk = std::get_if<KvChunk>(&message.body);
  const bool of_round = chunk != nullptr && state_.pending.commits(chunk->kv);
  state_.ledger.on_sent(message, bytes, of_round);
  if (state_.phase == Phase::kDrafting && (of_round || std::holds_alternative<Draft>(message.body)))
    state_.round.outcome.draft_bytes += static_cast<std::int64_t>(bytes);
}

void Session::finish(Body last) {
  for (const PeerId& drafter : state_.drafters.peers()) state_.drafters.release(drafter);
  state_.ledger.done = std::holds_alternative<Done>(last);
  state_.enter(Phase::kEnded);
  state_.encoder.leave();
  state_.verifier.leave();
  state_.reply(std::move(last));
}

}  // namespace outrider
