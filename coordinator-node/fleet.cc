#include "coordinator-node/fleet.h"

#include <algorithm>
#include <ranges>
#include <tuple>

#include <fmt/format.h>

namespace outrider {
namespace {

/// Returns true if a worker is an encoder for this verifier's sequences, room aside.
bool encodes_for(const Worker& worker, const Hello& verifier, const std::string& encoding_class) {
  const std::string& own = worker.hello.encoding_class;
  return worker.encodes() && !worker.draining && !worker.suspect &&
         (verifier.no_towers || verifier.encoding_class == own) && (encoding_class.empty() || encoding_class == own);
}

/// Prompt rows unknown to a verifier that weigh as much as one more sequence.
constexpr double kRowsOfASequence = 512;
/// Round trip that weighs as much as one more sequence.
constexpr double kFarLinkS = 0.02;

/// Returns the mean time of a verifier's forward of one row; 1 if unknown.
double typical_verify_s(const Fleet::Workers& workers) {
  double sum = 0;
  int known = 0;
  for (const auto& [peer, worker] : workers) {
    const double seconds = worker.plain_pass_s();
    sum += seconds;
    known += seconds > 0;
  }
  return known > 0 ? sum / known : 1;
}

void end_pauses(Fleet::Workers& workers) {
  for (auto& [peer, worker] : workers) worker.reputation.end_pause();
}

}  // namespace

bool Fleet::takes(const Worker& worker, const Requirements& wanted) const {
  const Hello& hello = worker.hello;
  const bool of_class =
      !wanted.numeric_class || (!hello.numeric_class.empty() && hello.numeric_class == *wanted.numeric_class);
  const bool named = !wanted.only_name || hello.name == wanted.name;
  const bool excepted = !wanted.except.empty() && hello.name == wanted.except;
  const bool encodes =
      !hello.no_towers && (wanted.encoding_class.empty() || hello.encoding_class == wanted.encoding_class);
  const bool encoded = !wanted.media || encodes || has_encoder(hello, wanted.encoding_class);
  const bool fits =
      wanted.memory_min == 0 || worker.kv_of(wanted.memory_min) + wanted.media_bytes <= hello.capacity.kv_bytes_max;
  return worker.verifies() && !worker.draining && of_class && named && !excepted && encoded && fits &&
         hello.facts.context_max >= wanted.context_min;
}

Worker* Fleet::find(const PeerId& peer) {
  const auto known = workers_.find(peer);
  return known == workers_.end() ? nullptr : &known->second;
}

const PairFacts* Fleet::facts() const {
  if (facts_) return &*facts_;
  const auto verifier = std::ranges::find_if(workers_, [](const auto& entry) { return entry.second.verifies(); });
  return verifier == workers_.end() ? nullptr : &verifier->second.hello.facts;
}

void Fleet::keep_facts(const PairFacts& facts) {
  if (!facts_) facts_ = facts;
}

bool Fleet::has_verifier(const Requirements& wanted) const {
  return std::ranges::any_of(workers_, [&](const auto& entry) { return takes(entry.second, wanted); });
}

Worker& Fleet::join(const PeerId& peer, const Hello& hello, TimePoint now) {
  const auto [entry, is_new] = workers_.try_emplace(peer);
  Worker& worker = entry->second;
  worker.hello = hello;
  worker.last_bytes = worker.last_message = now;
  if (!is_new) return worker;
  worker.membership = next_membership_++;
  if (!worker.drafts()) return worker;
  const std::string key = key_name(hello.name);
  if (const auto before = departed_.extract(key)) worker.reputation = before.mapped();
  for (const auto& [other, known] : workers_)
    if (known.drafts() && key_name(known.hello.name) == key && worker.reputation.is_better_than(known.reputation))
      worker.reputation = known.reputation;
  if (choose_drafter().empty()) end_pauses(workers_);
  return worker;
}

Fleet::Workers::node_type Fleet::remove(const PeerId& peer) {
  auto gone = workers_.extract(peer);
  if (gone.empty() || !gone.mapped().drafts()) return gone;
  const Reputation& reputation = gone.mapped().reputation;
  const std::string key = key_name(gone.mapped().hello.name);
  const auto is_better = [](const Reputation& one, const Reputation& other) { return one.is_better_than(other); };
  if (Reputation().is_better_than(reputation)) {
    Reputation& worst = departed_.try_emplace(key, reputation).first->second;
    worst = std::max(worst, reputation, is_better);
    if (departed_.size() > kDepartedMax)
      departed_.erase(std::ranges::min_element(departed_, is_better, &decltype(departed_)::value_type::second));
  }
  if (choose_drafter().empty()) end_pauses(workers_);
  return gone;
}

std::vector<PeerId> Fleet::silent(Duration timeout, TimePoint now) const {
  std::vector<PeerId> peers;
  for (const auto& [peer, worker] : workers_) {
    if (now - worker.last_bytes > timeout) peers.push_back(peer);
  }
  return peers;
}

Worker* Fleet::usable_drafter(const PeerId& peer) {
  Worker* drafter = find(peer);
  return drafter == nullptr || drafter->suspect || drafter->reputation.paused() ? nullptr : drafter;
}

PeerId Fleet::choose_drafter(const DrafterRequirements& requirements) const {
  const auto may = [&](const auto& entry) {
    const auto& [peer, worker] = entry;
    return worker.may_draft() && worker.suits(requirements) &&
           worker.kv_of(requirements.in_all) <= worker.hello.capacity.kv_bytes_max - worker.kv_bytes &&
           std::ranges::find(requirements.except, peer) == requirements.except.end();
  };
  const auto best = std::ranges::min_element(workers_, {}, [&](const auto& entry) {
    const Worker& worker = entry.second;
    return std::pair(!may(entry), worker.reputation.burden(worker.sessions) * (1 + to_seconds(worker.rtt) / kFarLinkS) *
                                      speeds.slowness(worker.hello.needs));
  });
  return best == workers_.end() || !may(*best) ? "" : best->first;
}

bool more_drafters_help(const Fleet& fleet, const DrafterRequirements& requirements) {
  auto drafters = fleet.workers() | std::views::values | std::views::filter(&Worker::drafts);
  return drafters.empty() ||
         std::ranges::any_of(drafters, [&](const Worker& worker) { return worker.suits(requirements); });
}

void DrafterSpeeds::count(DraftInput needs, int tokens, double seconds) {
  constexpr double kKeep = 0.99;
  constexpr double kKeepOther = 0.9996;  // tried again after some 2,000 rounds without it, for about one sequence
  for (Speed& other : speeds_) other.fade(kKeepOther);
  Speed& speed = speeds_[static_cast<std::size_t>(needs)];
  speed.fade(kKeep);
  speed.rounds += 1;
  speed.tokens += tokens;
  speed.seconds += seconds;
}

double DrafterSpeeds::slowness(DraftInput needs) const {
  const Speed& speed = speeds_[static_cast<std::size_t>(needs)];
  if (!speed.tried()) return 0.5;
  double best = speed.value();
  for (const Speed& other : speeds_)
    if (other.tried()) best = std::max(best, other.value());
  return best / speed.value();
}

int Fleet::drafters_at_work() const {
  return std::max(1, static_cast<int>(std::ranges::count_if(workers_, [](const auto& entry) {
                    return entry.second.drafts() && entry.second.sessions > 0;
                  })));
}

bool Fleet::has_encoder(const Hello& verifier, const std::string& encoding_class) const {
  return std::ranges::any_of(workers_,
                             [&](const auto& entry) { return encodes_for(entry.second, verifier, encoding_class); });
}

PeerId Fleet::choose_encoder(const Hello& verifier, const std::string& encoding_class) const {
  const auto rank = [&](const auto& entry) {
    const Worker& worker = entry.second;
    const bool may =
        encodes_for(worker, verifier, encoding_class) && worker.sessions < worker.hello.capacity.sessions_max;
    return std::pair(!may, worker.sessions);
  };
  const auto best = std::ranges::min_element(workers_, {}, rank);
  return best == workers_.end() || rank(*best).first ? "" : best->first;
}

std::optional<std::string> Fleet::count_round(const PeerId& drafter, bool accepted, TimePoint now) {
  Worker* worker = find(drafter);
  if (worker == nullptr) return std::nullopt;
  double best_other = 0;
  for (const auto& [peer, other] : workers_) {
    if (peer != drafter && other.may_draft() && other.reputation.is_known())
      best_other = std::max(best_other, other.reputation.yield());
  }
  if (!worker->reputation.count(accepted, best_other, now)) return std::nullopt;
  return fmt::format(
      "drafter {}: a first draft holds in {:.0f} % of its rounds, in {:.0f} % of another's; no sequences for {:.0f} s",
      worker->hello.name, 100 * worker->reputation.yield(), 100 * best_other, to_seconds(worker->reputation.pause()));
}

std::optional<Fleet::Offer> Fleet::choose_verifier(Position positions, const Requirements& wanted) const {
  std::optional<Offer> best;
  std::tuple<bool, bool, bool, double> best_rank;
  const double typical_s = typical_verify_s(workers_);
  bool worth_waiting = false;
  std::vector<PeerId> full;
  for (const auto& [peer, worker] : workers_) {
    if (!takes(worker, wanted)) continue;
    const Capacity& capacity = worker.hello.capacity;
    Offer offer{.verifier = peer, .positions = std::min(positions, worker.hello.facts.context_max)};
    const std::int64_t bytes = capacity.kv_cost.bytes(offer.positions) + wanted.media_bytes;
    offer.refuses = bytes > capacity.kv_bytes_max;
    worth_waiting = worth_waiting || !offer.refuses;
    if (!offer.refuses) {
      if (wanted.media && worker.hello.no_towers && choose_encoder(worker.hello, wanted.encoding_class).empty())
        continue;
      if (worker.sessions >= capacity.sessions_max || bytes > capacity.kv_bytes_max - worker.kv_bytes ||
          (wanted.awaited != nullptr && wanted.awaited->contains(peer))) {
        full.push_back(peer);
        continue;
      }
    }
    const double known_s = worker.plain_pass_s();
    const auto new_rows = static_cast<double>(wanted.prompt - worker.given.common(wanted.prefixes));
    const double sequences = worker.sessions + 1 + new_rows / kRowsOfASequence;
    const std::tuple rank(offer.refuses, worker.suspect, worker.hello.name != wanted.name,
                          sequences * (known_s > 0 ? known_s : typical_s));
    if (best && best_rank <= rank) continue;
    best = std::move(offer);
    best_rank = rank;
  }
  if (best && best->refuses && worth_waiting) best.reset();
  if (!best && wanted.awaited != nullptr) wanted.awaited->insert(full.begin(), full.end());
  return best;
}

std::int64_t Fleet::max_tokens_that_fit(const Requirements& wanted) const {
  std::int64_t most = 0;
  for (const auto& [peer, worker] : workers_)
    if (takes(worker, wanted)) most = std::max(most, worker.max_tokens_that_fit(wanted.prompt, wanted.media_bytes));
  return most;
}

bool Fleet::is_news(const PeerId& peer, const std::string& text, TimePoint now) {
  for (auto& [other, warnings] : reported_)
    std::erase_if(warnings, [&](const auto& warning) { return now - warning.second > kRepeat; });
  std::erase_if(reported_, [](const auto& of_peer) { return of_peer.second.empty(); });
  if (!reported_.contains(peer) && reported_.size() >= kReportedMax) return true;
  std::map<std::string, TimePoint>& warnings = reported_[peer];
  return warnings.size() < kWarningsMax && warnings.emplace(text, now).second;
}

void Fleet::describe(Status& status) const {
  for (const auto& [peer, worker] : workers_) {
    ++(worker.verifies() ? status.verifiers : worker.drafts() ? status.drafters : status.encoders);
    if (status.workers.size() == kWorkersMax) continue;
    // Two hosts may have one name, and after a reconnect one worker is here twice until the old peer counts as gone.
    std::string name = worker.hello.name;
    const auto is_taken = [&] {
      return std::ranges::any_of(status.workers, [&](const WorkerStatus& other) { return other.name == name; });
    };
    for (int n = 2; is_taken(); ++n) name = fmt::format("{}#{}", worker.hello.name, n);
    status.workers.push_back({.role = worker.hello.role,
                              .name = std::move(name),
                              .sessions = worker.sessions,
                              .draining = worker.draining,
                              .rtt_ns = worker.rtt.count(),
                              .kv_bytes = worker.kv_bytes,
                              .kv_bytes_max = worker.keeps_kv() ? worker.hello.capacity.kv_bytes_max : 0,
                              .yield = worker.drafts() ? worker.reputation.yield() : 0,
                              .late_rounds = worker.late_rounds,
                              .paused = worker.reputation.paused(),
                              .shards = worker.hello.shards,
                              .shards_over_tcp = worker.hello.shards_over_tcp});
  }
}

}  // namespace outrider
