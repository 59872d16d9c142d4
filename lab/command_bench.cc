#include <algorithm>
#include <cmath>
#include <future>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "common/decoding/drafting/forecast.h"
#include "common/os/logging.h"
#include "common/os/progress.h"
#include "lab/link_emulator.h"
#include "lab/questions.h"
#include "lab/read_bandwidth.h"
#include "lab/reporting.h"
#include "lab/statistics.h"
#include "launch/answer_flags.h"
#include "launch/cluster_flags.h"
#include "launch/local_cluster.h"
#include "launch/model_flags.h"

namespace outrider {

void add_bench_ask_command(Command& bench);      ///< in command_bench_ask.cc
void add_bench_engine_commands(Command& bench);  ///< engine and speculative, in command_bench_engine.cc
void add_bench_towers_command(Command& bench);   ///< in command_bench_towers.cc

namespace {

struct BenchFlags {
  ModelFlags model;
  ReportFlags report;
  VerifierOptions verifier;
  DrafterOptions drafter;
  int repeat = 3, clients = 1;
  std::int64_t max_tokens = 96;
  std::vector<std::string> draft_lengths = {"1", "2", "4", "8", "auto"};
  std::vector<double> round_trips_ms;
  std::vector<std::string> prompts{kDemoPrompts.begin(), kDemoPrompts.begin() + kFewPrompts};
  bool processes = false;
  std::string connect;  ///< empty: a cluster of its own
  Security security;    ///< for `connect`
};

/// One draft length over one link, with plain decoding.
struct Run {
  std::string draft_length;
  DraftLength wanted;
  double round_trip_ms;
  int clients;
  Answers plain, speculative;
  std::optional<double> predicted;  ///< tokens per second

  bool fixed() const { return wanted.policy == DraftPolicy::kFixed; }
  /// Returns tokens per second of all clients.
  double speed_of(const Answers& answers) const { return clients * answers.tok_per_sec(); }
  std::optional<double> prediction_error() const {
    const double measured = speed_of(speculative);
    return predicted && measured > 0 ? std::optional(*predicted / measured - 1) : std::nullopt;
  }

  Row row() const {
    const RequestMetrics& metrics = speculative.metrics;
    const auto ratio = [](double a, auto b) { return b == 0 ? 0 : a / static_cast<double>(b); };
    const auto ms = [&](std::int64_t ns) { return speculative.per_round_ms(ns); };
    const double plain_speed = speed_of(plain), speed = speed_of(speculative);
    return {{"draft_length", fixed() ? Json(wanted.length) : Json(draft_length)},
            {"", draft_length, "draft"},
            {"round_trip_ms", round_trip_ms, "RTT ms", 1},
            {"backbone_only_tok_per_sec", plain_speed, "plain/s", 1},
            {"speculative_tok_per_sec", speed, "spec/s", 1},
            {"predicted_tok_per_sec", or_null(predicted), "predicted", 1},
            {"prediction_error", or_null(prediction_error())},
            {"speedup", ratio(speed, plain_speed), "speedup", 2},
            {"ahead_rounds", metrics.ahead_rounds},
            {"", ratio(static_cast<double>(metrics.ahead_rounds), metrics.rounds), "ahead", 2},
            {"drafted_tokens", metrics.drafted_tokens},
            {"accepted_tokens", metrics.accepted_tokens},
            {"", speculative.acceptance(), "accepted", 2},
            {"tokens_per_round", ratio(static_cast<double>(speculative.tokens), metrics.rounds)},
            {"round_ms", ms(metrics.decode_ns), "round", 2},
            {"draft_ms", ms(metrics.draft_ns), "draft", 2},
            {"wire_ms", ms(metrics.wire_ns), "wire", 2},
            {"verify_ms", ms(metrics.verify_ns), "verify", 2},
            {"other_ms", ms(metrics.decode_ns - metrics.draft_ns - metrics.wire_ns - metrics.verify_ns), "other", 2},
            {"plain_round_ms", plain.per_round_ms(plain.metrics.decode_ns)},
            {"plain_verify_ms", plain.per_round_ms(plain.metrics.verify_ns)},
            {"wire_bytes_to_drafter_per_token",
             ratio(static_cast<double>(metrics.wire_bytes_to_drafter), speculative.tokens)}};
  }
};

/// Returns tokens per second by the closed form (common/decoding/drafting/forecast.h), from the rounds of other runs:
/// the other draft lengths over the same link. Times are in units of a plain round, of which every run has its own,
/// since the machine's speed drifts. None for a policy, which has no single length, and for several clients.
std::optional<double> predicted_tok_per_sec(const Run& run, const std::vector<Run>& runs) {
  if (!run.fixed() || run.clients > 1) return std::nullopt;
  Forecast forecast;
  bool drafted = false;
  for (const Run& other : runs) {
    if (other.round_trip_ms != run.round_trip_ms || !other.fixed()) continue;
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

/// Has all clients ask all prompts at once, each from another one on. @return the answers by client and prompt
std::vector<std::vector<TokenId>> ask_all(const std::vector<Asker>& clients, const std::vector<Question>& prompts,
                                          const DraftLength& length, Answers& sums) {
  const std::size_t count = prompts.size();
  std::vector<std::vector<TokenId>> answers(clients.size() * count);
  std::vector<std::future<Answers>> parts;
  for (std::size_t c = 0; c < clients.size(); ++c) {
    parts.push_back(std::async(std::launch::async, [&, c] {
      Answers own;
      for (std::size_t i = c; i < c + count; ++i)
        answers[c * count + i % count] = clients[c].ask(prompts[i % count], length, own);
      return own;
    }));
  }
  for (auto& part : parts) sums.add(part.get());
  return answers;
}

/// Asks every prompt `repeat` times, plainly and with drafts. One client does so prompt by prompt, so that a noisy
/// neighbour affects both alike. Several clients ask all prompts one way and then the other, and the repeats alternate
/// which way comes first. @param progress  of questions
void measure(Run& run, const std::vector<Asker>& clients, const std::vector<Question>& prompts, const BenchFlags& flags,
             Progress& progress) {
  const auto check = [&](const std::string& prompt, const std::vector<TokenId>& alone,
                         const std::vector<TokenId>& drafted) {
    progress.step();
    if (flags.verifier.synthetic_acceptance.empty() && alone != drafted)
      throw CommandError("'{}': speculative and plain tokens differ at draft length {}", prompt, run.draft_length);
  };
  for (int i = 0; i < flags.repeat; ++i) {
    if (clients.size() == 1) {
      for (std::size_t p = 0; p < prompts.size(); ++p) {
        const auto [alone, drafted] = clients[0].ask_both(prompts[p], run.wanted, run.plain, run.speculative);
        check(flags.prompts[p], alone, drafted);
      }
      continue;
    }
    std::vector<std::vector<TokenId>> alone, drafted;
    if (i % 2 == 0) alone = ask_all(clients, prompts, {}, run.plain);
    drafted = ask_all(clients, prompts, run.wanted, run.speculative);
    if (i % 2 != 0) alone = ask_all(clients, prompts, {}, run.plain);
    for (std::size_t t = 0; t < alone.size(); ++t) check(flags.prompts[t % prompts.size()], alone[t], drafted[t]);
  }
}

void bench_pair(const BenchFlags& flags) {
  init_logging("outrider", "warn");
  const PairPaths pair = flags.model.pair();
  const TextSide text = load_text_side(open_model(pair.backbone));
  const std::vector<Question> prompts = user_turns(text, flags.prompts);
  const double bandwidth = measure_read_bandwidth_gb_s();

  TransportContext context(flags.security);
  const bool linked = !flags.round_trips_ms.empty();
  ClusterOptions options{.pair = pair,
                         .processes = flags.processes || linked,
                         .verifier = flags.verifier,
                         .drafter = flags.drafter};
  options.load_as(flags.model.weight_type(pair), /*chosen=*/!flags.model.dtype.empty());
  std::unique_ptr<LinkEmulator> link;
  if (linked) {
    options.drafter_route = [&](const std::string& coordinator) -> Result<std::string> {
      ASSIGN_OR_RETURN(link, LinkEmulator::start(coordinator));
      return link->address();
    };
  }
  ClusterClient cluster = or_throw(connect_or_start(context, flags.connect, options));
  // With random acceptance answers are noise, which no stop token ends: all have the same length.
  std::vector<Client> others;
  for (int i = 1; i < flags.clients; ++i) {
    others.push_back(or_throw(
        Client::connect(context, cluster.cluster ? cluster.cluster->address() : flags.connect,
                        {.failover_wait = {}, .own = cluster.cluster != nullptr})));
  }
  std::vector<Asker> clients;
  const auto add_asker = [&](Client& client) {
    clients.emplace_back(client, text, flags.max_tokens, /*endless=*/!flags.verifier.synthetic_acceptance.empty());
  };
  add_asker(cluster.client);
  std::ranges::for_each(others, add_asker);

  std::vector<Run> runs;
  for (const double round_trip_ms : linked ? flags.round_trips_ms : std::vector<double>{0}) {
    for (const std::string& draft_length : flags.draft_lengths)
      runs.push_back(
          {draft_length, or_throw(parse_draft_length(draft_length)), round_trip_ms, flags.clients, {}, {}, {}});
  }
  Answers warm_up;  // first use compiles kernels and maps pages
  clients[0].ask(prompts.front(), runs.front().wanted, warm_up);
  {
    Progress progress("bench pair, questions",
                      static_cast<int>(runs.size() * prompts.size() * clients.size()) * flags.repeat);
    for (Run& run : runs) {
      if (link) link->set({.rtt_ms = run.round_trip_ms});
      measure(run, clients, prompts, flags, progress);
    }
  }
  std::vector<Row> rows;
  std::vector<double> errors;
  for (Run& run : runs) {
    run.predicted = predicted_tok_per_sec(run, runs);
    if (const auto error = run.prediction_error()) errors.push_back(std::abs(*error));
    rows.push_back(run.row());
  }
  Row report = {{"model", pair.backbone.string()},
                {"read_bandwidth_gb_s", bandwidth},
                {"clients", flags.clients},
                {"synthetic", !flags.verifier.synthetic_acceptance.empty()},
                {"runs", rows}};
  if (flags.connect.empty()) {  // else unknown
    report.add({{"dtype", to_string(options.weight_type)}, {"processes", options.processes ? 3 : 1}});
    report.add(machine_row(flags.verifier.threads));
  }
  const std::filesystem::path& draft_model = flags.drafter.draft_model;
  if (!draft_model.empty()) report.push_back({"draft_model", draft_model.string()});
  if (!flags.verifier.synthetic_acceptance.empty())
    report.push_back({"synthetic_acceptance", flags.verifier.synthetic_acceptance});
  if (!errors.empty()) report.push_back({"median_prediction_error", median(errors)});
  write_report(flags.report, report,
               key_lines(report) + table(rows) + "round, draft, wire, verify and other: ms per round\n");
}

}  // namespace

void add_bench_command(Command& app) {
  Command* bench = app.add_subcommand("bench", "Benchmark a pair or a published shape on this machine");
  bench->require_subcommand();
  add_bench_ask_command(*bench);
  add_bench_engine_commands(*bench);
  add_bench_towers_command(*bench);
  Command* command = bench->add_subcommand("pair", "Measure plain and speculative decoding side by side");
  auto flags = std::make_shared<BenchFlags>();
  flags->model.add_to(*command);
  add_node_options(*command, flags->verifier,
                   named({"--verify-weights", "--threads", "--synthetic-acceptance", "--added-verify-us"}));
  add_node_options(*command, flags->drafter, named({"--draft-model", "--wire", "--added-draft-us"}));
  command
      ->add_option("--draft-lengths", flags->draft_lengths,
                   "Draft lengths or policies, each measured in a separate run")
      ->delimiter(',')
      ->check(check_draft_length)
      ->capture_default_str();
  command
      ->add_option("--rtt", flags->round_trips_ms,
                   "Emulated round trips between drafter and coordinator in ms, over TCP; each repeats all runs")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 10000.0));
  command->add_option("--prompt", flags->prompts, "User messages (default: five kinds of text)");
  add_number(*command, "--max-tokens", flags->max_tokens, 1, 1 << 20, "Maximum number of tokens per answer");
  add_number(*command, "--repeat", flags->repeat, 1, 1 << 20, "Number of answers to each prompt");
  add_number(*command, "--clients", flags->clients, 1, 256,
             "Concurrent clients, each with all prompts; rates are totals");
  add_number(*command, "--drafter-threads", flags->drafter.threads, kThreadsOfFamily, kThreadsMax,
             "Threads of the drafter; 0: every core; -1: as in 'outrider drafter'");
  auto* processes =
      command->add_flag("--processes", flags->processes, "Three processes connected over TCP instead of one process");
  auto* connect =
      command->add_option("--connect", flags->connect,
                          "Measure the cluster of the coordinator at tcp://HOST:PORT, which must run the same pair");
  connect->excludes(processes);
  for (const char* option : {"--rtt", "--threads", "--dtype", "--verify-weights", "--added-verify-us", "--draft-model",
                             "--wire", "--drafter-threads", "--added-draft-us"})
    connect->excludes(option);
  add_security_options(*command, flags->security, /*listens=*/false);
  for (const char* option : {"--key", "--coordinator-key", "--insecure"}) command->get_option(option)->needs(connect);
  flags->report.add_to(*command);
  command->callback([flags] { bench_pair(*flags); });
}

}  // namespace outrider
