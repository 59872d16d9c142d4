#include "tests/simulation/policy_replay.h"

#include <algorithm>
#include <fstream>
#include <memory>

#include <nlohmann/json.hpp>

#include "common/decoding/drafting/ngram.h"

namespace outrider {

std::vector<Trace> read_traces(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file);
  std::vector<Trace> traces;
  for (const auto& trace : json.at("traces")) traces.push_back({trace.at("tokens"), trace.at("runs")});
  return traces;
}

Acceptance traced(const std::vector<Trace>& traces, Behind* behind) {
  struct Place {
    std::size_t trace = 0, at = 0;
  };
  const auto place = std::make_shared<Place>();
  const auto look_up = [&traces, place](int own) {
    const std::vector<TokenId>& tokens = traces[place->trace].tokens;
    const std::size_t end = std::min(place->at + static_cast<std::size_t>(own) + 1, tokens.size());
    const auto drafts = ngram_draft({tokens.data(), end}, kDraftLengthMax);
    const auto [lost, text] = std::mismatch(drafts.begin(), drafts.end(), tokens.begin() + end, tokens.end());
    return LookUp{static_cast<int>(drafts.size()), static_cast<int>(lost - drafts.begin())};
  };
  if (behind != nullptr) *behind = look_up;
  return [&traces, place, look_up](DraftSource source, int advance) {
    place->at += static_cast<std::size_t>(advance);
    if (place->at >= traces[place->trace].runs.size()) *place = {(place->trace + 1) % traces.size(), 0};
    return source == DraftSource::kAssistant ? traces[place->trace].runs[place->at] : look_up(0).held;
  };
}

Acceptance independent(double assistant, double ngram, std::uint64_t seed) {
  return [=, random = CounterRng(seed)](DraftSource source, int) mutable {
    const double p = source == DraftSource::kAssistant ? assistant : ngram;
    int held = 0;
    while (held < kDraftLengthMax && random.uniform() < p) ++held;
    return held;
  };
}

void PolicySimulator::play(DraftLengthPolicy& policy) {
  DraftPlan plan = policy.choose(limits);
  RoundOutcome outcome{.source = plan.source, .drafted = plan.length};
  if (plan.length > 0 && plan.source == DraftSource::kAssistant) {
    outcome.draft_rows = emitted_;
    outcome.draft_bytes = 5200 + 6144 * emitted_;
    outcome.draft_s = plan.length * world_.draft_token_s;
    outcome.draft_wire_s = world_.rtt_s * (1 + world_.jitter * random_.uniform()) +
                           static_cast<double>(outcome.draft_bytes) * world_.s_per_byte;
    if (outcome.draft_s + outcome.draft_wire_s > plan.patience_s) {
      outcome.drafted = 0;
      outcome.draft_s = 0;
      outcome.draft_wire_s = plan.patience_s;
    }
  }
  const int own = outcome.drafted, held = acceptance_(plan.source, emitted_);
  outcome.accepted = std::min(own, held);
  if (const LookUp look_up = own > 0 && behind ? behind(own) : LookUp(); look_up.found > 0) {
    const int more = policy.extend(plan, outcome, DraftSource::kTable, look_up.found);
    outcome.behind[static_cast<std::size_t>(DraftSource::kTable)] = more;
    outcome.drafted += more;
    if (held >= own) outcome.accepted += std::min(more, look_up.held);
  }
  outcome.verify_s = world_.plain_verify_s * world_.steps(outcome.drafted + 1);
  outcome.round_s = outcome.draft_s + outcome.draft_wire_s + outcome.verify_s + world_.other_s;
  costs.observe(outcome, 0);
  policy.observe(plan, outcome);
  emitted_ = outcome.accepted + 1;
  rounds.push_back({plan, emitted_, outcome.round_s, world_.plain_s() * emitted_});
}

void PolicySimulator::run(DraftLengthPolicy& policy, std::int64_t tokens) {
  while (tokens > 0) {
    play(policy);
    tokens -= emitted_;
  }
}

void PolicySimulator::run_rounds(DraftLengthPolicy& policy, int count) {
  for (int i = 0; i < count; ++i) play(policy);
}

double PolicySimulator::rate(std::size_t first) const {
  double tokens = 0, seconds = 0;
  for (std::size_t i = first; i < rounds.size(); ++i) {
    tokens += rounds[i].tokens;
    seconds += rounds[i].seconds;
  }
  return tokens / seconds;
}

double PolicySimulator::worst_slowdown(std::int64_t tokens) const {
  double worst = 0;
  for (std::size_t first = 0; first < rounds.size(); ++first) {
    std::int64_t emitted = 0;
    double seconds = 0, plain = 0;
    for (std::size_t i = first; i < rounds.size() && emitted < tokens; ++i) {
      emitted += rounds[i].tokens;
      seconds += rounds[i].seconds;
      plain += rounds[i].plain_seconds;
      if (emitted >= tokens) worst = std::max(worst, seconds / plain);
    }
  }
  return worst;
}

Oracle oracle(const World& world, const std::function<Acceptance()>& acceptance, std::int64_t tokens) {
  Oracle best;
  for (int length = 0; length <= 16; ++length) {
    World copy = world;
    PolicySimulator simulator(copy, acceptance());
    FixedLength policy(length);
    simulator.run(policy, tokens);
    if (simulator.rate() > best.rate) best = {length, simulator.rate()};
  }
  return best;
}

}  // namespace outrider
