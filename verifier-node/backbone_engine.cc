#include "verifier-node/backbone_engine.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "common/base/time.h"
#include "common/base/token_tree.h"
#include "common/kernels/team.h"
#include "common/protocol/donor_rows.h"
#include "common/tensor/decode.h"

namespace outrider {
namespace {

/// Most donor rows of one message: 4,096 rows of E4B's full donor are 8 MiB of K, well inside
/// WireLimits::tensor_bytes_max for every published model.
constexpr Position kKvRowsMax = 4096;

/// An uninitialised byte block that a WireTensor can share.
std::pair<std::byte*, SharedBytes> allocate_shared(std::size_t bytes) {
  const std::shared_ptr<std::byte[]> owner(new std::byte[bytes]);
  return {owner.get(), SharedBytes(owner, {owner.get(), bytes})};
}

WireTensor wire_row(std::span<const float> row, DType dtype) {
  auto [to, shared] = allocate_shared(stored_bytes(dtype, row.size()));
  encode(dtype, row, to);
  return {.dtype = dtype, .shape = {static_cast<std::int64_t>(row.size())}, .data = std::move(shared)};
}

/// Soft tokens as an encoder has sent them: a frame of the network has no alignment.
Tensor decoded(const WireTensor& content) {
  Tensor rows(content.shape[0], content.shape[1]);
  std::memcpy(rows.view().data(), content.data.bytes().data(), content.data.bytes().size());
  return rows;
}

SamplingScratch& thread_scratch() {
  thread_local SamplingScratch scratch;
  return scratch;
}

/// The token after a prompt: an outcome without drafts.
Result<VerifyOutcome> first_token(Sampler& sampler, std::span<const float> logits) {
  ASSIGN_OR_RETURN(const TokenId token, sampler.choose(logits, thread_scratch()));
  return VerifyOutcome{0, token};
}

}  // namespace

KvRows BackboneEngine::donor_rows(const KvCache& cache, Position from, Position to, WireForm form) const {
  KvRows rows{.from = from, .to = to, .donors = {}};
  if (rows.empty()) return rows;
  for (const AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
    const LayerKv& layer = cache.layer(backbone_->donor_cache(kind));
    const DonorFacts facts{.sliding = kind == AttentionKind::kSliding,
                           .sliding_window = static_cast<std::int32_t>(backbone_->config().sliding_window)};
    const Position first = first_useful_row(facts, from, to);
    const std::int64_t count = to - first;
    const DType dtype = wire_dtype(form, layer.dtype(), layer.head_dim());
    const auto elements = static_cast<std::size_t>(layer.num_key_value_heads() * layer.head_dim());
    const std::size_t row_bytes = stored_bytes(dtype, elements);
    auto [k, k_shared] = allocate_shared(static_cast<std::size_t>(count) * row_bytes);
    auto [v, v_shared] = allocate_shared(static_cast<std::size_t>(count) * row_bytes);
    if (dtype == layer.dtype()) {
      layer.read_raw(first, count, k, v);
    } else {
      std::vector<std::byte> raw_k(layer.row_bytes()), raw_v(layer.row_bytes());
      std::vector<float> row(elements);
      for (std::int64_t i = 0; i < count; ++i) {
        layer.read_raw(first + i, 1, raw_k.data(), raw_v.data());
        const std::size_t at = static_cast<std::size_t>(i) * row_bytes;
        decode(layer.dtype(), raw_k.data(), row);
        encode(dtype, row, k + at);
        decode(layer.dtype(), raw_v.data(), row);
        encode(dtype, row, v + at);
      }
    }
    const std::vector<std::int64_t> shape = {count, layer.num_key_value_heads(), layer.head_dim()};
    rows.donors.push_back({first, {dtype, shape, std::move(k_shared)}, {dtype, shape, std::move(v_shared)}});
  }
  return rows;
}

KvCost BackboneEngine::kv_cost() const {
  const KvCache cache = backbone_->make_cache();
  KvCost cost;
  for (std::size_t i = 0; i < cache.layer_count(); ++i) {
    const LayerKv& layer = cache.layer(i);
    const auto bytes = 2 * static_cast<std::int64_t>(layer.row_bytes());
    (layer.ring_rows() > 0 ? cost.ring_bytes_per_position : cost.bytes_per_position) += bytes;
    cost.ring_rows = std::max(cost.ring_rows, layer.ring_rows());
  }
  return cost;
}

std::vector<TokenLogprobs> BackboneEngine::logprobs_along(const Sampler& sampler, Matrix<const float> logits,
                                                          const VerifyWork& work, const VerifyOutcome& outcome) {
  if (work.prefill) return sampler.logprobs(logits, {&outcome.next_token, 1}, thread_scratch());
  const std::vector<std::int64_t> path = TokenTree(std::ssize(work.tokens) - 1, work.depths).path(outcome.row);
  std::vector<TokenLogprobs> along;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const TokenId token = i + 1 < path.size() ? work.tokens[static_cast<std::size_t>(path[i + 1])] : outcome.next_token;
    std::ranges::move(sampler.logprobs(logits.rows(path[i], 1), {&token, 1}, thread_scratch()),
                      std::back_inserter(along));
  }
  return along;
}

BackboneEngine::Decision BackboneEngine::decide(const VerifyWork& work, Matrix<const float> logits) {
  Sampler& sampler = sessions_.at(work.session).sampler;
  Decision decision{.outcome = work.prefill                     ? first_token(sampler, logits[0].span())
                               : !synthetic_acceptance_.empty() ? synthetic_outcome(logits, work)
                               : work.q.empty() ? sampler.verify(logits, work.tokens, thread_scratch(), work.depths)
                                                : sampler.verify_rejection(logits, work.tokens, work.q,
                                                                           thread_scratch(), work.depths),
                    .logprobs = {}};
  if (decision.outcome) decision.logprobs = logprobs_along(sampler, logits, work, *decision.outcome);
  return decision;
}

std::vector<std::optional<BackboneEngine::Decision>> BackboneEngine::decide_all(const std::vector<VerifyWork>& batch,
                                                                                std::span<const Segment> segments,
                                                                                Matrix<const float> logits) {
  std::vector<std::int64_t> end_row(batch.size());
  std::transform_inclusive_scan(segments.begin(), segments.end(), end_row.begin(), std::plus(),
                                [](const Segment& segment) { return segment.output_rows; });
  std::vector<std::optional<Decision>> decisions(batch.size());
  team_for(std::ssize(batch), 1, [&](std::int64_t text) {
    const auto i = static_cast<std::size_t>(text);
    if (batch[i].prefill && !batch[i].last) return;
    const std::int64_t rows = batch[i].prefill ? 1 : segments[i].output_rows;
    decisions[i] = decide(batch[i], logits.rows(end_row[i] - rows, rows));
  });
  return decisions;
}

VerifyOutcome BackboneEngine::synthetic_outcome(Matrix<const float> logits, const VerifyWork& work) const {
  // The same at the same place of a text, so that what is measured in turns has the same luck.
  const double coin = CounterRng(static_cast<std::uint64_t>(work.base)).uniform();
  const TokenTree tree(std::ssize(work.tokens) - 1, work.depths);
  VerifyOutcome outcome{};
  std::vector<std::int64_t> next;
  while (true) {
    // It costs what the rule costs: the argmax of each kept row and the next.
    outcome.next_token = static_cast<TokenId>(argmax(logits[outcome.row].span()));
    next = tree.children(outcome.row);
    const auto depth = static_cast<std::size_t>(outcome.accepted);
    if (next.empty() || depth >= synthetic_acceptance_.size() || coin >= synthetic_acceptance_[depth]) break;
    outcome.row = next.front();
    ++outcome.accepted;
  }
  // What replaces a lost draft is another token.
  if (!next.empty() && outcome.next_token == work.tokens[static_cast<std::size_t>(next.front())]) {
    const auto row = logits[outcome.row].span();
    const auto place = row.begin() + outcome.next_token;
    const auto before = std::max_element(row.begin(), place), behind = std::max_element(place + 1, row.end());
    const bool is_before = before != place && (behind == row.end() || *before >= *behind);
    outcome.next_token = static_cast<TokenId>((is_before ? before : behind) - row.begin());
  }
  return outcome;
}

std::map<SessionId, BackboneEngine::Session>::iterator BackboneEngine::open(
    const VerifyWork& work, const std::function<void()>& between_steps) {
  std::shared_ptr<const Grammar> grammar;
  if (!work.sampling.grammar.empty() && grammars_ != nullptr) {
    // Ready, since the core asked; if others drove it out since then, it is made again.
    if (auto made = grammars_->wait_for(work.sampling.grammar)) grammar = std::move(*made);
  }
  Session session{backbone_->make_cache(), Sampler(work.sampling, work.stop_ids,
                                                   backbone_->config().final_logit_softcapping, std::move(grammar))};
  if (work.reuse) {
    const auto source = sessions_.find(work.reuse->from);
    CHECK(source != sessions_.end(), "session {} is to continue {}, which is not here", value(work.session),
          value(work.reuse->from));
    const auto length = static_cast<Position>(work.reuse->tokens.size());
    KvCache& theirs = source->second.cache;
    // The start of a longer text is copied even so: the pages of its rest would stay, and are in nobody's books.
    if (work.reuse->take && theirs.length() == length) {
      session.cache = std::move(theirs);
    } else {
      session.cache.copy_from(theirs, length, &between_steps);
    }
    if (work.reuse->take) sessions_.erase(source);
    session.sampler.add_text(work.reuse->tokens, work.reuse->answered);
  }
  return sessions_.emplace(work.session, std::move(session)).first;
}

std::vector<SoftRows> BackboneEngine::soft_rows(const VerifyWork& work, Session& session,
                                                const std::function<void()>& between_steps) {
  std::vector<SoftRows> rows;
  session.soft.resize(work.media.size());
  const Position end = work.base + std::ssize(work.tokens);
  for (std::size_t i = 0; i < work.media.size(); ++i) {
    const auto& [medium, medium_end, together] = work.media[i];
    if (medium_end <= work.base || end <= medium.first) continue;
    Tensor& soft = session.soft[i];
    if (soft.rows() == 0) soft = medium.is_encoded() ? decoded(medium.content) : towers_->encode(medium, between_steps);
    rows.push_back({.first = medium.first, .values = soft.view(), .both_ways = together});
  }
  rows = soft_rows_within(rows, work.base, end);
  return rows;
}

std::future<void> BackboneEngine::masks_ahead(const std::vector<VerifyWork>& batch) {
  std::vector<std::pair<Sampler*, const VerifyWork*>> guided;
  for (const VerifyWork& work : batch) {
    Sampler& sampler = sessions_.at(work.session).sampler;
    if (sampler.follows_grammar() && (!work.prefill || work.last)) guided.emplace_back(&sampler, &work);
  }
  if (guided.empty()) return {};
  return std::async([guided = std::move(guided)] {
    for (const auto& [sampler, work] : guided) {
      const std::span<const TokenId> tokens = work->prefill ? std::span<const TokenId>() : work->tokens;
      sampler->look_ahead(tokens, work->depths);
    }
  });
}

std::vector<VerifyResult> BackboneEngine::run(const std::vector<VerifyWork>& batch,
                                              const std::function<void()>& between_steps) {
  std::vector<Segment> segments;
  std::vector<std::vector<SoftRows>> soft(batch.size());
  for (const VerifyWork& work : batch) {
    auto session = sessions_.find(work.session);
    if (session == sessions_.end()) session = open(work, between_steps);
    KvCache& cache = session->second.cache;
    CHECK(cache.length() == work.base, "cache {}, base {}", cache.length(), work.base);
    const bool all = !work.prefill || !work.scored.empty();
    const std::int64_t outputs = all ? static_cast<std::int64_t>(work.tokens.size()) : work.last ? 1 : 0;
    std::vector<SoftRows>& rows = soft[segments.size()];
    if (!work.media.empty()) rows = soft_rows(work, session->second, between_steps);
    segments.push_back({&cache, work.tokens, outputs, rows, work.depths});
    if (work.prefill) session->second.sampler.add_text(work.tokens, work.answered);
  }
  const TimePoint start = now();
  std::future<void> masks = masks_ahead(batch);
  const Backbone::Output output = backbone_->forward(segments, nullptr, &between_steps);
  const std::int64_t forward_ns = (now() - start).count();
  if (masks.valid()) masks.get();
  between_steps();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!batch[i].keep_as) continue;
    KvCache copy = backbone_->make_cache();
    copy.copy_from(*segments[i].cache, segments[i].cache->length(), &between_steps);
    sessions_.emplace(*batch[i].keep_as, Session{std::move(copy), Sampler({}, {}, 0)});
  }

  std::vector<std::optional<Decision>> decisions = decide_all(batch, segments, output.logits);

  std::vector<VerifyResult> results;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const VerifyWork& work = batch[i];
    const std::int64_t outputs = segments[i].output_rows;
    KvCache& cache = *segments[i].cache;
    const Sampler& sampler = sessions_.at(work.session).sampler;
    VerifyResult result{.session = work.session, .round = work.round};
    Verdict& verdict = result.verdict;
    verdict.verify_ns = forward_ns;
    if (work.prefill && work.last) sessions_.at(work.session).soft.clear();
    for (std::size_t k = 0; k < work.scored.size(); ++k) {
      result.scores.push_back(sampler.prompt_logprobs(output.logits[row + static_cast<std::int64_t>(k)].span(),
                                                      work.scored[k], thread_scratch()));
      between_steps();
    }
    if (decisions[i]) {
      const Result<VerifyOutcome>& outcome = decisions[i]->outcome;
      if (!outcome) {
        result.error = outcome.error();
      } else {
        verdict.accepted = outcome->accepted;
        verdict.next_token = outcome->next_token;
        if (!work.depths.empty()) verdict.row = static_cast<std::int32_t>(outcome->row);
        verdict.logprobs = std::move(decisions[i]->logprobs);
        if (work.kv_from) {
          const std::int64_t last = work.prefill ? outputs - 1 : outcome->row;
          const std::span<const float> hidden = output.hidden[row + last].span();
          verdict.hidden =
              wire_row(hidden, wire_dtype(work.wire, activation_dtype(backbone_->weight_type()), std::ssize(hidden)));
        }
        if (!work.prefill) backbone_->keep_path(segments, i, outcome->row);
      }
    }
    if (work.kv_from && !result.error) {
      const Position tail = drafter_window(backbone_->config().sliding_window) + backbone_->rows_max();
      verdict.kv =
          donor_rows(cache, *work.kv_from, piece_end(*work.kv_from, cache.length(), kKvRowsMax, tail), work.wire);
    }
    row += outputs;
    results.push_back(std::move(result));
    between_steps();
  }
  return results;
}

}  // namespace outrider
