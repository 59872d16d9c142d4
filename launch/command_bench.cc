#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/kernels/gemm_onednn.h"
#include "common/kernels/isa.h"
#include "common/metrics/logging.h"
#include "common/tokenizer/chat.h"
#include "common/tokenizer/tokenizer.h"
#include "common/transport/client.h"
#include "launch/cluster.h"
#include "launch/command_support.h"
#include "launch/commands.h"
#include "launch/read_bandwidth.h"
#include "launch/report.h"

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
  int threads = 0, repeat = 3;
  std::int64_t max_tokens = 96;
  std::vector<std::int32_t> draft_lengths = {1, 2, 4, 8};
  std::vector<std::string> prompts = kPrompts;
  bool processes = false, json = false;
};

/// Sums over the answers of one draft length.
struct Sums {
  std::int64_t tokens = 0, decode_ns = 0;
  RequestMetrics metrics;
  void add(const Generation& generation) {
    const RequestMetrics& m = generation.metrics;
    tokens += static_cast<std::int64_t>(generation.tokens.size()) - 1;
    decode_ns += m.decode_ns;
    metrics.rounds += m.rounds;
    metrics.drafted_tokens += m.drafted_tokens;
    metrics.accepted_tokens += m.accepted_tokens;
    metrics.draft_ns += m.draft_ns;
    metrics.verify_ns += m.verify_ns;
    metrics.wire_ns += m.wire_ns;
    metrics.wire_bytes_to_drafter += m.wire_bytes_to_drafter;
  }
  double tok_per_sec() const { return decode_ns == 0 ? 0 : static_cast<double>(tokens) * 1e9 / static_cast<double>(decode_ns); }
  double per_round_ms(std::int64_t ns) const { return metrics.rounds == 0 ? 0 : static_cast<double>(ns) / 1e6 / static_cast<double>(metrics.rounds); }
};

void bench_pair(const BenchFlags& flags) {
  init_logging("outrider", "warn");
  const PairPaths pair = flags.model.pair();
  const Tokenizer tokenizer = or_throw(Tokenizer::load(pair.backbone));
  const std::vector<TokenId> stop_ids = or_throw(load_eos_token_ids(pair.backbone));
  const SamplingParams sampling{.suppress_tokens = or_throw(load_suppress_tokens(pair.backbone))};
  const ChatFormat format = chat_format_of(pair);
  const double bandwidth = measure_read_bandwidth_gb_s();

  TransportContext context;
  const ClusterOptions options{.pair = pair, .weight_type = flags.model.weight_type(pair), .verifier_threads = flags.threads};
  const std::unique_ptr<Cluster> cluster = or_throw(flags.processes ? start_processes(options) : start_threads(context, options));
  Client client = or_throw(Client::connect(context, cluster->address()));
  or_throw(client.wait_for_workers(1, 1, [&] { return cluster->check(); }));
  const auto answer = [&](const std::string& prompt, std::int32_t draft_length) {
    return or_throw(client.generate({.prompt = or_throw(render_user_turn(tokenizer, prompt, format)), .max_tokens = flags.max_tokens,
                                     .draft_length = draft_length, .stop_ids = stop_ids, .wait_ms = 4000, .sampling = sampling},
                                    [](std::span<const TokenId>) {}));
  };
  answer(flags.prompts.front(), flags.draft_lengths.front());  // first use compiles kernels and maps pages

  nlohmann::json runs = nlohmann::json::array();
  for (const std::int32_t draft_length : flags.draft_lengths) {
    Sums plain, speculative;
    // Side by side, so that a noisy neighbour slows both alike.
    for (int i = 0; i < flags.repeat; ++i) {
      for (const std::string& prompt : flags.prompts) {
        const Generation alone = answer(prompt, 0), drafted = answer(prompt, draft_length);
        if (alone.tokens != drafted.tokens) throw std::runtime_error(fmt::format("'{}': speculative and plain tokens differ at draft length {}", prompt, draft_length));
        plain.add(alone);
        speculative.add(drafted);
      }
    }
    const double round = speculative.per_round_ms(speculative.decode_ns), draft = speculative.per_round_ms(speculative.metrics.draft_ns);
    const double wire = speculative.per_round_ms(speculative.metrics.wire_ns), verify = speculative.per_round_ms(speculative.metrics.verify_ns);
    runs.push_back({{"draft_length", draft_length},
                    {"backbone_only_tok_per_sec", plain.tok_per_sec()},
                    {"speculative_tok_per_sec", speculative.tok_per_sec()},
                    {"speedup", plain.tok_per_sec() == 0 ? 0 : speculative.tok_per_sec() / plain.tok_per_sec()},
                    {"drafted_tokens", speculative.metrics.drafted_tokens},
                    {"accepted_tokens", speculative.metrics.accepted_tokens},
                    {"tokens_per_round", speculative.metrics.rounds == 0 ? 0 : static_cast<double>(speculative.tokens) / static_cast<double>(speculative.metrics.rounds)},
                    {"round_ms", round},
                    {"draft_ms", draft},
                    {"wire_ms", wire},
                    {"verify_ms", verify},
                    {"other_ms", round - draft - wire - verify},
                    {"plain_round_ms", plain.per_round_ms(plain.decode_ns)},
                    {"plain_verify_ms", plain.per_round_ms(plain.metrics.verify_ns)},
                    {"wire_bytes_to_drafter_per_token", speculative.tokens == 0 ? 0 : static_cast<double>(speculative.metrics.wire_bytes_to_drafter) / static_cast<double>(speculative.tokens)}});
  }
  const int threads = flags.threads > 0 ? flags.threads : static_cast<int>(std::thread::hardware_concurrency());
  const nlohmann::json report = {{"model", pair.backbone.string()}, {"dtype", flags.model.dtype}, {"isa", to_string(active_isa())},
                                 {"threads", threads}, {"onednn", onednn_version()}, {"read_bandwidth_gb_s", bandwidth},
                                 {"processes", flags.processes ? 3 : 1}, {"runs", runs}};
  if (flags.json) {
    std::printf("%s\n", report.dump(2).c_str());
    return;
  }
  std::printf("%s, %s, %s, %d threads, oneDNN %s, read bandwidth %.1f GB/s, %s\n", pair.backbone.string().c_str(), flags.model.dtype.c_str(),
              to_string(active_isa()), threads, onednn_version().c_str(), bandwidth, flags.processes ? "three processes" : "one process");
  std::printf("%5s %9s %9s %8s %9s %9s %9s %9s %9s %9s\n", "draft", "plain/s", "spec/s", "speedup", "accepted", "round ms", "draft ms", "wire ms", "verify ms", "other ms");
  for (const auto& run : runs) {
    std::printf("%5d %9.1f %9.1f %8.2f %9.2f %9.3f %9.3f %9.3f %9.3f %9.3f\n", run["draft_length"].get<int>(), run["backbone_only_tok_per_sec"].get<double>(),
                run["speculative_tok_per_sec"].get<double>(), run["speedup"].get<double>(),
                run["accepted_tokens"].get<double>() / std::max<double>(1, run["drafted_tokens"].get<double>()), run["round_ms"].get<double>(),
                run["draft_ms"].get<double>(), run["wire_ms"].get<double>(), run["verify_ms"].get<double>(), run["other_ms"].get<double>());
  }
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure");
  bench->require_subcommand(1);
  add_bench_engine_commands(*bench);
  CLI::App* command = bench->add_subcommand("pair", "Plain and speculative decoding side by side");
  auto flags = std::make_shared<BenchFlags>();
  flags->model.add_to(*command);
  command->add_option("--threads", flags->threads, "Threads of the backbone's forward pass; 0: every core")->check(CLI::Range(0, kThreadsMax))->capture_default_str();
  command->add_option("--draft-lengths", flags->draft_lengths, "Draft lengths, one run each")->delimiter(',')->check(CLI::Range(1, 32))->capture_default_str();
  command->add_option("--prompt", flags->prompts, "User messages (default: five kinds of text)");
  command->add_option("--max-tokens", flags->max_tokens, "Longest answer")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  command->add_option("--repeat", flags->repeat, "Times each prompt is answered")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  command->add_flag("--processes", flags->processes, "Three processes over TCP instead of one");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags] { bench_pair(*flags); });
}

}  // namespace outrider
