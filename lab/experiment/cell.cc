#include "lab/experiment/cell.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include <fmt/format.h>

#include "common/base/random.h"
#include "common/os/progress.h"
#include "lab/read_bandwidth.h"
#include "lab/statistics.h"

namespace outrider {
namespace {

/// Open requests of an open loop: each is a socket and a thread. Further ones wait, which counts.
constexpr std::size_t kOpenMax = 64;

std::uint64_t hash_of(const std::vector<TokenId>& tokens) {
  std::uint64_t hash = tokens.size();
  for (const TokenId token : tokens) hash = mix64(hash ^ static_cast<std::uint64_t>(token)) + 1;
  return hash;
}

/// The requests of one arm's clients in a repeat.
struct Block {
  ExperimentArm arm;
  int repeat;
  DraftLength length;
  const std::vector<Question>& questions;
  Duration at_least;
  std::vector<double> arrivals = {};  ///< of an open loop, seconds; empty: a closed one
  TimePoint start = now();
};

/// @param due  its arrival: its times count from then, however late it is sent
Sample ask(const Asker& asker, const Block& block, std::size_t prompt, int client, TimePoint due) {
  Sample sample{.arm = block.arm, .repeat = block.repeat, .client = client, .prompt = prompt};
  sample.arrival_s = to_seconds(due - block.start);
  sample.waited_s = to_seconds(now() - due);
  sample.text = hash_of(asker.ask(block.questions[prompt], block.length, sample.answer));
  sample.latency_s = to_seconds(now() - due);
  for (const RoundOutcome& round : sample.answer.rounds) {
    if (round.ahead) sample.ahead.add(round);
  }
  sample.answer.rounds.clear();
  return sample;
}

/// Runs one client's part of a closed loop: every question once, and again while there is time.
std::vector<Sample> ask_all(const Asker& asker, const Block& block, int client) {
  std::vector<Sample> samples;
  do {
    for (std::size_t i = 0; i < block.questions.size(); ++i)
      samples.push_back(
          ask(asker, block, (i + static_cast<std::size_t>(client)) % block.questions.size(), client, now()));
  } while (now() - block.start < block.at_least);
  return samples;
}

/// Runs one connection's part of an open loop: takes the next arrival when it is due.
std::vector<Sample> ask_next(const Asker& asker, const Block& block, int client, std::atomic<std::size_t>& next) {
  std::vector<Sample> samples;
  for (std::size_t i = next++; i < block.arrivals.size(); i = next++) {
    const TimePoint due = block.start + from_seconds(block.arrivals[i]);
    std::this_thread::sleep_until(due);
    samples.push_back(ask(asker, block, i % block.questions.size(), client, due));
  }
  return samples;
}

/// Runs every client on a thread of its own.
void run_block(const std::vector<Asker>& clients, const Block& block, Measured& measured) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::future<std::vector<Sample>>> parts;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    parts.push_back(std::async(std::launch::async, [&, i] {
      const int client = static_cast<int>(i);
      return block.arrivals.empty() ? ask_all(clients[i], block, client) : ask_next(clients[i], block, client, next);
    }));
  }
  for (auto& part : parts) {
    for (Sample& sample : part.get()) measured.samples.push_back(std::move(sample));
  }
  measured.wall_s[block.arm].push_back(to_seconds(now() - block.start));
}

double per(double sum, auto count) { return count > 0 ? sum / static_cast<double>(count) : 0; }

std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result;
  for (std::size_t i = 0; i < a.size(); ++i) result.push_back(per(a[i], b[i]));
  return result;
}

/// Returns the time from when a request was due to its first token.
double first_token_ms(const Sample& sample) {
  return sample.waited_s * 1e3 + static_cast<double>(sample.answer.metrics.prefill_ns) / 1e6;
}

/// Returns the 50th, 90th and 99th percentiles of milliseconds.
Json quantiles_json(const std::vector<double>& ms) {
  return {{"p50", quantile(ms, 0.5)}, {"p90", quantile(ms, 0.9)}, {"p99", quantile(ms, 0.99)}};
}

Json arm_json(ExperimentArm arm, const Axes& axes, const Measured& measured) {
  const std::vector<double> rates = measured.rates(arm, axes.clients);
  const auto emitted = [](const Sample& sample) { return static_cast<double>(sample.answer.tokens) + 1; };
  const std::vector<double> walls = ratios(measured.by_repeat(arm, emitted), measured.wall_s.at(arm));
  const Answers sums = measured.sums(arm);
  const RequestMetrics& metrics = sums.metrics;
  const Acceptance acceptance{metrics.drafted_per_position, metrics.accepted_per_position};
  Acceptance ahead;
  std::vector<double> latency_ms, to_first_token_ms;
  for (const Sample& sample : measured.samples) {
    if (sample.arm != arm) continue;
    ahead.add(sample.ahead);
    latency_ms.push_back(sample.latency_s * 1e3);
    to_first_token_ms.push_back(first_token_ms(sample));
  }
  const double drafted = static_cast<double>(metrics.drafted_tokens - metrics.ngram.drafted_tokens);
  return {{"tok_per_sec", median(rates)},
          {"mad", median_absolute_deviation(rates)},
          {"repeats", rates},
          {"wall_tok_per_sec", median(walls)},
          {"latency_ms", quantiles_json(latency_ms)},
          {"time_to_first_token_ms", quantiles_json(to_first_token_ms)},
          {"rounds", metrics.rounds},
          {"drafted_tokens", metrics.drafted_tokens},
          {"accepted_tokens", metrics.accepted_tokens},
          {"acceptance_per_position", acceptance.shares()},
          {"acceptance_per_position_ahead", ahead.shares()},
          {"tokens_per_round", per(static_cast<double>(sums.tokens), metrics.rounds)},
          {"round_ms", sums.per_round_ms(metrics.decode_ns)},
          {"verify_ms", sums.per_round_ms(metrics.verify_ns)},
          {"wire_ms", sums.per_round_ms(metrics.wire_ns)},
          {"draft_ms_per_token", drafted > 0 ? static_cast<double>(metrics.draft_ns) / 1e6 / drafted : 0}};
}

/// A ratio of two arms, for every cell that ran both.
struct Compared {
  const char* name;
  ExperimentArm arm, to;
};
constexpr Compared kAllCompared[] = {{"ngram/plain", ExperimentArm::kNgram, ExperimentArm::kPlain},
                                     {"colocated/plain", ExperimentArm::kColocated, ExperimentArm::kPlain},
                                     {"remote/plain", ExperimentArm::kRemote, ExperimentArm::kPlain},
                                     {"remote/colocated", ExperimentArm::kRemote, ExperimentArm::kColocated}};

/// Returns the comparable pairs of the arms that were run.
std::vector<Compared> compared(const Measured& measured) {
  std::vector<Compared> result;
  std::ranges::copy_if(kAllCompared, std::back_inserter(result),
                       [&](const Compared& pair) { return measured.has(pair.arm) && measured.has(pair.to); });
  return result;
}

Json prediction_json(const Prediction& predicted, const Json& ratios) {
  const auto error = [&](double ratio, const char* name) {
    const double measured = ratios[name]["median"];
    return measured > 0 ? Json(ratio / measured - 1) : Json();
  };
  const double colocated = predicted.colocated / predicted.plain, remote = predicted.remote / predicted.plain;
  return {{"tokens_per_round", predicted.tau},
          {"plain_round_ms", predicted.plain_round_ms},
          {"verify_ms", predicted.verify_ms},
          {"draft_ms_per_token", predicted.draft_ms},
          {"remote_draft_ms_per_token", predicted.remote_draft_ms},
          {"wire_ms", predicted.wire_ms},
          {"exchange_ms", predicted.exchange_ms},
          {"colocated/plain", colocated},
          {"remote/plain", remote},
          {"remote/colocated", remote / colocated},
          {"colocated_error", error(colocated, "colocated/plain")},
          {"remote_error", predicted.ahead ? Json() : error(remote, "remote/plain")},
          {"break_even_rtt_ms", predicted.break_even_rtt_ms ? Json(*predicted.break_even_rtt_ms) : Json()},
          {"capacity", predicted.capacity},
          {"capacity_shared", predicted.capacity_shared}};
}

}  // namespace

std::vector<double> Measured::by_repeat(ExperimentArm arm, double (*value)(const Sample&)) const {
  std::vector<double> sums(wall_s.at(arm).size());
  for (const Sample& sample : samples) {
    if (sample.arm == arm) sums[static_cast<std::size_t>(sample.repeat)] += value(sample);
  }
  return sums;
}

std::vector<double> Measured::rates(ExperimentArm arm, int clients) const {
  const auto tokens = [](const Sample& sample) { return static_cast<double>(sample.answer.tokens); };
  const auto decode_s = [](const Sample& sample) { return static_cast<double>(sample.answer.metrics.decode_ns) / 1e9; };
  std::vector<double> rates = ratios(by_repeat(arm, tokens), by_repeat(arm, decode_s));
  for (double& rate : rates) rate *= clients;
  return rates;
}

Answers Measured::sums(ExperimentArm arm) const {
  Answers sums;
  for (const Sample& sample : samples) {
    if (sample.arm == arm) sums.add(sample.answer);
  }
  return sums;
}

std::optional<std::uint64_t> Measured::text() const {
  std::map<std::size_t, std::uint64_t> answers;
  for (const Sample& sample : samples) {
    if (answers.try_emplace(sample.prompt, sample.text).first->second != sample.text) return std::nullopt;
  }
  std::uint64_t all = 0;
  for (const auto& [prompt, text] : answers) all = mix64(all ^ text) + 1;
  return all;
}

Measured measure_cell(Rig& rig, const TextSide& text, const std::vector<Question>& questions, const Axes& axes,
                      const ExperimentPlan& plan, std::uint64_t seed, Calibration& calibration,
                      const std::string& name) {
  const TimePoint start = now();
  Measured measured;
  rig.set_link(axes.link);
  const std::size_t arrivals = axes.open_loop() ? arrival_count(axes, plan.seconds, questions.size()) : 0;
  const std::size_t clients_of_arm =
      axes.open_loop() ? std::min(arrivals, kOpenMax) : static_cast<std::size_t>(axes.clients);
  std::vector<Client> connections;
  connections.reserve(kArms.size() * clients_of_arm);
  std::map<ExperimentArm, std::vector<Asker>> clients;
  std::vector<ExperimentArm> order = rig.arms();
  Progress progress(name, static_cast<int>(order.size()) * (1 + plan.repeats));
  for (const ExperimentArm arm : order) {
    for (std::size_t i = 0; i < clients_of_arm; ++i) {
      connections.push_back(rig.connect(arm));
      clients[arm].emplace_back(connections.back(), text, axes.output, axes.synthetic());
    }
    Measured uncounted;
    run_block(clients[arm],
              {.arm = arm,
               .repeat = 0,
               .length = draft_length(arm, axes),
               .questions = questions,
               .at_least = Duration::zero(),
               .arrivals = std::vector<double>(static_cast<std::size_t>(plan.warm_up))},
              uncounted);
    progress.step();
  }
  const std::vector<int> lengths = calibrated_lengths(axes);
  std::optional<Calibrator> calibrator;
  if (!lengths.empty() && rig.calibrates()) {
    calibrator.emplace(rig, ExperimentArm::kColocated, text, axes);
    calibrator->ask(questions.front(), lengths, nullptr);
    calibration.forget_times();
  }
  const double bandwidth_before = measure_read_bandwidth_gb_s();
  const CpuTicks before = CpuTicks::now();
  CounterRng rng(seed);
  for (int repeat = 0; repeat < plan.repeats; ++repeat) {
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
    std::vector<double> times;
    if (axes.open_loop()) times = arrival_times(axes, arrivals, mix64(seed + static_cast<std::uint64_t>(repeat)));
    const std::uint64_t calibrated_before = rng.below(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (calibrator && i == calibrated_before)
        calibrator->ask(questions[static_cast<std::size_t>(repeat) % questions.size()], lengths, &calibration);
      const ExperimentArm arm = order[i];
      run_block(clients[arm], {arm, repeat, draft_length(arm, axes), questions, from_seconds(plan.seconds), times},
                measured);
      progress.step();
    }
  }
  measured.machine = machine_use(before, CpuTicks::now());
  measured.machine.read_gb_s_before = bandwidth_before;
  measured.machine.read_gb_s_after = measure_read_bandwidth_gb_s();
  rig.check();
  measured.seconds = to_seconds(now() - start);
  return measured;
}

std::optional<std::string> void_reason(const Measured& measured, const Axes& axes, const VoidRule& rule) {
  if (const auto moved = moved_too_much(measured.machine, rule)) return moved;
  for (const Compared& pair : compared(measured)) {
    if (pair.to != ExperimentArm::kPlain) continue;
    const std::vector<double> seen =
        ratios(measured.rates(pair.arm, axes.clients), measured.rates(pair.to, axes.clients));
    const double spread = per(median_absolute_deviation(seen), median(seen));
    if (spread > rule.spread)
      return fmt::format("{} spreads by {:.0f} % from repeat to repeat, wanted at most {:.0f} %", pair.name,
                         spread * 100, rule.spread * 100);
  }
  return std::nullopt;
}

Json cell_json(std::size_t cell, int attempt, const Axes& axes, const ExperimentPlan& plan, const Measured& measured,
               const std::optional<Prediction>& prediction) {
  Json arms = Json::object(), ratios_json = Json::object();
  for (const ExperimentArm arm : kArms) {
    if (measured.has(arm)) arms[to_string(arm)] = arm_json(arm, axes, measured);
  }
  for (const Compared& pair : compared(measured)) {
    const Interval interval = bootstrap_median(
        ratios(measured.rates(pair.arm, axes.clients), measured.rates(pair.to, axes.clients)), plan.seed);
    ratios_json[pair.name] = {{"median", interval.median}, {"low", interval.low}, {"high", interval.high}};
  }
  const auto reason = void_reason(measured, axes, plan.void_rule);
  const auto text = measured.text();
  const bool compares = !axes.synthetic();  // answers with random acceptance are meaningless
  return {{"cell", cell},
          {"attempt", attempt},
          {"axes", to_json(axes)},
          {"void", reason ? Json(*reason) : Json()},
          {"texts_equal", compares ? Json(text.has_value()) : Json()},
          {"text", compares && text ? Json(fmt::format("{:016x}", *text)) : Json()},
          {"arms", arms},
          {"ratios", ratios_json},
          {"predicted", prediction ? prediction_json(*prediction, ratios_json) : Json()},
          {"machine", to_json(measured.machine)},
          {"seconds", measured.seconds}};
}

std::vector<Json> request_lines(std::size_t cell, int attempt, const Measured& measured) {
  std::vector<Json> lines;
  for (const Sample& sample : measured.samples) {
    const RequestMetrics& metrics = sample.answer.metrics;
    const auto ms = [](std::int64_t ns) { return static_cast<double>(ns) / 1e6; };
    lines.push_back({{"cell", cell},
                     {"attempt", attempt},
                     {"arm", to_string(sample.arm)},
                     {"repeat", sample.repeat},
                     {"client", sample.client},
                     {"prompt", sample.prompt},
                     {"text", fmt::format("{:016x}", sample.text)},
                     {"output_sequence_length", sample.answer.tokens + 1},
                     {"arrival_s", sample.arrival_s},
                     {"waited_ms", sample.waited_s * 1e3},
                     {"latency_ms", sample.latency_s * 1e3},
                     {"queue_time_ms", ms(metrics.queue_ns)},
                     {"time_to_first_token_ms", first_token_ms(sample)},
                     {"generation_time_ms", ms(metrics.decode_ns)},
                     {"num_spec_steps", metrics.rounds},
                     {"num_draft_tokens", metrics.drafted_tokens},
                     {"num_accepted_draft_tokens", metrics.accepted_tokens}});
  }
  return lines;
}

}  // namespace outrider
