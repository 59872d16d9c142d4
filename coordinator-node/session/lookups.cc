// Drafts from lookups in the sequence itself or in a table, besides a drafter's.
#include <algorithm>

#include "common/decoding/drafting/ngram.h"
#include "coordinator-node/session/drafting.h"

namespace outrider {

Candidates look_up(const SessionState& session, DraftSource source, std::span<const TokenId> tokens,
                   std::int64_t most) {
  const auto length = static_cast<std::size_t>(most);
  if (source == DraftSource::kNgram) {
    const std::span<const TokenId> drafts = ngram_draft(tokens, length);
    return {.tokens = {drafts.begin(), drafts.end()}};
  }
  const PairFacts& facts = *session.environment.fleet.facts();
  const DraftTable* table = session.environment.config.table;
  if (table == nullptr || table->fingerprint() != facts.backbone_fingerprint) return {};
  return {.tokens = table->draft(tokens, length, facts.vocab_size)};
}

namespace {

/// Returns the sequence with the round's first choices appended.
std::vector<TokenId> tokens_with_drafts(const SessionState& session) {
  std::vector<TokenId> tokens = session.sequence.tokens;
  const std::vector<TokenId> path = session.round.drafts.path(session.round.drafts.first_end());
  tokens.insert(tokens.end(), path.begin(), path.end());
  return tokens;
}

/// Like look_up(), after drafts: nothing follows a stop.
Candidates look_up_behind(const SessionState& session, DraftSource source, std::span<const TokenId> tokens,
                          std::int64_t most) {
  const std::vector<TokenId>& stop_ids = session.sequence.request.stop_ids;
  if (std::ranges::find(stop_ids, tokens.back()) != stop_ids.end()) return {};
  return look_up(session, source, tokens, most);
}

void add_sources(SessionState& session) {
  const Generate& request = session.sequence.request;
  RoundDrafts& drafts = session.round.drafts;
  const std::int64_t length = session.round.choice.length, left = session.sequence.drafts_left(),
                     most = std::min({drafts.size() + length, left, std::int64_t{kDraftLengthMax}});
  const bool draws = !request.sampling.greedy() && request.sampling.rule == SamplingRule::kRejection;
  for (const DraftSource source : kLookUps) {
    if (!(source == DraftSource::kTable ? request.added.table : request.added.ngram)) continue;
    drafts.add(drafts.first_end(), look_up_behind(session, source, tokens_with_drafts(session), length), source, most);
    // Either all siblings are drawn from one distribution, or none of them.
    if (!draws) drafts.add(0, look_up(session, source, session.sequence.tokens, length), source, most);
  }
  if (!drafts.empty()) session.round.outcome.source = drafts.sources.front();
}

void extend(SessionState& session) {
  const Generate& request = session.sequence.request;
  // Under `typical` drafts change the answer, so that measured times must not choose them.
  const bool lossy = session.sequence.output_depends_on_drafts() && request.sampling.rule != SamplingRule::kRejection;
  const bool wants_drafts = request.policy == DraftPolicy::kAuto && session.round.choice.length > 0;
  if (!wants_drafts || session.round.is_tree() || lossy) return;
  // The sequence alone did not pay on a machine, whatever the estimates (docs/lab/sources.md).
  if (session.environment.config.table == nullptr) return;
  if (session.verifier.policy == nullptr) return;  // the verifier was lost meanwhile
  RoundDrafts& drafts = session.round.drafts;
  RoundOutcome& begun = session.round.outcome;
  std::vector<TokenId> tokens = tokens_with_drafts(session);  // may be long: built once for all sources
  for (const DraftSource source : kLookUps) {
    begun.drafted = static_cast<int>(drafts.size());
    const std::int64_t room = std::min<std::int64_t>(session.sequence.drafts_left(), kDraftLengthMax) - drafts.size();
    if (source == begun.source || room <= 0) continue;
    const Candidates more = look_up_behind(session, source, tokens, room);
    if (more.tokens.empty()) continue;
    const auto found = static_cast<int>(more.tokens.size());
    const int worth = session.verifier.policy->extend(session.round.choice, begun, source, found);
    drafts.add(drafts.first_end(), more, source, drafts.size() + worth);
    tokens.insert(tokens.end(), more.tokens.begin(), more.tokens.begin() + worth);
    if (begun.drafted > 0) {
      begun.behind[static_cast<std::size_t>(source)] = worth;
    } else if (worth > 0) {
      begun.source = source;  // its drafter is late
    }
  }
}

}  // namespace

void add_looked_up(SessionState& session) {
  add_sources(session);
  extend(session);
}

}  // namespace outrider
