#include "drafter-node/draft_engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

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

TokenId DraftEngine::sample(const SamplingParams& sampling, std::int64_t index, std::span<const TokenId> ids,
                            std::span<const float> scores, GrammarState* state, bool want_q,
                            std::vector<Distribution>* q) {
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
  const auto best = static_cast<TokenId>(argmax(row_));
  // Nothing left to draw from, or scores that are no numbers: any draft, for the target to reject.
  const bool sound = std::isfinite(row_[static_cast<std::size_t>(best)]);
  const bool rejection = sampling.rule == SamplingRule::kRejection;
  // Typical drafts are the likeliest ones, as Medusa's.
  const bool likeliest = sampling.greedy() || sampling.rule == SamplingRule::kTypical;
  // q is the drafter's own, so that the few most probable tokens may be all of it.
  const auto few = [&] {
    SamplingParams params = likeliest ? SamplingParams{.temperature = 1} : sampling;
    params.top_k = params.top_k == 0 ? kDraftTopK : std::min(params.top_k, kDraftTopK);
    return params;
  };
  if (likeliest || !sound) {
    q_.clear();
    q_.add(best, 1);
  } else if (rejection) {
    make_distribution(row_, few(), scratch_, &q_);
  } else {
    make_distribution(row_, sampling, scratch_, &q_);
  }
  // Under match the drafter draws with the target's own noise, and so the target's token more often than
  // any other way of drafting would (Daliri et al. 2024, drafter-invariant speculative decoding).
  const TokenId token = draw(q_, Noise(sampling.seed, index, rejection ? Noise::Stream::kDraft : Noise::Stream::kDraw));
  if (want_q && sound && (likeliest || !rejection)) make_distribution(row_, few(), scratch_, &q_);
  if (want_q || (rejection && !likeliest)) q->push_back(q_);
  return token;
}

Candidates DraftEngine::run(const DraftWork& work) {
  if (work.kind == DraftWork::Kind::kRelease) {
    replicas_.erase(work.session);
    guides_.erase(work.session);
    return {};
  }
  auto replica = replicas_.find(work.session);
  if (replica == replicas_.end()) replica = replicas_.emplace(work.session, assistant_->make_replica()).first;
  if (work.kind == DraftWork::Kind::kExtend) {
    append(replica->second, work.kv);
    return {};
  }
  const Draft& draft = work.draft;
  const std::vector<float> hidden = to_floats(draft.hidden);
  const TimePoint start = now();
  Candidates drafts;
  std::int64_t index = draft.index;
  static const SamplingParams kGreedy;
  const SamplingParams& sampling = draft.sampling ? *draft.sampling : kGreedy;
  GrammarState* const grammar = guide(work.session, draft);
  int followed = 0;     // drafts that the grammar has gone on over
  bool follows = true;  // all of them: else those that come next will be rejected
  const ChooseDraft choose = [&](std::span<const TokenId> ids, std::span<const float> scores) {
    GrammarState* const state = follows ? grammar : nullptr;
    const TokenId token = sample(sampling, index++, ids, scores, state, draft.want_q, &drafts.q);
    follows = state != nullptr && state->accept(token);
    followed += int{follows};
    return token;
  };
  std::vector<float> state;
  CHECK(replica->second.length == work.base, "replica {}, base {}", replica->second.length, work.base);
  const bool chosen = draft.sampling || draft.want_q || grammar != nullptr;
  drafts.tokens = assistant_->draft({draft.token, hidden, replica->second, draft.draft_length, stop_ids_,
                                     chosen ? &choose : nullptr, draft.want_state ? &state : nullptr});
  if (grammar != nullptr) grammar->roll_back(followed);
  drafts.draft_ns = (now() - start).count();
  if (draft.want_state) drafts.state = to_wire(std::move(state));
  return drafts;
}

}  // namespace outrider
