// Drafts that are looked up, in the sequence itself or in a table, beside those of a drafter.
#include <algorithm>

#include "common/decoding/drafting/ngram.h"
#include "coordinator-node/session/drafting.h"

namespace outrider {

Candidates Drafting::look_up(DraftSource source, std::span<const TokenId> tokens, std::int64_t most) const {
  const auto length = static_cast<std::size_t>(most);
  if (source == DraftSource::kNgram) {
    const std::span<const TokenId> drafts = ngram_draft(tokens, length);
    return {.tokens = {drafts.begin(), drafts.end()}};
  }
  const PairFacts& facts = *environment_.fleet.facts();
  const DraftTable* table = environment_.table;
  if (table == nullptr || table->fingerprint() != facts.backbone_fingerprint) return {};
  return {.tokens = table->draft(tokens, length, facts.vocab_size)};
}

std::vector<TokenId> Drafting::tokens_with_drafts() const {
  std::vector<TokenId> tokens = sequence_.tokens;
  const std::vector<TokenId> path = round_.drafts.path(round_.drafts.first_end());
  tokens.insert(tokens.end(), path.begin(), path.end());
  return tokens;
}

Candidates Drafting::look_up_behind(DraftSource source, std::span<const TokenId> tokens, std::int64_t most) const {
  if (std::ranges::find(sequence_.request.stop_ids, tokens.back()) != sequence_.request.stop_ids.end()) return {};
  return look_up(source, tokens, most);
}

void Drafting::add_looked_up() {
  add_sources();
  extend();
}

void Drafting::add_sources() {
  const Generate& request = sequence_.request;
  RoundDrafts& drafts = round_.drafts;
  const std::int64_t length = round_.choice.length,
                     most = std::min({drafts.size() + length, sequence_.drafts_left(), std::int64_t{kDraftLengthMax}});
  const bool draws = !request.sampling.greedy() && request.sampling.rule == SamplingRule::kRejection;
  for (const DraftSource source : kLookUps) {
    if (!(source == DraftSource::kTable ? request.added.table : request.added.ngram)) continue;
    drafts.add(drafts.first_end(), look_up_behind(source, tokens_with_drafts(), length), source, most);
    // Siblings are drawn from one distribution, or none of them is.
    if (!draws) drafts.add(0, look_up(source, sequence_.tokens, length), source, most);
  }
  if (!drafts.empty()) round_.outcome.source = drafts.sources.front();
}

bool Drafting::may_draft_trees() const {
  const Generate& request = sequence_.request;
  return request.policy == DraftPolicy::kAuto && request.draft_ahead.value_or(0) == 0 &&
         !sequence_.drafts_have_a_say() && drafters_.needs() == DraftInput::kTargetRows;
}

void Drafting::extend() {
  const Generate& request = sequence_.request;
  // Under `typical` drafts decide what the sequence becomes, and measured times shall have no more say in it than they
  // have.
  const bool lossy = sequence_.drafts_have_a_say() && request.sampling.rule != SamplingRule::kRejection;
  if (request.policy != DraftPolicy::kAuto || round_.choice.length == 0 || round_.is_tree() || lossy) return;
  // The sequence alone did not pay on a machine, whatever it promised (docs/lab/sources.md).
  if (environment_.table == nullptr) return;
  if (verifier_.policy == nullptr) return;  // the verifier was lost meanwhile
  RoundDrafts& drafts = round_.drafts;
  RoundOutcome& begun = round_.outcome;
  std::vector<TokenId> tokens = tokens_with_drafts();  // long, perhaps: once for all sources
  for (const DraftSource source : kLookUps) {
    begun.drafted = static_cast<int>(drafts.size());
    const std::int64_t room = std::min<std::int64_t>(sequence_.drafts_left(), kDraftLengthMax) - drafts.size();
    if (source == begun.source || room <= 0) continue;
    const Candidates more = look_up_behind(source, tokens, room);
    if (more.tokens.empty()) continue;
    const int worth = verifier_.policy->extend(round_.choice, begun, source, static_cast<int>(more.tokens.size()));
    drafts.add(drafts.first_end(), more, source, drafts.size() + worth);
    tokens.insert(tokens.end(), more.tokens.begin(), more.tokens.begin() + worth);
    if (begun.drafted > 0) {
      begun.behind[static_cast<std::size_t>(source)] = worth;
    } else if (worth > 0) {
      begun.source = source;  // its drafter is late
    }
  }
}

}  // namespace outrider
