// A session's rounds: drafts, a Verify, its Verdict, and the tokens that it adds.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/wire/messages/donor_rows.h"
#include "coordinator-node/session/session.h"

namespace outrider {

void Session::next_round(KvRows kv) {
  round_.next(environment_.now, drafters_.ahead.expects());
  if (sequence_.draft_room() > 0) {
    drafters_.renew(verifier_.worker());
    choose_policy();
    forward(std::move(kv));
  }
  begin_round();
}

void Session::forward(KvRows kv) { drafters_.forward(std::move(kv), verifier_.peer(), pending_, round_); }

void Session::begin_round() { follow(drafting_.begin(std::max<std::int64_t>(sequence_.draft_room(), 0))); }

void Session::follow(Drafting::Next next) {
  if (next == Drafting::Next::kAsked) enter(Phase::kDrafting);
  if (next == Drafting::Next::kDone) end_drafting();
}

void Session::end_drafting() {
  drafting_.add_looked_up();
  send_verify();
}

bool Session::on_drafter(DrafterSeats::Replica& replica, Message message) {
  if (std::holds_alternative<Failed>(message.body)) {
    drafters_.take_no_more();
    lose_drafter(PeerId(replica.peer()));
    return true;
  }
  auto* candidates = std::get_if<Candidates>(&message.body);
  const auto* need = std::get_if<NeedKv>(&message.body);
  if (candidates == nullptr && need == nullptr) return false;
  if (need != nullptr) {
    replica.end = std::clamp<Position>(need->have, 0, sequence_.base());
    replica.guided = 0;
  }
  replica.asked = false;
  if (candidates != nullptr) replica.guided = sequence_.answered();
  if (phase_ != Phase::kDrafting) return true;  // late
  replica.place.worker()->retry = {};
  if (candidates != nullptr) {
    follow(drafting_.on_candidates(PeerId(replica.peer()), *candidates, waited()));
  } else if (!drafters_.awaits_drafts()) {
    round_.outcome.draft_wire_s = to_seconds(waited());
    round_.choice.catches_up = !replica.place.worker()->needs_rows();
    end_drafting();
  }
  return true;
}

void Session::lose_drafter(const PeerId& drafter) {
  drafters_.release(drafter, false);
  if (phase_ == Phase::kDrafting && !drafters_.awaits_drafts()) end_drafting();
}

void Session::send_verify() {
  verifier_.leave_if_draining(encoder_, round_.id);
  if (verifier_.peer().empty()) return move_to_another_verifier();
  // A policy that wants plain rounds is spared the drafter's input; when it wants drafts again, one round fetches it.
  const bool drafts_wanted = verifier_.policy == nullptr || round_.choice.length > 0;
  const bool drafting_goes_on = drafts_wanted && sequence_.tokens_left() > 1;
  enter(Phase::kVerifying);
  if (sequence_.request.stepwise) verifier_.set_aside(sequence_.base() + 1 + round_.drafts.size());
  Verify verify{.tokens = {sequence_.tokens.back()},
                .kv_from = drafting_goes_on ? drafters_.rows_wanted() : std::nullopt};
  verify.tokens.insert(verify.tokens.end(), round_.drafts.tokens.begin(), round_.drafts.tokens.end());
  const SamplingParams& sampling = sequence_.request.sampling;
  if (!sampling.greedy() && sampling.rule == SamplingRule::kRejection)
    verify.q = round_.drafts.q;  // else drafts must match
  verify.depths = round_.drafts.depths;
  verify.wire = drafters_.wire_form();
  pending_.ask(environment_, verifier_.peer(),
               {.session = id_, .round = round_.id, .base = sequence_.base(), .body = std::move(verify)});
}

void Session::on_verdict(Verdict verdict) {
  Worker& verifier = verifier_.worker();
  const bool prefill = phase_ == Phase::kPrefill;
  if (auto ok = verifier_.check(verdict, round_, prefill); !ok) return distrust_verifier(ok.error());
  verifier.suspect = false;
  if (verdict.hidden) {
    if (auto ok = check_hidden(verifier.hello.facts, *verdict.hidden); !ok) {
      environment_.warn_of(verifier_.peer(),
                           fmt::format("verifier {}: {}; dropped", verifier.hello.name, ok.error().message), id_);
      verdict.hidden.reset();
    }
  }
  if (prefill && sequence_.has_token())
    return verifier_.resuming ? on_resumed(std::move(verdict)) : on_moved(std::move(verdict));
  std::optional<RoundReport> report;
  if (prefill) {
    if (round_.moved) verifier_.count_failover(ledger_);
    verifier_.keep_class(verifier.hello);
    if (sequence_.has_media()) encoder_.encoding_class = verifier.hello.encoding_class;
    environment_.fleet.keep_facts(verifier.hello.facts);
    ledger_.on_first_token(environment_.now, std::min(verdict.cached_tokens, verdict.committed));
    if (!verdict.kv.empty() && waited() < PendingRequest::kResend) verifier.rows_pause = {};
  } else {
    account(verdict);
    if (sequence_.request.report_rounds)
      report = {.draft_length = round_.choice.length,
                .drafts = round_.drafts.tokens,
                .outcome = round_.outcome,
                .depths = round_.drafts.depths,
                .drafter = drafters_.unreported(round_)};
  }
  // The accepted drafts and the target's own token.
  std::vector<TokenId> fresh = round_.drafts.path(round_.row_of(verdict));
  fresh.push_back(verdict.next_token);
  emit(std::move(fresh), std::move(verdict.logprobs), std::move(report));
  if (phase_ == Phase::kEnded) return;
  round_.hidden = std::move(verdict.hidden);
  next_round(std::move(verdict.kv));
}

void Session::account(const Verdict& verdict) {
  const std::int64_t verifying = round_.on_verdict(verdict, waited(), environment_.now);
  ledger_.on_verdict(waited(), verifying);
  drafters_.weigh_wire(round_, ledger_.metrics.rounds == 1);
  const RoundOutcome& outcome = round_.outcome;
  if (verifier_.policy != nullptr && !round_.moved) {
    Estimates& costs = verifier_.worker().costs_with(policy_for_);
    costs.wanted.observe(round_.choice.length > 0 && !is_looked_up(round_.choice.source));
    // What sources said together is nobody's.
    const bool telling = round_.is_tree() ? !sequence_.request.added.any() : round_.is_plain();
    if (telling && !round_.choice.catches_up)
      costs.observe(outcome);
    else
      costs.observe_pass(outcome);
    if (round_.after_all && outcome.source == DraftSource::kAssistant && outcome.drafted > 0)
      costs.ahead.observe(*round_.after_all, outcome.ahead, outcome.draft_s + outcome.draft_wire_s);
    verifier_.policy->observe(round_.choice, outcome);
  }
  if (round_.has_drafts_of(DraftSource::kAssistant) && !round_.moved)
    environment_.fleet.count_speed(drafters_.needs(), outcome.accepted + 1, outcome.round_s);
  if (outcome.drafted == 0) return;
  const std::vector<DraftSource> kept = round_.drafts.sources_of(round_.row_of(verdict));
  if (round_.has_drafts_of(DraftSource::kAssistant) && !sequence_.request.stepwise)
    drafters_.judge(round_.drafter, !kept.empty() && kept.front() == DraftSource::kAssistant);
  ledger_.count_drafts(round_, kept);
  drafting_.log_rejection(verdict);
}

void Session::emit(std::vector<TokenId> fresh, std::vector<TokenLogprobs> logprobs, std::optional<RoundReport> round) {
  const std::int64_t index = sequence_.answered();
  const bool stopped = sequence_.append(fresh);
  if (!logprobs.empty()) logprobs.resize(fresh.size());
  ledger_.metrics.decode_ns = (environment_.now - ledger_.first_token).count();
  Tokens tokens{index, std::move(fresh), std::move(logprobs), std::move(round)};
  verifier_.report(tokens, encoder_.encoding_class);
  reply(std::move(tokens));
  const bool ended = stopped || sequence_.tokens_left() == 0;
  if (ended) drafters_.ahead.expect(0, 0);
  ledger_.metrics.vain_drafts += drafters_.ahead.take_vain();
  if (ended) finish(Done{stopped ? FinishReason::kStop : FinishReason::kLength, ledger_.metrics});
}

}  // namespace outrider
