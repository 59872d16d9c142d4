#include "tests/simulation/simulator.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "common/protocol/donor_rows.h"

namespace outrider::simulation {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(10);
constexpr Position kKvRowsMax = 50;  // most K/V rows of one message, but for the last window
constexpr std::int64_t kRowsMax = 24;
constexpr KvCost kKvCost{
    .bytes_per_position = 100, .ring_bytes_per_position = 50, .ring_rows = model::kWindow + 1 + kRowsMax};
const PeerId kVerifier = "verifier", kClient = "client";

WireTensor tensor_of(const std::vector<std::uint64_t>& hashes, std::vector<std::int64_t> shape) {
  const auto owner = std::make_shared<std::vector<std::uint64_t>>(hashes);
  return {
      .dtype = DType::kF32, .shape = std::move(shape), .data = SharedBytes(owner, std::as_bytes(std::span(*owner)))};
}

std::uint64_t hash_at(const WireTensor& tensor, std::int64_t row) {
  std::uint64_t hash;
  std::memcpy(&hash, tensor.data.bytes().data() + row * 8, sizeof(hash));
  return hash;
}

}  // namespace

namespace model {

PairFacts facts() {
  // One K/V head of two floats: eight bytes, a hash.
  return {.hidden_size = 2,
          .vocab_size = kVocab,
          .context_max = 1 << 20,
          .donors = {{.sliding = true, .layer = 0, .num_key_value_heads = 1, .head_dim = 2, .sliding_window = kWindow},
                     {.sliding = false, .layer = 1, .num_key_value_heads = 1, .head_dim = 2}}};
}

std::vector<float> logits(std::uint64_t prefix) {
  std::vector<float> row;
  for (std::uint64_t token = 0; token < kVocab; ++token)
    row.push_back(static_cast<float>(CounterRng::at(prefix, token) % 4096) / 1024);
  row[static_cast<std::size_t>(choose(prefix))] = 9.5f;
  return row;
}

std::vector<TokenId> generate(const std::vector<TokenId>& prompt, std::int64_t count, const SamplingParams& sampling,
                              const std::vector<TokenId>& stop_ids) {
  std::uint64_t prefix = kEmpty;
  for (const TokenId token : prompt) prefix = extend(prefix, token);
  Sampler sampler(sampling, stop_ids, 0);
  SamplingScratch scratch;
  sampler.add_prompt(prompt);
  std::vector<TokenId> tokens = {sampler.choose(logits(prefix), scratch).value()};
  while (static_cast<std::int64_t>(tokens.size()) < count &&
         std::find(stop_ids.begin(), stop_ids.end(), tokens.back()) == stop_ids.end()) {
    prefix = extend(prefix, tokens.back());
    const std::vector<float> row = logits(prefix);
    tokens.push_back(sampler.verify({row.data(), {1, kVocab}}, {&tokens.back(), 1}, scratch).value().next_token);
  }
  return tokens;
}

}  // namespace model

Simulator::Simulator(std::uint64_t seed, const Faults& faults, double drafter_accuracy, std::int64_t kv_bytes_max)
    : rng_(seed),
      faults_(faults),
      accuracy_(drafter_accuracy),
      now_(std::chrono::seconds(1)),
      coordinator_({.instance = 1000 + seed}),
      kv_bytes_max_(kv_bytes_max) {
  VerifierConfig config;
  config.prefill_chunk = 5;  // several chunks even for short prompts
  config.rows_max = kRowsMax;
  config.reuse_min = 4;
  config.capacity = {.kv_cost = kKvCost, .kv_bytes_max = kv_bytes_max};
  verifier_ =
      std::make_unique<VerifierCore>(config, Hello{.role = Role::kVerifier, .name = "v", .facts = model::facts()});
  new_drafter();
  schedule(Duration::zero(), Event::Kind::kTick, "", {});
}

void Simulator::new_drafter() {
  drafter_peer_ = fmt::format("drafter-{}", restarts_);
  replicas_.clear();
  drafted_.reset();
  drafter_ = std::make_unique<DrafterCore>(
      DrafterConfig{}, Hello{.role = Role::kDrafter, .name = drafter_peer_, .facts = model::facts()});
}

void Simulator::request(std::uint64_t number, std::vector<TokenId> prompt, std::int64_t max_tokens,
                        std::int32_t draft_length, const SamplingParams& sampling, const std::vector<TokenId>& stop_ids,
                        DraftPolicy policy) {
  answers_[number];
  sampled_ = sampled_ || !(sampling == SamplingParams{});
  coordinator_.on_message(kClient,
                          {.session = SessionId{number},
                           .body = Generate{.prompt = std::move(prompt),
                                            .max_tokens = max_tokens,
                                            .draft_length = draft_length,
                                            .stop_ids = stop_ids,
                                            .wait_ms = 60'000,
                                            .sampling = sampling,
                                            .policy = policy}},
                          now_);
  flush();
}

void Simulator::cancel(std::uint64_t number) {
  coordinator_.on_message(kClient, {.session = SessionId{number}, .body = Cancel{}}, now_);
  flush();
}

bool Simulator::run_until_done(Duration limit) {
  const TimePoint end = now_ + limit;
  const auto all_done = [&] {
    return std::all_of(answers_.begin(), answers_.end(),
                       [](const auto& a) { return a.second.done || !a.second.failure.empty(); });
  };
  while (now_ < end && violations_.empty()) {
    if (all_done()) return true;
    step();
  }
  return all_done();
}

void Simulator::run_for(Duration duration) {
  for (const TimePoint end = now_ + duration; now_ < end;) step();
}

void Simulator::schedule(Duration after, Event::Kind kind, PeerId peer, Message message) {
  events_.push({now_ + after, order_++, kind, std::move(peer), std::move(message)});
}

void Simulator::transmit(Event::Kind kind, const PeerId& peer, const Message& message) {
  ++messages_;
  const int copies = rng_.uniform() < faults_.drop ? 0 : rng_.uniform() < faults_.repeat ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    TimePoint arrival = now_ + slow_or(faults_.delay_min, faults_.delay_max);
    TimePoint& last = arrivals_[{kind, peer}];
    if (faults_.keeps_order()) arrival = std::max(arrival, last);
    last = arrival;
    schedule(arrival - now_, kind, peer, message);
  }
}

Duration Simulator::slow_or(Duration low, Duration high) {
  if (rng_.uniform() < faults_.slow) std::tie(low, high) = std::pair(high, faults_.slow_delay_max);
  return low + Duration(static_cast<std::int64_t>(rng_.uniform() * static_cast<double>((high - low).count())));
}

void Simulator::step() {
  Event event = events_.top();
  events_.pop();
  now_ = event.at;
  const bool frozen = now_ < frozen_until_;
  if (frozen && event.kind != Event::Kind::kToCoordinator && event.kind != Event::Kind::kTick) {
    return schedule(frozen_until_ - now_, event.kind, std::move(event.peer), std::move(event.message));
  }
  switch (event.kind) {
    case Event::Kind::kToCoordinator: coordinator_.on_message(event.peer, std::move(event.message), now_); break;
    case Event::Kind::kToWorker:
      if (event.peer == kVerifier) verifier_->on_message(std::move(event.message), now_);
      if (event.peer == drafter_peer_) drafter_->on_message(std::move(event.message), now_);
      break;  // else: a drafter that is no more
    case Event::Kind::kBatchDone: verifier_->on_batch_done(std::exchange(results_, {}), now_); break;
    case Event::Kind::kDrafted:
      if (event.peer != drafter_peer_) break;
      drafter_->on_drafted(drafted_->first, std::move(drafted_->second));
      drafted_.reset();
      break;
    case Event::Kind::kTick:
      if (rng_.uniform() < faults_.drafter_restart * to_seconds(kTick)) {
        // Half of them close their connection, which the coordinator's transport notices.
        const PeerId old = drafter_peer_;
        ++restarts_;
        new_drafter();
        if (rng_.uniform() < 0.5) coordinator_.on_peer_gone(old, now_);
      }
      coordinator_.on_tick(now_);
      schedule(kTick, Event::Kind::kTick, "", {});
      break;
  }
  flush();
}

void Simulator::flush() {
  const CoordinatorOutput output = coordinator_.take_output();
  for (const Outgoing& out : output.send) {
    coordinator_.on_sent(out.message, 1);
    if (out.to == kClient) {
      to_client(out.message);
    } else {
      transmit(Event::Kind::kToWorker, out.to, out.message);
    }
  }
  // A worker's loop goes around after each message; a drafter's not while it drafts.
  const bool frozen = now_ < frozen_until_;
  if (!drafted_ && !frozen) drafter_->on_tick(now_);
  DrafterCore::Output drafter = drafter_->take_output();
  for (DraftWork& work : drafter.work) {
    if (work.kind != DraftWork::Kind::kDraft) {
      change_replica(work);
      continue;
    }
    Candidates drafts = draft(work);
    drafted_ = {std::move(work), std::move(drafts)};
    schedule(slow_or(std::chrono::microseconds(100), std::chrono::microseconds(500)), Event::Kind::kDrafted,
             drafter_peer_, {});
  }
  for (const Outgoing& out : drafter.send) transmit(Event::Kind::kToCoordinator, drafter_peer_, out.message);
  if (!frozen) verifier_->on_tick(now_);
  const VerifierCore::Output verifier = verifier_->take_output();
  for (const SessionId session : verifier.released) {
    caches_.erase(session);
    samplers_.erase(session);
  }
  if (!verifier.batch.empty()) {
    results_ = forward(verifier.batch);
    schedule(std::chrono::microseconds(1000 + static_cast<std::int64_t>(rng_.below(4000))), Event::Kind::kBatchDone, "",
             {});
  }
  for (const Outgoing& out : verifier.send) transmit(Event::Kind::kToCoordinator, kVerifier, out.message);
  for (const auto& notices : {output.notices, verifier.notices, drafter.notices}) {
    for (const Notice& notice : notices) {
      if (notice.text.find("dropped") != std::string::npos && notice.text.find("silent") == std::string::npos)
        violated(notice.text);
    }
  }
}

void Simulator::to_client(const Message& message) {
  Answer& answer = answers_[value(message.session)];
  if (const auto* tokens = std::get_if<Tokens>(&message.body)) {
    if (tokens->index != static_cast<std::int64_t>(answer.tokens.size()) || answer.done)
      violated("tokens out of order, twice or after the end");
    answer.tokens.insert(answer.tokens.end(), tokens->tokens.begin(), tokens->tokens.end());
  } else if (const auto* done = std::get_if<Done>(&message.body)) {
    answer.done = true;
    answer.metrics = done->metrics;
  } else if (const auto* failed = std::get_if<Failed>(&message.body)) {
    answer.failure = failed->message;
  }
}

std::vector<VerifyResult> Simulator::forward(const std::vector<VerifyWork>& batch) {
  std::vector<VerifyResult> results;
  for (const VerifyWork& work : batch) {
    if (work.reuse) {
      const auto source = caches_.find(work.reuse->from);
      const auto length = static_cast<Position>(work.reuse->tokens.size());
      if (source == caches_.end() || std::ssize(source->second.prefix) < length || caches_.contains(work.session) ||
          (source->second.written > kKvCost.ring_rows && length + kRowsMax < source->second.written)) {
        violated(fmt::format("session {} is to reuse {} rows that are not there", value(work.session), length));
        continue;
      }
      Cache& cache = caches_[work.session] = source->second;
      cache.prefix.resize(static_cast<std::size_t>(length));
      if (work.reuse->take) caches_.erase(source);
    }
    Cache& cache = caches_[work.session];
    std::vector<std::uint64_t>& prefix = cache.prefix;
    if (static_cast<Position>(prefix.size()) != work.base)
      violated("the verifier's cache and the base position differ");
    for (const TokenId token : work.tokens)
      prefix.push_back(model::extend(prefix.empty() ? model::kEmpty : prefix.back(), token));
    cache.written = std::max<Position>(cache.written, std::ssize(prefix));
    if (work.keep_as) caches_[*work.keep_as] = cache;
    VerifyResult result{.session = work.session, .round = work.round};
    Verdict& verdict = result.verdict;
    Position committed = static_cast<Position>(prefix.size());
    if ((work.base == 0 || work.reuse) && !(work.sampling == SamplingParams{})) {
      samplers_.emplace(work.session, Sampler(work.sampling, work.stop_ids, 0))
          .first->second.add_prompt(work.reuse ? work.reuse->tokens : std::vector<TokenId>());
    }
    const auto sampler = samplers_.find(work.session);
    if (sampler != samplers_.end()) {
      const std::size_t outputs = !work.prefill ? work.tokens.size() : work.last ? 1 : 0;
      std::vector<float> logits;
      for (std::size_t row = prefix.size() - outputs; row < prefix.size(); ++row) {
        const std::vector<float> more = model::logits(prefix[row]);
        logits.insert(logits.end(), more.begin(), more.end());
      }
      if (work.prefill) {
        sampler->second.add_prompt(work.tokens);
        if (work.last) verdict.next_token = sampler->second.choose(logits, scratch_).value();
      } else {
        const Matrix<const float> rows(logits.data(), {std::ssize(work.tokens), model::kVocab});
        const VerifyOutcome outcome =
            (work.q.empty() ? sampler->second.verify(rows, work.tokens, scratch_)
                            : sampler->second.verify_rejection(rows, work.tokens, work.q, scratch_))
                .value();
        verdict.accepted = outcome.accepted;
        verdict.next_token = outcome.next_token;
      }
    } else if (!work.prefill) {
      while (verdict.accepted + 1 < static_cast<std::int32_t>(work.tokens.size()) &&
             model::choose(prefix[static_cast<std::size_t>(work.base + verdict.accepted)]) ==
                 work.tokens[static_cast<std::size_t>(verdict.accepted) + 1]) {
        ++verdict.accepted;
      }
    }
    if (!work.prefill) {
      committed = work.base + verdict.accepted + 1;
      prefix.resize(static_cast<std::size_t>(committed));
    }
    if (work.last) {
      if (sampler == samplers_.end()) verdict.next_token = model::choose(prefix.back());
      if (work.kv_from) verdict.hidden = tensor_of({prefix.back()}, {2});
    }
    if (work.kv_from && *work.kv_from < committed) {
      const Position to = piece_end(*work.kv_from, committed, kKvRowsMax, model::kWindow + 1);
      verdict.kv = {.from = *work.kv_from, .to = to, .donors = {}};
      for (const DonorFacts& donor : model::facts().donors) {
        const Position first = first_useful_row(donor, *work.kv_from, to);
        const std::vector<std::uint64_t> rows(prefix.begin() + first, prefix.begin() + to);
        const WireTensor tensor = tensor_of(rows, {to - first, 1, 2});
        verdict.kv.donors.push_back({first, tensor, tensor});
      }
    }
    results.push_back(std::move(result));
  }
  std::int64_t bytes = 0;
  for (const auto& [id, cache] : caches_) bytes += kKvCost.bytes(std::ssize(cache.prefix));
  if (bytes > kv_bytes_max_) violated(fmt::format("{} bytes of K/V, {} allowed", bytes, kv_bytes_max_));
  return results;
}

void Simulator::change_replica(const DraftWork& work) {
  if (work.kind == DraftWork::Kind::kRelease) {
    replicas_.erase(work.session);
    return;
  }
  Replica& replica = replicas_[work.session];
  for (std::size_t i = 0; i < work.kv.donors.size(); ++i) {
    const DonorDelta& donor = work.kv.donors[i];
    auto& rows = i == 0 ? replica.sliding : replica.full;
    for (Position p = donor.first; p < work.kv.to; ++p) {
      const std::uint64_t row = hash_at(donor.key, p - donor.first);
      const auto [place, fresh] = rows.emplace(p, row);
      if (!fresh && place->second != row) violated("a committed row changed");
    }
  }
}

Candidates Simulator::draft(const DraftWork& work) {
  Replica& replica = replicas_[work.session];
  // The replica must hold what the verifier holds, and the hidden row must be its last row.
  for (Position p = 0; p < work.base; ++p) {
    if (!replica.full.contains(p)) violated(fmt::format("draft at {} without the full row {}", work.base, p));
  }
  for (Position p = std::max<Position>(0, work.base - (model::kWindow + 1)); p < work.base; ++p) {
    if (!replica.sliding.contains(p) || replica.sliding[p] != replica.full[p])
      violated(fmt::format("draft at {}: sliding row {} missing or wrong", work.base, p));
  }
  const std::uint64_t hidden = hash_at(work.draft.hidden, 0);
  if (!replica.full.empty() && replica.full.rbegin()->second != hidden)
    violated("hidden row and K/V are of different prefixes");
  if (!sampled_ && model::choose(hidden) != work.draft.token) violated("the hidden row did not produce the token");

  std::vector<TokenId> drafts;
  std::vector<Distribution> q;
  std::uint64_t prefix = model::extend(hidden, work.draft.token);
  while (static_cast<std::int32_t>(drafts.size()) < work.draft.draft_length) {
    const TokenId right = model::choose(prefix);
    const std::int64_t index = work.draft.index + std::ssize(drafts);
    if (work.draft.sampling && work.draft.sampling->rule == SamplingRule::kRejection) {
      SamplingParams few = *work.draft.sampling;
      few.top_k = kDraftTopK;
      make_distribution(model::logits(prefix), few, scratch_, &q.emplace_back());
      drafts.push_back(outrider::draw(q.back(), Noise(few.seed, index, Noise::Stream::kDraft)));
      prefix = model::extend(prefix, drafts.back());
      continue;
    }
    drafts.push_back(rng_.uniform() < accuracy_ ? right : static_cast<TokenId>(rng_.below(model::kVocab)));
    prefix = model::extend(prefix, drafts.back());
  }
  return {.tokens = std::move(drafts), .draft_ns = 1000, .q = std::move(q)};
}

}  // namespace outrider::simulation
