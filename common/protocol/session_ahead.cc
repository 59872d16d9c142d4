// Drafts that a text's drafter makes while a round is verified, for what it takes to be that round's outcome.
#include <algorithm>
#include <chrono>

#include "common/protocol/session.h"

namespace outrider {
namespace {

void shorten(Candidates& drafts, std::int64_t length) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(length, 0));
  if (drafts.tokens.size() > size) drafts.tokens.resize(size);
  if (drafts.q.size() > size) drafts.q.resize(size);
}

}  // namespace

bool Session::may_draft_ahead(const Desk& desk) const {
  // An answer that nobody verifies waits for nobody; of a stepwise one the client says what is verified.
  if (request_.unverified || request_.stepwise) return false;
  // The drafter's grammar goes along one path, that of the text.
  if (!request_.sampling.grammar.empty()) return false;
  // So do drafts made ahead: they are chains, and the ends of a tree and of what is added everywhere are many.
  if (request_.policy == DraftPolicy::kTree || request_.added.any()) return false;
  if (request_.draft_ahead) return *request_.draft_ahead > 0;
  if (drafts_have_a_say()) return false;  // a seed's text would depend on which of them came in time
  return std::ranges::any_of(workers_.replicas, [&](const Replica& replica) {
    const Worker* drafter = desk.fleet.find(replica.drafter);
    return drafter != nullptr && drafter->rtt >= std::chrono::milliseconds(1);
  });
}

int Session::guesses_wanted(const Desk& desk, std::int64_t draft_length) const {
  const bool has_next_round = drafts_left() > 1;
  if (!may_draft_ahead(desk) || !has_next_round) return 0;
  if (request_.draft_ahead) return *request_.draft_ahead;
  const Worker* verifier = desk.fleet.find(workers_.verifier);
  const bool pays = verifier != nullptr && verifier->costs.ahead_pays(static_cast<int>(draft_length));
  return pays ? kDraftAheadMax : 0;
}

std::int64_t Session::take_ahead(std::int64_t draft_length) {
  const DraftAhead::Guess* guess = workers_.ahead.find(text_);
  if (guess == nullptr) return 0;
  const std::int64_t at_hand = std::ssize(guess->drafts.tokens);
  round_.drafts.add(0, guess->drafts, DraftSource::kAssistant, draft_length);
  round_.drafter = guess->drafter;
  round_.outcome.ahead = true;
  return at_hand;
}

void Session::on_ahead(const Desk& desk, const PeerId& drafter, Position base, Candidates guess) {
  const PairFacts& facts = *desk.fleet.facts();
  if (!is_sound(guess, facts)) return warn_of_drafts(desk, drafter, guess, facts);
  const bool is_late = phase_ == Phase::kDrafting && round_.after_all && is_outcome(text_, base, guess.after);
  if (!is_late || guess.tokens.empty()) return workers_.ahead.add(base, {drafter, std::move(guess)});
  // The verdict was faster; these are here before those that were asked for then.
  shorten(guess, std::min<std::int64_t>(round_.choice.length, drafts_left()));
  round_.outcome.ahead = true;
  replica_of(drafter)->asked = false;
  on_candidates(desk, drafter, std::move(guess));
}

}  // namespace outrider
