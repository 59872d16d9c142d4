#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/kernels/gemm_onednn.h"
#include "common/kernels/isa.h"
#include "common/logging/logging.h"
#include "common/policy/forecast.h"
#include "common/report/report.h"
#include "common/tokenizer/chat.h"
#include "common/tokenizer/tokenizer.h"
#include "common/transport/client.h"
#include "lab/commands.h"
#include "lab/link_emulator.h"
#include "lab/read_bandwidth.h"
#include "lab/shape_models.h"
#include "launch/cluster.h"
#include "launch/command_support.h"

namespace outrider {
namespace {

/// Kinds of text that the nano pair knows; acceptance differs between them.
const std::vector<std::string> kPrompts = {
    "Tell me a story about a lighthouse.",
    "Turn this list into JSON: Finn is 20 and lives near the river; Noah is 48 and lives near the park.",
    "Count from 3 to 20.",
    "What is 17 plus 25?",
    "Write a short story about a dog called Max.",
};

struct BenchFlags {
  ModelFlags model;
  int repeat = 3;
  std::int64_t max_tokens = 96;
  std::vector<std::string> draft_lengths = {"1", "2", "4", "8", "auto"};
  std::vector<double> round_trips_ms;
  VerifierOptions verifier;
  std::vector<std::string> prompts = kPrompts;
  bool processes = false, json = false;
};

/// Sums over the answers of one run.
struct Sums {
  std::int64_t tokens = 0;
  RequestMetrics metrics;
  std::vector<RoundOutcome> rounds;
  void add(const Generation& generation) {
    tokens += static_cast<std::int64_t>(generation.tokens.size()) - 1;
    outrider::add(metrics, generation.metrics);
  }
  double tok_per_sec() const {
    return metrics.decode_ns == 0 ? 0 : static_cast<double>(tokens) * 1e9 / static_cast<double>(metrics.decode_ns);
  }
  double per_round_ms(std::int64_t ns) const {
    return metrics.rounds == 0 ? 0 : static_cast<double>(ns) / 1e6 / static_cast<double>(metrics.rounds);
  }
};

/// One draft length over one link, and plain decoding beside it.
struct Run {
  std::string draft_length;
  DraftLength wanted;
  double round_trip_ms;
  Sums plain, speculative;
};

/// Tokens per second by the closed form (common/policy/forecast.h), from rounds that this run has no part in: the other
/// draft lengths over the same link. Times are taken in plain rounds, of which every run has its own beside it: the
/// machine's speed wanders. None for a policy, which has no one length.
std::optional<double> predicted_tok_per_sec(const Run& run, const std::vector<Run>& runs) {
  if (run.wanted.policy != DraftPolicy::kFixed) return std::nullopt;
  Forecast forecast;
  bool drafted = false;
  for (const Run& other : runs) {
    if (other.round_trip_ms != run.round_trip_ms || other.wanted.policy != DraftPolicy::kFixed) continue;
    const double scale =
        run.plain.per_round_ms(run.plain.metrics.decode_ns) / other.plain.per_round_ms(other.plain.metrics.decode_ns);
    const auto observe = [&](const std::vector<RoundOutcome>& rounds) {
      for (RoundOutcome outcome : rounds) {
        for (double* seconds : {&outcome.draft_s, &outcome.draft_wire_s, &outcome.verify_s, &outcome.round_s})
          *seconds *= scale;
        forecast.observe(outcome);
      }
    };
    observe(other.plain.rounds);
    if (other.draft_length == run.draft_length) continue;
    drafted = true;
    observe(other.speculative.rounds);
  }
  if (!drafted) return std::nullopt;
  return tokens_per_second(forecast.tau(run.wanted.length), forecast.terms(run.wanted.length));
}

nlohmann::json run_json(const Run& run, const std::vector<Run>& runs) {
  const Sums &plain = run.plain, &speculative = run.speculative;
  const double round = speculative.per_round_ms(speculative.metrics.decode_ns),
               draft = speculative.per_round_ms(speculative.metrics.draft_ns);
  const double wire = speculative.per_round_ms(speculative.metrics.wire_ns),
               verify = speculative.per_round_ms(speculative.metrics.verify_ns);
  const std::optional<double> predicted = predicted_tok_per_sec(run, runs);
  const double measured = speculative.tok_per_sec();
  const auto or_null = [](std::optional<double> value) { return value ? nlohmann::json(*value) : nlohmann::json(); };
  return {{"draft_length", run.wanted.policy == DraftPolicy::kFixed ? nlohmann::json(run.wanted.length)
                                                                    : nlohmann::json(run.draft_length)},
          {"round_trip_ms", run.round_trip_ms},
          {"backbone_only_tok_per_sec", plain.tok_per_sec()},
          {"speculative_tok_per_sec", measured},
          {"predicted_tok_per_sec", or_null(predicted)},
          {"prediction_error",
           or_null(predicted && measured > 0 ? std::optional(*predicted / measured - 1) : std::nullopt)},
          {"speedup", plain.tok_per_sec() == 0 ? 0 : measured / plain.tok_per_sec()},
          {"drafted_tokens", speculative.metrics.drafted_tokens},
          {"accepted_tokens", speculative.metrics.accepted_tokens},
          {"tokens_per_round", speculative.metrics.rounds == 0 ? 0
                                                               : static_cast<double>(speculative.tokens) /
                                                                     static_cast<double>(speculative.metrics.rounds)},
          {"round_ms", round},
          {"draft_ms", draft},
          {"wire_ms", wire},
          {"verify_ms", verify},
          {"other_ms", round - draft - wire - verify},
          {"plain_round_ms", plain.per_round_ms(plain.metrics.decode_ns)},
          {"plain_verify_ms", plain.per_round_ms(plain.metrics.verify_ns)},
          {"wire_bytes_to_drafter_per_token", speculative.tokens == 0
                                                  ? 0
                                                  : static_cast<double>(speculative.metrics.wire_bytes_to_drafter) /
                                                        static_cast<double>(speculative.tokens)}};
}

void bench_pair(const BenchFlags& flags) {
  init_logging("outrider", "warn");
  const PairPaths pair = flags.model.pair();
  const Tokenizer tokenizer = or_throw(Tokenizer::load(pair.backbone));
  const bool synthetic = !flags.verifier.synthetic_acceptance.empty();
  // Noise does not end by itself: every answer has the same length.
  const std::vector<TokenId> stop_ids =
      synthetic ? std::vector<TokenId>() : or_throw(load_eos_token_ids(pair.backbone));
  const SamplingParams sampling{.suppress_tokens = or_throw(load_suppress_tokens(pair.backbone))};
  const ChatFormat format = chat_format_of(pair);
  const double bandwidth = measure_read_bandwidth_gb_s();

  TransportContext context;
  const bool linked = !flags.round_trips_ms.empty();
  ClusterOptions options{.pair = pair,
                         .weight_type = flags.model.weight_type(pair),
                         .processes = flags.processes || linked,
                         .verifier = flags.verifier};
  std::unique_ptr<LinkEmulator> link;
  if (linked) {
    options.drafter_route = [&](const std::string& coordinator) -> Result<std::string> {
      ASSIGN_OR_RETURN(link, LinkEmulator::start(coordinator));
      return link->address();
    };
  }
  ClusterClient cluster = or_throw(connect_or_start(context, /*connect=*/"", options));
  const auto answer = [&](const std::string& prompt, const DraftLength& length, Sums& sums) {
    Generation generation = or_throw(cluster.client.generate(
        {.prompt = or_throw(render_user_turn(tokenizer, prompt, format)),
         .max_tokens = flags.max_tokens,
         .draft_length = length.length,
         .stop_ids = stop_ids,
         .wait_ms = kVerifierWaitMs,
         .sampling = sampling,
         .policy = length.policy,
         .report_rounds = true},
        [](std::span<const TokenId>) {}, [] { return false; },
        [&](const RoundReport& round) { sums.rounds.push_back(round.outcome); }));
    sums.add(generation);
    return generation.tokens;
  };

  std::vector<Run> runs;
  for (const double round_trip_ms : linked ? flags.round_trips_ms : std::vector<double>{0}) {
    for (const std::string& draft_length : flags.draft_lengths)
      runs.push_back({draft_length, or_throw(parse_draft_length(draft_length)), round_trip_ms, {}, {}});
  }
  Sums warm_up;  // first use compiles kernels and maps pages
  answer(flags.prompts.front(), runs.front().wanted, warm_up);
  for (Run& run : runs) {
    if (link)
      link->set_round_trip(
          std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(run.round_trip_ms)));
    // Side by side, so that a noisy neighbour slows both alike.
    for (int i = 0; i < flags.repeat; ++i) {
      for (const std::string& prompt : flags.prompts) {
        const std::vector<TokenId> alone = answer(prompt, {}, run.plain),
                                   drafted = answer(prompt, run.wanted, run.speculative);
        if (!synthetic && alone != drafted)
          throw std::runtime_error(
              fmt::format("'{}': speculative and plain tokens differ at draft length {}", prompt, run.draft_length));
      }
    }
  }
  nlohmann::json list = nlohmann::json::array();
  std::vector<double> errors;
  for (const Run& run : runs) {
    list.push_back(run_json(run, runs));
    if (const auto& error = list.back()["prediction_error"]; !error.is_null())
      errors.push_back(std::abs(error.get<double>()));
  }
  const int threads =
      flags.verifier.threads > 0 ? flags.verifier.threads : static_cast<int>(std::thread::hardware_concurrency());
  nlohmann::json report = {{"model", pair.backbone.string()},
                           {"dtype", to_string(options.weight_type)},
                           {"isa", to_string(active_isa())},
                           {"threads", threads},
                           {"onednn", onednn_version()},
                           {"read_bandwidth_gb_s", bandwidth},
                           {"processes", options.processes ? 3 : 1},
                           {"synthetic", synthetic},
                           {"runs", list}};
  if (!errors.empty()) report["median_prediction_error"] = median(errors);
  if (synthetic) report["synthetic_acceptance"] = flags.verifier.synthetic_acceptance;
  if (flags.json) {
    std::printf("%s\n", report.dump(2).c_str());
    return;
  }
  std::printf("%s, %s, %s, %d threads, oneDNN %s, read bandwidth %.1f GB/s, %s\n", pair.backbone.string().c_str(),
              to_string(options.weight_type), to_string(active_isa()), threads, onednn_version().c_str(), bandwidth,
              options.processes ? "three processes" : "one process");
  if (synthetic)
    std::printf("synthetic: drafts are accepted by a coin at cumulative rates %s\n",
                fmt::format("{}", fmt::join(flags.verifier.synthetic_acceptance, ", ")).c_str());
  std::printf("%9s %7s %9s %9s %9s %8s %9s %9s %9s %9s %9s %9s\n", "draft", "RTT ms", "plain/s", "spec/s", "predicted",
              "speedup", "accepted", "round ms", "draft ms", "wire ms", "verify ms", "other ms");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& run = list[i];
    std::printf("%9s %7.1f %9.1f %9.1f %9s %8.2f %9.2f %9.3f %9.3f %9.3f %9.3f %9.3f\n", runs[i].draft_length.c_str(),
                runs[i].round_trip_ms, run["backbone_only_tok_per_sec"].get<double>(),
                run["speculative_tok_per_sec"].get<double>(),
                run["predicted_tok_per_sec"].is_null()
                    ? "-"
                    : fmt::format("{:.1f}", run["predicted_tok_per_sec"].get<double>()).c_str(),
                run["speedup"].get<double>(),
                run["accepted_tokens"].get<double>() / std::max<double>(1, run["drafted_tokens"].get<double>()),
                run["round_ms"].get<double>(), run["draft_ms"].get<double>(), run["wire_ms"].get<double>(),
                run["verify_ms"].get<double>(), run["other_ms"].get<double>());
  }
  if (!errors.empty())
    std::printf("prediction error, median: %.1f %%\n", 100 * report["median_prediction_error"].get<double>());
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure");
  bench->require_subcommand(1);
  add_bench_engine_commands(*bench);
  CLI::App* command = bench->add_subcommand("pair", "Plain and speculative decoding side by side");
  auto flags = std::make_shared<BenchFlags>();
  flags->model.add_to(*command);
  add_node_options(*command, flags->verifier, [](const OptionInfo& info) {
    return info.of_cluster || info.name == std::string_view("--synthetic-acceptance");
  });
  command->add_option("--draft-lengths", flags->draft_lengths, "Draft lengths or policies, one run each")
      ->delimiter(',')
      ->check(check_draft_length)
      ->capture_default_str();
  command
      ->add_option("--rtt", flags->round_trips_ms,
                   "Round trips between drafter and coordinator, ms, emulated; one set of runs each, over TCP")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 10000.0));
  command->add_option("--prompt", flags->prompts, "User messages (default: five kinds of text)");
  command->add_option("--max-tokens", flags->max_tokens, "Longest answer")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--repeat", flags->repeat, "Times each prompt is answered")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_flag("--processes", flags->processes, "Three processes over TCP instead of one");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags] { bench_pair(*flags); });
}

}  // namespace outrider
