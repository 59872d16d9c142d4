// The life of a sequence at the coordinator: its phases, and which part an event concerns. session_round.cc has its
// rounds, session_verifier.cc has the workers before and between them.
#include "coordinator-node/session/session.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace outrider {

Session::Session(Environment& environment, SessionId id, const PeerId& client, SessionId request_id, Generate request)
    : environment_(environment),
      id_(id),
      client_(client),
      request_id_(request_id),
      entered_(environment.now),
      ledger_{.opened = environment.now},
      sequence_(std::move(request)),
      encoder_(environment, id, sequence_, pending_, round_, ledger_),
      verifier_(environment, id, sequence_),
      drafters_(environment, id, sequence_),
      drafting_(environment, id, sequence_, verifier_, drafters_, pending_, round_, ledger_) {
  verifier_.unassigned_since = environment.now;
  if (!sequence_.has_token()) return;
  verifier_.resuming = true;
  verifier_.numeric_class = std::exchange(sequence_.request.numeric_class, {});
  verifier_.reported_name = std::exchange(sequence_.request.verifier_name, {});
  encoder_.encoding_class = std::exchange(sequence_.request.encoding_class, {});
  verifier_.why = {Errc::kUnavailable, "no verifier can go on with it"};
}

std::unique_ptr<Session> Session::of(Environment& environment, SessionId id, const PeerId& client, SessionId request_id,
                                     Generate request) {
  if (request.stepwise)
    return std::make_unique<StepwiseSession>(environment, id, client, request_id, std::move(request));
  return std::unique_ptr<Session>(new Session(environment, id, client, request_id, std::move(request)));
}

std::unique_ptr<Session> Session::of(Environment& environment, SessionId id, const Audit& audit) {
  std::unique_ptr<Session> session = of(environment, id, "", id, audit.request);
  session->verifier_.numeric_class = audit.numeric_class;
  session->verifier_.except = audit.verifier;
  Sequence& sequence = session->sequence_;
  session->encoder_.encoding_class = std::exchange(sequence.request.encoding_class, {});
  sequence.encoded = static_cast<std::size_t>(std::ranges::count_if(sequence.request.media, &WireMedium::is_encoded));
  return session;
}

std::optional<Audit> Session::audit() const {
  const Generate& request = sequence_.request;
  const bool began_here = request.answered == 0 && client_ != "";
  if (!ledger_.done || !began_here || sequence_.drafts_have_a_say() || !sequence_.has_token() ||
      ledger_.metrics.failovers > 0 || verifier_.reported_name.empty())
    return std::nullopt;
  const auto prompt_end = sequence_.tokens.begin() + sequence_.prompt_size;
  Audit audit{.request = {.prompt = {sequence_.tokens.begin(), prompt_end},
                          .max_tokens = sequence_.answered(),
                          .stop_ids = request.stop_ids,
                          .stepwise = true,
                          .sampling = request.sampling,
                          .cache_scope = request.cache_scope,
                          .media = request.media,
                          .encoding_class = encoder_.encoding_class},
              .answer = {prompt_end, sequence_.tokens.end()},
              .numeric_class = verifier_.numeric_class.value_or(""),
              .verifier = verifier_.reported_name};
  audit.request.sampling.logprobs.reset();
  audit.request.sampling.prompt_logprobs.reset();
  return audit;
}

Result<void> Session::check(const PairFacts* facts) const {
  if (verifier_.resuming) {
    RETURN_IF_ERROR(sequence_.check(nullptr));
    RETURN_IF_ERROR(sequence_.check_resumed());
  }
  return sequence_.check(facts);
}

void Session::enter(Phase phase) {
  DCHECK(may_follow(phase_, phase), "{} after {}", to_string(phase), to_string(phase_));
  verifier_.place().set_in_round(is_in_round(phase));
  drafters_.set_in_round(phase == Phase::kDrafting);
  if (phase == Phase::kMoving) verifier_.unassigned_since = verifier_.missed_since = environment_.now;
  phase_ = phase;
  entered_ = environment_.now;
}

bool Session::start() {
  Generate& request = sequence_.request;
  Fleet& fleet = environment_.fleet;
  // An answer of whatever length is shortened to what the roomiest verifier could hold.
  if (request.shorten && !sequence_.has_token()) {
    const std::int64_t fitting = fleet.max_tokens_that_fit(sequence_.prompt_size);
    if (fitting >= 1) request.max_tokens = std::min(request.max_tokens, fitting);
  }
  if (sequence_.prefixes.empty()) {
    sequence_.prefixes = hash_prefixes(
        std::span(sequence_.tokens).first(static_cast<std::size_t>(sequence_.prompt_size)), request.cache_scope);
  }
  const std::optional<Fleet::Offer> offer = fleet.choose_verifier(sequence_.positions(), requirements());
  if (!offer) return false;
  Worker& verifier = fleet.at(offer->verifier);
  const PairFacts& facts = verifier.hello.facts;
  if (auto ok = check(&facts); !ok) {
    fail(ok.error());
    return true;
  }
  const bool media = sequence_.has_media();
  const PeerId encoder = media ? fleet.choose_encoder(verifier.hello, encoder_.encoding_class) : PeerId();
  if (media && encoder.empty() && verifier.hello.no_towers) return false;  // there will be room
  request.max_tokens = std::min<std::int64_t>(request.max_tokens, facts.context_max - sequence_.prompt_size + 1);
  if (sequence_.tokens_left() < 1) {  // it began elsewhere: the context is full, or others' memory was larger
    finish(Done{FinishReason::kLength, ledger_.metrics});
    return true;
  }
  if (phase_ == Phase::kWaiting) ledger_.metrics.queue_ns = (environment_.now - ledger_.opened).count();
  verifier_.take(*offer);
  if (sequence_.draft_room() > 0) drafters_.assign(verifier);
  choose_policy();
  if (!drafting_.spares_drafters()) drafters_.send_tokens(sequence_.positions(), pending_, round_);
  encoder.empty() ? send_prefill() : encode_at(encoder);
  return true;
}

void Session::choose_policy() {
  const Generate& request = sequence_.request;
  if (request.stepwise || (verifier_.policy != nullptr && policy_for_ == drafters_.needs())) return;
  policy_for_ = drafters_.needs();
  Worker& verifier = verifier_.worker();
  const bool governed = request.governed && !sequence_.drafts_have_a_say();
  verifier_.policy =
      make_policy(request.policy, request.draft_length, verifier.costs_with(policy_for_), verifier.batch, governed);
}

void Session::on_tick() {
  switch (phase_) {
    case Phase::kWaiting:
    case Phase::kMoving:  // for room as long as need be, but for a verifier to join only so long
      if (environment_.fleet.has_verifier(requirements()))
        verifier_.unassigned_since = environment_.now;
      else
        on_unassigned(environment_.now - verifier_.unassigned_since);
      break;
    case Phase::kDrafting:
      if (waited() < Drafting::kTimeout && to_seconds(waited()) < round_.choice.patience_s) break;
      drafting_.on_late(waited());
      end_drafting();
      break;
    case Phase::kPaused: on_pause(); break;
    case Phase::kEncoding:
    case Phase::kPrefill:
    case Phase::kVerifying: return on_unanswered();
    case Phase::kEnded: break;
  }
}

std::optional<TimePoint> Session::deadline() const {
  if (phase_ != Phase::kDrafting || round_.choice.patience_s >= to_seconds(Drafting::kTimeout)) return std::nullopt;
  return entered_ + from_seconds(round_.choice.patience_s);
}

void Session::add_load(std::map<PeerId, Load>& loads) const {
  const auto add = [&](const Place& place, bool in_round) {
    if (place.peer().empty()) return;
    Load& load = loads[place.peer()];
    ++load.sessions;
    load.rounds += in_round;
    load.kv_bytes += place.load().kv_bytes;
  };
  add(verifier_.place(), is_in_round(phase_));
  add(encoder_.place(), false);
  for (const DrafterSeats::Replica& replica : drafters_.replicas()) add(replica.place, phase_ == Phase::kDrafting);
}

bool Session::on_worker(const PeerId& from, Message message) {
  DrafterSeats::Replica* replica = drafters_.find(from);
  if (auto* drafts = std::get_if<Candidates>(&message.body); drafts != nullptr && !drafts->after.empty()) {
    if (replica == nullptr) return true;
    const bool waiting = phase_ == Phase::kDrafting;
    follow(
        drafting_.on_ahead(from, message.base, std::move(*drafts), waiting ? std::optional(waited()) : std::nullopt));
    return true;
  }
  if (message.round != round_.id) return true;
  if (from == verifier_.peer()) return on_verifier(std::move(message));
  if (from == encoder_.peer()) {
    std::optional<EncoderSeat::Next> next = encoder_.on_message(std::move(message), verifier_.hello(), waited());
    if (next) follow(std::move(*next));
    return next.has_value();
  }
  return replica == nullptr || on_drafter(*replica, std::move(message));
}

void Session::on_unreadable(const PeerId& from) {
  const Error why{Errc::kMalformed, "an answer that cannot be read"};
  if (from == encoder_.peer() && phase_ == Phase::kEncoding) return follow(encoder_.distrust(why));
  if (from == verifier_.peer() && (phase_ == Phase::kPrefill || phase_ == Phase::kVerifying))
    return distrust_verifier(why);
  DrafterSeats::Replica* const replica = drafters_.find(from);
  if (replica == nullptr || !replica->asked || phase_ != Phase::kDrafting) return;
  replica->asked = false;
  drafters_.judge(from, false);
  if (!drafters_.awaits_drafts()) end_drafting();
}

void Session::on_worker_gone(const PeerId& peer, const std::string& what) {
  if (peer == verifier_.peer()) {
    lose_verifier({Errc::kPeerGone, what});
  } else if (peer == encoder_.peer()) {
    follow(encoder_.lose({Errc::kPeerGone, what}));
  } else if (drafters_.find(peer) != nullptr) {
    lose_drafter(peer);
  }
}

bool Session::on_step(const Step&) {
  reply(Failed{Errc::kInvalidArgument, "a step of a session that waits for none"});
  return false;
}

void Session::on_cancel(const Cancel& cancel) {
  if (!cancel.keep) return finish(Failed{Errc::kCancelled, "cancelled"});
  if (*cancel.keep > sequence_.answered()) {
    return fail(Errc::kInvalidArgument,
                fmt::format("{} tokens to keep, the answer has {}", *cancel.keep, sequence_.answered()));
  }
  finish(Done{FinishReason::kStop, ledger_.metrics});
}

void Session::on_sent(const Message& message, std::size_t bytes) {
  const auto* chunk = std::get_if<KvChunk>(&message.body);
  const bool of_round = chunk != nullptr && pending_.commits(chunk->kv);
  ledger_.on_sent(message, bytes, of_round);
  if (phase_ == Phase::kDrafting && (of_round || std::holds_alternative<Draft>(message.body)))
    round_.on_draft_bytes(bytes);
}

void Session::finish(Body last) {
  for (const PeerId& drafter : drafters_.peers()) drafters_.release(drafter, true);
  ledger_.done = std::holds_alternative<Done>(last);
  enter(Phase::kEnded);
  encoder_.leave();
  verifier_.leave(round_.id);
  reply(std::move(last));
}

}  // namespace outrider
