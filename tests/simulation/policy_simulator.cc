#include "tests/simulation/policy_simulator.h"

#include <algorithm>
#include <fstream>
#include <memory>

#include <nlohmann/json.hpp>

#include "common/policy/ngram.h"

namespace outrider {

std::vector<Trace> nano_traces() {
  std::ifstream file(OUTRIDER_SOURCE_DIR "/tests/goldens/policy/nano_traces.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  std::vector<Trace> traces;
  for (const auto& trace : json.at("traces")) traces.push_back({trace.at("tokens"), trace.at("runs")});
  return traces;
}

Acceptance traced(const std::vector<Trace>& traces) {
  struct Place {
    std::size_t trace = 0, at = 0;
  };
  return [&traces, place = Place{}](DraftSource source, int advance) mutable {
    place.at += static_cast<std::size_t>(advance);
    if (place.at >= traces[place.trace].runs.size()) place = {(place.trace + 1) % traces.size(), 0};
    const Trace& trace = traces[place.trace];
    if (source == DraftSource::kAssistant) return trace.runs[place.at];
    const std::span<const TokenId> history(trace.tokens.data(), place.at + 1);
    const auto drafts = ngram_draft(history, kDraftLengthMax);
    int held = 0;
    while (held < std::ssize(drafts) && place.at + 1 + held < trace.tokens.size() &&
           drafts[held] == trace.tokens[place.at + 1 + held])
      ++held;
    return held;
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
  const DraftChoice choice = policy.choose(limits);
  RoundOutcome outcome{.source = choice.source, .arm = choice.arm, .drafted = choice.length};
  if (choice.length > 0 && choice.source == DraftSource::kAssistant) {
    outcome.draft_rows = emitted_;
    outcome.draft_bytes = 5200 + 6144 * emitted_;
    outcome.draft_s = choice.length * world_.draft_token_s;
    outcome.draft_wire_s = world_.rtt_s * (1 + world_.jitter * random_.uniform()) +
                           static_cast<double>(outcome.draft_bytes) * world_.s_per_byte;
    if (outcome.draft_s + outcome.draft_wire_s > choice.patience_s) {
      outcome.drafted = 0;
      outcome.draft_s = 0;
      outcome.draft_wire_s = choice.patience_s;
    }
  }
  outcome.accepted = std::min(outcome.drafted, acceptance_(choice.source, emitted_));
  outcome.verify_s = world_.plain_verify_s * world_.steps(outcome.drafted + 1);
  outcome.round_s = outcome.draft_s + outcome.draft_wire_s + outcome.verify_s + world_.other_s;
  costs.observe(outcome);
  policy.observe(outcome);
  emitted_ = outcome.accepted + 1;
  rounds.push_back({choice, emitted_, outcome.round_s, world_.plain_s() * emitted_});
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
