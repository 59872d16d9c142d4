#include "tests/simulation/simulator.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "common/base/token_tree.h"
#include "common/wire/messages/donor_rows.h"
#include "drafter-node/draft_tree.h"

namespace outrider::simulation {
namespace {

Duration scaled(Duration time, double by) { return Duration(std::llround(static_cast<double>(time.count()) * by)); }

constexpr Position kKvRowsMax = 50;  // most K/V rows of one message, but for the last window
constexpr std::int64_t kRowsMax = 1 + kDraftLengthMax;
constexpr KvCost kKvCost{
    .bytes_per_position = 100, .ring_bytes_per_position = 50, .ring_rows = model::kWindow + 1 + kRowsMax};

/// Numbers of a row: one block, so that it may be rounded. Its first bytes are a hash, in a block those behind the
/// scale.
constexpr std::int64_t kWidth = 32;
std::size_t hash_place(DType dtype) { return dtype == DType::kI32 ? 0 : 2; }

WireTensor tensor_of(const std::vector<std::uint64_t>& hashes, std::vector<std::int64_t> shape, WireForm form) {
  const DType dtype = wire_dtype(form, DType::kI32, kWidth);
  const std::size_t row = stored_bytes(dtype, kWidth);
  const auto owner = std::make_shared<std::vector<std::byte>>(hashes.size() * row);
  for (std::size_t i = 0; i < hashes.size(); ++i)
    std::memcpy(owner->data() + i * row + hash_place(dtype), &hashes[i], sizeof(std::uint64_t));
  return {.dtype = dtype, .shape = std::move(shape), .data = SharedBytes(owner, *owner)};
}

/// A grammar's text here is the number of milliseconds that it takes to compile; it constrains nothing.
SamplingParams without_grammar(SamplingParams sampling) {
  sampling.grammar.clear();
  return sampling;
}

bool is_rejection(const Draft& draft) { return draft.sampling && draft.sampling->rule == SamplingRule::kRejection; }

/// Whose connection this is.
std::string_view process_of(const PeerId& connection) {
  return std::string_view(connection).substr(0, connection.find('/'));
}

std::uint64_t hash_at(const WireTensor& tensor, std::int64_t row) {
  std::uint64_t hash;
  const std::size_t at = static_cast<std::size_t>(row) * stored_bytes(tensor.dtype, kWidth) + hash_place(tensor.dtype);
  std::memcpy(&hash, tensor.data.bytes().data() + at, sizeof(hash));
  return hash;
}

Result<SoftTokens> soft_tokens_of(const WireMedium& medium) {
  return SoftTokens{.count = medium.content.shape[0], .together = medium.content.shape[0] == 3};
}

/// Rows that say what their soft tokens count as.
WireTensor encoded(const WireTensor& picture) {
  const auto rows = std::make_shared<std::vector<float>>();
  for (std::int64_t i = 0; i < picture.shape[0]; ++i)
    rows->insert(rows->end(), kWidth, static_cast<float>(model::soft_token(picture, i)));
  return {.dtype = DType::kF32,
          .shape = {picture.shape[0], kWidth},
          .data = SharedBytes(rows, std::as_bytes(std::span(*rows)))};
}

/// A prompt's tokens, with those that its pictures count as.
std::vector<TokenId> seen_tokens(const VerifyWork& work) {
  std::vector<TokenId> tokens = work.tokens;
  for (const auto& [medium, end, together] : work.media) {
    const WireTensor rows = medium.is_encoded() ? medium.content : encoded(medium.content);
    for (Position p = std::max(medium.first, work.base); p < std::min(end, work.base + std::ssize(tokens)); ++p) {
      float row = 0;
      std::memcpy(&row, rows.data.bytes().data() + static_cast<std::size_t>((p - medium.first) * kWidth) * sizeof row,
                  sizeof row);
      tokens[static_cast<std::size_t>(p - work.base)] = static_cast<TokenId>(row);
    }
  }
  return tokens;
}

}  // namespace

namespace model {

TokenId soft_token(const WireTensor& picture, std::int64_t i) {
  const auto byte = static_cast<std::uint64_t>(picture.data.bytes()[static_cast<std::size_t>(3 * i)]);
  return static_cast<TokenId>(mix64(byte * 64 + static_cast<std::uint64_t>(i)) % kVocab);
}

WireTensor picture(std::uint64_t seed, std::int64_t soft_tokens) {
  const auto pixels = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(3 * soft_tokens));
  for (std::size_t i = 0; i < pixels->size(); ++i) (*pixels)[i] = static_cast<std::byte>(mix64(seed + i));
  return {.dtype = DType::kU8, .shape = {soft_tokens, 1, 3}, .data = SharedBytes(pixels, *pixels)};
}

PairFacts facts(bool hidden_rows) {
  PairFacts facts{
      .hidden_size = kWidth,
      .vocab_size = kVocab,
      .context_max = 1 << 20,
      .kv_dtype = DType::kI32,
      .hidden_dtype = DType::kI32,
      .donors = {{.sliding = true, .layer = 0, .num_key_value_heads = 1, .head_dim = kWidth, .sliding_window = kWindow},
                 {.sliding = false, .layer = 1, .num_key_value_heads = 1, .head_dim = kWidth}}};
  if (hidden_rows) facts.donors.erase(facts.donors.begin());
  return facts;
}

std::vector<float> logits(std::uint64_t prefix) {
  std::vector<float> row(static_cast<std::size_t>(kVocab));
  for (std::size_t token = 0; token < row.size(); ++token)
    row[token] = static_cast<float>(CounterRng::at(prefix, token) % 4096) / 1024;
  row[static_cast<std::size_t>(choose(prefix))] = 9.5f;
  return row;
}

std::vector<TokenId> generate(const std::vector<TokenId>& prompt, std::int64_t count, const SamplingParams& sampling,
                              const std::vector<TokenId>& stop_ids) {
  std::uint64_t prefix = kEmpty;
  for (const TokenId token : prompt) prefix = extend(prefix, token);
  const auto stops = [&](TokenId token) { return std::ranges::find(stop_ids, token) != stop_ids.end(); };
  if (sampling == SamplingParams{}) {  // the same without logits: choose() has the highest
    std::vector<TokenId> tokens = {choose(prefix)};
    while (static_cast<std::int64_t>(tokens.size()) < count && !stops(tokens.back()))
      tokens.push_back(choose(prefix = extend(prefix, tokens.back())));
    return tokens;
  }
  Sampler sampler(sampling, stop_ids, 0);
  SamplingScratch scratch;
  sampler.add_text(prompt, 0);
  std::vector<TokenId> tokens = {sampler.choose(logits(prefix), scratch).value()};
  while (static_cast<std::int64_t>(tokens.size()) < count && !stops(tokens.back())) {
    prefix = extend(prefix, tokens.back());
    const std::vector<float> row = logits(prefix);
    tokens.push_back(sampler.verify({row.data(), {1, kVocab}}, {&tokens.back(), 1}, scratch).value().next_token);
  }
  return tokens;
}

}  // namespace model

Simulator::Simulator(std::uint64_t seed, const Faults& faults, double drafter_accuracy, const Layout& layout)
    : rng_(seed),
      faults_(faults),
      accuracy_(drafter_accuracy),
      layout_(layout),
      now_(std::chrono::seconds(1)),
      coordinators_(static_cast<std::size_t>(layout.coordinators)),
      first_instance_(1000 + seed),
      verifiers_(static_cast<std::size_t>(layout.verifiers)),
      drafters_(static_cast<std::size_t>(layout.drafters)),
      encoders_(static_cast<std::size_t>(layout.encoders)) {
  for (Coordinator& coordinator : coordinators_) start_coordinator(coordinator);
  for (Verifier& verifier : verifiers_) start(verifier);
  for (Drafter& drafter : drafters_) start(drafter);
  for (Encoder& encoder : encoders_) start(encoder);
  schedule(Duration::zero(), Event::Kind::kTick, "");
}

void Simulator::start(Verifier& verifier) {
  VerifierConfig config;
  if (!layout_.pair) {
    config.prefill_chunk = 5;  // several chunks even for short prompts, beside other sequences
    config.rows_max = kRowsMax;
  }
  config.reuse_min = 4;
  config.capacity = {.kv_cost = kKvCost, .kv_bytes_max = layout_.kv_bytes_max};
  if (!layout_.no_towers) config.soft_tokens = soft_tokens_of;
  config.want_grammar = [this, &verifier](const std::string& text, const std::string&) -> VerifierConfig::GrammarWait {
    const Duration takes = std::chrono::milliseconds(std::stoi(text));
    return [this, ready = verifier.grammars.try_emplace(text, now_ + takes).first->second] {
      const std::shared_ptr<const Grammar> grammar(std::make_shared<int>(), reinterpret_cast<const Grammar*>(this));
      return now_ < ready ? std::shared_ptr<const Grammar>() : grammar;
    };
  };
  verifier = {};
  verifier.dials = has_standby();
  verifier.clock = some_clock();
  verifier.peer = fmt::format("verifier-{}", starts_++);
  verifier.core =
      std::make_unique<VerifierCore>(config, Hello{.role = Role::kVerifier,
                                                   .name = verifier.peer,
                                                   .facts = model::facts(layout_.hidden_rows),
                                                   .numeric_class = "hashes",
                                                   .encoding_class = layout_.no_towers ? "" : "hashes of pixels",
                                                   .no_towers = layout_.no_towers});
}

void Simulator::start(Encoder& encoder) {
  encoder = {};
  encoder.dials = has_standby();
  encoder.clock = some_clock();
  encoder.peer = fmt::format("encoder-{}", starts_++);
  encoder.core = std::make_unique<EncoderCore>(
      EncoderConfig{.sessions_max = 4, .kept_bytes_max = 2000, .soft_tokens = soft_tokens_of},
      Hello{.role = Role::kEncoder,
            .name = encoder.peer,
            .facts = model::facts(layout_.hidden_rows),
            .encoding_class = "hashes of pixels"});
}

void Simulator::start(Drafter& drafter) {
  const std::int64_t asked = drafter.asked;
  drafter = {};
  drafter.asked = asked;
  drafter.dials = has_standby();
  drafter.clock = some_clock();
  drafter.peer = fmt::format("drafter-{}", starts_++);
  const bool tokens = by_tokens(drafter);
  const PairFacts of_tokens{.vocab_size = model::kVocab, .context_max = 1 << 20};
  DrafterConfig config;
  if (tokens || by_blocks(drafter)) {
    config.kv_cost = kKvCost;
    config.kv_bytes_max = layout_.drafter_kv_bytes_max;
  }
  drafter.core = std::make_unique<DrafterCore>(
      config, Hello{.role = Role::kDrafter,
                    .name = fmt::format("key{}/{}", &drafter - drafters_.data(), drafter.peer),
                    .facts = tokens ? of_tokens : model::facts(layout_.hidden_rows),
                    .wire = static_cast<WireForm>(starts_ % 4),
                    .needs = tokens ? DraftInput::kTokens : DraftInput::kTargetRows});
}

template <typename Worker>
void Simulator::crash(Worker& worker, Duration away) {
  const PeerId old = worker.connection();
  const std::size_t place = worker.place;
  const bool connected = !worker.dials;
  worker.peer.clear();
  ++(std::is_same_v<Worker, Verifier>  ? verifier_restarts_
     : std::is_same_v<Worker, Drafter> ? drafter_restarts_
                                       : encoder_restarts_);
  worker.core.reset();
  worker.back = now_ + away;
  if (away == Duration::zero()) start(worker);
  // Half of them close their connection, which the coordinator's transport notices.
  Coordinator& coordinator = coordinators_[place];
  if (rng_.uniform() < 0.5 && coordinator.core && connected)
    coordinator.core->on_peer_gone(old, coordinator.clock.at(now_));
}

void Simulator::start_coordinator(Coordinator& coordinator) {
  // Far apart, as random numbers are.
  coordinator.core =
      std::make_unique<CoordinatorCore>(CoordinatorConfig{.instance = first_instance_ + (instances_++ << 32),
                                                          .failover = layout_.failover,
                                                          .audit = {.share = layout_.audit, .seed = first_instance_},
                                                          .table = layout_.table,
                                                          .drafters_per_sequence = layout_.drafters_per_sequence});
  coordinator.clock = some_clock();
}

void Simulator::kill_coordinator(Duration away, std::size_t place) {
  Coordinator& coordinator = coordinators_.at(place);
  if (rng_.uniform() < 0.3) {  // it was told to stop, and says so
    coordinator.core->stop(coordinator.clock.at(now_));
    flush(coordinator);
  }
  coordinator.core.reset();
  coordinator.back = now_ + away;
  ++coordinator.incarnation;
  ++incarnations_;
  for (auto& [number, client] : clients_) {
    if (client.place != place) continue;
    std::erase_if(sessions_, [&](const auto& session) { return session.first.first == client.peer; });
    cut(client);
  }
  if (!has_standby()) return;
  const auto lose = [&](Node& node) {
    if (node.place == place && !node.dials && rng_.uniform() < 0.5) leave_coordinator(node, false);
  };
  std::ranges::for_each(verifiers_, lose);
  std::ranges::for_each(drafters_, lose);
  std::ranges::for_each(encoders_, lose);
}

void Simulator::cut(Client& client) {
  client.peer.clear();
  client.dials = client.dials || rng_.uniform() < 0.5;
}

bool Simulator::find_coordinator(Seeker& seeker) {
  for (std::size_t i = 0; i < coordinators_.size(); ++i) {
    const std::size_t place = (seeker.place + i) % coordinators_.size();
    if (coordinators_[place].core == nullptr) continue;
    moves_ += place != seeker.place;
    seeker = {.place = place, .dials = false};
    return true;
  }
  seeker.place = 0;  // a new turn begins with the first
  return false;
}

void Simulator::redial(Seeker& seeker) {
  seeker.dials = true;
  moves_ += has_standby();
  seeker.place = (seeker.place + 1) % coordinators_.size();
}

void Simulator::leave_coordinator(Node& node, bool goes_on) {
  Coordinator& coordinator = coordinators_[node.place];
  // What closes its connection tells the other end, but where nothing gets through.
  if (coordinator.core && rng_.uniform() < 0.5)
    coordinator.core->on_peer_gone(node.connection(), coordinator.clock.at(now_));
  ++node.moves;
  node.dials = true;
  if (goes_on) redial(node);
}

void Simulator::tend_connection(Node& node, bool redials) {
  if (!has_standby() || now_ < node.frozen_until) return;
  if (redials && !node.dials) leave_coordinator(node, true);
  if (node.dials) find_coordinator(node);
}

void Simulator::tick_clients() {
  const bool faulty = now_.time_since_epoch() <= faults_.until;
  for (auto& [number, client] : clients_) {
    if (client.core->open() == 0) continue;
    if (faulty && faults_.client_cut > 0 && happens(faults_.client_cut)) cut(client);
    if (client.dials && find_coordinator(client)) {
      client.peer = fmt::format("client-{}", starts_++);
      reap(number, client.core->on_connected(client.clock.at(now_)));
    }
    reap(number, client.core->on_tick(client.clock.at(now_)));
  }
}

void Simulator::reap(std::uint64_t number, const Result<void>& result) {
  Client& client = clients_.at(number);
  ClientCore::Output output = client.core->take_output();
  for (Message& message : output.send) {
    if (client.peer.empty()) continue;
    schedule(Duration::zero(), Event::Kind::kToCoordinator, client.peer, std::make_unique<Message>(std::move(message)),
             client.place);
  }
  if (output.redial) client.peer.clear(), redial(client);
  Answer& answer = answers_.at(number);
  if (answer.ended() || (result && client.core->open() > 0)) return;
  answer.failure = result ? "cancelled" : result.error().message;
  --open_;
}

template <typename Worker>
void Simulator::strike(Worker& worker, double restart) {
  if (worker.core == nullptr) {
    if (now_ >= worker.back) start(worker);
    return;
  }
  if (now_.time_since_epoch() > faults_.until) return;
  constexpr Duration kLong = std::chrono::seconds(5);
  if (restart > 0 && happens(restart)) return crash(worker, up_to(faults_.down_max));
  if (faults_.stall > 0 && happens(faults_.stall)) worker.frozen_until = now_ + up_to(kLong);
  if (faults_.partition > 0 && happens(faults_.partition)) {
    const std::uint64_t ways = rng_.below(3);
    const TimePoint end = now_ + up_to(kLong);
    if (ways != 0) worker.deaf_until = end;
    if (ways != 1) worker.dumb_until = end;
  }
  if (!std::is_same_v<Worker, Drafter> && faults_.mute > 0 && happens(faults_.mute))
    worker.mute_until = now_ + up_to(6 * kLong);
}

Simulator::Verifier* Simulator::find_verifier(const PeerId& peer) {
  const auto found = std::ranges::find(verifiers_, process_of(peer), &Verifier::peer);
  return peer.empty() || found == verifiers_.end() ? nullptr : &*found;
}
Simulator::Drafter* Simulator::find_drafter(const PeerId& peer) {
  const auto found = std::ranges::find(drafters_, process_of(peer), &Drafter::peer);
  return peer.empty() || found == drafters_.end() ? nullptr : &*found;
}
Simulator::Encoder* Simulator::find_encoder(const PeerId& peer) {
  const auto found = std::ranges::find(encoders_, process_of(peer), &Encoder::peer);
  return peer.empty() || found == encoders_.end() ? nullptr : &*found;
}
Simulator::Node* Simulator::find(const PeerId& peer) {
  if (Verifier* verifier = find_verifier(peer)) return verifier;
  if (Encoder* encoder = find_encoder(peer)) return encoder;
  return find_drafter(peer);
}

void Simulator::freeze_workers(Duration duration) {
  for (Verifier& verifier : verifiers_) verifier.frozen_until = now_ + duration;
  for (Drafter& drafter : drafters_) drafter.frozen_until = now_ + duration;
}

bool Simulator::kill_verifier_of(std::uint64_t number, Duration away) {
  // Sessions are numbered in the order of their requests.
  const SessionId session{coordinators_[0].core->first_session() + number - 1};
  for (Verifier& verifier : verifiers_) {
    if (verifier.core == nullptr || !verifier.caches.contains(session)) continue;
    crash(verifier, away);
    flush_all();
    return true;
  }
  return false;
}

int Simulator::coordinator_sessions() const {
  int count = 0;
  for (std::size_t place = 0; place < coordinators_.size(); ++place) count += status(place).sessions;
  return count;
}
std::size_t Simulator::verifier_sessions() const {
  std::size_t count = 0;
  for (const Verifier& verifier : verifiers_) count += verifier.core ? verifier.core->session_count() : 0;
  return count;
}
std::size_t Simulator::drafter_sessions() const {
  std::size_t count = 0;
  for (const Drafter& drafter : drafters_) count += drafter.core ? drafter.core->session_count() : 0;
  return count;
}
std::size_t Simulator::encoder_sessions() const {
  std::size_t count = 0;
  for (const Encoder& encoder : encoders_) count += encoder.core ? encoder.core->session_count() : 0;
  return count;
}
std::int64_t Simulator::verifier_kv_bytes() const {
  std::int64_t bytes = 0;
  for (const Verifier& verifier : verifiers_) bytes += verifier.core ? verifier.core->kv_bytes() : 0;
  return bytes;
}

std::int64_t Simulator::drafter_kv_bytes() const {
  std::int64_t bytes = 0;
  for (const Drafter& drafter : drafters_) bytes += drafter.core ? drafter.core->kv_bytes() : 0;
  return bytes;
}

void Simulator::request(std::uint64_t number, std::vector<TokenId> prompt, std::int64_t max_tokens,
                        std::int32_t draft_length, const SamplingParams& sampling, const std::vector<TokenId>& stop_ids,
                        DraftPolicy policy, std::optional<std::int32_t> draft_ahead, bool governed, AddedSources added,
                        std::vector<WireMedium> media) {
  answers_[number];
  ++open_;
  sampled_ = sampled_ || !(without_grammar(sampling) == SamplingParams{});
  Client& client = clients_[number];
  client.peer = fmt::format("client-{}", starts_++);
  if (has_standby() && !find_coordinator(client)) cut(client), client.dials = true;
  client.clock = some_clock();
  client.requests.push_back({.prompt = std::move(prompt),
                             .max_tokens = max_tokens,
                             .draft_length = draft_length,
                             .stop_ids = stop_ids,
                             .wait_ms = 60'000,
                             .sampling = sampling,
                             .policy = policy,
                             .draft_ahead = draft_ahead,
                             .governed = governed,
                             .media = std::move(media),
                             .added = added});
  Answer& answer = answers_[number];
  client.events.on_tokens = [&answer](std::size_t, std::span<const TokenId> tokens) {
    answer.tokens.insert(answer.tokens.end(), tokens.begin(), tokens.end());
  };
  client.events.on_end = [this, &answer](std::size_t, const Generation& generation) {
    answer.done = true;
    answer.metrics = generation.metrics;
    --open_;
  };
  // Its requests' numbers are its own; those of two clients differ so that a mix-up shows.
  client.core = std::make_unique<ClientCore>(layout_.client, client.requests, client.events,
                                             SessionId{number * 1'000'000}, client.clock.at(now_));
  reap(number, {});
  flush_all();
}

void Simulator::cancel(std::uint64_t number) {
  clients_.at(number).core->cancel();
  reap(number, {});
  flush_all();
}

bool Simulator::run_until_done(Duration limit) {
  for (const TimePoint end = now_ + limit; now_ < end && violations_.empty() && open_ > 0;) step();
  return open_ == 0;
}

void Simulator::run_for(Duration duration) {
  for (const TimePoint end = now_ + duration; now_ < end;) step();
}

void Simulator::schedule(Duration after, Event::Kind kind, PeerId peer, std::unique_ptr<Message> message,
                         std::size_t place) {
  events_.push_back(
      {now_ + after, order_++, kind, std::move(peer), std::move(message), place, coordinators_[place].incarnation});
  std::ranges::push_heap(events_, Later());
}

void Simulator::transmit(Event::Kind kind, Node& node, const Message& message) {
  ++messages_;
  if (node.dials) return;
  const bool healed = now_.time_since_epoch() > faults_.until;
  const bool outward = kind == Event::Kind::kToWorker;
  if (!healed && now_ < (outward ? node.deaf_until : node.dumb_until)) return;
  if (!healed && !outward && now_ < node.mute_until && !std::holds_alternative<Heartbeat>(message.body)) return;
  const int copies = healed ? 1 : rng_.uniform() < faults_.drop ? 0 : rng_.uniform() < faults_.repeat ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    TimePoint arrival = now_ + slow_or(faults_.delay_min, faults_.delay_max);
    if (layout_.pair && find_drafter(node.peer) != nullptr) {
      arrival += layout_.pair->drafter_way;
      if (layout_.pair->drafter_jitter > Duration::zero()) arrival += up_to(layout_.pair->drafter_jitter);
    }
    if (faults_.keeps_order()) {
      TimePoint& last = arrivals_[{kind, node.connection()}];
      arrival = last = std::max(arrival, last);
    }
    schedule(arrival - now_, kind, node.connection(), std::make_unique<Message>(message), node.place);
  }
}

Duration Simulator::slow_or(Duration low, Duration high) {
  const bool healed = now_.time_since_epoch() > faults_.until;
  if (!healed && rng_.uniform() < faults_.slow) std::tie(low, high) = std::pair(high, faults_.slow_delay_max);
  return low + up_to(high - low);
}

void Simulator::step() {
  std::ranges::pop_heap(events_, Later());
  Event event = std::move(events_.back());
  events_.pop_back();
  now_ = event.at;
  const Node* node = find(event.peer);
  if (event.kind != Event::Kind::kToCoordinator && node != nullptr && now_ < node->frozen_until)
    return schedule(node->frozen_until - now_, event.kind, std::move(event.peer), std::move(event.message),
                    event.place);
  on_event(std::move(event));
}

void Simulator::on_event(Event event) {
  const bool is_message = event.kind == Event::Kind::kToCoordinator || event.kind == Event::Kind::kToWorker;
  Coordinator& coordinator = coordinators_[event.place];
  if (is_message && (event.incarnation != coordinator.incarnation || coordinator.core == nullptr)) return;
  Verifier* verifier = find_verifier(event.peer);  // none where it is no more
  Drafter* drafter = find_drafter(event.peer);
  Encoder* encoder = find_encoder(event.peer);
  switch (event.kind) {
    case Event::Kind::kToCoordinator:
      if (const auto* request = std::get_if<Generate>(&event.message->body))
        sessions_[{event.peer, event.message->session}] = request->answered;
      if (!coordinator.core->on_message(event.peer, std::move(*event.message), coordinator.clock.at(now_)))
        check_in_vain(coordinator, event.peer);
      return flush(coordinator);
    case Event::Kind::kToWorker:
      if (const Node* node = find(event.peer); node == nullptr || node->connection() != event.peer) return;  // it left
      if (verifier != nullptr) verifier->core->on_message(std::move(*event.message), verifier->clock.at(now_));
      if (drafter != nullptr) drafter->core->on_message(std::move(*event.message), drafter->clock.at(now_));
      if (encoder != nullptr) encoder->core->on_message(std::move(*event.message), encoder->clock.at(now_));
      break;
    case Event::Kind::kBatchDone:
      if (verifier != nullptr && verifier->taken > Duration::zero()) {
        verifier->busy_until = now_ + verifier->taken;
        for (VerifyResult& result : verifier->results) result.verdict.verify_ns += verifier->taken.count();
        schedule(std::exchange(verifier->taken, {}), Event::Kind::kBatchDone, verifier->peer);
        break;
      }
      if (verifier != nullptr)
        verifier->core->on_batch_done(std::exchange(verifier->results, {}), verifier->clock.at(now_));
      break;
    case Event::Kind::kDrafted:
      if (drafter == nullptr) break;
      for (auto& [turn, progress] : std::exchange(drafter->busy, {})) drafter->core->on_turn(turn, std::move(progress));
      break;
    case Event::Kind::kEncoded:
      if (encoder != nullptr) {
        const WireMedium medium = *std::exchange(encoder->busy, {});
        encoder->core->on_encoded(encoded(medium.content), std::chrono::milliseconds(1));
      }
      break;
    case Event::Kind::kDue: break;
    case Event::Kind::kTick:
      for (Verifier& each : verifiers_) strike(each, faults_.verifier_restart);
      for (Drafter& each : drafters_) strike(each, faults_.drafter_restart);
      for (Encoder& each : encoders_) strike(each, faults_.encoder_restart);
      tick_coordinators();
      check_memory();
      tick_clients();
      schedule(tick(), Event::Kind::kTick, "");
      return flush_all();
  }
  if (verifier != nullptr) flush(*verifier);
  if (drafter != nullptr) flush(*drafter);
  if (encoder != nullptr) flush(*encoder);
}

void Simulator::tick_coordinators() {
  for (std::size_t place = 0; place < coordinators_.size(); ++place) {
    Coordinator& coordinator = coordinators_[place];
    if (coordinator.core == nullptr && now_ >= coordinator.back) start_coordinator(coordinator);
    if (coordinator.core && now_.time_since_epoch() <= faults_.until && faults_.coordinator_restart > 0 &&
        happens(faults_.coordinator_restart))
      kill_coordinator(up_to(faults_.down_max), place);
    if (coordinator.core == nullptr) continue;
    coordinator.core->on_tick(coordinator.clock.at(now_));
    check_books(*coordinator.core);
  }
}

void Simulator::check_books(const CoordinatorCore& coordinator) {
  const auto loads = coordinator.loads();
  for (const auto& [peer, worker] : coordinator.fleet().workers()) {
    const auto said = loads.find(peer);
    const Load load = said == loads.end() ? Load{} : said->second;
    if (load == worker) continue;
    violated(fmt::format("{}: {} sessions, {} in rounds and {} bytes in the books, {}, {} and {} of the sessions", peer,
                         worker.sessions, worker.rounds, worker.kv_bytes, load.sessions, load.rounds, load.kv_bytes));
  }
}

void Simulator::check_in_vain(Coordinator& coordinator, const PeerId& peer) {
  // A tenth of what a key may say so (EndpointOptions::useless_per_second), of each connection: honest peers are never
  // taken for hostile ones.
  constexpr int kPerSecond = 500;
  const auto bucket = coordinator.in_vain.try_emplace(peer, std::chrono::milliseconds(1000 / kPerSecond), kPerSecond);
  if (!bucket.first->second.pass(now_)) violated(fmt::format("{} says much that is of no use", peer));
}

void Simulator::check_memory() {
  if (events_.size() > 100'000) violated(fmt::format("{} messages and deadlines wait", events_.size()));
  for (const Verifier& verifier : verifiers_) {
    if (verifier.core == nullptr) continue;
    const std::int64_t bytes = verifier.core->kv_bytes();  // forward() sees to what is cached
    const auto sessions = static_cast<std::int64_t>(verifier.core->session_count());
    if (bytes > layout_.kv_bytes_max || sessions > Capacity().sessions_max)
      violated(fmt::format("{}: {} sessions, {} bytes of K/V", verifier.peer, sessions, bytes));
  }
  for (const Encoder& encoder : encoders_) {
    const std::size_t sessions = encoder.core ? encoder.core->session_count() : 0;
    const std::int64_t kept = encoder.core ? encoder.core->kept_bytes() : 0;
    if (sessions > 4 || kept > 2000)
      violated(fmt::format("{}: {} sessions, {} bytes kept", encoder.peer, sessions, kept));
  }
  for (const Drafter& drafter : drafters_) {
    const std::size_t sessions = drafter.core ? drafter.core->session_count() : 0;
    if (drafter.core && drafter.core->kv_bytes() > layout_.drafter_kv_bytes_max)
      violated(fmt::format("{}: {} bytes of K/V", drafter.peer, drafter.core->kv_bytes()));
    // One that is freed gives its replica back with the next work.
    if (static_cast<std::int64_t>(sessions) > DrafterConfig().sessions_max || drafter.replicas.size() > sessions + 64)
      violated(fmt::format("{}: {} sessions, {} replicas", drafter.peer, sessions, drafter.replicas.size()));
  }
}

void Simulator::flush_all() {
  for (Coordinator& coordinator : coordinators_) flush(coordinator);
  for (Verifier& verifier : verifiers_) flush(verifier);
  for (Drafter& drafter : drafters_) flush(drafter);
  for (Encoder& encoder : encoders_) flush(encoder);
}

void Simulator::flush(Coordinator& coordinator) {
  if (coordinator.core == nullptr) return;
  const CoordinatorOutput output = coordinator.core->take_output();
  std::set<PeerId> gone;
  for (const Outgoing& out : output.send) {
    coordinator.core->on_sent(out.message, 1);
    if (Node* node = find(out.to)) {
      if (node->connection() != out.to) continue;  // it is elsewhere
      transmit(Event::Kind::kToWorker, *node, out.message);
    } else if (!to_client(out.to, out.message) && out.to.starts_with("client")) {
      gone.insert(out.to);
    }
  }
  note(output.notices);
  for (const PeerId& peer : gone) coordinator.core->on_peer_gone(peer, coordinator.clock.at(now_));
}

// A worker's loop goes around after each message; a drafter's not while it drafts.

void Simulator::flush(Drafter& drafter) {
  if (drafter.core == nullptr) return;
  if (drafter.busy.empty() && now_ >= drafter.frozen_until) drafter.core->on_tick(drafter.clock.at(now_));
  DrafterCore::Output output = drafter.core->take_output();
  for (const DraftWork& work : output.work) {
    if (work.kind == DraftWork::Kind::kDraft)
      begin_drafts(drafter, work);
    else
      change_replica(drafter, work);
  }
  if (!output.pass.empty()) {
    std::int64_t rows = 0;
    for (const DraftTurn& turn : output.pass) rows += rows_of(drafter, turn);
    const Duration time = draft_time(drafter, rows);
    const Candidates cost{.tokens = {}, .draft_ns = time.count(), .passes = 1, .pass_rows = rows};
    for (const DraftTurn& turn : output.pass) drafter.busy.emplace_back(turn, take_turn(drafter, turn, cost));
    schedule(time, Event::Kind::kDrafted, drafter.peer);
    drafter.busy_until = now_ + time;
    for (Verifier& verifier : verifiers_)
      if (layout_.pair && layout_.pair->one_machine && verifier.busy_until > now_)
        verifier.taken += scaled(time, 1 / layout_.pair->shared_cores);
  }
  tend_connection(drafter, output.redial);
  for (const Outgoing& out : output.send) transmit(Event::Kind::kToCoordinator, drafter, out.message);
  note(output.notices);
}

bool Simulator::catches_up(const Drafter& drafter, const DraftTurn& turn) {
  // Nothing may be behind any more: the core does not hear of a pass whose turn was overtaken.
  return !drafter.leads.contains(turn.session);
}

DraftProgress Simulator::catch_up(Drafter& drafter, SessionId session) {
  std::int64_t& behind = drafter.replicas.at(session).behind;
  behind -= std::min(behind, kCatchUpRows);
  return {.more = behind > 0, .behind = behind};
}

std::int64_t Simulator::rows_of(const Drafter& drafter, const DraftTurn& turn) {
  if (catches_up(drafter, turn))
    return layout_.pair ? std::clamp<std::int64_t>(drafter.replicas.at(turn.session).behind, 1, kCatchUpRows) : 1;
  const Drafter::Lead& lead = drafter.leads.at(turn.session);
  if (!lead.asked) return lead.steps < walk(lead) ? 1 : outcomes_left(lead);
  return lead.steps < lead.tree_rows.size() ? static_cast<std::int64_t>(lead.tree_rows[lead.steps]) : 1;
}

Duration Simulator::pass_time(std::int64_t rows) {
  const Pair pair = layout_.pair.value_or(Pair());
  const bool burst = pair.bursts > Duration() && now_.time_since_epoch() % pair.bursts < pair.bursts / 4;
  const Duration time = (pair.pass + pair.further_row * (rows - 1)) * (burst ? 3 : 1);
  if (pair.pass_jitter > 0) return scaled(time, 1 + pair.pass_jitter * (2 * rng_.uniform() - 1));
  // Drawn in any case: a seed is the same history with a pair as before.
  const Duration any = std::chrono::microseconds(1000 + static_cast<std::int64_t>(rng_.below(4000)));
  return layout_.pair ? time : any;
}

Duration Simulator::draft_time(const Drafter& drafter, std::int64_t rows) {
  if (lags(drafter)) return std::chrono::milliseconds(200);
  if (!layout_.pair) return slow_or(std::chrono::microseconds(50), std::chrono::microseconds(200));
  const Pair& pair = *layout_.pair;
  const bool verifying = std::ranges::any_of(verifiers_, [&](const Verifier& v) { return v.busy_until > now_; });
  return scaled(pair.draft + pair.further_draft * (rows - 1), verifying ? pair.shared_cores : 1);
}

void Simulator::flush(Encoder& encoder) {
  if (encoder.core == nullptr) return;
  if (now_ >= encoder.frozen_until) encoder.core->on_tick(encoder.clock.at(now_));
  EncoderCore::Output output = encoder.core->take_output();
  if (output.work) {
    encoder.busy = std::move(output.work);
    schedule(slow_or(std::chrono::milliseconds(1), std::chrono::milliseconds(50)), Event::Kind::kEncoded, encoder.peer);
  }
  tend_connection(encoder, output.redial);
  for (const Outgoing& out : output.send) transmit(Event::Kind::kToCoordinator, encoder, out.message);
  note(output.notices);
}

void Simulator::flush(Verifier& verifier) {
  if (verifier.core == nullptr) return;
  if (now_ >= verifier.frozen_until) verifier.core->on_tick(verifier.clock.at(now_));
  const VerifierCore::Output output = verifier.core->take_output();
  for (const auto& [session, kept] : output.renamed) {
    auto rows = verifier.caches.extract(session);
    rows.key() = kept;
    verifier.caches.insert(std::move(rows));
    verifier.samplers.erase(session);
  }
  for (const SessionId session : output.released) {
    verifier.caches.erase(session);
    verifier.samplers.erase(session);
  }
  if (!output.batch.empty()) {
    verifier.results = forward(verifier, output.batch);
    std::int64_t rows = 0;
    for (const VerifyWork& work : output.batch) rows += std::ssize(work.tokens);
    const Duration time = pass_time(rows);
    verifier.busy_until = now_ + time;
    verifier.taken = {};
    for (const Drafter& drafter : drafters_)
      if (layout_.pair && layout_.pair->one_machine && drafter.busy_until > now_)
        verifier.taken += drafter.busy_until - now_;
    for (VerifyResult& result : verifier.results) result.verdict.verify_ns = time.count();
    schedule(time, Event::Kind::kBatchDone, verifier.peer);
  }
  if (output.due)
    schedule(std::max(verifier.clock.until(*output.due, now_), Duration(1)), Event::Kind::kDue, verifier.peer);
  tend_connection(verifier, output.redial);
  for (const Outgoing& out : output.send) transmit(Event::Kind::kToCoordinator, verifier, out.message);
  note(output.notices);
}

void Simulator::note(const std::vector<Notice>& notices) {
  for (const Notice& notice : notices) {
    notices_.push_back(notice.text);
    if (notice.text.find("dropped") != std::string::npos && notice.text.find("silent") == std::string::npos)
      violated(notice.text);
  }
}

bool Simulator::to_client(const PeerId& peer, const Message& message) {
  const auto found = std::ranges::find_if(clients_, [&](const auto& entry) { return entry.second.peer == peer; });
  if (found == clients_.end()) return false;
  check_text(peer, message);
  reap(found->first, found->second.core->on_message(message, found->second.clock.at(now_)));
  return true;
}

void Simulator::check_text(const PeerId& peer, const Message& message) {
  const bool ends = std::holds_alternative<Done>(message.body) || std::holds_alternative<Failed>(message.body);
  const auto* tokens = std::get_if<Tokens>(&message.body);
  if (!ends && tokens == nullptr) return;
  const auto session = sessions_.find({peer, message.session});
  if (session == sessions_.end()) return violated("a word after the end");
  if (tokens != nullptr && tokens->index != session->second) violated("tokens out of order, or twice");
  if (tokens != nullptr) session->second += std::ssize(tokens->tokens);
  if (ends) sessions_.erase(session);
}

void Simulator::reuse(Verifier& verifier, const VerifyWork& work) {
  auto& caches = verifier.caches;
  const auto source = caches.find(work.reuse->from);
  const auto length = static_cast<Position>(work.reuse->tokens.size());
  if (source == caches.end() || std::ssize(source->second.prefix) < length || caches.contains(work.session) ||
      (source->second.written > kKvCost.ring_rows && length + kRowsMax < source->second.written)) {
    const bool there = source != caches.end();
    violated(fmt::format("session {}{} is to reuse {} rows of {}, which has {} and was written up to {}",
                         value(work.session), caches.contains(work.session) ? ", which has rows," : "", length,
                         value(work.reuse->from), there ? std::ssize(source->second.prefix) : -1,
                         there ? source->second.written : -1));
    return;
  }
  Cache& cache = caches[work.session] = source->second;
  cache.prefix.resize(static_cast<std::size_t>(length));
  if (work.reuse->take) caches.erase(source);
}

VerifyOutcome Simulator::choose_tokens(Verifier& verifier, const VerifyWork& work, const TokenTree& tree,
                                       const std::vector<std::uint64_t>& rows, TokenId& next_token) {
  auto& samplers = verifier.samplers;
  VerifyOutcome outcome;
  const SamplingParams sampling = without_grammar(work.sampling);
  if (!work.sampling.grammar.empty() && work.grammar == nullptr) violated("a prompt is computed before its grammar");
  if ((work.base == 0 || work.reuse) && !(sampling == SamplingParams{})) {
    samplers.emplace(work.session, Sampler(sampling, work.stop_ids, 0))
        .first->second.add_text(work.reuse ? work.reuse->tokens : std::vector<TokenId>(),
                                work.reuse ? work.reuse->answered : 0);
  }
  const auto sampler = samplers.find(work.session);
  if (sampler != samplers.end()) {
    const std::size_t outputs = !work.prefill ? work.tokens.size() : work.last ? 1 : 0;
    std::vector<float> logits;
    for (std::size_t row = rows.size() - outputs; row < rows.size(); ++row) {
      const std::vector<float> more = model::logits(rows[row]);
      logits.insert(logits.end(), more.begin(), more.end());
    }
    if (work.prefill) {
      sampler->second.add_text(work.tokens, work.answered);
      if (work.last) next_token = sampler->second.choose(logits, scratch_).value();
    } else {
      const Matrix<const float> all(logits.data(), {std::ssize(work.tokens), model::kVocab});
      outcome = sampler->second.verify(all, work.tokens, scratch_, work.depths, work.q).value();
      next_token = outcome.next_token;
    }
  } else if (!work.prefill) {
    for (std::optional<std::int64_t> next = 0; next;) {
      outcome.row = *std::exchange(next, std::nullopt);
      for (const std::int64_t child : tree.children(outcome.row)) {
        if (next ||
            model::choose(rows[static_cast<std::size_t>(outcome.row)]) != work.tokens[static_cast<std::size_t>(child)])
          continue;
        next = child;
      }
    }
  }
  return outcome;
}

std::vector<VerifyResult> Simulator::forward(Verifier& verifier, const std::vector<VerifyWork>& batch) {
  auto& caches = verifier.caches;
  std::vector<VerifyResult> results;
  // As the engine does: rows are taken over before the forward writes any, those of their source among them.
  for (const VerifyWork& work : batch) {
    if (work.reuse) reuse(verifier, work);
  }
  for (const VerifyWork& work : batch) {
    Cache& cache = caches[work.session];
    std::vector<std::uint64_t>& prefix = cache.prefix;
    if (static_cast<Position>(prefix.size()) != work.base)
      violated("the verifier's cache and the base position differ");
    // A row's prefix is that of the chain of its path.
    const TokenTree tree(std::ssize(work.tokens) - 1, work.depths);
    if (!tree.check()) violated("rows to verify that are no tree");
    std::vector<std::uint64_t> rows;
    const std::vector<TokenId> tokens = seen_tokens(work);
    for (std::int64_t row = 0; row < tree.rows(); ++row) {
      const std::uint64_t before = row > 0          ? rows[static_cast<std::size_t>(tree.path(row).end()[-2])]
                                   : prefix.empty() ? model::kEmpty
                                                    : prefix.back();
      rows.push_back(model::extend(before, tokens[static_cast<std::size_t>(row)]));
    }
    cache.written = std::max<Position>(cache.written, std::ssize(prefix) + tree.height() + 1);
    if (work.prefill) prefix.insert(prefix.end(), rows.begin(), rows.end());
    if (work.keep_as) caches[*work.keep_as] = cache;
    VerifyResult result{.session = work.session, .round = work.round};
    Verdict& verdict = result.verdict;
    const VerifyOutcome outcome = choose_tokens(verifier, work, tree, rows, verdict.next_token);
    if (!work.prefill) {
      verdict.accepted = tree.depth(outcome.row);
      if (!work.depths.empty()) verdict.row = static_cast<std::int32_t>(outcome.row);
      for (const std::int64_t row : tree.path(outcome.row)) prefix.push_back(rows[static_cast<std::size_t>(row)]);
    }
    const Position committed = std::ssize(prefix);
    if (work.last) {
      if (!verifier.samplers.contains(work.session)) verdict.next_token = model::choose(prefix.back());
      if (work.kv_from) verdict.hidden = tensor_of({prefix.back()}, {kWidth}, work.wire);
    }
    if (work.kv_from && *work.kv_from < committed) {
      const Position to = piece_end(*work.kv_from, committed, kKvRowsMax, model::kWindow + 1);
      verdict.kv = {.from = *work.kv_from, .to = to, .donors = {}};
      for (const DonorFacts& donor : model::facts(layout_.hidden_rows).donors) {
        const Position first = first_useful_row(donor, *work.kv_from, to);
        const std::vector<std::uint64_t> kept(prefix.begin() + first, prefix.begin() + to);
        const WireTensor tensor = tensor_of(kept, {to - first, 1, kWidth}, work.wire);
        verdict.kv.donors.push_back({first, tensor, tensor});
      }
    }
    if (layout_.forger && &verifier - verifiers_.data() == *layout_.forger && work.last && rng_.below(10) == 0)
      verdict.next_token = (verdict.next_token + 1) % model::kVocab;
    results.push_back(std::move(result));
  }
  std::int64_t bytes = 0;
  for (const auto& [id, cache] : caches) bytes += kKvCost.bytes(std::ssize(cache.prefix));
  if (bytes > layout_.kv_bytes_max) violated(fmt::format("{} bytes of K/V, {} allowed", bytes, layout_.kv_bytes_max));
  return results;
}

bool Simulator::Rows::put(Position p, std::uint64_t row) {
  if (p >= std::ssize(rows)) rows.resize(static_cast<std::size_t>(p) + 1);
  std::optional<std::uint64_t>& place = rows[static_cast<std::size_t>(p)];
  if (place) return *place == row;
  place = row;
  while (at(whole)) ++whole;
  return true;
}

void Simulator::change_replica(Drafter& drafter, const DraftWork& work) {
  if (work.kind == DraftWork::Kind::kRelease) {
    drafter.replicas.erase(work.session);
    drafter.leads.erase(work.session);
    return;
  }
  Replica& replica = drafter.replicas[work.session];
  drafter.leads.erase(work.session);
  if (work.kind == DraftWork::Kind::kAbandon) return;
  if (by_tokens(drafter)) {
    if (!work.kv.donors.empty()) violated("rows of the target for a drafter that needs tokens");
    Rows& rows = replica.full;
    for (std::size_t i = 0; i < work.kv.tokens.size(); ++i) {
      const Position p = work.kv.from + static_cast<Position>(i);
      if (!rows.put(p, model::extend(p == 0 ? model::kEmpty : rows.at(p - 1).value(), work.kv.tokens[i])))
        violated("a committed token changed");
    }
    replica.behind += std::ssize(work.kv.tokens);
    token_rows_ += std::ssize(work.kv.tokens);
    return;
  }
  if (by_blocks(drafter) && work.kv.tokens.empty()) violated("hidden rows without their tokens");
  for (std::size_t i = 0; i < work.kv.donors.size(); ++i) {
    const DonorDelta& donor = work.kv.donors[i];
    Rows& rows = i + 1 < work.kv.donors.size() ? replica.sliding : replica.full;
    for (Position p = donor.first; p < work.kv.to; ++p) {
      if (!rows.put(p, hash_at(donor.key, p - donor.first))) violated("a committed row changed");
    }
    rows_[donor.key.dtype] += std::max<Position>(work.kv.to - donor.first, 0);
    if (by_blocks(drafter)) replica.behind += work.kv.to - donor.first;
  }
}

std::uint64_t Simulator::check_replica(Drafter& drafter, const DraftWork& work) {
  Replica& replica = drafter.replicas[work.session];
  const Rows &full = replica.full, &sliding = replica.sliding;
  if (full.whole < work.base) violated(fmt::format("draft at {} without the full row {}", work.base, full.whole));
  if (by_tokens(drafter)) {
    if (work.draft.hidden) violated("a hidden row for a drafter that needs tokens");
    if (work.draft.tree) violated("a tree of a drafter that grows none");
    const std::uint64_t prefix = full.at(work.base - 1).value();
    if (!sampled_ && model::choose(prefix) != work.draft.token) violated("the tokens did not produce the token");
    return model::extend(prefix, work.draft.token);
  }
  if (by_blocks(drafter) && (work.draft.ahead > 0 || !work.draft.known.empty()))
    violated("drafts made ahead by a block drafter");
  const Position seen = by_blocks(drafter) ? work.base : std::max<Position>(0, work.base - (model::kWindow + 1));
  for (Position p = seen; p < work.base; ++p) {
    if (!sliding.at(p) || sliding.at(p) != full.at(p))
      violated(fmt::format("draft at {}: sliding row {} missing or wrong", work.base, p));
  }
  const std::uint64_t hidden = hash_at(work.draft.hidden.value(), 0);
  if (!full.rows.empty() && full.rows.back() != hidden) violated("hidden row and K/V are of different prefixes");
  if (!sampled_ && model::choose(hidden) != work.draft.token) violated("the hidden row did not produce the token");
  return model::extend(hidden, work.draft.token);
}

Distribution Simulator::distribution_after(const Draft& draft, std::uint64_t prefix) {
  SamplingParams few = *draft.sampling;
  few.top_k = kDraftTopK;
  Distribution q;
  make_distribution(model::logits(prefix), few, scratch_, &q);
  return q;
}

void Simulator::add_drafts(const Drafter& drafter, const DraftWork& work, std::uint64_t prefix, std::size_t depth,
                           Candidates& drafts) {
  const Draft& draft = work.draft;
  for (std::int32_t i = 0; i < draft.draft_length; ++i, ++depth) {
    const std::int64_t index = draft.index + static_cast<std::int64_t>(depth);
    if (is_rejection(draft)) {
      drafts.q.push_back(distribution_after(draft, prefix));
      drafts.tokens.push_back(draw(drafts.q.back(), Noise(draft.sampling->seed, index, Noise::Stream::kDraft)));
    } else {
      const TokenId right = model::choose(prefix), wrong = static_cast<TokenId>(rng_.below(model::kVocab));
      drafts.tokens.push_back(drafts_right(drafter, work.session, depth) ? right : wrong);
    }
    prefix = model::extend(prefix, drafts.tokens.back());
  }
}

void Simulator::add_tree(const Drafter& drafter, const DraftWork& work, std::uint64_t prefix, Candidates& drafts) {
  const Draft& draft = work.draft;
  // By depth, along the path to the last node: its prefix, and those of its children's tokens that are not used up.
  std::vector<std::uint64_t> prefixes = {prefix};
  std::vector<std::vector<TokenId>> choices;
  std::vector<Distribution> q;
  while (std::ssize(drafts.tokens) < draft.draft_length) {
    // Mostly deeper; else one more child of a node on the path.
    const std::size_t parent = rng_.below(3) > 0 ? prefixes.size() - 1 : rng_.below(prefixes.size());
    prefixes.resize(parent + 1);
    choices.resize(std::min(choices.size(), parent + 1));
    q.resize(choices.size());
    if (choices.size() == parent) {
      const TokenId right = model::choose(prefixes[parent]), wrong = static_cast<TokenId>(rng_.below(model::kVocab));
      choices.push_back(drafts_right(drafter, work.session, parent) ? std::vector{wrong, right}
                                                                    : std::vector{right, wrong});
      q.emplace_back();
      if (is_rejection(draft)) {
        q.back() = distribution_after(draft, prefixes[parent]);
        const Noise noise(draft.sampling->seed + rng_.below(1u << 30), draft.index + std::ssize(prefixes),
                          Noise::Stream::kDraft);
        choices.back() = draw_distinct(q.back(), noise, 3);
        std::ranges::reverse(choices.back());
      }
    }
    if (choices[parent].empty() && parent == 0) break;
    if (choices[parent].empty()) continue;
    drafts.tokens.push_back(choices[parent].back());
    choices[parent].pop_back();
    drafts.depths.push_back(static_cast<std::int32_t>(prefixes.size()));
    if (is_rejection(draft)) drafts.q.push_back(q[parent]);
    prefixes.push_back(model::extend(prefixes[parent], drafts.tokens.back()));
  }
}

void Simulator::grow_tree(const Drafter& drafter, std::uint64_t prefix, Drafter::Lead& lead) {
  const Draft& draft = lead.work.draft;
  const SessionId session = lead.work.session;
  DraftTree tree(draft.token, draft.draft_length, draft.worth);
  std::vector<std::uint64_t> prefixes = {prefix};  // of the nodes
  for (auto step = tree.next(); !step.empty(); step = tree.next()) {
    lead.tree_rows.push_back(step.size());
    for (const std::size_t node : step) {
      const auto depth = static_cast<std::size_t>(tree.node(node).depth);
      const TokenId right = model::choose(prefixes[node]);
      // A second choice is not right more often than a first one.
      const double holds = layout_.pair->at(session, depth),
                   other = std::min(holds, (1 - holds) * layout_.pair->second);
      const bool first = drafts_right(drafter, session, depth), second = !first && rng_.uniform() < other / (1 - holds);
      const auto wrong = [&](TokenId by) { return static_cast<TokenId>((right + by) % model::kVocab); };
      const std::vector<TokenId> choices = {first ? right : wrong(1), second ? right : wrong(2)};
      tree.grow(node, choices, std::array{holds, other}, draft.stop_ids);
      for (const TokenId token : choices) prefixes.push_back(model::extend(prefixes[node], token));
    }
  }
  for (const std::size_t node : tree.finish()) {
    lead.asked->tokens.push_back(tree.node(node).token);
    lead.asked->depths.push_back(tree.node(node).depth);
  }
}

void Simulator::begin_drafts(Drafter& drafter, DraftWork work) {
  drafter.replicas[work.session].guide.follow(work.draft, nullptr);
  drafter.replicas[work.session].behind = 0;  // the drafts compute them first
  if (work.draft.sampling_known && !work.draft.sampling) violated("a drafter is said to know a sampling and does not");
  const std::uint64_t prefix = check_replica(drafter, work);
  Drafter::Lead lead{.work = work, .drafts = work.draft.known};
  if (work.draft.known.empty()) {
    ++drafter.asked;
    Candidates& drafts = lead.asked.emplace();
    if (work.draft.tree && layout_.pair)
      grow_tree(drafter, prefix, lead);
    else if (work.draft.tree)
      add_tree(drafter, work, prefix, drafts);
    else
      add_drafts(drafter, work, prefix, 0, drafts);
    lead.drafts = drafts.tokens;
  }
  drafter.leads[work.session] = std::move(lead);
}

DraftProgress Simulator::take_turn(Drafter& drafter, const DraftTurn& turn, const Candidates& cost) {
  if (catches_up(drafter, turn)) return catch_up(drafter, turn.session);
  Drafter::Lead& lead = drafter.leads.at(turn.session);
  if (lead.work.round != turn.round || lead.work.base != turn.base) violated("a turn is of another round");
  ++lead.steps;
  lead.spent.draft_ns += cost.draft_ns;
  lead.spent.passes += cost.passes;
  lead.spent.pass_rows += cost.pass_rows;
  const bool asked = lead.asked.has_value();
  // A step a level: of a chain one a draft. Ahead it first goes along drafts that it did not make, and to what follows.
  const std::size_t steps =
      by_blocks(drafter)        ? 1
      : !lead.tree_rows.empty() ? lead.tree_rows.size()
      : asked ? static_cast<std::size_t>(TokenTree(std::ssize(lead.asked->tokens), lead.asked->depths).height())
              : walk(lead) + static_cast<std::size_t>(lead.work.draft.draft_length);
  if (lead.steps < steps) return {.more = true};
  DraftProgress progress;
  if (asked) {
    progress.drafts.push_back(*std::exchange(lead.asked, std::nullopt));
  } else {
    for (auto left = outcomes_left(lead); left > 0; --left) progress.drafts.push_back(guess(drafter, lead));
  }
  lead.steps = 0;
  const Candidates spent = std::exchange(lead.spent, {});
  for (Candidates& drafts : progress.drafts) {
    drafts.draft_ns = spent.draft_ns;
    drafts.passes = spent.passes;
    drafts.pass_rows = spent.pass_rows;
  }
  progress.more = outcomes_left(lead) > 0;
  return progress;
}

std::size_t Simulator::walk(const Drafter::Lead& lead) {
  return lead.guesses > 0 ? 0 : 1 + lead.work.draft.known.size();
}

std::int64_t Simulator::outcomes_left(const Drafter::Lead& lead) {
  // Of a pair's drafts each may be lost, and what follows them all be either choice.
  const auto ends = layout_.pair ? static_cast<std::int64_t>(lead.drafts.size()) + 2 : lead.work.draft.ahead;
  const std::int64_t left = std::min<std::int64_t>(ends, lead.work.draft.ahead) - lead.guesses;
  return std::min(left, static_cast<std::int64_t>(kAheadStepRows));
}

std::size_t Simulator::next_outcome(const Drafter::Lead& lead) {
  const std::size_t drafts = lead.drafts.size();
  // First that all holds; then any place where one may have been lost.
  if (!layout_.pair) return lead.guesses == 0 ? drafts : rng_.below(drafts + 1);
  std::vector<std::pair<double, std::size_t>> outcomes;
  double held = 1;
  for (std::size_t i = 0; i <= drafts; ++i) {
    const double a = layout_.pair->at(lead.work.session, i);
    if (i == drafts) outcomes.emplace_back(held * a, i);
    outcomes.emplace_back(held * (1 - a) * layout_.pair->second, i);
    held *= a;
  }
  std::ranges::sort(outcomes, std::greater<>());
  return outcomes[static_cast<std::size_t>(lead.guesses)].second;
}

Candidates Simulator::guess(Drafter& drafter, Drafter::Lead& lead) {
  const DraftWork& work = lead.work;
  std::uint64_t prefix = check_replica(drafter, work);
  Candidates guess{.tokens = {}};
  const std::size_t held = next_outcome(lead);
  guess.after.assign(lead.drafts.begin(), lead.drafts.begin() + static_cast<std::ptrdiff_t>(held));
  for (const TokenId token : guess.after) prefix = model::extend(prefix, token);
  const Draft& draft = lead.work.draft;
  const Noise noise(draft.sampling ? draft.sampling->seed : 0, draft.index + std::ssize(guess.after),
                    Noise::Stream::kDraw);
  const TokenId right = model::choose(prefix);
  // The first choice at a place: the draft that is lost in this outcome, or what the drafter takes after them all.
  const bool is_second = held < lead.drafts.size() || lead.next_is_right.has_value();
  if (!is_second) lead.next_is_right = drafts_right(drafter, work.session, held);
  const bool first_is_right = held < lead.drafts.size() ? lead.drafts[held] == right : *lead.next_is_right;
  const bool second_is_right = !first_is_right && rng_.uniform() < (layout_.pair ? layout_.pair->second : accuracy_);
  guess.after.push_back(is_rejection(draft) ? draw(distribution_after(draft, prefix), noise)
                        : (is_second ? second_is_right : first_is_right) ? right
                                                                         : TokenId{7});
  prefix = model::extend(prefix, guess.after.back());
  add_drafts(drafter, lead.work, prefix, guess.after.size(), guess);
  ++lead.guesses;
  return guess;
}

}  // namespace outrider::simulation
