// bench engine and bench speculative: costs of forward passes, on random weights of a published shape.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/random.h"
#include "common/base/time.h"
#include "common/compute/kernels/ops.h"
#include "common/compute/kernels/team.h"
#include "common/decoding/drafting/round_cost.h"
#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/backbone.h"
#include "common/os/logging.h"
#include "common/pair/pair_files.h"
#include "drafter-node/drafter_node.h"
#include "lab/in_process_pair.h"
#include "lab/random_weights.h"
#include "lab/read_bandwidth.h"
#include "lab/reporting.h"
#include "lab/shapes.h"
#include "lab/statistics.h"
#include "launch/cluster_flags.h"
#include "launch/model_flags.h"

namespace outrider {
namespace {

// ---- models ----

/// A model pair of a published shape (lab/shapes.h), or nano's, with random weights.
struct ShapeModels {
  std::string name;
  int layers_of_shape;  ///< the published number, whatever `layers` is
  TextConfig backbone_config;
  AssistantConfig assistant_config;
  std::shared_ptr<const WeightSource> backbone_weights, assistant_weights;

  std::unique_ptr<Backbone> backbone(std::int64_t rows_max) const {
    return or_throw(Backbone::load(backbone_config, backbone_weights, rows_max));
  }
  /// @param draft_vocabulary  as for Assistant; it suffices, as if texts used few tokens
  std::unique_ptr<Assistant> assistant(std::int64_t draft_vocabulary = kDraftVocabularySize) const {
    std::unique_ptr<Assistant> model = or_throw(
        Assistant::load(assistant_config, assistant_weights, backbone_config, *backbone_weights, draft_vocabulary));
    if (DraftVocabulary* const learning = model->draft_vocabulary(); learning != nullptr)
      learning->learn(std::vector<TokenId>(1000, 0), /*answer=*/true);
    return model;
  }
};

/// @param layers  of the backbone, in the published pattern; 0: all. Throws a one-line message.
ShapeModels shape_models(const std::string& name, WeightType type, int layers) {
  ShapeModels models{.name = name,
                     .layers_of_shape = 0,
                     .backbone_config = {},
                     .assistant_config = {},
                     .backbone_weights = random_weights(type, "random " + name),
                     .assistant_weights = random_weights(type, "random " + name + " assistant")};
  if (name == "nano") {
    const PairPaths nano = or_throw(pair_paths({}));
    models.backbone_config = or_throw(load_text_config(open_model(nano.backbone)));
    models.assistant_config = or_throw(load_assistant_config(open_model(nano.assistant)));
    models.layers_of_shape = models.backbone_config.num_hidden_layers;
    if (layers != 0 && layers != models.layers_of_shape) {
      throw CommandError("--layers {} of nano, wanted all {}, since nano's layers do not repeat", layers,
                         models.layers_of_shape);
    }
    return models;
  }
  Result<ModelShape> known = published_shape(name);
  if (!known) throw std::runtime_error(known.error().message + ", or nano");
  ModelShape shape = *known;
  models.layers_of_shape = shape.num_hidden_layers;
  if (layers > shape.num_hidden_layers)
    throw CommandError("--layers {} of {}, which has {}", layers, name, shape.num_hidden_layers);
  if (layers > 0) shape = reduced(shape, layers);
  models.backbone_config = or_throw(parse_text_config(backbone_config_json(shape), name));
  models.assistant_config = or_throw(parse_assistant_config(assistant_config_json(shape), name));
  return models;
}

/// Values of a normed row: root mean square 1.
std::vector<float> random_row(std::size_t size, CounterRng& rng) {
  std::vector<float> row(size);
  for (float& x : row) x = static_cast<float>(rng.uniform() * 2 - 1) * 1.73f;
  return row;
}

void fill(LayerKv& layer, Position first, Position end) {
  constexpr std::size_t kRows = 61;  // a prime: rows repeat, but not in step with anything
  CounterRng rng(61);
  const auto width = static_cast<std::size_t>(layer.num_key_value_heads() * layer.head_dim());
  std::vector<std::vector<float>> rows;
  for (std::size_t i = 0; i <= kRows; ++i) rows.push_back(random_row(width, rng));
  layer.reserve(end);
  for (Position p = first; p < end; ++p)
    layer.write(p, rows[static_cast<std::size_t>(p) % kRows], rows[static_cast<std::size_t>(p) % kRows + 1]);
}

/// Fills positions [cache.length(), end) with random K/V: the time of a forward does not depend on their values.
void fill_context(KvCache& cache, Position end) {
  const Position first = cache.length();
  while (cache.length() < end) cache.extend(std::min<std::int64_t>(cache.rows_max(), end - cache.length()));
  for (std::size_t i = 0; i < cache.layer_count(); ++i) fill(cache.layer(i), first, end);
}

/// The same for an assistant's copy of the donors' rows.
void fill_context(DonorReplica& replica, Position end) {
  fill(replica.sliding, replica.length, end);
  fill(replica.full, replica.length, end);
  replica.length = end;
}

// ---- flags and reports ----

/// Lengths of the sequences after which drafting is timed.
constexpr std::array<Position, 2> kDraftContexts = {512, 8192};

/// Common flags of both commands.
struct ShapeFlags {
  ReportFlags report;
  std::string shape = "e4b", dtype = "int4";
  Position context = 128;
  int layers = 0;
  VerifierOptions verifier;

  void add_to(Command& command) {
    command.add_option("--shape", shape, published_names() + ", or nano")->capture_default_str();
    ModelFlags::add_dtype(command, dtype);
    add_number(command, "--context", context, 1, 1 << 20, "Positions in the K/V cache before the measured rows");
    add_number(command, "--layers", layers, 0, 1024,
               "Layers of the backbone, in the published pattern; 0: all. Results are for these layers, not scaled");
    add_node_options(command, verifier, named({"--threads"}));
    report.add_to(command);
  }
  ShapeModels models() const { return shape_models(shape, or_throw(parse_weight_type(dtype)), layers); }
};

/// Returns the start of both reports: the models and the machine.
Row subject(const ShapeFlags& flags, const ShapeModels& models) {
  Row row = {{"shape", flags.shape},
             {"dtype", flags.dtype},
             {"layers", models.backbone_config.num_hidden_layers},
             {"layers_of_shape", models.layers_of_shape},
             {"context", flags.context}};
  row.add(machine_row(thread_count(flags.verifier.threads)));
  return row;
}

std::vector<TokenId> random_tokens(CounterRng& rng, std::int64_t count, const TextConfig& config) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(config.vocab_size)));
  return tokens;
}

double ms_since(TimePoint start) { return to_seconds(now() - start) * 1e3; }

/// Shares of a forward pass by part: the time up to a named intermediate belongs to the part that computed it.
class Profile {
 public:
  void start() { last_ = now(); }
  void note(const std::string& name) {
    const TimePoint time = now();
    const auto part =
        std::find_if(std::begin(kParts), std::end(kParts), [&](const auto& p) { return name.ends_with(p.suffix); });
    seconds_[part == std::end(kParts) ? "other" : part->part] += to_seconds(time - last_);
    last_ = now();  // excludes the name's look-up
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
  /// The first match counts. A part is everything since the previous intermediate.
  static constexpr Part kParts[] = {{".input_normed", "norms"},    {".qkv", "qkv"},
                                    {".q_rotated", "rope"},        {".attention_heads", "attention"},
                                    {".attention_output", "o"},    {".after_attention", "norms"},
                                    {".mlp_input", "norms"},       {".gate_up", "mlp"},
                                    {".product", "gelu"},          {".down", "mlp"},
                                    {".dense_normed", "norms"},    {".experts_input", "norms"},
                                    {".router.input", "router"},   {".experts_output", "experts"},
                                    {".experts_normed", "norms"},  {".after_feedforward", "norms"},
                                    {".after_ple", "ple"},         {"ple", "ple"},
                                    {"final_normed", "norms"},     {"logits", "head"},
                                    {"verify", "verify"}};
  std::map<std::string, double> seconds_;
  TimePoint last_;
};

constexpr int kDraftThreads = 1;

/// Returns the milliseconds of one greedy draft step.
double draft_step_ms(const ShapeModels& models, Position context, int threads, std::int64_t draft_vocabulary) {
  double best = 1e9;
  std::thread([&] {
    set_team_size(threads);
    const std::unique_ptr<Assistant> assistant = models.assistant(draft_vocabulary);
    DonorReplica replica = assistant->make_replica();
    fill_context(replica, context);
    CounterRng rng(7);
    const std::vector<float> hidden(static_cast<std::size_t>(models.backbone_config.hidden_size), 1.0f);
    constexpr std::int64_t kSteps = 4;
    for (int i = 0; i < 20; ++i) {
      const TokenId token = random_tokens(rng, 1, models.backbone_config)[0];
      const TimePoint start = now();
      assistant->draft({token, hidden, replica, kSteps});
      best = std::min(best, ms_since(start) / kSteps);
    }
  }).join();
  return best;
}

struct EngineFlags {
  ShapeFlags shape;
  std::vector<std::int64_t> rows = {1, 2, 3, 4, 5, 8, 9, 16, 32}, prefill = {128, 512};
  int repeat = 5;
  bool profile = false;
};

/// Times of forward passes by number of rows.
struct ForwardTimes {
  double read_bandwidth_gb_s = 0;
  std::map<std::int64_t, double> ms;
  std::map<std::int64_t, Profile> profiles;
};

/// Times forward passes of each number of rows and the read bandwidth in turns, so that a noisy neighbour affects all
/// alike. The best of each counts.
ForwardTimes time_forwards(const EngineFlags& flags, const std::vector<std::int64_t>& counts, Backbone& backbone) {
  ForwardTimes times;
  const ReadBandwidth read_bandwidth;
  InProcessPair text(backbone);
  fill_context(text.cache(), flags.shape.context);
  CounterRng rng(1);
  for (int i = 0; i <= flags.repeat; ++i) {  // one more: the first maps pages and grows buffers
    times.read_bandwidth_gb_s = std::max(times.read_bandwidth_gb_s, read_bandwidth.pass_gb_s());
    for (const std::int64_t count : counts) {
      const std::vector<TokenId> tokens = random_tokens(rng, count, backbone.config());
      const TimePoint start = now();
      text.forward(tokens, count);
      const double ms = ms_since(start);
      text.truncate(flags.shape.context);
      if (i == 0) continue;
      const auto best = times.ms.try_emplace(count, ms).first;
      best->second = std::min(best->second, ms);
      if (!flags.profile) continue;
      Profile& profile = times.profiles[count];
      const TraceSink trace = [&](const std::string& name, Matrix<const float>) { profile.note(name); };
      profile.start();
      const Backbone::Output& output = text.forward(tokens, count, &trace);
      for (std::int64_t r = 0; r < count; ++r) argmax(output.logits[r].span());
      profile.note("verify");
      text.truncate(flags.shape.context);
    }
  }
  return times;
}

/// Returns the tokens per second of a prompt; the best of a few.
double prefill_tok_s(Backbone& backbone, std::int64_t length, int repeat) {
  CounterRng rng(static_cast<std::uint64_t>(length));
  const std::vector<TokenId> prompt = random_tokens(rng, length, backbone.config());
  double best = 1e9;
  for (int i = 0; i < std::min(repeat, 2); ++i) {
    InProcessPair text(backbone);
    const TimePoint start = now();
    text.prefill(prompt);
    best = std::min(best, ms_since(start));
  }
  return static_cast<double>(length) / best * 1e3;
}

void bench_engine(const EngineFlags& flags) {
  init_logging("outrider", "warn");
  const ShapeModels models = flags.shape.models();
  set_team_size(thread_count(flags.shape.verifier.threads));
  std::vector<std::int64_t> counts = flags.rows;
  counts.push_back(1);  // the baseline of the others
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  const std::unique_ptr<Backbone> backbone = models.backbone(kRowsMax);
  const ForwardTimes times = time_forwards(flags, counts, *backbone);
  const double one_row_ms = times.ms.at(1), decode = 1e3 / one_row_ms;
  const double share = static_cast<double>(backbone->weight_bytes()) * decode / 1e9 / times.read_bandwidth_gb_s;
  Row forward_ms, t_ratio, prefill, draft_ms, draft_ms_2_threads, draft_ms_all_tokens, profile;
  for (const auto& [count, ms] : times.ms) {
    forward_ms.push_back({std::to_string(count), ms});
    if (count != 1) t_ratio.push_back({std::to_string(count), ms / one_row_ms});
  }
  for (const auto& [count, parts] : times.profiles) profile.push_back({std::to_string(count), parts.shares()});
  for (const std::int64_t length : flags.prefill)
    prefill.push_back({std::to_string(length), prefill_tok_s(*backbone, length, flags.repeat)});
  for (const Position context : kDraftContexts) {
    const std::string name = std::to_string(context);
    draft_ms.push_back({name, draft_step_ms(models, context, kDraftThreads, kDraftVocabularySize)});
    draft_ms_2_threads.push_back({name, draft_step_ms(models, context, 2, kDraftVocabularySize)});
    draft_ms_all_tokens.push_back({name, draft_step_ms(models, context, 2, 0)});
  }
  Row report = subject(flags.shape, models);
  report.add({{"gemm", backbone->gemm_implementation()},
              {"read_bandwidth_gb_s", times.read_bandwidth_gb_s},
              {"weight_bytes_per_token", backbone->weight_bytes()},
              {"decode_tok_s", decode},
              {"bandwidth_share", share},
              {"forward_ms", forward_ms},
              {"t_ratio", t_ratio},
              {"prefill_tok_s", prefill},
              {"draft_step_ms", draft_ms},
              {"draft_step_ms_2_threads", draft_ms_2_threads},
              {"draft_step_ms_2_threads_all_tokens", draft_ms_all_tokens}});
  if (flags.profile) report.push_back({"profile", profile});
  write_report(flags.shape.report, report, key_lines(report));
}

struct SpeculativeFlags {
  ShapeFlags shape;
  std::vector<double> acceptance = {0.84, 0.60, 0.39, 0.27};
  std::int64_t draft_length = 0;
  int rounds = 20;

  /// Checks the options together, and chooses a default draft length.
  void settle() {
    if (!std::is_sorted(acceptance.rbegin(), acceptance.rend()) || acceptance.front() > 1 || acceptance.back() < 0) {
      throw CommandError("--synthetic-acceptance {}, wanted non-increasing rates between 0 and 1",
                         fmt::join(acceptance, ","));
    }
    if (draft_length == 0) draft_length = std::ssize(acceptance);
    if (draft_length > kDraftLengthMax)
      throw CommandError("--synthetic-acceptance has {} rates, wanted at most {}", draft_length, kDraftLengthMax);
    if (draft_length > std::ssize(acceptance))
      throw CommandError("--draft-length {}, but --synthetic-acceptance has {} rates", draft_length, acceptance.size());
  }
};

/// Times of rounds and of their parts, in ms.
struct RoundTimes {
  std::vector<double> plain, verify, draft_step, draft_per_token, round;
  std::int64_t tokens = 0;
};

/// Runs `work` with as many threads as the drafter would have. @param threads  the verifier's
template <typename Work>
auto on_draft_threads(const Assistant& assistant, int threads, Work work) {
  set_team_size(threads_worth(assistant.weight_bytes(), threads));
  auto result = work();
  set_team_size(threads);
  return result;
}

/// Times a plain step, the parts of a round by themselves, and a round, all from the same state and in turns, since the
/// machine may be noisy.
void time_round(InProcessPair& pair, const Assistant& assistant, const SpeculativeFlags& flags, int threads,
                double coin, RoundTimes& times) {
  const auto choose = [](const Backbone::Output& output, std::int64_t rows) {
    TokenId token = 0;
    for (std::int64_t r = 0; r < rows; ++r) token = static_cast<TokenId>(argmax(output.logits[r].span()));
    return token;
  };
  const auto forward_ms = [&](std::int64_t drafts) {
    const Position base = pair.length();
    const TimePoint start = now();
    choose(pair.verify(std::vector<TokenId>(static_cast<std::size_t>(drafts), pair.token())), drafts + 1);
    const double ms = ms_since(start);
    pair.truncate(base);
    return ms;
  };
  times.plain.push_back(forward_ms(0));
  times.verify.push_back(forward_ms(flags.draft_length));
  times.draft_step.push_back(on_draft_threads(assistant, threads, [&] {
    const TimePoint start = now();
    pair.draft(1);
    return ms_since(start);
  }));

  const TimePoint start = now();
  const std::vector<TokenId> drafts =
      on_draft_threads(assistant, threads, [&] { return pair.draft(flags.draft_length); });
  times.draft_per_token.push_back(ms_since(start) / static_cast<double>(flags.draft_length));
  const Backbone::Output& output = pair.verify(drafts);
  // The random number decides how many drafts are accepted; its cost is an argmax of each kept row and the next.
  const auto accepted = std::count_if(flags.acceptance.begin(), flags.acceptance.begin() + flags.draft_length,
                                      [&](double rate) { return coin < rate; });
  pair.keep(accepted, choose(output, accepted + 1));
  times.round.push_back(ms_since(start));
  times.tokens += accepted + 1;
}

void report_speculative(const SpeculativeFlags& flags, const ShapeModels& models, const RoundTimes& times) {
  const double plain = median(times.plain), round = median(times.round),
               tokens_per_round = static_cast<double>(times.tokens) / flags.rounds;
  // The closed form over the requested rates and the parts that were timed alone, without any measured round.
  const double tau = std::accumulate(flags.acceptance.begin(), flags.acceptance.begin() + flags.draft_length, 1.0);
  const RoundTerms predicted{.verify_s = median(times.verify) / 1e3,
                             .draft_s = static_cast<double>(flags.draft_length) * median(times.draft_step) / 1e3};
  Row row = subject(flags.shape, models);
  row.add({{"synthetic", true},
           {"synthetic_acceptance", flags.acceptance},
           {"draft_length", flags.draft_length},
           {"rounds", flags.rounds},
           {"plain_step_ms", plain},
           {"round_ms", round},
           {"assistant_draft_ms_per_token", median(times.draft_per_token)},
           {"backbone_only_tok_per_sec", 1e3 / plain},
           {"speculative_tok_per_sec", tokens_per_round / round * 1e3},
           {"tokens_per_round", tokens_per_round},
           {"predicted_tokens_per_round", tau},
           {"predicted_round_ms", predicted.seconds() * 1e3},
           {"predicted_tok_per_sec", tokens_per_second(tau, predicted)}});
  write_report(flags.shape.report, row, key_lines(row));
}

void bench_speculative(SpeculativeFlags flags) {
  init_logging("outrider", "warn");
  flags.settle();
  const ShapeModels models = flags.shape.models();
  const int threads = thread_count(flags.shape.verifier.threads);
  set_team_size(threads);
  const std::unique_ptr<Backbone> backbone = models.backbone(kRowsMax);
  const std::unique_ptr<Assistant> assistant = models.assistant();
  InProcessPair pair(*backbone, assistant.get());
  fill_context(pair.cache(), flags.shape.context);
  fill_context(pair.replica(), flags.shape.context);
  const TokenId first = 2;
  pair.prefill({&first, 1});

  CounterRng coin(1);
  RoundTimes warm_up, times;  // the first round maps pages and grows buffers
  for (int i = 0; i <= flags.rounds; ++i) {
    time_round(pair, *assistant, flags, threads, coin.uniform(), i == 0 ? warm_up : times);
  }
  report_speculative(flags, models, times);
}

}  // namespace

void add_bench_engine_commands(Command& bench) {
  Command* command = bench.add_subcommand(
      "engine", "Time forward passes with random weights of a published shape, and compare with the read bandwidth");
  auto flags = std::make_shared<EngineFlags>();
  flags->shape.add_to(*command);
  add_number(*command, "--rows", flags->rows, 1, 256, "Rows of a forward pass, all with logits");
  add_number(*command, "--prefill", flags->prefill, 1, 1 << 20, "Prompt lengths");
  add_number(*command, "--repeat", flags->repeat, 1, 1000, "Number of measurements; the best is reported");
  command->add_flag("--profile", flags->profile, "Print the share of each part of a forward pass");
  command->callback([flags] { bench_engine(*flags); });

  Command* speculative =
      bench.add_subcommand("speculative", "Time whole rounds with random weights; drafts are accepted at random");
  auto round = std::make_shared<SpeculativeFlags>();
  round->shape.add_to(*speculative);
  speculative
      ->add_option("--synthetic-acceptance", round->acceptance,
                   "Rate at which at least 1, 2, ... drafts of a round are accepted")
      ->delimiter(',')
      ->capture_default_str();
  add_number(*speculative, "--draft-length", round->draft_length, 0, 32, "Drafts per round; 0: one per rate");
  add_number(*speculative, "--rounds", round->rounds, 1, 100000, "Number of rounds; times are medians");
  speculative->callback([round] { bench_speculative(*round); });
}

}  // namespace outrider
