#include "coordinator-node/session/verifying.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "common/wire/messages/donor_rows.h"

namespace outrider {

Next Verifying::prefill() {
  if (verifier_.leaves()) return {.what = Next::What::kMove};
  Generate& request = sequence_.request;
  const PairFacts& facts = verifier_.hello().facts;
  verifier_.scored = 1;
  // Reserved again, since soft tokens differ in size from the pixels and samples that they replace.
  if (sequence_.encoded > 0) {
    request.max_tokens = sequence_.shortened(
        verifier_.worker().max_tokens_that_fit(sequence_.prompt_size, media_bytes(request.media)));
    verifier_.set_aside(std::min(sequence_.positions(), facts.context_max));
  }
  state_.enter(Phase::kPrefill);
  const Position end = sequence_.committed();
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
    // A stop id beyond the vocabulary never occurs.
    std::ranges::copy_if(request.stop_ids, std::back_inserter(prefill.stop_ids),
                         [&](TokenId id) { return id < facts.vocab_size; });
  }
  pending_.ask(verifier_.peer(), state_.message(std::move(prefill)));
  return {};
}

Next Verifying::verify() {
  if (verifier_.leaves()) return {.what = Next::What::kMove};
  // While the policy wants plain rounds, no drafter input is fetched; when it wants drafts again, one round fetches it.
  const bool drafts_wanted = verifier_.policy == nullptr || round_.choice.length > 0;
  const bool drafting_goes_on = drafts_wanted && sequence_.tokens_left() > 1;
  state_.enter(Phase::kVerifying);
  if (sequence_.request.stepwise) verifier_.set_aside(sequence_.base() + 1 + round_.drafts.size());
  Verify verify{.tokens = {sequence_.tokens.back()},
                .kv_from = drafting_goes_on ? drafters_.rows_wanted() : std::nullopt};
  verify.tokens.insert(verify.tokens.end(), round_.drafts.tokens.begin(), round_.drafts.tokens.end());
  const SamplingParams& sampling = sequence_.request.sampling;
  if (!sampling.greedy() && sampling.rule == SamplingRule::kRejection)
    verify.q = round_.drafts.q;  // otherwise drafts must match
  verify.depths = round_.drafts.depths;
  verify.wire = drafters_.wire_form();
  pending_.ask(verifier_.peer(), state_.message(std::move(verify), sequence_.base()));
  return {};
}

Next Verifying::on_tick() {
  const Worker& verifier = verifier_.worker();
  const std::optional<TimePoint> since = verifier.arriving.since;
  if (verifier.arriving.now(environment_.now) && since && environment_.now - *since >= PendingRequest::kResend)
    stop_sending_rows();
  if (auto why = pending_.on_tick(verifier_.peer())) return distrust(std::move(*why));
  return {};
}

void Verifying::stop_sending_rows() {
  std::vector<PeerId> with_rows;
  for (const DrafterSeats::Replica& replica : drafters_.replicas) {
    const Worker* drafter = replica.place.worker();
    if (drafter == nullptr || drafter->needs_rows()) with_rows.push_back(replica.peer());
  }
  if (with_rows.empty()) return;
  Worker& verifier = verifier_.worker();
  if (environment_.now >= verifier.rows_again) verifier.pause_rows(environment_.now);
  state_.warn_of_worker(
      verifier_.peer(),
      fmt::format("its K/V rows take more than {:.0f} s on their way here; no drafts for its sequences for {:.0f} s",
                  to_seconds(PendingRequest::kResend), to_seconds(verifier.rows_pause)));
  for (const PeerId& drafter : with_rows) drafters_.release(drafter);
  drafters_.take_no_more(/*with_rows=*/true);
  if (state_.phase == Phase::kPrefill) pending_.repeat_without_rows(verifier_.peer());
}

Next Verifying::on_message(Message message) {
  if (pending_.on_message(message)) return {};
  if (auto* chunk = std::get_if<KvChunk>(&message.body)) {
    if (chunk->kv.to > sequence_.committed()) {
      return distrust({Errc::kMalformed, "it sent K/V rows {} to {} of a sequence that has {}", chunk->kv.from,
                       chunk->kv.to, sequence_.committed()});
    }
    pending_.wait_from_now();
    state_.forward(std::move(chunk->kv));
    return {};
  }
  auto* scores = std::get_if<PromptScores>(&message.body);
  auto* verdict = std::get_if<Verdict>(&message.body);
  const auto* failed = std::get_if<Failed>(&message.body);
  if (scores == nullptr && verdict == nullptr && failed == nullptr) return {.what = Next::What::kNonsense};
  if (!state_.asks_verifier()) return {};
  if (scores != nullptr) {
    if (state_.phase == Phase::kPrefill && verifier_.take_scores(*scores))
      state_.reply(std::move(*scores));
    else
      state_.warn_of_worker(verifier_.peer(),
                            fmt::format("log-probabilities of the prompt's tokens {} to {}, or not those that were "
                                        "asked for, wanted them from {} to {}; dropped",
                                        scores->first, scores->first + std::ssize(scores->logprobs), verifier_.scored,
                                        sequence_.prompt_size));
  }
  if (verdict != nullptr) return on_verdict(std::move(*verdict));
  // The verifier may lack room although our accounts have some, because a Free was lost. The verifier will notice;
  // until then the prompt is repeated.
  if (failed == nullptr || (state_.phase == Phase::kPrefill && failed->code == Errc::kUnavailable)) return {};
  Error error = environment_.for_client(verifier_.peer(), *failed, state_.id);
  if (failed->code == Errc::kNotFound) return lose(std::move(error));  // for example after a restart
  return Next::fail(std::move(error));
}

Next Verifying::lose(Error why) {
  state_.encoder.leave();
  if (auto error = verifier_.lose(std::move(why))) return Next::fail(std::move(*error));
  // A session that drafts, or waits for its client, needs no verifier until it has something to verify.
  const bool needs_one = state_.phase == Phase::kEncoding || state_.asks_verifier();
  return {.what = needs_one ? Next::What::kMove : Next::What::kNothing};
}

Next Verifying::distrust(Error why) {
  verifier_.worker().suspect = true;
  state_.warn_of_worker(verifier_.peer(), why.message);
  why.message = "the verifier: " + why.message;
  return lose(std::move(why));
}

Next Verifying::on_verdict(Verdict verdict) {
  Worker& verifier = verifier_.worker();
  const bool prefill = state_.phase == Phase::kPrefill;
  if (auto ok = verifier_.check(verdict, prefill); !ok) return distrust(ok.error());
  verifier.suspect = false;
  if (verdict.hidden) {
    if (auto ok = check_hidden(verifier.hello.facts, *verdict.hidden); !ok) {
      state_.warn_of_worker(verifier_.peer(), ok.error().message + "; dropped");
      verdict.hidden.reset();
    }
  }
  if (prefill && sequence_.has_token()) return on_caught_up(std::move(verdict));
  std::optional<RoundReport> report;
  if (prefill) {
    if (round_.moved) verifier_.count_failover();
    keep_first(verdict);
    if (!verdict.kv.empty() && state_.waited() < PendingRequest::kResend) verifier.rows_pause = {};
  } else {
    account(verdict);
    if (sequence_.request.report_rounds)
      report = {.draft_length = round_.choice.length,
                .drafts = round_.drafts.tokens,
                .outcome = round_.outcome,
                .depths = round_.drafts.depths,
                .drafter = drafters_.unreported()};
  }
  return emit(std::move(verdict), std::move(report));
}

void Verifying::keep_first(const Verdict& verdict) {
  const Hello& verifier = verifier_.hello();
  verifier_.numeric_class = verifier.numeric_class;
  if (sequence_.has_media()) state_.encoder.encoding_class = verifier.encoding_class;
  environment_.fleet.keep_facts(verifier.facts);
  ledger_.on_first_token(environment_.now, std::min(verdict.cached_tokens, sequence_.prompt_size));
}

Next Verifying::on_caught_up(Verdict verdict) {
  const Hello& verifier = verifier_.hello();
  const bool contradicts = verifier_.contradicts(verdict);
  if (!verifier_.resuming) {
    if (contradicts) {
      return distrust({Errc::kMismatch, "token {} where another of class '{}' chose {}", verdict.next_token,
                       verifier.numeric_class, sequence_.tokens.back()});
    }
    verifier_.count_failover();
    verifier_.numeric_class = verifier.numeric_class;
    state_.forward(std::move(verdict.kv));
    round_.renumber();
    return {.what = Next::What::kVerify};
  }
  // The client's and the verifier's tokens disagree: only this request is at fault.
  if (contradicts) {
    return Next::fail({Errc::kMismatch, "the answer so far ends with token {}, wanted {}", sequence_.tokens.back(),
                       verdict.next_token});
  }
  verifier_.resuming = false;
  keep_first(verdict);
  ++environment_.failovers.resumed;
  if (sequence_.request.stepwise) {
    Tokens none{.index = sequence_.answered(), .tokens = {}};  // the client waits for it
    verifier_.report(none);
    state_.reply(std::move(none));
  }
  round_.hidden = std::move(verdict.hidden);
  return {.what = Next::What::kRound, .kv = std::move(verdict.kv)};
}

void Verifying::account(const Verdict& verdict) {
  const Duration waited = state_.waited();
  ledger_.on_verdict(waited, round_.on_verdict(verdict, waited, environment_.now));
  drafters_.weigh_wire(ledger_.metrics.rounds == 1);
  const RoundOutcome& outcome = round_.outcome;
  const bool assisted = round_.has_drafts_of(DraftSource::kAssistant);
  if (verifier_.policy != nullptr && !round_.moved) {
    Estimates& costs = verifier_.costs();
    if (round_.choice.length > 0 || drafters_.can_draft())  // otherwise no choice was possible
      costs.wanted.observe(round_.choice.length > 0 && !is_looked_up(round_.choice.source));
    // Drafts of several sources cannot be attributed to one.
    const bool telling = round_.is_tree() ? !sequence_.request.added.any() : round_.is_plain();
    const double ended_s = to_seconds(environment_.now.time_since_epoch());
    if (telling && !round_.choice.catches_up)
      costs.observe(outcome, ended_s);
    else
      costs.observe_pass(outcome, ended_s);
    if (round_.after_all && outcome.source == DraftSource::kAssistant && outcome.drafted > 0)
      costs.ahead.observe(*round_.after_all, outcome.ahead, outcome.draft_s + outcome.draft_wire_s);
    verifier_.policy->observe(round_.choice, outcome);
  }
  if (assisted && !round_.moved)
    environment_.fleet.speeds.count(drafters_.needs(), outcome.accepted + 1, outcome.round_s);
  if (outcome.drafted == 0) return;
  const std::vector<DraftSource> kept = round_.drafts.sources_of(round_.row_of(verdict));
  if (assisted && !sequence_.request.stepwise)
    environment_.judge(round_.drafter, !kept.empty() && kept.front() == DraftSource::kAssistant);
  ledger_.count_drafts(round_, kept);
  if (state_.logs_rejections()) log_rejection(verdict);
}

void Verifying::log_rejection(const Verdict& verdict) const {
  const std::vector<std::int64_t> lost = round_.drafts.tree().children(round_.row_of(verdict));
  if (lost.empty()) return;
  // The round may have ended with one of these drafts, because no token could be chosen after it (Sampler::verify).
  if (std::ranges::any_of(lost, [&](std::int64_t row) {
        return round_.drafts.tokens[static_cast<std::size_t>(row) - 1] == verdict.next_token;
      }))
    return;
  const auto slot = static_cast<std::size_t>(lost.front()) - 1;
  Rejection rejection{.session = state_.id,
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

Next Verifying::emit(Verdict verdict, std::optional<RoundReport> report) {
  // The accepted drafts and the target's own token.
  std::vector<TokenId> fresh = round_.drafts.path(round_.row_of(verdict));
  fresh.push_back(verdict.next_token);
  const std::int64_t index = sequence_.answered();
  const bool stopped = sequence_.append(fresh);
  if (!verdict.logprobs.empty()) verdict.logprobs.resize(fresh.size());
  ledger_.metrics.decode_ns = (environment_.now - ledger_.first_token).count();
  Tokens tokens{index, std::move(fresh), std::move(verdict.logprobs), std::move(report)};
  verifier_.report(tokens);
  state_.reply(std::move(tokens));
  const bool ended = stopped || sequence_.tokens_left() == 0;
  if (ended) drafters_.ahead.expect(0, 0);
  ledger_.metrics.vain_drafts += drafters_.ahead.take_wasted();
  if (ended) return {.what = Next::What::kDone, .reason = stopped ? FinishReason::kStop : FinishReason::kLength};
  round_.hidden = std::move(verdict.hidden);
  return {.what = Next::What::kRound, .kv = std::move(verdict.kv)};
}

}  // namespace outrider
