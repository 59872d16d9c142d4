#include "drafter-node/draft_engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/time.h"
#include "common/compute/kernels/ops.h"

namespace outrider {
namespace {

/// Tokens of the path that the model continues on its own, bounded so that no K/V ring has to be refilled when a
/// verdict cuts back.
constexpr std::size_t kContinuationMax = 64;

/// Typical drafts are the most probable ones, as in Medusa.
bool drafts_likeliest(const SamplingParams& sampling) {
  return sampling.greedy() || sampling.rule == SamplingRule::kTypical;
}

/// q is the drafter's own choice, and so may consist of the few most probable tokens.
SamplingParams few(const SamplingParams& sampling) {
  SamplingParams params = drafts_likeliest(sampling) ? SamplingParams{.temperature = 1} : sampling;
  params.top_k = params.top_k == 0 ? kDraftTopK : std::min(params.top_k, kDraftTopK);
  return params;
}

const SamplingParams& sampling_of(const Draft& draft) {
  static const SamplingParams kGreedy;
  return draft.sampling ? *draft.sampling : kGreedy;
}

bool is_stop(const Draft& request, TokenId token) {
  return std::ranges::find(request.stop_ids, token) != request.stop_ids.end();
}

}  // namespace

DraftEngine::DraftEngine(std::unique_ptr<DraftModel> model, std::vector<TokenId> stop_ids, GrammarCompiler* grammars)
    : model_(std::move(model)), traits_(model_->traits()), stop_ids_(std::move(stop_ids)), grammars_(grammars) {}

std::vector<TokenId> DraftEngine::forbidden(const Round& round, std::span<const TokenId> drafts) {
  std::vector<TokenId> out = round.guide.completes_bad_word(drafts);
  const Draft& request = round.request;
  if (request.index + std::ssize(drafts) < sampling_of(request).min_tokens)
    out.insert(out.end(), request.stop_ids.begin(), request.stop_ids.end());
  return out;
}

void DraftEngine::fill_row(const SamplingParams& sampling, std::span<const TokenId> ids, std::span<const float> scores,
                           GrammarState* state, std::span<const TokenId> out) {
  constexpr float kNotScored = -std::numeric_limits<float>::infinity();
  row_.assign(static_cast<std::size_t>(model_->vocab_size()), kNotScored);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    row_[ids.empty() ? i : static_cast<std::size_t>(ids[i])] = std::isnan(scores[i]) ? kNotScored : scores[i];
  }
  if (state != nullptr) {
    const std::span<const std::uint32_t> allowed = state->allowed();
    mask_scores(allowed, row_);
    // The assistant scores no allowed token. If the grammar leaves one token, that token is right.
    if (!std::isfinite(row_[static_cast<std::size_t>(argmax(row_))])) {
      for (std::size_t word = 0; word < allowed.size(); ++word) {
        if (allowed[word] == 0) continue;
        row_[word * 32 + static_cast<std::size_t>(std::countr_zero(allowed[word]))] = 0;
        break;
      }
    }
  }
  const auto is_scored = [&](TokenId token) { return std::isfinite(row_[static_cast<std::size_t>(token)]); };
  if (std::ranges::none_of(sampling.allowed_tokens, is_scored))  // one of them must be the token
    for (const TokenId token : sampling.allowed_tokens) row_[static_cast<std::size_t>(token)] = 0;
  process_scores(row_, sampling, out, {});
}

TokenId DraftEngine::sample(const SamplingParams& sampling, std::int64_t index, bool want_q,
                            std::vector<Distribution>* q) {
  const auto best = static_cast<TokenId>(argmax(row_));
  // Without a token left to draw, or with NaN scores, any draft will do: the target rejects it.
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
  // Under match the drafter draws with the target's own noise, and so the target's token more often than with any other
  // way of drafting (Daliri et al. 2024, drafter-invariant speculative decoding).
  const TokenId token = draw(q_, Noise(sampling.seed, index, rejection ? Noise::Stream::kDraft : Noise::Stream::kDraw));
  if (want_q && sound && (likeliest || !rejection)) make_distribution(row_, few(sampling), scratch_, &q_);
  if (want_q || (rejection && !likeliest)) q->push_back(q_);
  return token;
}

void DraftEngine::run(const DraftWork& work) {
  if (work.kind == DraftWork::Kind::kRelease) {
    sequences_.erase(work.session);
    return;
  }
  auto entry = sequences_.find(work.session);
  if (entry == sequences_.end()) entry = sequences_.emplace(work.session, Sequence{.rows = model_->open()}).first;
  Sequence& sequence = entry->second;
  sequence.round.reset();
  if (work.kind == DraftWork::Kind::kAbandon) return;
  if (work.kind == DraftWork::Kind::kExtend) {
    const Position before = sequence.rows->length();
    sequence.rows->extend(work.kv);
    return advance(sequence, before, work.kv);
  }
  Draft draft = work.draft;
  if (draft.stop_ids.empty()) draft.stop_ids = stop_ids_;
  // A stop id beyond the vocabulary never occurs.
  std::erase_if(draft.stop_ids, [&](TokenId id) { return id >= model_->vocab_size(); });
  GrammarState* const grammar = sequence.guide.follow(draft, grammars_);
  const bool known = !draft.known.empty();
  if (traits_.block > 0) {
    if (!draft.tree) draft.draft_length = std::min(draft.draft_length, traits_.block);
    draft.ahead = 0;
    if (known) return;
  }
  sequence.round.reset(new Round{.request = draft,
                                 .guide = sequence.guide,
                                 .grammar = Followed(known ? nullptr : grammar),
                                 .chain = {draft.hidden ? to_floats(*draft.hidden) : std::vector<float>()},
                                 .asked = !known,
                                 .drafts = draft.known});
  if (draft.tree)
    sequence.round->growth.emplace(Growth{.tree = {draft.token, draft.draft_length, draft.worth}, .step = {}});
}

void DraftEngine::advance(Sequence& sequence, Position before, const KvRows& added) {
  const std::span<const TokenId> fresh =
      added.tokens.empty() ? std::span<const TokenId>()
                           : std::span(added.tokens).subspan(static_cast<std::size_t>(before - added.from));
  std::map<std::vector<TokenId>, Prediction> kept;
  for (auto& [path, prediction] : sequence.predictions) {
    if (path.size() > fresh.size() && std::ranges::equal(fresh, std::span(path).first(fresh.size())))
      kept.emplace(std::vector(path.begin() + std::ssize(fresh), path.end()), std::move(prediction));
  }
  sequence.predictions = std::move(kept);
}

const DraftEngine::Prediction* DraftEngine::find_prediction(const Sequence& sequence,
                                                            const std::vector<TokenId>& path) const {
  const auto known = sequence.predictions.find(path);
  return known == sequence.predictions.end() ? nullptr : &known->second;
}

std::vector<DraftProgress> DraftEngine::step(std::span<const DraftTurn> turns,
                                             const std::function<void()>& between_steps,
                                             const std::function<void()>& wait) {
  const TimePoint start = now();
  std::vector<DraftPoint> points;
  std::vector<Sequence*> sequences;  // of the turns
  std::vector<std::size_t> first;    // first point of each
  for (const DraftTurn& turn : turns) {
    const auto sequence = sequences_.find(turn.session);
    CHECK(sequence != sequences_.end() && sequence->second.rows->length() == turn.base, "nothing to draft from at {}",
          turn.base);
    sequences.push_back(&sequence->second);
    first.push_back(points.size());
    add_points(sequence->second, points);
  }
  first.push_back(points.size());
  bool passed = false;
  if (!points.empty()) {
    const auto visit = [&](std::size_t point, std::span<const TokenId> ids, std::span<const float> scores,
                           std::span<const float> state) {
      const auto turn = static_cast<std::size_t>(std::ranges::upper_bound(first, point) - first.begin()) - 1;
      return take(*sequences[turn], point - first[turn], ids, scores, state);
    };
    passed = model_->step_each(points, visit, between_steps);
  }
  if (passed) wait();
  const std::int64_t took = (now() - start).count();
  std::vector<DraftProgress> all;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    Round* const round = sequences[i]->round.get();
    const std::int64_t behind = sequences[i]->rows->behind();
    const auto count = [&](Candidates& made) {
      made.draft_ns += took;
      if (!passed) return;
      made.passes += 1;
      made.pass_rows += std::ssize(points);
    };
    const bool took_part = first[i + 1] > first[i];
    if (took_part && round != nullptr && round->asked) count(round->chain.made);
    if (took_part && round != nullptr)
      for (Chain& guess : round->guesses) count(guess.made);
    all.push_back(round == nullptr ? DraftProgress{.more = behind > 0} : progress(*round));
    all.back().behind = behind;
    all.back().waiting_bytes = sequences[i]->rows->waiting_bytes();
  }
  return all;
}

namespace {

/// Returns the path, from the token after the rows to its end.
std::vector<TokenId> path_to(const Draft& request, std::span<const TokenId> drafts) {
  std::vector<TokenId> path = {request.token};
  path.insert(path.end(), drafts.begin(), drafts.end());
  return path;
}

std::vector<TokenId> drafts_of(const Candidates& made) {
  std::vector<TokenId> drafts = made.after;
  drafts.insert(drafts.end(), made.tokens.begin(), made.tokens.end());
  return drafts;
}

}  // namespace

DraftPoint DraftEngine::point_of(const Sequence& sequence, std::vector<TokenId> path, std::size_t wanted,
                                 std::span<const float> state, bool goes_on) {
  DraftPoint point{sequence.rows.get(), std::move(path), state, goes_on, static_cast<std::int64_t>(wanted)};
  const Draft& request = sequence.round->request;
  if (!request.sampling || wanted < 2 || !traits_.by_tokens_alone) return point;
  const std::int64_t index = request.index + std::ssize(point.path) - 1;
  point.choose = [this, &request, index](std::span<const TokenId> guessed, std::span<const TokenId> ids,
                                         std::span<const float> scores) {
    fill_row(*request.sampling, ids, scores, nullptr, {});
    std::vector<Distribution> unused;
    return sample(*request.sampling, index + std::ssize(guessed), false, &unused);
  };
  return point;
}

void DraftEngine::add_points(Sequence& sequence, std::vector<DraftPoint>& points) {
  if (sequence.round == nullptr) return points.push_back({sequence.rows.get(), {}, {}});
  const auto add = [&](std::vector<TokenId> path, std::size_t wanted, std::span<const float> state = {},
                       bool goes_on = true) {
    points.push_back(point_of(sequence, std::move(path), wanted, state, goes_on));
  };
  Round& round = *sequence.round;
  const Draft& request = round.request;
  const Stage stage = stage_of(round);
  if (stage == Stage::kTree) {
    Growth& growth = *round.growth;
    growth.step = growth.tree.next();
    for (const std::size_t i : growth.step) {
      const DraftTree::Node& node = growth.tree.node(i);
      add(path_to(request, growth.tree.path(i)), 1, i == 0 ? round.chain.state : growth.states.at(node.parent));
    }
  } else if (stage == Stage::kChain) {
    Chain& chain = round.chain;
    for (;;) {
      std::vector<TokenId> path = path_to(request, drafts_of(chain.made));
      const Prediction* const prediction = find_prediction(sequence, path);
      const std::size_t wanted = static_cast<std::size_t>(request.draft_length) - chain.made.tokens.size();
      if (prediction == nullptr)
        return add(std::move(path), wanted, chain.state, wanted > 1 || request.ahead > 0);
      add_draft(round, chain, *prediction, {});
      if (is_complete(round, chain)) return;
    }
  } else if (stage == Stage::kWalk) {
    while (!is_walked(round)) {
      const auto before = std::span(round.drafts).first(std::min(round.path.size(), round.drafts.size()));
      std::vector<TokenId> path = path_to(request, before);
      const Prediction* const prediction = find_prediction(sequence, path);
      if (prediction == nullptr)
        return add(std::move(path), round.drafts.size() + 1 - before.size(), round.chain.state);
      add_place(round, *prediction, {});
    }
  } else if (stage == Stage::kAhead) {
    add_guesses(sequence, points);
  } else if (stage == Stage::kContinuation) {
    while (const Prediction* const prediction = find_prediction(sequence, round.continuation)) {
      round.continuation.push_back(prediction->draft);
      if (!wants_continuation(round)) return;
    }
    add(round.continuation, kContinuationMax - round.continuation.size());
  }
}

void DraftEngine::add_guesses(Sequence& sequence, std::vector<DraftPoint>& points) {
  Round& round = *sequence.round;
  const Draft& request = round.request;
  const std::size_t together = traits_.by_tokens_alone ? 1 : kAheadStepRows;
  for (; round.guesses.size() < together && !round.outcomes.empty(); round.outcomes.pop_back()) {
    const Outcome& outcome = round.outcomes.back();
    Chain& guess = round.guesses.emplace_back(Chain{round.path[outcome.accepted].state});
    guess.made.after.assign(round.drafts.begin(), round.drafts.begin() + static_cast<std::ptrdiff_t>(outcome.accepted));
    guess.made.after.push_back(outcome.next);
  }
  for (Chain& guess : round.guesses) {
    std::vector<TokenId> path = path_to(request, drafts_of(guess.made));
    while (const Prediction* const prediction = find_prediction(sequence, path)) {
      add_draft(round, guess, *prediction, {});
      if (is_complete(round, guess)) return;
      path.push_back(prediction->draft);
    }
    const std::size_t wanted = static_cast<std::size_t>(request.draft_length) - guess.made.tokens.size();
    points.push_back(point_of(sequence, std::move(path), wanted, guess.state, wanted > 1));
  }
}

std::optional<TokenId> DraftEngine::take(Sequence& sequence, std::size_t at, std::span<const TokenId> ids,
                                         std::span<const float> scores, std::span<const float> state) {
  Round& round = *sequence.round;
  const Stage stage = stage_of(round);
  if (stage == Stage::kTree) {
    take_child(round, at, ids, scores, state);
    return std::nullopt;
  }
  const std::vector<TokenId> before =
      stage == Stage::kChain   ? round.chain.made.tokens
      : stage == Stage::kWalk  ? std::vector(round.drafts.begin(), round.drafts.begin() + std::ssize(round.path))
      : stage == Stage::kAhead ? drafts_of(round.guesses[at].made)
                               : std::vector(round.continuation.begin() + 1, round.continuation.end());
  const bool remembers = traits_.by_tokens_alone && round.request.ahead > 0;
  Prediction prediction = read_scores(round, before, ids, scores, stage != Stage::kWalk || remembers);
  std::optional<TokenId> next = prediction.draft;
  const auto add_to = [&](Chain& chain) {
    add_draft(round, chain, prediction, state);
    if (is_complete(round, chain)) next.reset();
  };
  if (stage == Stage::kChain) {
    add_to(round.chain);
  } else if (stage == Stage::kWalk) {
    add_place(round, prediction, state);
    next = is_walked(round) ? std::nullopt : std::optional(round.drafts[before.size()]);
  } else if (stage == Stage::kAhead) {
    add_to(round.guesses[at]);
  } else {
    round.continuation.push_back(prediction.draft);
    if (!wants_continuation(round)) next.reset();
  }
  if (remembers) sequence.predictions.insert_or_assign(path_to(round.request, before), std::move(prediction));
  return next;
}

DraftEngine::Prediction DraftEngine::read_scores(Round& round, std::vector<TokenId> before,
                                                 std::span<const TokenId> ids, std::span<const float> scores,
                                                 bool drafts) {
  const Draft& request = round.request;
  const SamplingParams& sampling = sampling_of(request);
  const bool goes_on = request.ahead > 0;
  Prediction prediction;
  if (!request.sampling && !request.want_q && !goes_on) {
    prediction.draft = best_draft(ids, scores);
    return prediction;
  }
  const std::int64_t index = request.index + std::ssize(before);
  fill_row(sampling, ids, scores, round.asked ? round.grammar.now() : nullptr, forbidden(round, before));
  const auto best = static_cast<TokenId>(argmax(row_));
  prediction.draft = drafts ? sample(sampling, index, request.want_q, &prediction.q) : best;
  const bool weighed = goes_on && (round.asked || !drafts || traits_.by_tokens_alone);
  if (weighed && std::isfinite(row_[static_cast<std::size_t>(best)]))
    make_distribution(row_, few(sampling), scratch_, &prediction.few);
  return prediction;
}

void DraftEngine::add_draft(Round& round, Chain& chain, const Prediction& prediction, std::span<const float> state) {
  const Draft& request = round.request;
  const std::int64_t index = request.index + std::ssize(chain.made.after) + std::ssize(chain.made.tokens);
  chain.made.tokens.push_back(prediction.draft);
  chain.made.q.insert(chain.made.q.end(), prediction.q.begin(), prediction.q.end());
  chain.state.assign(state.begin(), state.end());
  if (!round.asked) return;
  round.grammar.accept(prediction.draft);
  if (request.ahead == 0) return;
  round.path.push_back(weigh(sampling_of(request), index, prediction, prediction.draft));
  round.path.back().state = chain.state;
}

void DraftEngine::add_place(Round& round, const Prediction& prediction, std::span<const float> state) {
  const std::size_t place = round.path.size();
  round.path.push_back(weigh(sampling_of(round.request), round.request.index + static_cast<std::int64_t>(place),
                             prediction,
                             place < round.drafts.size() ? std::optional(round.drafts[place]) : std::nullopt));
  round.chain.state.assign(state.begin(), state.end());
  round.path.back().state = round.chain.state;
}

bool DraftEngine::is_complete(const Round& round, const Chain& chain) {
  const std::vector<TokenId>& tokens = chain.made.tokens;
  return !tokens.empty() && (std::ssize(tokens) == round.request.draft_length || is_stop(round.request, tokens.back()));
}

bool DraftEngine::wants_continuation(const Round& round) const {
  return traits_.by_tokens_alone && !round.continuation.empty() && round.continuation.size() < kContinuationMax &&
         !is_stop(round.request, round.continuation.back());
}

DraftEngine::Stage DraftEngine::stage_of(const Round& round) const {
  if (round.growth) return Stage::kTree;
  if (round.asked) return Stage::kChain;
  if (round.request.ahead == 0) return Stage::kDone;
  if (!is_walked(round)) return Stage::kWalk;
  if (!round.guesses.empty() || !round.outcomes.empty()) return Stage::kAhead;
  return wants_continuation(round) ? Stage::kContinuation : Stage::kDone;
}

DraftProgress DraftEngine::progress(Round& round) {
  const Draft& request = round.request;
  if (round.growth) {
    if (!round.growth->tree.next().empty()) return {.more = true};
    return {.drafts = {finish_tree(round)}};
  }
  DraftProgress progress;
  if (round.asked && is_complete(round, round.chain)) {
    round.asked = false;
    round.drafts = round.chain.made.tokens;
    progress.drafts.push_back(std::move(round.chain.made));
  }
  // The path's last position has just been weighed.
  if (!round.asked && request.ahead > 0 && !round.weighed && is_walked(round)) {
    round.outcomes = outcomes_of(round);
    round.weighed = true;
  }
  std::erase_if(round.guesses, [&](Chain& guess) {
    if (!is_complete(round, guess)) return false;
    if (round.continuation.empty()) round.continuation = path_to(request, drafts_of(guess.made));
    progress.drafts.push_back(std::move(guess.made));
    return true;
  });
  progress.more = stage_of(round) != Stage::kDone;
  return progress;
}

// ---- trees ----

DraftEngine::Choices DraftEngine::choose_several(const SamplingParams& sampling, std::int64_t index,
                                                 std::uint64_t branch) {
  /// Most children of a node. On nano four bring 1 % more tokens a round than two (docs/lab/trees.md).
  constexpr std::size_t kMost = 4;
  // No token left to choose, or scores that are NaN.
  if (!std::isfinite(row_[static_cast<std::size_t>(argmax(row_))])) return {};
  Choices choices;
  const bool drawn = !drafts_likeliest(sampling), rejection = sampling.rule == SamplingRule::kRejection;
  if (drawn && !rejection) {
    // First the token that the target draws if its distribution equals the drafter's, then the closest runners-up.
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
    // Nodes of one depth in two branches have the same index, and so need different noise.
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

void DraftEngine::take_child(Round& round, std::size_t at, std::span<const TokenId> ids, std::span<const float> scores,
                             std::span<const float> state) {
  Growth& growth = *round.growth;
  const SamplingParams& sampling = sampling_of(round.request);
  const std::size_t i = growth.step[at];
  const std::vector<TokenId> path = growth.tree.path(i);
  const std::int64_t index = round.request.index + std::ssize(path);
  Followed grammar(round.grammar.now());
  for (const TokenId token : path) grammar.accept(token);
  fill_row(sampling, ids, scores, grammar.now(), forbidden(round, path));
  Choices choices = choose_several(sampling, index, growth.tree.node(i).branch);
  growth.tree.grow(i, choices.tokens, choices.chances, round.request.stop_ids);
  growth.states[i].assign(state.begin(), state.end());
  growth.q[i] = std::move(choices.q);
}

Candidates DraftEngine::finish_tree(Round& round) {
  const Growth& growth = *round.growth;
  const SamplingParams& sampling = sampling_of(round.request);
  Candidates drafts = std::move(round.chain.made);
  const bool rejection = sampling.rule == SamplingRule::kRejection && !drafts_likeliest(sampling);
  for (const std::size_t i : growth.tree.finish()) {
    drafts.tokens.push_back(growth.tree.node(i).token);
    drafts.depths.push_back(growth.tree.node(i).depth);
    if (round.request.want_q || rejection) drafts.q.push_back(growth.q.at(growth.tree.node(i).parent));
  }
  return drafts;
}

// ---- ahead ----

bool DraftEngine::is_walked(const Round& round) {
  return round.path.size() == round.drafts.size() + (is_stop(round.request, round.drafts.back()) ? 0 : 1);
}

DraftEngine::Place DraftEngine::weigh(const SamplingParams& sampling, std::int64_t index, const Prediction& prediction,
                                      std::optional<TokenId> token) {
  Distribution q = prediction.few;
  if (q.ids.empty()) return {.token = token.value_or(prediction.draft)};
  // The target draws with this noise.
  const auto guess = [&] {
    if (!drafts_likeliest(sampling)) return draw(q, Noise(sampling.seed, index, Noise::Stream::kDraw));
    return q.ids[static_cast<std::size_t>(std::ranges::max_element(q.weights) - q.weights.begin())];
  };
  Place place{.token = token ? *token : guess()};
  place.p = q.probability(place.token);
  const auto at = std::ranges::find(q.ids, place.token);
  if (at != q.ids.end()) q.weights[static_cast<std::size_t>(at - q.ids.begin())] = 0;
  if (std::ranges::max(q.weights) <= 0) return place;  // the only candidate
  place.other = guess();
  place.p_other = q.probability(place.other);
  return place;
}

std::vector<DraftEngine::Outcome> DraftEngine::outcomes_of(const Round& round) {
  std::vector<Outcome> outcomes;
  const auto add = [&](std::size_t accepted, TokenId next, double p) {
    if (p > 0 && !is_stop(round.request, next)) outcomes.push_back({accepted, next, p});
  };
  double chance = 1;
  for (std::size_t i = 0; i < round.path.size(); ++i) {
    const Place& place = round.path[i];
    if (i == round.drafts.size()) add(i, place.token, chance * place.p);
    add(i, place.other, chance * place.p_other);
    chance *= place.p;
  }
  std::ranges::sort(outcomes, {}, &Outcome::p);
  if (std::ssize(outcomes) > round.request.ahead)
    outcomes.erase(outcomes.begin(), outcomes.end() - round.request.ahead);
  return outcomes;
}

}  // namespace outrider
