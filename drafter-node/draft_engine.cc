#include "drafter-node/draft_engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/time.h"
#include "common/kernels/ops.h"
#include "common/tensor/decode.h"

namespace outrider {
namespace {

void append(DonorReplica& replica, const KvRows& kv) {
  LayerKv* const layers[] = {&replica.sliding, &replica.full};
  CHECK(kv.donors.size() == std::size(layers));
  for (std::size_t i = 0; i < std::size(layers); ++i) {
    const DonorDelta& donor = kv.donors[i];
    layers[i]->write_raw(donor.first, kv.to - donor.first, donor.key.data.bytes().data(),
                         donor.value.data.bytes().data());
  }
  replica.length = kv.to;
}

std::vector<float> to_floats(const WireTensor& row) {
  const std::span<const std::byte> bytes = row.data.bytes();
  std::vector<float> floats(bytes.size() / size_bytes(row.dtype));
  decode(row.dtype, bytes.data(), floats);
  return floats;
}

/// Typical drafts are the likeliest ones, as Medusa's.
bool drafts_likeliest(const SamplingParams& sampling) {
  return sampling.greedy() || sampling.rule == SamplingRule::kTypical;
}

/// q is the drafter's own, so that the few most probable tokens may be all of it.
SamplingParams few(const SamplingParams& sampling) {
  SamplingParams params = drafts_likeliest(sampling) ? SamplingParams{.temperature = 1} : sampling;
  params.top_k = params.top_k == 0 ? kDraftTopK : std::min(params.top_k, kDraftTopK);
  return params;
}

const SamplingParams& sampling_of(const Draft& draft) {
  static const SamplingParams kGreedy;
  return draft.sampling ? *draft.sampling : kGreedy;
}

WireTensor to_wire(std::vector<float> row) {
  const auto owner = std::make_shared<const std::vector<float>>(std::move(row));
  return {.dtype = DType::kF32,
          .shape = {std::ssize(*owner)},
          .data = SharedBytes(owner, std::as_bytes(std::span(*owner)))};
}

}  // namespace

DraftEngine::DraftEngine(std::unique_ptr<Assistant> assistant, std::vector<TokenId> stop_ids, GrammarCompiler* grammars)
    : assistant_(std::move(assistant)), stop_ids_(std::move(stop_ids)), grammars_(grammars) {
  // One beyond the vocabulary never comes.
  std::erase_if(stop_ids_, [&](TokenId id) { return id >= assistant_->config().text.vocab_size; });
}

GrammarState* DraftEngine::guide(SessionId session, const Draft& draft) {
  if (!draft.grammar.empty()) guides_.insert_or_assign(session, Guide{.grammar = draft.grammar, .answer = {}});
  const auto known = guides_.find(session);
  if (known == guides_.end() || known->second.lost || grammars_ == nullptr) return nullptr;
  Guide& guide = known->second;
  // The Draft's tokens end at its index; some may be known.
  const std::int64_t fresh = draft.index - std::ssize(guide.answer);
  guide.lost = fresh < 0 || fresh > std::ssize(draft.answer);
  if (guide.lost) return nullptr;
  const std::span<const TokenId> tokens = std::span(draft.answer).last(static_cast<std::size_t>(fresh));
  guide.answer.insert(guide.answer.end(), tokens.begin(), tokens.end());
  std::span<const TokenId> behind = tokens;
  if (!guide.state) {
    const Result<std::shared_ptr<const Grammar>> grammar = grammars_->find(guide.grammar);
    guide.lost = !grammar && grammar.error().code != Errc::kUnavailable;
    if (!grammar || *grammar == nullptr) return nullptr;
    guide.state.emplace(*grammar, stop_ids_);
    behind = guide.answer;
  }
  guide.lost = !std::ranges::all_of(behind, [&](TokenId token) { return guide.state->accept(token); });
  return guide.lost ? nullptr : &*guide.state;
}

void DraftEngine::fill_row(const SamplingParams& sampling, std::int64_t index, std::span<const TokenId> ids,
                           std::span<const float> scores, GrammarState* state) {
  constexpr float kNotScored = -std::numeric_limits<float>::infinity();
  row_.assign(static_cast<std::size_t>(assistant_->config().text.vocab_size), kNotScored);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    row_[ids.empty() ? i : static_cast<std::size_t>(ids[i])] = std::isnan(scores[i]) ? kNotScored : scores[i];
  }
  if (state != nullptr) {
    const std::span<const std::uint32_t> allowed = state->allowed();
    mask_scores(allowed, row_);
    // None of those that the assistant scored: where the grammar leaves one token, it is right even so.
    if (!std::isfinite(row_[static_cast<std::size_t>(argmax(row_))])) {
      for (std::size_t word = 0; word < allowed.size(); ++word) {
        if (allowed[word] == 0) continue;
        row_[word * 32 + static_cast<std::size_t>(std::countr_zero(allowed[word]))] = 0;
        break;
      }
    }
  }
  const bool guarded = index < sampling.min_tokens;
  process_scores(row_, sampling, guarded ? std::span<const TokenId>(stop_ids_) : std::span<const TokenId>(), {});
}

TokenId DraftEngine::sample(const SamplingParams& sampling, std::int64_t index, std::span<const TokenId> ids,
                            std::span<const float> scores, GrammarState* state, bool want_q,
                            std::vector<Distribution>* q) {
  fill_row(sampling, index, ids, scores, state);
  const auto best = static_cast<TokenId>(argmax(row_));
  // Nothing left to draw from, or scores that are no numbers: any draft, for the target to reject.
  const bool sound = std::isfinite(row_[static_cast<std::size_t>(best)]);
  const bool rejection = sampling.rule == SamplingRule::kRejection;
  const bool likeliest = drafts_likeliest(sampling);
  if (likeliest || !sound) {
    q_.clear();
    q_.add(best, 1);
  } else if (rejection) {
    make_distribution(row_, few(sampling), scratch_, &q_);
  } else {
    make_distribution(row_, sampling, scratch_, &q_);
  }
  // Under match the drafter draws with the target's own noise, and so the target's token more often than
  // any other way of drafting would (Daliri et al. 2024, drafter-invariant speculative decoding).
  const TokenId token = draw(q_, Noise(sampling.seed, index, rejection ? Noise::Stream::kDraft : Noise::Stream::kDraw));
  if (want_q && sound && (likeliest || !rejection)) make_distribution(row_, few(sampling), scratch_, &q_);
  if (want_q || (rejection && !likeliest)) q->push_back(q_);
  return token;
}

Candidates DraftEngine::run(const DraftWork& work) {
  if (work.kind == DraftWork::Kind::kRelease) {
    replicas_.erase(work.session);
    guides_.erase(work.session);
    leads_.erase(work.session);
    return {};
  }
  auto replica = replicas_.find(work.session);
  if (replica == replicas_.end()) replica = replicas_.emplace(work.session, assistant_->make_replica()).first;
  if (work.kind == DraftWork::Kind::kExtend) {
    append(replica->second, work.kv);
    leads_.erase(work.session);
    return {};
  }
  const Draft& draft = work.draft;
  std::vector<float> hidden = to_floats(draft.hidden);
  leads_.erase(work.session);
  if (!draft.known.empty()) {
    leads_[work.session] = {.request = draft, .drafts = draft.known, .state = std::move(hidden)};
    return {};
  }
  Lead lead;
  const TimePoint start = now();
  Candidates drafts;
  std::int64_t index = draft.index;
  const SamplingParams& sampling = sampling_of(draft);
  const bool goes_on = draft.ahead > 0;
  GrammarState* const grammar = guide(work.session, draft);
  int followed = 0;     // drafts that the grammar has gone on over
  bool follows = true;  // all of them: else those that come next will be rejected
  const ChooseDraft choose = [&](std::span<const TokenId> ids, std::span<const float> scores) {
    GrammarState* const state = follows ? grammar : nullptr;
    const TokenId token = sample(sampling, index, ids, scores, state, draft.want_q, &drafts.q);
    follows = state != nullptr && state->accept(token);
    followed += int{follows};
    if (goes_on) lead.path.push_back(weigh(sampling, index, token));
    ++index;
    return token;
  };
  std::vector<std::vector<float>> states;
  CHECK(replica->second.length == work.base, "replica {}, base {}", replica->second.length, work.base);
  const bool chosen = draft.sampling || draft.want_q || goes_on || grammar != nullptr;
  drafts.tokens = assistant_->draft({draft.token, hidden, replica->second, draft.draft_length, stop_ids_,
                                     chosen ? &choose : nullptr, draft.want_state || goes_on ? &states : nullptr});
  if (grammar != nullptr) grammar->roll_back(followed);
  drafts.draft_ns = (now() - start).count();
  if (draft.want_state) drafts.state = to_wire(states.back());
  if (goes_on) {
    lead.request = draft;
    lead.drafts = drafts.tokens;
    lead.state = states.back();
    for (std::size_t i = 0; i < states.size(); ++i) lead.path[i].state = std::move(states[i]);
    if (is_walked(lead)) lead.outcomes = outcomes_of(lead);
    leads_[work.session] = std::move(lead);
  }
  return drafts;
}

// ---- ahead ----

bool DraftEngine::is_stop(TokenId token) const {
  return std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end();
}

bool DraftEngine::is_walked(const Lead& lead) const {
  return lead.path.size() == lead.drafts.size() + (is_stop(lead.drafts.back()) ? 0 : 1);
}

DraftEngine::Place DraftEngine::weigh(const SamplingParams& sampling, std::int64_t index,
                                      std::optional<TokenId> token) {
  const auto best = static_cast<TokenId>(argmax(row_));
  if (!std::isfinite(row_[static_cast<std::size_t>(best)])) return {.token = token.value_or(best)};
  make_distribution(row_, few(sampling), scratch_, &q_);
  // What the target will draw, it draws with this noise.
  const auto guess = [&] {
    if (!drafts_likeliest(sampling)) return draw(q_, Noise(sampling.seed, index, Noise::Stream::kDraw));
    return q_.ids[static_cast<std::size_t>(std::ranges::max_element(q_.weights) - q_.weights.begin())];
  };
  Place place{.token = token ? *token : guess()};
  place.p = q_.probability(place.token);
  const auto at = std::ranges::find(q_.ids, place.token);
  if (at != q_.ids.end()) q_.weights[static_cast<std::size_t>(at - q_.ids.begin())] = 0;
  if (std::ranges::max(q_.weights) <= 0) return place;  // the only one
  place.other = guess();
  place.p_other = q_.probability(place.other);
  return place;
}

void DraftEngine::walk(Lead& lead, const DonorReplica& replica) {
  const std::size_t at = lead.path.size();
  const SamplingParams& sampling = sampling_of(lead.request);
  const std::int64_t index = lead.request.index + static_cast<std::int64_t>(at);
  const ChooseDraft choose = [&](std::span<const TokenId> ids, std::span<const float> scores) {
    fill_row(sampling, index, ids, scores, nullptr);
    lead.path.push_back(
        weigh(sampling, index, at < lead.drafts.size() ? std::optional(lead.drafts[at]) : std::nullopt));
    return lead.path.back().token;
  };
  assistant_->go_on(at == 0 ? lead.request.token : lead.drafts[at - 1], lead.state, replica, choose);
  lead.path.back().state = lead.state;
}

std::vector<DraftEngine::Outcome> DraftEngine::outcomes_of(const Lead& lead) const {
  std::vector<Outcome> outcomes;
  const auto add = [&](std::size_t held, TokenId next, double p) {
    if (p > 0 && !is_stop(next)) outcomes.push_back({held, next, p});
  };
  double held = 1;
  for (std::size_t i = 0; i < lead.path.size(); ++i) {
    const Place& place = lead.path[i];
    if (i == lead.drafts.size()) add(i, place.token, held * place.p);
    add(i, place.other, held * place.p_other);
    held *= place.p;
  }
  std::ranges::sort(outcomes, {}, &Outcome::p);
  return outcomes;
}

void DraftEngine::begin_guess(Lead& lead) {
  const Outcome outcome = lead.outcomes.back();
  lead.outcomes.pop_back();
  lead.state = lead.path[outcome.held].state;
  lead.guess.after.assign(lead.drafts.begin(), lead.drafts.begin() + static_cast<std::ptrdiff_t>(outcome.held));
  lead.guess.after.push_back(outcome.next);
}

void DraftEngine::continue_guess(Lead& lead, const DonorReplica& replica) {
  Candidates& guess = lead.guess;
  const std::int64_t index = lead.request.index + std::ssize(guess.after) + std::ssize(guess.tokens);
  const ChooseDraft choose = [&](std::span<const TokenId> ids, std::span<const float> scores) {
    return sample(sampling_of(lead.request), index, ids, scores, nullptr, lead.request.want_q, &guess.q);
  };
  const TokenId last = guess.tokens.empty() ? guess.after.back() : guess.tokens.back();
  guess.tokens.push_back(assistant_->go_on(last, lead.state, replica, choose));
}

AheadStep DraftEngine::go_on(const DraftWork& work) {
  const auto found = leads_.find(work.session);
  const auto replica = replicas_.find(work.session);
  CHECK(found != leads_.end() && replica->second.length == work.base, "nothing to go on from at {}", work.base);
  Lead& lead = found->second;
  const TimePoint start = now();
  AheadStep step;
  if (!is_walked(lead)) {
    walk(lead, replica->second);
    if (is_walked(lead)) lead.outcomes = outcomes_of(lead);
  } else if (!lead.guess.after.empty() || !lead.outcomes.empty()) {
    if (lead.guess.after.empty()) begin_guess(lead);
    continue_guess(lead, replica->second);
    lead.guess.draft_ns += (now() - start).count();
    if (std::ssize(lead.guess.tokens) == lead.request.draft_length || is_stop(lead.guess.tokens.back())) {
      step.guess = std::exchange(lead.guess, {});
      ++lead.guesses;
    }
  }
  const bool may_begin = lead.guesses < lead.request.ahead && !lead.outcomes.empty();
  step.more = !is_walked(lead) || !lead.guess.after.empty() || may_begin;
  return step;
}

}  // namespace outrider
