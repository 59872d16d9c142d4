#include "coordinator-node/session/drafting.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/decoding/drafting/round_cost.h"
#include "common/wire/messages/donor_rows.h"

namespace outrider {
namespace {

/// Removes the parameters that concern only the target.
SamplingParams for_drafter(SamplingParams sampling) {
  sampling.logprobs.reset();
  sampling.prompt_logprobs.reset();
  sampling.logprob_token_ids.clear();
  return sampling;
}

}  // namespace

Drafting::Drafting(SessionState& state)
    : state_(state), drafts_plainly_(for_drafter(state.sequence.request.sampling) == SamplingParams{}) {}

void Drafting::open_round(KvRows kv) {
  round_.next(environment_.now, drafters_.ahead.expects());
  if (sequence_.draft_room() <= 0) return;
  drafters_.renew(verifier_.worker());
  state_.verifier.choose_policy(drafters_.needs());
  state_.forward(std::move(kv));
}

Next Drafting::begin() {
  DCHECK(verifier_.policy != nullptr);
  const std::int64_t room = std::max<std::int64_t>(sequence_.draft_room(), 0);
  const Generate& request = sequence_.request;
  Candidates ngram, table;
  if (room > 0 && request.policy == DraftPolicy::kAuto) {
    ngram = look_up(state_, DraftSource::kNgram, sequence_.tokens, room);
    table = look_up(state_, DraftSource::kTable, sequence_.tokens, room);
  }
  const DraftAhead::Guess* at_hand = drafters_.ahead.find(sequence_.tokens);
  std::int64_t most = request.added.any() || drafters_.can_draft() ? room : 0;
  if (at_hand != nullptr) most = std::min(room, std::ssize(at_hand->drafts.tokens));
  if (room > 0 && at_hand == nullptr && lacks_drafter()) ++environment_.drafts_missed;
  round_.choose(
      verifier_.policy->choose({.assistant = static_cast<int>(most),
                                .ngram = static_cast<int>(ngram.tokens.size()),
                                .table = static_cast<int>(table.tokens.size()),
                                .at_hand = at_hand != nullptr,
                                .ahead = may_draft_ahead(),
                                .tree = may_draft_trees(),
                                .drafters = drafters_.at_work()}));
  if (round_.choice.source == DraftSource::kAssistant) return ask(round_.choice.length);
  drafters_.ahead.expect(0, 0);
  round_.drafts.add(0, round_.choice.source == DraftSource::kTable ? table : ngram, round_.choice.source,
                    round_.choice.length);
  return {.what = Next::What::kEndDrafting};
}

bool Drafting::drafts_do_not_pay() const {
  const Generate& request = sequence_.request;
  const Worker* verifier = verifier_.place().worker();
  return verifier_.policy != nullptr && (request.policy == DraftPolicy::kAuto || request.governed) &&
         verifier != nullptr && !verifier->costs_with(drafters_.needs()).wants_drafts();
}

bool Drafting::lacks_drafter() const {
  const Generate& request = sequence_.request;
  const Worker* verifier = verifier_.place().worker();
  const bool welcome = (request.policy != DraftPolicy::kFixed || request.draft_length > 0) && !drafts_do_not_pay();
  return welcome && !drafters_.can_draft() && verifier != nullptr && drafters_.takes_more &&
         more_drafters_help(environment_.fleet, drafters_.requirements(*verifier));
}

Next Drafting::ask(std::int64_t draft_length) {
  if (draft_length > 0) drafters_.send_tokens(drafts_do_not_pay() ? kCatchUpRows : sequence_.positions());
  std::vector<DrafterSeats::Replica*> ready;
  for (DrafterSeats::Replica& replica : drafters_.replicas) {
    replica.asked = false;
    if (draft_length > 0 && replica.reaches(sequence_.base(), round_.hidden.has_value()) &&
        environment_.fleet.usable_drafter(replica.peer()) != nullptr)
      ready.push_back(&replica);
  }
  // A drafter with K/V of its own would recompute a tree's trunk for each step of its branches.
  if (std::ranges::any_of(ready, [](const auto* replica) { return !replica->place.worker()->needs_rows(); }))
    round_.choice.tree = false;
  const std::int64_t made_ahead = draft_length > 0 ? take_ahead(draft_length) : 0;
  // A tree has too many outcomes to draft ahead for.
  const int guesses = ready.empty() || round_.choice.tree ? 0 : guesses_wanted(draft_length);
  drafters_.ahead.expect(sequence_.base(), guesses * static_cast<int>(ready.size()));
  round_.queued = !ready.empty();
  for (DrafterSeats::Replica* replica : ready) {
    replica->asked = made_ahead == 0;
    round_.queued = round_.queued && replica->place.worker()->rounds > 0;
    const Position room = replica->place.worker()->context() - sequence_.base();
    if (made_ahead == 0 || (guesses > 0 && made_ahead <= room))
      send_draft(*replica, static_cast<int>(std::min(std::max(draft_length, made_ahead), room)), guesses,
                 /*has_drafts=*/made_ahead > 0);
  }
  if (!ready.empty() && (made_ahead == 0 || guesses > 0)) round_.hidden.reset();
  if (!drafters_.awaits_drafts()) return {.what = Next::What::kEndDrafting};
  round_.outcome.draft_rows = round_.rows;
  state_.enter(Phase::kDrafting);
  return {};
}

void Drafting::send_draft(const DrafterSeats::Replica& replica, int draft_length, int guesses, bool has_drafts) {
  const Generate& request = sequence_.request;
  std::vector<TokenId> answer;
  if (request.sampling.follows_answer())
    answer.assign(sequence_.tokens.begin() + sequence_.prompt_size + replica.guided, sequence_.tokens.end());
  const bool known = !drafts_plainly_ && replica.guided > 0;
  const Worker* verifier = verifier_.place().worker();
  state_.send(replica.peer(),
              Draft{.token = sequence_.tokens.back(),
                    .draft_length = draft_length,
                    .hidden = replica.place.worker()->needs_rows() ? round_.hidden : std::nullopt,
                    .sampling = drafts_plainly_ || known ? std::nullopt : std::optional(for_drafter(request.sampling)),
                    .index = sequence_.answered(),
                    .want_q = state_.logs_rejections(),
                    .sampling_known = known,
                    .answer = std::move(answer),
                    .ahead = guesses,
                    .known = has_drafts ? round_.drafts.tokens : std::vector<TokenId>(),
                    .tree = round_.choice.tree,
                    .worth = sequence_.output_depends_on_drafts() ? 0 : round_.choice.worth,
                    .stop_ids = known ? std::vector<TokenId>() : request.stop_ids,
                    .halves = verifier != nullptr && verifier->drafts_by_halves(drafters_.needs(), draft_length,
                                                                                drafters_.at_work())},
              sequence_.base());
}

bool Drafting::is_sound(const PeerId& drafter, const Candidates& drafts, std::int64_t most) const {
  const auto sound = check_candidates(drafts, most, environment_.fleet.facts()->vocab_size);
  if (!sound) state_.warn_of_worker(drafter, sound.error().message + "; its drafts are dropped");
  return sound.has_value();
}

Next Drafting::on_message(DrafterSeats::Replica& replica, const Message& message) {
  const PeerId drafter = replica.peer();
  if (const auto* failed = std::get_if<Failed>(&message.body)) {
    state_.warn_of_worker(drafter, failed->message + "; the answer goes on without drafters");
    drafters_.take_no_more();
    return lose(drafter);
  }
  const auto* candidates = std::get_if<Candidates>(&message.body);
  const auto* need = std::get_if<NeedKv>(&message.body);
  if (candidates == nullptr && need == nullptr) return {.what = Next::What::kNonsense};
  if (need != nullptr) replica.end = std::clamp<Position>(need->have, 0, sequence_.base());
  replica.guided = need != nullptr ? 0 : sequence_.answered();
  replica.asked = false;
  if (state_.phase != Phase::kDrafting) return {};  // late
  replica.place.worker()->retry = {};
  const std::int64_t room = sequence_.draft_room();
  if (candidates != nullptr) return on_candidates(drafter, *candidates, is_sound(drafter, *candidates, room), room);
  if (drafters_.awaits_drafts()) return {};
  round_.outcome.draft_wire_s = to_seconds(state_.waited());
  round_.choice.catches_up = !replica.place.worker()->needs_rows();
  return {.what = Next::What::kEndDrafting};
}

Next Drafting::on_unreadable(DrafterSeats::Replica& replica) {
  if (!replica.asked || state_.phase != Phase::kDrafting) return {};
  replica.asked = false;
  environment_.judge(replica.peer(), false);
  return go_on_without();
}

Next Drafting::lose(const PeerId& drafter) {
  drafters_.release(drafter);
  return go_on_without();
}

Next Drafting::go_on_without() const {
  const bool waits = state_.phase != Phase::kDrafting || drafters_.awaits_drafts();
  return {.what = waits ? Next::What::kNothing : Next::What::kEndDrafting};
}

Next Drafting::on_candidates(const PeerId& drafter, const Candidates& candidates, bool sound, std::int64_t most) {
  // A drafter that cannot draft now (DrafterCore::decline) does not end the wait for another one.
  const bool declined = sound && candidates.tokens.empty() && candidates.passes == 0;
  if ((!sound || declined) && drafters_.awaits_drafts()) {
    environment_.judge(drafter, false);
    return {};
  }
  const Duration waited = state_.waited();
  state_.ledger.on_candidates(waited, round_.on_candidates(drafter, candidates, waited));
  if (sound) round_.drafts.add(0, candidates, DraftSource::kAssistant, most);
  ++(sound && !declined ? environment_.drafts_made : environment_.drafts_missed);
  for (const DrafterSeats::Replica& other : drafters_.replicas) {  // the round begins without their drafts
    Worker* late = other.asked ? other.place.worker() : nullptr;
    if (late != nullptr) ++late->late_rounds;
  }
  // With a minimum worth per draft, an empty answer is legitimate.
  if (!sound || (round_.drafts.empty() && round_.choice.worth == 0)) environment_.judge(drafter, false);
  return {.what = Next::What::kEndDrafting};
}

Duration Drafting::timeout() const {
  constexpr Duration kShortest = std::chrono::milliseconds(500), kLongest = std::chrono::seconds(10);
  constexpr double kPasses = 4;
  const Worker* verifier = verifier_.place().worker();
  if (verifier == nullptr) return kShortest;
  const Estimates& costs = verifier->costs_with(drafters_.needs());
  return std::clamp(from_seconds(kPasses * costs.likely_verify_s(1 + costs.others())), kShortest, kLongest);
}

std::optional<TimePoint> Drafting::deadline() const {
  if (state_.phase != Phase::kDrafting || round_.choice.patience_s >= to_seconds(timeout())) return std::nullopt;
  return state_.entered + from_seconds(round_.choice.patience_s);
}

Next Drafting::on_tick() {
  const Duration waited = state_.waited(), timeout = this->timeout();
  if (waited < timeout && to_seconds(waited) < round_.choice.patience_s) return {};
  round_.count_wait(waited);
  ++environment_.drafts_missed;
  for (const PeerId& peer : drafters_.peers()) {
    if (!drafters_.find(peer)->asked) continue;
    environment_.judge(peer, false);
    if (Worker* drafter = environment_.fleet.find(peer)) ++drafter->late_rounds;
    // Before the time-out the drafter is not at fault: its drafts are just not worth the wait.
    Worker* drafter = environment_.fleet.usable_drafter(peer);
    if (waited < timeout || drafter == nullptr) continue;
    drafter->miss(environment_.now);
    environment_.warn_of(peer,
                         fmt::format("drafter {} did not answer within {:.1f} s; going on without it",
                                     drafter->hello.name, to_seconds(timeout)),
                         state_.id);
  }
  return {.what = Next::What::kEndDrafting};
}

// ---- drafts made ahead, while a round is verified, for the outcomes that the drafter expects ----

bool Drafting::may_draft_trees() const {
  const Generate& request = sequence_.request;
  return request.policy == DraftPolicy::kAuto && request.draft_ahead.value_or(0) == 0 &&
         !sequence_.output_depends_on_drafts() && drafters_.needs() == DraftInput::kTargetRows;
}

bool Drafting::may_draft_ahead() const {
  const Generate& request = sequence_.request;
  // In a stepwise sequence the client chooses the verified tokens.
  if (request.stepwise) return false;
  // Whether an outcome is drafted for depends on the noise of the drafts before it, which its own drafts share: these
  // would be no sample of their q.
  if (sequence_.output_depends_on_drafts()) return false;
  // The drafter's grammar follows one path, that of the sequence.
  if (!request.sampling.grammar.empty()) return false;
  // Drafts ahead are chains too; a tree and added sources have too many outcomes.
  if (request.policy == DraftPolicy::kTree || request.added.any()) return false;
  bool is_far = false;
  for (const DrafterSeats::Replica& replica : drafters_.replicas) {
    const Worker* drafter = replica.place.worker();
    if (drafter == nullptr) continue;
    if (takes_hidden_rows(drafter->hello.facts)) return false;  // it must wait for the target's rows
    is_far = is_far || drafter->rtt >= std::chrono::milliseconds(1);
  }
  return request.draft_ahead ? *request.draft_ahead > 0 : is_far;
}

int Drafting::guesses_wanted(std::int64_t draft_length) const {
  if (!may_draft_ahead() || sequence_.drafts_left() <= 1) return 0;  // there is no next round
  if (sequence_.request.draft_ahead) return *sequence_.request.draft_ahead;
  const Worker* verifier = verifier_.place().worker();
  const bool pays =
      verifier != nullptr && ahead_pays(verifier->costs_with(drafters_.needs()), static_cast<int>(draft_length));
  return pays ? kDraftAheadMax : 0;
}

std::int64_t Drafting::take_ahead(std::int64_t draft_length) {
  const DraftAhead::Guess* guess = drafters_.ahead.find(sequence_.tokens);
  if (guess == nullptr) return 0;
  round_.drafts.add(0, guess->drafts, DraftSource::kAssistant, draft_length);
  round_.drafter = guess->drafter;
  round_.outcome.ahead = true;
  ++environment_.drafts_made;
  return std::ssize(guess->drafts.tokens);
}

Next Drafting::on_ahead(const PeerId& drafter, Position base, Candidates guess) {
  if (!is_sound(drafter, guess, std::ssize(guess.tokens))) return {};
  const bool is_late =
      state_.phase == Phase::kDrafting && round_.after_all && is_outcome(sequence_.tokens, base, guess.after);
  if (!is_late || guess.tokens.empty()) {
    drafters_.ahead.add(base, {drafter, std::move(guess)});
    return {};
  }
  // These drafts arrived after the verdict, and before the drafts requested after the verdict.
  drafters_.find(drafter)->asked = false;
  round_.outcome.ahead = true;
  const std::int64_t most = std::min<std::int64_t>(round_.choice.length, sequence_.drafts_left());
  return on_candidates(drafter, guess, /*sound=*/true, most);
}

}  // namespace outrider
