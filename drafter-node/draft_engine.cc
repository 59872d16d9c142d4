#include "drafter-node/draft_engine.h"

#include <cmath>
#include <limits>

#include "common/base/time.h"
#include "common/kernels/ops.h"
#include "common/tensor/decode.h"

namespace outrider {
namespace {

void append(DonorReplica& replica, const KvRows& kv) {
  if (kv.empty()) return;
  LayerKv* const layers[] = {&replica.sliding, &replica.full};
  CHECK(kv.donors.size() == std::size(layers));
  for (std::size_t i = 0; i < std::size(layers); ++i) {
    const DonorDelta& donor = kv.donors[i];
    layers[i]->write_raw(donor.first, kv.to - donor.first, donor.key.data.bytes().data(), donor.value.data.bytes().data());
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
  return {.dtype = DType::kF32, .shape = {std::ssize(*owner)}, .data = SharedBytes(owner, std::as_bytes(std::span(*owner)))};
}

}  // namespace

DraftEngine::DraftEngine(std::unique_ptr<Assistant> assistant, std::vector<TokenId> stop_ids)
    : assistant_(std::move(assistant)), stop_ids_(std::move(stop_ids)) {
  // One beyond the vocabulary never comes.
  std::erase_if(stop_ids_, [&](TokenId id) { return id >= assistant_->config().text.vocab_size; });
}

TokenId DraftEngine::sample(const SamplingParams& sampling, std::int64_t index, std::span<const TokenId> ids, std::span<const float> scores,
                            std::vector<Distribution>* q) {
  constexpr float kNotScored = -std::numeric_limits<float>::infinity();
  row_.assign(static_cast<std::size_t>(assistant_->config().text.vocab_size), kNotScored);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    row_[ids.empty() ? i : static_cast<std::size_t>(ids[i])] = std::isnan(scores[i]) ? kNotScored : scores[i];
  }
  const bool guarded = index < sampling.min_tokens;
  process_scores(row_, sampling, guarded ? std::span<const TokenId>(stop_ids_) : std::span<const TokenId>(), {});
  const auto best = static_cast<TokenId>(argmax(row_));
  // Nothing left to draw from, or scores that are no numbers: any draft, for the target to reject.
  const bool sound = std::isfinite(row_[static_cast<std::size_t>(best)]);
  const bool rejection = sampling.rule == SamplingRule::kRejection;
  // Typical drafts are the likeliest ones, as Medusa's.
  if (sampling.greedy() || sampling.rule == SamplingRule::kTypical || !sound) {
    q_.clear();
    q_.add(best, 1);
  } else if (rejection) {
    // q is the drafter's own, so that the few most probable tokens may be all of it.
    SamplingParams few = sampling;
    few.top_k = few.top_k == 0 ? kDraftTopK : std::min(few.top_k, kDraftTopK);
    make_distribution(row_, few, scratch_, &q_);
  } else {
    make_distribution(row_, sampling, scratch_, &q_);
  }
  if (rejection && !sampling.greedy()) q->push_back(q_);
  // Under match the drafter draws with the target's own noise, and so the target's token more often than
  // any other way of drafting would (Daliri et al. 2024, drafter-invariant speculative decoding).
  return draw(q_, Noise(sampling.seed, index, rejection ? Noise::Stream::kDraft : Noise::Stream::kDraw));
}

Drafts DraftEngine::run(const DraftWork& work) {
  if (work.kind == DraftWork::Kind::kRelease) {
    replicas_.erase(work.session);
    return {};
  }
  auto replica = replicas_.find(work.session);
  if (replica == replicas_.end()) replica = replicas_.emplace(work.session, assistant_->make_replica()).first;
  append(replica->second, work.kv);
  if (work.kind == DraftWork::Kind::kExtend) return {};
  const std::vector<float> hidden = to_floats(work.hidden);
  const TimePoint start = now();
  Drafts drafts;
  std::int64_t index = work.index;
  const ChooseDraft choose = [&](std::span<const TokenId> ids, std::span<const float> scores) {
    return sample(*work.sampling, index++, ids, scores, &drafts.q);
  };
  std::vector<float> state;
  drafts.tokens = assistant_->draft(work.token, hidden, replica->second, work.base, work.draft_length, stop_ids_,
                                    work.sampling ? &choose : nullptr, work.want_state ? &state : nullptr);
  drafts.draft_ns = (now() - start).count();
  if (work.want_state) drafts.state = to_wire(std::move(state));
  return drafts;
}

void DraftEngine::report_buffers(const BufferSink& sink, Position positions) const {
  assistant_->report_buffers(sink);
  sink({.name = "drafter_scratch.gemm", .dtype = "U8", .shape = {static_cast<std::int64_t>(Linear::thread_scratch_bytes())},
        .bytes = Linear::thread_scratch_bytes()});
  for (const auto& [session, replica] : replicas_) replica.report_buffers(sink, positions);
}

}  // namespace outrider
