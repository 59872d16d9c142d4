#include "drafter-node/draft_engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/time.h"
#include "common/kernels/ops.h"
#include "common/tensor/decode.h"
#include "drafter-node/draft_tree.h"

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

void DraftEngine::fill_row(const SamplingParams& sampling, std::int64_t index, std::span<const TokenId> ids,
                           std::span<const float> scores, GrammarState* state, std::vector<TokenId> out) {
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
  const auto is_scored = [&](TokenId token) { return std::isfinite(row_[static_cast<std::size_t>(token)]); };
  if (std::ranges::none_of(sampling.allowed_tokens, is_scored))  // one of them it is
    for (const TokenId token : sampling.allowed_tokens) row_[static_cast<std::size_t>(token)] = 0;
  if (index < sampling.min_tokens) out.insert(out.end(), stop_ids_.begin(), stop_ids_.end());
  process_scores(row_, sampling, out, {});
}

TokenId DraftEngine::sample(const SamplingParams& sampling, std::int64_t index, std::span<const TokenId> ids,
                            std::span<const float> scores, GrammarState* state, std::vector<TokenId> out, bool want_q,
                            std::vector<Distribution>* q) {
  fill_row(sampling, index, ids, scores, state, std::move(out));
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
  Draft draft = work.draft;
  std::vector<float> hidden = to_floats(draft.hidden);
  leads_.erase(work.session);
  AnswerGuide& guide = guides_[work.session];
  GrammarState* const grammar = guide.follow(draft, grammars_, stop_ids_);
  if (!draft.known.empty()) {
    leads_[work.session] = {.request = draft, .guide = &guide, .drafts = draft.known, .state = std::move(hidden)};
    return {};
  }
  CHECK(replica->second.length == work.base, "replica {}, base {}", replica->second.length, work.base);
  if (draft.tree) return draft_tree(draft, replica->second, hidden, grammar, guide);
  Lead lead;
  const TimePoint start = now();
  Candidates drafts;
  std::int64_t index = draft.index;
  const SamplingParams& sampling = sampling_of(draft);
  const bool goes_on = draft.ahead > 0;
  std::vector<TokenId> chain;  // so far
  int followed = 0;     // drafts that the grammar has gone on over
  bool follows = true;  // all of them: else those that come next will be rejected
  const ChooseDraft choose = [&](std::span<const TokenId> ids, std::span<const float> scores) {
    GrammarState* const state = follows ? grammar : nullptr;
    const TokenId token = sample(sampling, index, ids, scores, state, guide.completes_bad_word(chain), draft.want_q,
                                 &drafts.q);
    chain.push_back(token);
    follows = state != nullptr && state->accept(token);
    followed += int{follows};
    if (goes_on) lead.path.push_back(weigh(sampling, index, token));
    ++index;
    return token;
  };
  std::vector<std::vector<float>> states;
  const bool chosen = draft.sampling || draft.want_q || goes_on || grammar != nullptr;
  drafts.tokens = assistant_->draft({draft.token, hidden, replica->second, draft.draft_length, stop_ids_,
                                     chosen ? &choose : nullptr, draft.want_state || goes_on ? &states : nullptr});
  if (grammar != nullptr) grammar->roll_back(followed);
  drafts.draft_ns = (now() - start).count();
  if (draft.want_state) drafts.state = to_wire(states.back());
  if (goes_on) {
    lead.request = draft;
    lead.guide = &guide;
    lead.drafts = drafts.tokens;
    lead.state = states.back();
    for (std::size_t i = 0; i < states.size(); ++i) lead.path[i].state = std::move(states[i]);
    if (is_walked(lead)) lead.outcomes = outcomes_of(lead);
    leads_[work.session] = std::move(lead);
  }
  return drafts;
}

// ---- trees ----

DraftEngine::Choices DraftEngine::choose_several(const SamplingParams& sampling, std::int64_t index,
                                                 std::uint64_t branch) {
  /// Most children of a node. On nano four bring 1 % more tokens a round than two (docs/lab/trees.md).
  constexpr std::size_t kMost = 4;
  // Nothing left to choose from, or scores that are no numbers.
  if (!std::isfinite(row_[static_cast<std::size_t>(argmax(row_))])) return {};
  Choices choices;
  const bool drawn = !drafts_likeliest(sampling), rejection = sampling.rule == SamplingRule::kRejection;
  if (drawn && !rejection) {
    // The tokens that would be the target's if it saw what the drafter sees, then those that nearly would.
    make_distribution(row_, sampling, scratch_, &q_);
    choices.tokens = draw_distinct(q_, Noise(sampling.seed, index, Noise::Stream::kDraw), kMost);
  }
  make_distribution(row_, few(sampling), scratch_, &choices.q);
  const Distribution& q = choices.q;
  std::vector<std::size_t> order(q.ids.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(std::min(kMost, order.size()));
  std::partial_sort(order.begin(), middle, order.end(), [&](std::size_t a, std::size_t b) {
    return q.weights[a] != q.weights[b] ? q.weights[a] > q.weights[b] : a < b;
  });
  order.erase(middle, order.end());
  if (drawn && rejection) {
    // Nodes of one depth in two branches have the same index: each has noise of its own.
    const std::uint64_t seed = branch == 0 ? sampling.seed : mix64(sampling.seed + branch);
    choices.tokens = draw_distinct(q, Noise(seed, index, Noise::Stream::kDraft), kMost);
  }
  for (const std::size_t i : order) {
    choices.chances.push_back(static_cast<double>(q.weights[i]) / q.total);
    if (!drawn) choices.tokens.push_back(q.ids[i]);
  }
  if (drawn) choices.chances = chances_of_draws(std::move(choices.chances));
  choices.tokens.resize(std::min(choices.tokens.size(), choices.chances.size()));
  return choices;
}

Candidates DraftEngine::draft_tree(const Draft& draft, const DonorReplica& replica, std::span<const float> hidden,
                                   GrammarState* grammar, const AnswerGuide& guide) {
  const TimePoint start = now();
  const SamplingParams& sampling = sampling_of(draft);
  DraftTree tree(draft.token, draft.draft_length, draft.worth);
  // By node, once its children are there: from what the assistant goes on after these, and what they were chosen from.
  std::map<std::size_t, std::vector<float>> states;
  std::map<std::size_t, Distribution> q;
  for (std::vector<std::size_t> step = tree.next(); !step.empty(); step = tree.next()) {
    std::vector<DraftNode> nodes;
    for (const std::size_t i : step)
      nodes.push_back({tree.node(i).token, i == 0 ? hidden : std::span<const float>(states.at(tree.node(i).parent))});
    assistant_->step_each(
        nodes, replica,
        [&](std::size_t at, std::span<const TokenId> ids, std::span<const float> scores, std::span<const float> state) {
          const std::size_t i = step[at];
          const std::vector<TokenId> path = tree.path(i);
          const std::int64_t index = draft.index + std::ssize(path);
          int followed = 0;  // drafts that the grammar has gone on over; where it does not, they will be rejected
          if (grammar != nullptr)
            followed = static_cast<int>(
                std::ranges::find_if_not(path, [&](TokenId token) { return grammar->accept(token); }) - path.begin());
          fill_row(sampling, index, ids, scores, followed == std::ssize(path) ? grammar : nullptr,
                   guide.completes_bad_word(path));
          if (grammar != nullptr) grammar->roll_back(followed);
          Choices choices = choose_several(sampling, index, tree.node(i).branch);
          tree.grow(i, choices.tokens, choices.chances, stop_ids_);
          states[i].assign(state.begin(), state.end());
          q[i] = std::move(choices.q);
        });
  }
  Candidates drafts;
  const bool rejection = sampling.rule == SamplingRule::kRejection && !drafts_likeliest(sampling);
  for (const std::size_t i : tree.finish()) {
    drafts.tokens.push_back(tree.node(i).token);
    drafts.depths.push_back(tree.node(i).depth);
    if (draft.want_q || rejection) drafts.q.push_back(q.at(tree.node(i).parent));
  }
  drafts.draft_ns = (now() - start).count();
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
    fill_row(sampling, index, ids, scores, nullptr,
             lead.guide->completes_bad_word(std::span(lead.drafts).first(std::min(at, lead.drafts.size()))));
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
    std::vector<TokenId> path = guess.after;
    path.insert(path.end(), guess.tokens.begin(), guess.tokens.end());
    return sample(sampling_of(lead.request), index, ids, scores, nullptr, lead.guide->completes_bad_word(path),
                  lead.request.want_q, &guess.q);
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
