#include "verifier-node/backbone_engine.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "common/base/time.h"
#include "common/base/token_tree.h"
#include "common/compute/kernels/team.h"
#include "common/compute/tensor/decode.h"
#include "common/pair/pair_files.h"
#include "common/wire/messages/donor_rows.h"

namespace outrider {
namespace {

/// Most donor rows of one message: 4,096 rows of E4B's full donor are 8 MiB of K, well inside
/// WireLimits::tensor_bytes_max for the donors of every published model. Hidden rows of several layers may be wider.
constexpr Position kKvRowsMax = 4096;

/// Interval between checks that masks are ready.
constexpr Duration kMaskLook = std::chrono::milliseconds(5);

/// Allocates an uninitialised byte block that a WireTensor can share.
std::pair<std::byte*, SharedBytes> allocate_shared(std::size_t bytes) {
  const std::shared_ptr<std::byte[]> owner(new std::byte[bytes]);
  return {owner.get(), SharedBytes(owner, {owner.get(), bytes})};
}

WireTensor wire_row(std::span<const float> row, DType dtype) {
  auto [to, shared] = allocate_shared(stored_bytes(dtype, row.size()));
  encode(dtype, row, to);
  return {.dtype = dtype, .shape = {static_cast<std::int64_t>(row.size())}, .data = std::move(shared)};
}

/// Decodes an encoder's soft tokens, which are unaligned in a network frame.
Tensor decoded(const WireTensor& content) {
  Tensor rows(content.shape[0], content.shape[1]);
  std::memcpy(rows.view().data(), content.data.bytes().data(), content.data.bytes().size());
  return rows;
}

SamplingScratch& thread_scratch() {
  thread_local SamplingScratch scratch;
  return scratch;
}

/// Chooses the token after a prompt: an outcome without drafts.
Result<VerifyOutcome> first_token(Sampler& sampler, std::span<const float> logits) {
  ASSIGN_OR_RETURN(const TokenId token, sampler.choose(logits, thread_scratch()));
  return VerifyOutcome{0, token};
}

}  // namespace

KvRows BackboneEngine::donor_rows(const KvCache& cache, Position from, Position to, WireForm form) const {
  KvRows rows{.from = from, .to = to, .donors = {}};
  if (rows.empty()) return rows;
  for (const Backbone::Donor& donor : backbone().donors()) {
    const LayerKv& layer = cache.layer(donor.cache);
    const DonorFacts facts{.sliding = donor.sliding,
                           .sliding_window = static_cast<std::int32_t>(backbone().config().sliding_window)};
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

Position BackboneEngine::donor_rows_end(const KvCache& cache, Position from) const {
  Position rows_max = kKvRowsMax, tail = 0;
  for (const Backbone::Donor& donor : backbone().donors()) {
    const LayerKv& layer = cache.layer(donor.cache);
    rows_max = std::min(rows_max, static_cast<Position>(WireLimits().tensor_bytes_max / layer.row_bytes()));
    if (donor.sliding) tail = drafter_window(backbone().config().sliding_window) + backbone().rows_max();
  }
  return piece_end(from, cache.length(), rows_max, tail);
}

KvCache BackboneEngine::cache_of_shard(int rank) const {
  if (rank == 0) return backbone().make_cache();  // only the first shard keeps the rows of hidden layers
  const int shards = place_of(backbone().shards()).count;
  return KvCache(activation_dtype(backbone().weight_type()), kv_layer_shapes(backbone().config(), {rank, shards}),
                 backbone().rows_max());
}

KvCost BackboneEngine::kv_cost() const {
  KvCost cost;
  for (int rank = 0; rank < place_of(backbone().shards()).count; ++rank) add_kv_cost(cache_of_shard(rank), &cost);
  return cost;
}

std::int64_t BackboneEngine::kv_bytes_until_full(std::span<const float> free_mib) const {
  const Position longest = backbone().config().max_position_embeddings;
  const auto all = static_cast<double>(kv_cost().bytes(longest));
  double least = 0x1p62;
  for (std::size_t rank = 0; rank < free_mib.size(); ++rank) {
    const KvCost own = kv_cost_of(cache_of_shard(static_cast<int>(rank)));
    const double full = double{free_mib[rank]} * 0x1p20 * all / static_cast<double>(own.bytes(longest));
    least = std::max(0.0, std::min(least, full));  // another host may send anything, even NaN
  }
  return static_cast<std::int64_t>(least);
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
  Decision decision{
      .outcome = work.prefill                     ? first_token(sampler, logits[0].span())
                 : !synthetic_acceptance_.empty() ? synthetic_outcome(logits, work)
                                                  : sampler.verify(logits, work.tokens, thread_scratch(), work.depths,
                                                                   work.q),
      .logprobs = {}};
  if (decision.outcome) decision.logprobs = logprobs_along(sampler, logits, work, *decision.outcome);
  return decision;
}

std::vector<std::optional<BackboneEngine::Decision>> BackboneEngine::decide_all(const std::vector<VerifyWork>& batch,
                                                                                std::span<const Sequences::Rows> rows,
                                                                                Matrix<const float> logits) {
  std::vector<std::int64_t> end_row(batch.size());
  std::transform_inclusive_scan(rows.begin(), rows.end(), end_row.begin(), std::plus(),
                                [](const Sequences::Rows& some) { return some.output_rows; });
  std::vector<std::optional<Decision>> decisions(batch.size());
  team_for(std::ssize(batch), 1, [&](std::int64_t text) {
    const auto i = static_cast<std::size_t>(text);
    if (batch[i].prefill && !batch[i].last) return;
    const std::int64_t count = batch[i].prefill ? 1 : rows[i].output_rows;
    decisions[i] = decide(batch[i], logits.rows(end_row[i] - count, count));
  });
  return decisions;
}

VerifyOutcome BackboneEngine::synthetic_outcome(Matrix<const float> logits, const VerifyWork& work) const {
  // Depends on the position only, so that alternating measurements get the same random numbers.
  const double coin = CounterRng(static_cast<std::uint64_t>(work.base)).uniform();
  const TokenTree tree(std::ssize(work.tokens) - 1, work.depths);
  VerifyOutcome outcome{};
  std::vector<std::int64_t> next;
  while (true) {
    // Does the work of the rule: the argmax of each kept row and of the next.
    outcome.next_token = static_cast<TokenId>(argmax(logits[outcome.row].span()));
    next = tree.children(outcome.row);
    const auto depth = static_cast<std::size_t>(outcome.accepted);
    if (next.empty() || depth >= synthetic_acceptance_.size() || coin >= synthetic_acceptance_[depth]) break;
    outcome.row = next.front();
    ++outcome.accepted;
  }
  // The replacement of a rejected draft must be another token.
  if (!next.empty() && outcome.next_token == work.tokens[static_cast<std::size_t>(next.front())]) {
    const auto row = logits[outcome.row].span();
    const auto place = row.begin() + outcome.next_token;
    const auto before = std::max_element(row.begin(), place), behind = std::max_element(place + 1, row.end());
    const bool is_before = before != place && (behind == row.end() || *before >= *behind);
    outcome.next_token = static_cast<TokenId>((is_before ? before : behind) - row.begin());
  }
  return outcome;
}

void BackboneEngine::rename(SessionId session, SessionId kept) {
  sessions_.erase(session);
  sequences_.rename(session, kept);
}

void BackboneEngine::release(SessionId session) {
  sessions_.erase(session);
  if (sequences_.has(session)) sequences_.release(session);
}

std::map<SessionId, BackboneEngine::Session>::iterator BackboneEngine::open(
    const VerifyWork& work, const std::function<void()>& between_steps) {
  Session session{Sampler(work.sampling, work.stop_ids, backbone().config().final_logit_softcapping, work.grammar)};
  if (work.reuse) {
    const SessionId from = work.reuse->from;
    CHECK(sequences_.has(from), "session {} is to continue {}, which is not here", value(work.session), value(from));
    const auto length = static_cast<Position>(work.reuse->tokens.size());
    // The start of a longer sequence is still copied, since the pages of its rest would stay, unaccounted.
    if (work.reuse->take && sequences_.cache(from).length() == length) {
      sequences_.rename(from, work.session);
    } else {
      sequences_.copy(work.session, from, length, &between_steps);
    }
    if (work.reuse->take) release(from);
    session.sampler.add_text(work.reuse->tokens, work.reuse->answered);
  } else {
    sequences_.open(work.session);
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
  std::vector<std::pair<Sampler*, std::optional<TokenId>>> guided;
  for (const VerifyWork& work : batch) {
    Sampler& sampler = sessions_.at(work.session).sampler;
    if (!sampler.follows_grammar() || (work.prefill && !work.last)) continue;
    guided.emplace_back(&sampler, work.prefill ? std::nullopt : std::optional(work.tokens[0]));
  }
  if (guided.empty()) return {};
  return std::async([guided = std::move(guided)] {
    for (const auto& [sampler, token] : guided) sampler->look_ahead(token);
  });
}

std::vector<VerifyResult> BackboneEngine::run(const std::vector<VerifyWork>& batch,
                                              const std::function<void()>& between_steps) {
  std::vector<Sequences::Rows> segments;
  std::vector<std::vector<SoftRows>> soft(batch.size());
  for (const VerifyWork& work : batch) {
    auto session = sessions_.find(work.session);
    if (session == sessions_.end()) session = open(work, between_steps);
    const Position length = sequences_.cache(work.session).length();
    CHECK(length == work.base, "cache {}, base {}", length, work.base);
    const bool all = !work.prefill || !work.scored.empty();
    const std::int64_t outputs = all ? static_cast<std::int64_t>(work.tokens.size()) : work.last ? 1 : 0;
    std::vector<SoftRows>& rows = soft[segments.size()];
    if (!work.media.empty()) rows = soft_rows(work, session->second, between_steps);
    segments.push_back({work.session, work.tokens, outputs, rows, work.depths});
    if (work.prefill) session->second.sampler.add_text(work.tokens, work.answered);
  }
  const TimePoint start = now();
  std::future<void> masks = masks_ahead(batch);
  const Backbone::Output output = sequences_.forward(segments, &between_steps);
  const std::int64_t forward_ns = (now() - start).count();
  if (masks.valid()) {
    while (masks.wait_for(kMaskLook) == std::future_status::timeout) between_steps();
    masks.get();
  }
  between_steps();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!batch[i].keep_as) continue;
    sequences_.copy(*batch[i].keep_as, batch[i].session, sequences_.cache(batch[i].session).length(), &between_steps);
  }

  std::vector<std::optional<Decision>> decisions = decide_all(batch, segments, output.logits);

  std::vector<VerifyResult> results;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const VerifyWork& work = batch[i];
    const std::int64_t outputs = segments[i].output_rows;
    const KvCache& cache = sequences_.cache(work.session);
    const Sampler& sampler = sessions_.at(work.session).sampler;
    VerifyResult result{.session = work.session, .round = work.round};
    Verdict& verdict = result.verdict;
    verdict.verify_ns = forward_ns;
    for (std::size_t m = 0; m < work.media.size(); ++m) {
      if (work.media[m].end <= work.base + std::ssize(work.tokens)) sessions_.at(work.session).soft[m] = {};
    }
    for (std::size_t k = 0; k < work.scored.size() && !result.error; ++k) {
      Result<TokenLogprobs> score = sampler.prompt_logprobs(output.logits[row + static_cast<std::int64_t>(k)].span(),
                                                            work.scored[k], thread_scratch());
      if (score)
        result.scores.push_back(*std::move(score));
      else
        result.error = score.error();
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
              wire_row(hidden, wire_dtype(work.wire, activation_dtype(backbone().weight_type()), std::ssize(hidden)));
        }
        if (!work.prefill) sequences_.keep_path(i, outcome->row);
      }
    }
    if (work.kv_from && !result.error)
      verdict.kv = donor_rows(cache, *work.kv_from, donor_rows_end(cache, *work.kv_from), work.wire);
    row += outputs;
    results.push_back(std::move(result));
    between_steps();
  }
  return results;
}

}  // namespace outrider
