// bench engine and bench speculative: what the forward passes cost, on random weights of a published shape.
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/random.h"
#include "common/base/time.h"
#include "common/kernels/isa.h"
#include "common/kernels/linear.h"
#include "common/kernels/ops.h"
#include "common/logging/logging.h"
#include "common/policy/throughput.h"
#include "lab/commands.h"
#include "lab/read_bandwidth.h"
#include "lab/shape_models.h"
#include "launch/cluster.h"
#include "launch/command_support.h"

namespace outrider {
namespace {

/// Rows of a prompt that one forward takes, as a verifier takes them (VerifierConfig::prefill_chunk).
constexpr std::int64_t kPrefillChunk = 128;
/// What drafting is timed after.
constexpr std::array<Position, 2> kDraftContexts = {512, 8192};

struct EngineFlags {
  std::string shape = "e4b", dtype = "int4";
  std::vector<std::int64_t> rows = {1, 2, 3, 4, 5, 8, 9, 16, 32}, prefill = {128, 512};
  Position context = 128;
  int layers = 0, threads = 0, repeat = 5;
  bool profile = false, json = false;

  void add_to(CLI::App& command) {
    command.add_option("--shape", shape, "e2b, e4b, 12b, 26b-a4b, 31b or nano")->capture_default_str();
    command.add_option("--dtype", dtype, "Weights: f32, bf16, int8 or int4")->capture_default_str();
    command.add_option("--context", context, "Positions in the K/V cache before the rows")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command
        .add_option("--layers", layers,
                    "Layers of the backbone, in the published pattern; 0: all. Results are of these layers, not scaled")
        ->check(CLI::Range(0, 1024))
        ->capture_default_str();
    command.add_option("--threads", threads, "Threads of a forward pass; 0: every core")
        ->check(CLI::Range(0, kThreadsMax))
        ->capture_default_str();
    command.add_flag("--json", json, "Print one JSON object");
  }
  WeightType weight_type() const { return or_throw(parse_weight_type(dtype)); }
  int thread_count() const { return threads > 0 ? threads : static_cast<int>(std::thread::hardware_concurrency()); }
};

std::vector<TokenId> random_tokens(CounterRng& rng, std::int64_t count, const TextConfig& config) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(config.vocab_size)));
  return tokens;
}

double ms_since(TimePoint start) { return to_seconds(now() - start) * 1e3; }

/// Shares of a forward pass by part: the time up to a named intermediate belongs to what computed it.
class Profile {
 public:
  void start() { last_ = now(); }
  void note(const std::string& name) {
    const TimePoint time = now();
    const auto part =
        std::find_if(std::begin(kParts), std::end(kParts), [&](const auto& p) { return name.ends_with(p.suffix); });
    seconds_[part == std::end(kParts) ? "other" : part->part] += to_seconds(time - last_);
    last_ = now();  // looking the name up costs nobody
  }
  std::map<std::string, double> shares() const {
    double all = 0;
    for (const auto& [part, seconds] : seconds_) all += seconds;
    std::map<std::string, double> shares;
    for (const auto& [part, seconds] : seconds_) shares[part] = seconds / all;
    return shares;
  }

 private:
  struct Part {
    const char *suffix, *part;
  };
  /// The first that fits counts. A part is everything since the intermediate before.
  static constexpr Part kParts[] = {{".input_normed", "norms"},    {".qkv", "qkv"},
                                    {".q_rotated", "rope"},        {".attention_heads", "attention"},
                                    {".attention_output", "o"},    {".after_attention", "norms"},
                                    {".mlp_input", "norms"},       {".gate_up", "mlp"},
                                    {".product", "gelu"},          {".down", "mlp"},
                                    {".dense_normed", "norms"},    {".experts_input", "norms"},
                                    {".router.weights", "router"}, {".experts_output", "experts"},
                                    {".experts_normed", "norms"},  {".after_feedforward", "norms"},
                                    {".after_ple", "ple"},         {"ple", "ple"},
                                    {"final_normed", "norms"},     {"logits", "head"},
                                    {"verify", "verify"}};
  std::map<std::string, double> seconds_;
  TimePoint last_;
};

constexpr int kDraftThreads = 1;

/// Milliseconds of one greedy draft step.
double draft_step_ms(const ShapeModels& models, Position context, int threads) {
  double best = 1e9;
  std::thread([&] {
    omp_set_num_threads(threads);
    const std::unique_ptr<Assistant> assistant = models.assistant();
    DonorReplica replica = assistant->make_replica();
    fill_context(replica, context);
    CounterRng rng(7);
    const std::vector<float> hidden(static_cast<std::size_t>(models.backbone_config.hidden_size), 1.0f);
    constexpr std::int64_t kSteps = 4;
    for (int i = 0; i < 20; ++i) {
      const TokenId token = random_tokens(rng, 1, models.backbone_config)[0];
      const TimePoint start = now();
      assistant->draft(token, hidden, replica, context, kSteps, {});
      best = std::min(best, ms_since(start) / kSteps);
    }
  }).join();
  return best;
}

void bench_engine(const EngineFlags& flags) {
  init_logging("outrider", "warn");
  const ShapeModels models = shape_models(flags.shape, flags.weight_type(), flags.layers);
  const int threads = flags.thread_count();
  omp_set_num_threads(threads);
  const ReadBandwidth read_bandwidth;
  double bandwidth = 0;
  std::vector<std::int64_t> counts = flags.rows;
  counts.push_back(1);  // what the others are set beside
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  const std::unique_ptr<Backbone> backbone = models.backbone(std::max(counts.back(), kPrefillChunk));
  const TextConfig& config = backbone->config();

  // Side by side, so that a noisy neighbour slows all alike; the best of each counts.
  CounterRng rng(1);
  KvCache cache = backbone->make_cache();
  fill_context(cache, flags.context);
  std::map<std::int64_t, double> best_ms;
  std::map<std::int64_t, Profile> profiles;
  for (int i = 0; i <= flags.repeat; ++i) {  // one more: the first maps pages and grows buffers
    bandwidth = std::max(bandwidth, read_bandwidth.pass_gb_s());
    for (const std::int64_t count : counts) {
      const std::vector<TokenId> tokens = random_tokens(rng, count, config);
      const Segment segment{&cache, tokens, count};
      const TimePoint start = now();
      backbone->forward({&segment, 1});
      const double ms = ms_since(start);
      cache.truncate(flags.context);
      if (i > 0) best_ms[count] = best_ms.contains(count) ? std::min(best_ms[count], ms) : ms;
      if (i == 0 || !flags.profile) continue;
      Profile& profile = profiles[count];
      const TraceSink trace = [&](const std::string& name, Matrix<const float>) { profile.note(name); };
      profile.start();
      const Backbone::Output output = backbone->forward({&segment, 1}, &trace);
      for (std::int64_t r = 0; r < count; ++r) argmax(output.logits[r].span());
      profile.note("verify");
      cache.truncate(flags.context);
    }
  }
  nlohmann::json prefill = nlohmann::json::object();
  for (const std::int64_t length : flags.prefill) {
    double best = 1e9;
    const std::vector<TokenId> prompt = random_tokens(rng, length, config);
    for (int i = 0; i < std::min(flags.repeat, 2); ++i) {
      KvCache fresh = backbone->make_cache();
      const TimePoint start = now();
      for (std::int64_t at = 0; at < length; at += kPrefillChunk) {
        const auto chunk = std::span(prompt).subspan(static_cast<std::size_t>(at),
                                                     static_cast<std::size_t>(std::min(kPrefillChunk, length - at)));
        const Segment segment{&fresh, chunk, at + kPrefillChunk >= length ? 1 : 0};
        backbone->forward({&segment, 1});
      }
      best = std::min(best, ms_since(start));
    }
    prefill[std::to_string(length)] = static_cast<double>(length) / best * 1e3;
  }
  nlohmann::json draft_ms = nlohmann::json::object(), draft_ms_2_threads = nlohmann::json::object();
  for (const Position context : kDraftContexts) {
    draft_ms[std::to_string(context)] = draft_step_ms(models, context, kDraftThreads);
    draft_ms_2_threads[std::to_string(context)] = draft_step_ms(models, context, 2);
  }

  nlohmann::json forward_ms = nlohmann::json::object(), ratio = nlohmann::json::object();
  for (const auto& [count, ms] : best_ms) {
    forward_ms[std::to_string(count)] = ms;
    if (count != 1) ratio[std::to_string(count)] = ms / best_ms[1];
  }
  const double decode = 1e3 / best_ms[1], bytes = static_cast<double>(backbone->weight_bytes());
  nlohmann::json report = {{"shape", flags.shape},
                           {"dtype", flags.dtype},
                           {"layers", config.num_hidden_layers},
                           {"layers_of_shape", models.layers_of_shape},
                           {"isa", to_string(active_isa())},
                           {"threads", threads},
                           {"onednn", onednn_version()},
                           {"gemm", backbone->gemm_implementation()},
                           {"context", flags.context},
                           {"read_bandwidth_gb_s", bandwidth},
                           {"weight_bytes_per_token", backbone->weight_bytes()},
                           {"decode_tok_s", decode},
                           {"bandwidth_share", bytes * decode / 1e9 / bandwidth},
                           {"forward_ms", forward_ms},
                           {"t_ratio", ratio},
                           {"prefill_tok_s", prefill},
                           {"draft_step_ms", draft_ms},
                           {"draft_step_ms_2_threads", draft_ms_2_threads}};
  if (flags.profile) {
    for (const auto& [count, profile] : profiles) report["profile"][std::to_string(count)] = profile.shares();
  }
  if (flags.json) {
    std::printf("%s\n", report.dump(2).c_str());
    return;
  }
  std::printf("%s, %s, %d of %d layers (not scaled), %s, %d threads, oneDNN %s, %s, read bandwidth %.1f GB/s\n",
              flags.shape.c_str(), flags.dtype.c_str(), config.num_hidden_layers, models.layers_of_shape,
              to_string(active_isa()), threads, onednn_version().c_str(), backbone->gemm_implementation().c_str(),
              bandwidth);
  std::printf("decode at context %lld: %.2f tok/s, %.0f MB of weights per token, %.2f of the read bandwidth\n",
              static_cast<long long>(flags.context), decode, bytes / 1e6, bytes * decode / 1e9 / bandwidth);
  for (const auto& [count, ms] : best_ms)
    std::printf("%3d rows %9.2f ms  %5.2f times one row\n", static_cast<int>(count), ms, ms / best_ms[1]);
  for (const auto& [length, speed] : prefill.items())
    std::printf("prefill of %s: %.1f tok/s\n", length.c_str(), speed.get<double>());
  for (const auto& [context, ms] : draft_ms.items()) {
    std::printf("draft step at context %s: %.3f ms, with 2 threads %.3f\n", context.c_str(), ms.get<double>(),
                draft_ms_2_threads[context].get<double>());
  }
  for (const auto& [count, profile] : profiles) {
    std::printf("%3d rows:", static_cast<int>(count));
    for (const auto& [part, share] : profile.shares()) std::printf("  %s %.1f %%", part.c_str(), share * 100);
    std::printf("\n");
  }
}

struct SpeculativeFlags {
  EngineFlags engine;
  std::vector<double> acceptance = {0.84, 0.60, 0.39, 0.27};
  std::int64_t draft_length = 0;
  int rounds = 20;
};

void bench_speculative(const SpeculativeFlags& flags) {
  init_logging("outrider", "warn");
  const std::vector<double>& acceptance = flags.acceptance;
  if (!std::is_sorted(acceptance.rbegin(), acceptance.rend()) || acceptance.front() > 1 || acceptance.back() < 0) {
    throw std::runtime_error(fmt::format("--synthetic-acceptance {}, wanted rates from 1 to 0 that do not rise",
                                         fmt::join(acceptance, ",")));
  }
  const auto draft_length = flags.draft_length > 0 ? flags.draft_length : static_cast<std::int64_t>(acceptance.size());
  if (draft_length > static_cast<std::int64_t>(acceptance.size())) {
    throw std::runtime_error(
        fmt::format("--draft-length {}, but --synthetic-acceptance has {} rates", draft_length, acceptance.size()));
  }
  const int threads = flags.engine.thread_count();
  omp_set_num_threads(threads);
  const ShapeModels models = shape_models(flags.engine.shape, flags.engine.weight_type(), flags.engine.layers);
  const std::unique_ptr<Backbone> backbone = models.backbone(kPrefillChunk);
  // The assistant's matrices are too small for a second thread to pay. oneDNN makes its code for the threads it sees.
  omp_set_num_threads(kDraftThreads);
  const std::unique_ptr<Assistant> assistant = models.assistant();
  omp_set_num_threads(threads);
  KvCache cache = backbone->make_cache();
  fill_context(cache, flags.engine.context);
  DonorReplica replica = assistant->make_replica();
  fill_context(replica, flags.engine.context);

  CounterRng rng(1);
  TokenId token = 2;
  std::vector<float> hidden(static_cast<std::size_t>(backbone->config().hidden_size), 1.0f);
  std::vector<double> plain_ms, round_ms, draft_ms, step_ms, verify_ms;
  std::int64_t tokens = 0;
  for (int i = 0; i <= flags.rounds; ++i) {  // the first one maps pages and grows buffers
    // A plain step, what a round is made of by itself, and a round, all from the same place: side by side on a noisy
    // machine.
    const Position base = cache.length();
    const auto forward_ms = [&](std::int64_t count) {
      const std::vector<TokenId> repeated(static_cast<std::size_t>(count), token);
      const Segment segment{&cache, repeated, count};
      const TimePoint start = now();
      const Backbone::Output output = backbone->forward({&segment, 1});
      for (std::int64_t r = 0; r < count; ++r) argmax(output.logits[r].span());
      const double ms = ms_since(start);
      cache.truncate(base);
      return ms;
    };
    const double plain_time = forward_ms(1), verify_time = forward_ms(draft_length + 1);
    omp_set_num_threads(kDraftThreads);
    const TimePoint step_start = now();
    assistant->draft(token, hidden, replica, base, 1, {});
    const double step_time = ms_since(step_start);

    const TimePoint start = now();
    std::vector<TokenId> rows = assistant->draft(token, hidden, replica, base, draft_length, {});
    omp_set_num_threads(threads);
    const double draft_time = ms_since(start);
    rows.insert(rows.begin(), token);
    const Segment segment{&cache, rows, static_cast<std::int64_t>(rows.size())};
    const Backbone::Output output = backbone->forward({&segment, 1});
    // The coin says how many drafts the rule keeps; what it costs is an argmax of each kept row and the next.
    const double coin = rng.uniform();
    const auto accepted =
        std::count_if(acceptance.begin(), acceptance.begin() + draft_length, [&](double rate) { return coin < rate; });
    for (std::int64_t r = 0; r <= accepted; ++r) token = static_cast<TokenId>(argmax(output.logits[r].span()));
    const auto next = output.hidden[accepted].span();
    hidden.assign(next.begin(), next.end());
    cache.truncate(base + accepted + 1);
    replica.extend(*backbone, cache, cache.length());
    const double round_time = ms_since(start);
    if (i == 0) continue;
    plain_ms.push_back(plain_time);
    verify_ms.push_back(verify_time);
    step_ms.push_back(step_time);
    draft_ms.push_back(draft_time / static_cast<double>(draft_length));
    round_ms.push_back(round_time);
    tokens += accepted + 1;
  }
  const double plain = median(plain_ms), round = median(round_ms),
               tokens_per_round = static_cast<double>(tokens) / flags.rounds;
  // The closed form over the rates that were asked for and the parts that were timed alone. Nothing of a round is in
  // it.
  const double tau = std::accumulate(acceptance.begin(), acceptance.begin() + draft_length, 1.0);
  const RoundTerms predicted{.verify_s = median(verify_ms) / 1e3,
                             .draft_s = static_cast<double>(draft_length) * median(step_ms) / 1e3};
  const nlohmann::json report = {{"synthetic", true},
                                 {"synthetic_acceptance", acceptance},
                                 {"draft_length", draft_length},
                                 {"rounds", flags.rounds},
                                 {"shape", flags.engine.shape},
                                 {"dtype", flags.engine.dtype},
                                 {"layers", backbone->config().num_hidden_layers},
                                 {"layers_of_shape", models.layers_of_shape},
                                 {"isa", to_string(active_isa())},
                                 {"threads", threads},
                                 {"onednn", onednn_version()},
                                 {"context", flags.engine.context},
                                 {"plain_step_ms", plain},
                                 {"round_ms", round},
                                 {"assistant_draft_ms_per_token", median(draft_ms)},
                                 {"backbone_only_tok_per_sec", 1e3 / plain},
                                 {"speculative_tok_per_sec", tokens_per_round / round * 1e3},
                                 {"tokens_per_round", tokens_per_round},
                                 {"predicted_tokens_per_round", tau},
                                 {"predicted_round_ms", predicted.seconds() * 1e3},
                                 {"predicted_tok_per_sec", tokens_per_second(tau, predicted)}};
  if (flags.engine.json) {
    std::printf("%s\n", report.dump(2).c_str());
    return;
  }
  std::printf("synthetic: drafts are accepted by a coin at cumulative rates %s\n",
              fmt::format("{}", fmt::join(acceptance, ", ")).c_str());
  for (const auto& [key, value] : report.items()) std::printf("%s %s\n", key.c_str(), value.dump().c_str());
}

}  // namespace

void add_bench_engine_commands(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "engine", "Forward passes on random weights of a published shape, against the read bandwidth");
  auto flags = std::make_shared<EngineFlags>();
  flags->add_to(*command);
  command->add_option("--rows", flags->rows, "Rows of a forward pass, logits of all")
      ->delimiter(',')
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--prefill", flags->prefill, "Lengths of prompts")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--repeat", flags->repeat, "Times each is measured; the best counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--profile", flags->profile, "Share of each part of a forward pass");
  command->callback([flags] { bench_engine(*flags); });

  CLI::App* speculative =
      bench.add_subcommand("speculative", "Whole rounds on random weights; drafts are accepted by a coin");
  auto round = std::make_shared<SpeculativeFlags>();
  round->engine.add_to(*speculative);
  speculative
      ->add_option("--synthetic-acceptance", round->acceptance,
                   "Rate at which at least 1, 2, ... drafts of a round are accepted")
      ->delimiter(',')
      ->capture_default_str();
  speculative->add_option("--draft-length", round->draft_length, "Drafts of a round; 0: one for each rate")
      ->check(CLI::Range(0, 32))
      ->capture_default_str();
  speculative->add_option("--rounds", round->rounds, "Rounds; times are their medians")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  speculative->callback([round] { bench_speculative(*round); });
}

}  // namespace outrider
