#include "drafter-node/draft_engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/time.h"
#include "common/kernels/ops.h"
#include "common/tensor/decode.h"

namespace outrider {
namespace {

/// Of any number of axes.
std::vector<float> to_floats(const WireTensor& tensor) {
  const std::size_t block = block_elements(tensor.dtype);
  std::vector<float> floats(tensor.data.bytes().size() / stored_bytes(tensor.dtype, block) * block);
  decode(tensor.dtype, tensor.data.bytes().data(), floats);
  return floats;
}

void append(DonorReplica& replica, const KvRows& kv) {
  LayerKv* const layers[] = {&replica.sliding, &replica.full};
  CHECK(kv.donors.size() == std::size(layers));
  for (std::size_t i = 0; i < std::size(layers); ++i) {
    const DonorDelta& donor = kv.donors[i];
    LayerKv& layer = *layers[i];
    const std::int64_t count = kv.to - donor.first;
    if (donor.key.dtype == layer.dtype()) {
      layer.write_raw(donor.first, count, donor.key.data.bytes().data(), donor.value.data.bytes().data());
      continue;
    }
    layer.reserve(kv.to);
    const std::vector<float> k = to_floats(donor.key), v = to_floats(donor.value);
    const auto elements = static_cast<std::size_t>(layer.num_key_value_heads() * layer.head_dim());
    for (std::size_t row = 0; row < static_cast<std::size_t>(count); ++row) {
      layer.write(donor.first + static_cast<Position>(row), std::span(k).subspan(row * elements, elements),
                  std::span(v).subspan(row * elements, elements));
    }
  }
  replica.length = kv.to;
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

bool is_stop(const Draft& request, TokenId token) {
  return std::ranges::find(request.stop_ids, token) != request.stop_ids.end();
}

WireTensor to_wire(std::vector<float> row) {
  const auto owner = std::make_shared<const std::vector<float>>(std::move(row));
  return {.dtype = DType::kF32,
          .shape = {std::ssize(*owner)},
          .data = SharedBytes(owner, std::as_bytes(std::span(*owner)))};
}

}  // namespace

DraftEngine::DraftEngine(std::unique_ptr<Assistant> assistant, std::vector<TokenId> stop_ids, GrammarCompiler* grammars)
    : assistant_(std::move(assistant)), stop_ids_(std::move(stop_ids)), grammars_(grammars) {}

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
  process_scores(row_, sampling, out, {});
}

TokenId DraftEngine::sample(const SamplingParams& sampling, std::int64_t index, std::span<const TokenId> ids,
                            std::span<const float> scores, GrammarState* state, std::span<const TokenId> out,
                            bool want_q, std::vector<Distribution>* q) {
  fill_row(sampling, ids, scores, state, out);
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

void DraftEngine::run(const DraftWork& work) {
  if (work.kind == DraftWork::Kind::kRelease) {
    texts_.erase(work.session);
    return;
  }
  auto known_text = texts_.find(work.session);
  if (known_text == texts_.end())
    known_text = texts_.emplace(work.session, Text{.replica = assistant_->make_replica()}).first;
  Text& text = known_text->second;
  text.round.reset();
  if (work.kind == DraftWork::Kind::kExtend) return append(text.replica, work.kv);
  Draft draft = work.draft;
  if (draft.stop_ids.empty()) draft.stop_ids = stop_ids_;
  // One beyond the vocabulary never comes.
  std::erase_if(draft.stop_ids, [&](TokenId id) { return id >= assistant_->config().text.vocab_size; });
  GrammarState* const grammar = text.guide.follow(draft, grammars_);
  const bool known = !draft.known.empty();
  text.round.reset(new Round{.request = draft,
                             .guide = text.guide,
                             .grammar = Followed(known ? nullptr : grammar),
                             .chain = {to_floats(draft.hidden)},
                             .asked = !known,
                             .drafts = draft.known});
  if (draft.tree)
    text.round->growth.emplace(Growth{.tree = {draft.token, draft.draft_length, draft.worth}, .step = {}});
}

std::vector<DraftProgress> DraftEngine::step(std::span<const DraftTurn> turns, Duration added) {
  const TimePoint start = now();
  std::vector<DraftNode> nodes;
  std::vector<Round*> rounds;      // of the turns
  std::vector<std::size_t> first;  // node of each
  for (const DraftTurn& turn : turns) {
    const auto text = texts_.find(turn.session);
    CHECK(text != texts_.end() && text->second.round != nullptr && text->second.replica.length == turn.base,
          "nothing to draft from at {}", turn.base);
    rounds.push_back(text->second.round.get());
    first.push_back(nodes.size());
    add_nodes(text->second, nodes);
  }
  first.push_back(nodes.size());
  if (!nodes.empty()) {
    assistant_->step_each(nodes, [&](std::size_t node, std::span<const TokenId> ids, std::span<const float> scores,
                                     std::span<const float> state) {
      const auto turn = static_cast<std::size_t>(std::ranges::upper_bound(first, node) - first.begin()) - 1;
      take(*rounds[turn], node - first[turn], ids, scores, state);
    });
  }
  if (added > Duration::zero()) std::this_thread::sleep_for(added);
  const std::int64_t took = (now() - start).count();
  std::vector<DraftProgress> all;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    const auto count = [&](Candidates& made) {
      made.draft_ns += took;
      made.passes += 1;
      made.pass_rows += std::ssize(nodes);
    };
    if (rounds[i]->asked) count(rounds[i]->chain.made);
    for (Chain& guess : rounds[i]->guesses) count(guess.made);
    all.push_back(progress(*rounds[i]));
  }
  return all;
}

void DraftEngine::add_nodes(Text& text, std::vector<DraftNode>& nodes) {
  Round& round = *text.round;
  const auto add = [&](TokenId token, std::span<const float> state, bool goes_on = true) {
    nodes.push_back({token, state, &text.replica, goes_on});
  };
  const Draft& request = round.request;
  const auto add_next = [&](const Chain& chain, TokenId begin, bool wanted_after) {
    const std::vector<TokenId>& tokens = chain.made.tokens;
    const bool last = std::ssize(tokens) + 1 == request.draft_length;
    add(tokens.empty() ? begin : tokens.back(), chain.state, !last || wanted_after);
  };
  if (round.growth) {
    Growth& growth = *round.growth;
    growth.step = growth.tree.next();
    for (const std::size_t i : growth.step) {
      const DraftTree::Node& node = growth.tree.node(i);
      add(node.token, i == 0 ? round.chain.state : growth.states.at(node.parent));
    }
  } else if (round.asked) {
    add_next(round.chain, request.token, request.want_state || request.ahead > 0);
  } else if (!is_walked(round)) {
    const std::size_t at = round.path.size();
    add(at == 0 ? request.token : round.drafts[at - 1], round.chain.state);
  } else {
    for (; round.guesses.size() < kAheadStepRows && !round.outcomes.empty(); round.outcomes.pop_back()) {
      const Outcome& outcome = round.outcomes.back();
      Chain& guess = round.guesses.emplace_back(Chain{round.path[outcome.held].state});
      guess.made.after.assign(round.drafts.begin(), round.drafts.begin() + static_cast<std::ptrdiff_t>(outcome.held));
      guess.made.after.push_back(outcome.next);
    }
    for (const Chain& guess : round.guesses) add_next(guess, guess.made.after.back(), false);
  }
}

void DraftEngine::take(Round& round, std::size_t at, std::span<const TokenId> ids, std::span<const float> scores,
                       std::span<const float> state) {
  if (round.growth) return take_child(round, at, ids, scores, state);
  if (round.asked) return take_draft(round, round.chain, ids, scores, state);
  if (round.guesses.empty()) return take_place(round, ids, scores, state);
  take_draft(round, round.guesses[at], ids, scores, state);
}

void DraftEngine::take_draft(Round& round, Chain& chain, std::span<const TokenId> ids, std::span<const float> scores,
                             std::span<const float> state) {
  const Draft& request = round.request;
  const SamplingParams& sampling = sampling_of(request);
  Candidates& made = chain.made;
  const bool goes_on = request.ahead > 0;
  const std::int64_t index = request.index + std::ssize(made.after) + std::ssize(made.tokens);
  GrammarState* const grammar = round.asked ? round.grammar.now() : nullptr;
  const bool plain = !request.sampling && !request.want_q && !goes_on;
  std::vector<TokenId> before = made.after;
  before.insert(before.end(), made.tokens.begin(), made.tokens.end());
  const TokenId token =
      plain ? best_draft(ids, scores)
            : sample(sampling, index, ids, scores, grammar, forbidden(round, before), request.want_q, &made.q);
  made.tokens.push_back(token);
  chain.state.assign(state.begin(), state.end());
  if (!round.asked) return;
  round.grammar.accept(token);
  if (!goes_on) return;
  round.path.push_back(weigh(sampling, index, token));
  round.path.back().state = chain.state;
}

void DraftEngine::take_place(Round& round, std::span<const TokenId> ids, std::span<const float> scores,
                             std::span<const float> state) {
  const SamplingParams& sampling = sampling_of(round.request);
  const std::size_t place = round.path.size();
  const auto before = std::span(round.drafts).first(std::min(place, round.drafts.size()));
  fill_row(sampling, ids, scores, nullptr, forbidden(round, before));
  round.path.push_back(weigh(sampling, round.request.index + static_cast<std::int64_t>(place),
                             place < round.drafts.size() ? std::optional(round.drafts[place]) : std::nullopt));
  round.chain.state.assign(state.begin(), state.end());
  round.path.back().state = round.chain.state;
}

DraftProgress DraftEngine::progress(Round& round) {
  const Draft& request = round.request;
  if (round.growth) {
    if (!round.growth->tree.next().empty()) return {.more = true};
    return {.drafts = {finish_tree(round)}};
  }
  const auto is_complete = [&](const Chain& chain) {
    const std::vector<TokenId>& tokens = chain.made.tokens;
    return !tokens.empty() && (std::ssize(tokens) == request.draft_length || is_stop(request, tokens.back()));
  };
  DraftProgress progress;
  if (round.asked && is_complete(round.chain)) {
    round.asked = false;
    round.drafts = round.chain.made.tokens;
    if (request.want_state) round.chain.made.state = to_wire(round.chain.state);
    progress.drafts.push_back(std::move(round.chain.made));
  }
  // The path's last place has just been weighed.
  if (!round.asked && round.guesses.empty() && is_walked(round)) round.outcomes = outcomes_of(round);
  for (Chain& guess : round.guesses)
    if (is_complete(guess)) progress.drafts.push_back(std::move(guess.made));
  std::erase_if(round.guesses, [](const Chain& guess) { return guess.made.tokens.empty(); });
  progress.more =
      round.asked || (request.ahead > 0 && !is_walked(round)) || !round.guesses.empty() || !round.outcomes.empty();
  return progress;
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

std::vector<DraftEngine::Outcome> DraftEngine::outcomes_of(const Round& round) {
  std::vector<Outcome> outcomes;
  const auto add = [&](std::size_t held, TokenId next, double p) {
    if (p > 0 && !is_stop(round.request, next)) outcomes.push_back({held, next, p});
  };
  double held = 1;
  for (std::size_t i = 0; i < round.path.size(); ++i) {
    const Place& place = round.path[i];
    if (i == round.drafts.size()) add(i, place.token, held * place.p);
    add(i, place.other, held * place.p_other);
    held *= place.p;
  }
  std::ranges::sort(outcomes, {}, &Outcome::p);
  if (std::ssize(outcomes) > round.request.ahead)
    outcomes.erase(outcomes.begin(), outcomes.end() - round.request.ahead);
  return outcomes;
}

}  // namespace outrider
