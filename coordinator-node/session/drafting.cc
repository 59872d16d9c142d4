#include "coordinator-node/session/drafting.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/wire/messages/donor_rows.h"

namespace outrider {
namespace {

/// Without what is the target's matter alone.
SamplingParams for_drafter(SamplingParams sampling) {
  sampling.logprobs.reset();
  sampling.prompt_logprobs.reset();
  sampling.logprob_token_ids.clear();
  return sampling;
}

void shorten(Candidates& drafts, std::int64_t length) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(length, 0));
  if (drafts.tokens.size() > size) drafts.tokens.resize(size);
  if (drafts.q.size() > size) drafts.q.resize(size);
}

}  // namespace

Drafting::Drafting(Environment& environment, SessionId id, const Sequence& sequence, const VerifierSeat& verifier,
                   DrafterSeats& drafters, const PendingRequest& pending, Round& round, Ledger& ledger)
    : environment_(environment),
      id_(id),
      sequence_(sequence),
      drafts_plainly_(for_drafter(sequence.request.sampling) == SamplingParams{}),
      verifier_(verifier),
      drafters_(drafters),
      pending_(pending),
      round_(round),
      ledger_(ledger) {}

Drafting::Next Drafting::begin(std::int64_t room) {
  DCHECK(verifier_.policy != nullptr);
  const Generate& request = sequence_.request;
  Candidates ngram, table;
  if (room > 0 && request.policy == DraftPolicy::kAuto) {
    ngram = look_up(DraftSource::kNgram, sequence_.tokens, room);
    table = look_up(DraftSource::kTable, sequence_.tokens, room);
  }
  const DraftAhead::Guess* at_hand = drafters_.ahead.find(sequence_.tokens);
  std::int64_t most = request.added.any() || drafters_.can_draft() ? room : 0;
  if (at_hand != nullptr) most = std::min(room, std::ssize(at_hand->drafts.tokens));
  round_.choose(
      verifier_.policy->choose({.assistant = static_cast<int>(most),
                                .ngram = static_cast<int>(ngram.tokens.size()),
                                .table = static_cast<int>(table.tokens.size()),
                                .at_hand = at_hand != nullptr,
                                .ahead = may_draft_ahead(),
                                .tree = may_draft_trees(),
                                .drafters = std::max(1, environment_.fleet.drafters_at_work() / drafters_.wanted())}));
  if (round_.choice.source == DraftSource::kAssistant) return ask(round_.choice.length);
  drafters_.ahead.expect(0, 0);
  round_.drafts.add(0, round_.choice.source == DraftSource::kTable ? table : ngram, round_.choice.source,
                    round_.choice.length);
  return Next::kDone;
}

bool Drafting::spares_drafters() const {
  const Generate& request = sequence_.request;
  const Worker* verifier = verifier_.place().worker();
  return verifier_.policy != nullptr && (request.policy == DraftPolicy::kAuto || request.governed) &&
         verifier != nullptr && !verifier->costs_with(drafters_.needs()).wants_drafts();
}

Drafting::Next Drafting::ask(std::int64_t draft_length) {
  if (draft_length > 0)
    drafters_.send_tokens(spares_drafters() ? kCatchUpRows : sequence_.positions(), pending_, round_);
  std::vector<DrafterSeats::Replica*> ready;
  for (DrafterSeats::Replica& replica : drafters_.replicas()) {
    replica.asked = false;
    if (draft_length > 0 && replica.reaches(sequence_.base(), round_.hidden.has_value()) &&
        environment_.fleet.usable_drafter(replica.peer()) != nullptr)
      ready.push_back(&replica);
  }
  // One with K/V of its own would compute a tree's trunk again for each step of its branches.
  if (std::ranges::any_of(ready, [](const auto* replica) { return !replica->place.worker()->needs_rows(); }))
    round_.choice.tree = false;
  const std::int64_t at_hand = draft_length > 0 ? take_ahead(draft_length) : 0;
  // Nobody drafts ahead of a tree: its ends are many.
  const int guesses = ready.empty() || round_.choice.tree ? 0 : guesses_wanted(draft_length);
  const bool has_drafts = at_hand > 0;
  drafters_.ahead.expect(sequence_.base(), guesses * static_cast<int>(ready.size()));
  round_.queued = !ready.empty();
  for (DrafterSeats::Replica* replica : ready) {
    replica->asked = !has_drafts;
    round_.queued = round_.queued && replica->place.worker()->rounds > 0;
    if (!has_drafts || guesses > 0) send_draft(*replica, std::max(draft_length, at_hand), guesses, has_drafts);
  }
  if (!ready.empty() && (!has_drafts || guesses > 0)) round_.hidden.reset();
  if (!drafters_.awaits_drafts()) return Next::kDone;
  round_.outcome.draft_rows = round_.rows;
  return Next::kAsked;
}

void Drafting::send_draft(const DrafterSeats::Replica& replica, std::int64_t draft_length, int guesses,
                          bool has_drafts) {
  const Generate& request = sequence_.request;
  std::vector<TokenId> answer;
  if (request.sampling.follows_answer())
    answer.assign(sequence_.tokens.begin() + sequence_.prompt_size + replica.guided, sequence_.tokens.end());
  const bool known = !drafts_plainly_ && replica.guided > 0;
  environment_.send(
      replica.peer(),
      {.session = id_,
       .round = round_.id,
       .base = sequence_.base(),
       .body = Draft{.token = sequence_.tokens.back(),
                     .draft_length = static_cast<std::int32_t>(draft_length),
                     .hidden = replica.place.worker()->needs_rows() ? round_.hidden : std::nullopt,
                     .sampling = drafts_plainly_ || known ? std::nullopt : std::optional(for_drafter(request.sampling)),
                     .index = sequence_.answered(),
                     .want_q = logs_rejections(),
                     .sampling_known = known,
                     .answer = std::move(answer),
                     .ahead = guesses,
                     .known = has_drafts ? round_.drafts.tokens : std::vector<TokenId>(),
                     .tree = round_.choice.tree,
                     .worth = sequence_.drafts_have_a_say() ? 0 : round_.choice.worth,
                     .stop_ids = known ? std::vector<TokenId>() : request.stop_ids}});
}

bool Drafting::is_sound(const Candidates& drafts) const {
  const PairFacts& facts = *environment_.fleet.facts();
  return (drafts.q.empty() || drafts.q.size() == drafts.tokens.size()) &&
         TokenTree(std::ssize(drafts.tokens), drafts.depths).check() &&
         !first_beyond(drafts.tokens, facts.vocab_size) && (!drafts.state || check_hidden(facts, *drafts.state));
}

void Drafting::warn_of_drafts(const PeerId& drafter, const Candidates& drafts) const {
  environment_.warn_of(
      drafter,
      fmt::format("drafter {}: {} candidates with {} distributions and {} depths, ids beyond the vocabulary of {}, "
                  "depths of no tree, or a state that is no hidden row; dropped",
                  environment_.fleet.at(drafter).hello.name, drafts.tokens.size(), drafts.q.size(),
                  drafts.depths.size(), environment_.fleet.facts()->vocab_size),
      id_);
}

Drafting::Next Drafting::on_candidates(const PeerId& drafter, const Candidates& candidates, Duration waited) {
  const std::int64_t limit = sequence_.draft_room();
  const bool sound = std::ssize(candidates.tokens) <= limit && is_sound(candidates);
  if (!sound) warn_of_drafts(drafter, candidates);
  if (!sound && drafters_.awaits_drafts()) return Next::kNothing;
  ledger_.on_candidates(waited, round_.on_candidates(drafter, candidates, waited));
  if (sound) round_.drafts.add(0, candidates, DraftSource::kAssistant, limit);
  for (const DrafterSeats::Replica& other : drafters_.replicas()) {  // the round begins without theirs
    Worker* late = other.asked ? other.place.worker() : nullptr;
    if (late != nullptr) ++late->late_rounds;
  }
  // With a minimum worth for each draft, an empty answer is legitimate.
  if (round_.drafts.empty() && round_.choice.worth == 0) drafters_.judge(drafter, false);
  return Next::kDone;
}

void Drafting::on_late(Duration waited) {
  round_.count_wait(waited);
  for (const PeerId& peer : drafters_.peers()) {
    if (!drafters_.find(peer)->asked) continue;
    drafters_.judge(peer, false);
    if (Worker* drafter = environment_.fleet.find(peer)) ++drafter->late_rounds;
    // Before kTimeout the drafter may be well; these drafts are not worth the wait.
    Worker* drafter = environment_.fleet.usable_drafter(peer);
    if (waited < kTimeout || drafter == nullptr) continue;
    drafter->miss(environment_.now);
    environment_.warn_of(peer,
                         fmt::format("drafter {} did not answer within {:.1f} s; going on without it",
                                     drafter->hello.name, to_seconds(kTimeout)),
                         id_);
  }
}

// ---- drafts made ahead, while a round is verified, for what the drafter takes to be the round's outcome ----

bool Drafting::may_draft_ahead() const {
  const Generate& request = sequence_.request;
  // Of a stepwise sequence the client says what is verified.
  if (request.stepwise) return false;
  // The drafter's grammar goes along one path, that of the sequence.
  if (!request.sampling.grammar.empty()) return false;
  // So do drafts made ahead: they are chains, and the ends of a tree and of what is added everywhere are many.
  if (request.policy == DraftPolicy::kTree || request.added.any()) return false;
  // A block drafter has to wait for the target's rows.
  if (std::ranges::any_of(drafters_.replicas(), [](const DrafterSeats::Replica& replica) {
        const Worker* drafter = replica.place.worker();
        return drafter != nullptr && takes_hidden_rows(drafter->hello.facts);
      }))
    return false;
  if (request.draft_ahead) return *request.draft_ahead > 0;
  if (sequence_.drafts_have_a_say()) return false;  // a seed's sequence would depend on which of them came in time
  return std::ranges::any_of(drafters_.replicas(), [&](const DrafterSeats::Replica& replica) {
    const Worker* drafter = replica.place.worker();
    return drafter != nullptr && drafter->rtt >= std::chrono::milliseconds(1);
  });
}

int Drafting::guesses_wanted(std::int64_t draft_length) const {
  const bool has_next_round = sequence_.drafts_left() > 1;
  if (!may_draft_ahead() || !has_next_round) return 0;
  if (sequence_.request.draft_ahead) return *sequence_.request.draft_ahead;
  const Worker* verifier = verifier_.place().worker();
  const bool pays =
      verifier != nullptr && ahead_pays(verifier->costs_with(drafters_.needs()), static_cast<int>(draft_length));
  return pays ? kDraftAheadMax : 0;
}

std::int64_t Drafting::take_ahead(std::int64_t draft_length) {
  const DraftAhead::Guess* guess = drafters_.ahead.find(sequence_.tokens);
  if (guess == nullptr) return 0;
  round_.take_ahead(guess->drafter, guess->drafts, draft_length);
  return std::ssize(guess->drafts.tokens);
}

Drafting::Next Drafting::on_ahead(const PeerId& drafter, Position base, Candidates guess,
                                  std::optional<Duration> waiting) {
  if (!is_sound(guess)) {
    warn_of_drafts(drafter, guess);
    return Next::kNothing;
  }
  const bool is_late = waiting && round_.after_all && is_outcome(sequence_.tokens, base, guess.after);
  if (!is_late || guess.tokens.empty()) {
    drafters_.ahead.add(base, {drafter, std::move(guess)});
    return Next::kNothing;
  }
  // The verdict was faster; these are here before those that were asked for then.
  shorten(guess, std::min<std::int64_t>(round_.choice.length, sequence_.drafts_left()));
  drafters_.find(drafter)->asked = false;
  round_.outcome.ahead = true;
  return on_candidates(drafter, guess, *waiting);
}

void Drafting::log_rejection(const Verdict& verdict) const {
  if (!logs_rejections()) return;
  const std::vector<std::int64_t> lost = round_.drafts.tree().children(round_.row_of(verdict));
  if (lost.empty()) return;
  const auto slot = static_cast<std::size_t>(lost.front()) - 1;
  Rejection rejection{.session = id_,
                      .round = round_.id,
                      .base = sequence_.base(),
                      .source = round_.drafts.sources[slot],
                      .slot = verdict.accepted,
                      .draft = round_.drafts.tokens[slot],
                      .target = verdict.next_token};
  const bool looked_up = rejection.source != DraftSource::kAssistant;
  if (!looked_up && !round_.drafts.q.empty()) compare(rejection, round_.drafts.q[slot]);
  environment_.output.rejections.push_back(rejection);
}

}  // namespace outrider
