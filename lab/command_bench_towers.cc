// bench towers: the time of a picture and a sound before the text model, on random weights of published towers, or of
// 12B's replacements.
#include <algorithm>

#include <fmt/format.h>

#include "common/base/random.h"
#include "common/base/time.h"
#include "common/compute/kernels/team.h"
#include "common/model/audio/sound_encoder.h"
#include "common/model/gemma4/tower.h"
#include "common/model/vision/picture_encoder.h"
#include "common/os/logging.h"
#include "lab/random_weights.h"
#include "lab/reporting.h"
#include "lab/shapes.h"
#include "launch/model_flags.h"

namespace outrider {
namespace {

/// The two published vision towers (gemma4.md 8.2), the small models' audio tower (9.2), and 12B, without towers (8.4,
/// 9.4).
constexpr const char* kSmall = R"({{"vision_config": {{"use_clipped_linears": true}}, "audio_config": {{}},
                                    "text_config": {{"hidden_size": {}}}}})";
constexpr const char* kLarge =
    R"({{"vision_config": {{"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
         "num_attention_heads": 16, "head_dim": 72, "standardize": true}}, "text_config": {{"hidden_size": {}}}}})";
constexpr const char* kUnified = R"({{"vision_config": {{"model_type": "gemma4_unified_vision"}},
                                      "audio_config": {{"model_type": "gemma4_unified_audio"}},
                                      "text_config": {{"hidden_size": {}}}}})";

struct TowerFlags {
  std::string shape = "e4b", dtype = "int8";
  std::int64_t width = 1024, height = 768, soft_tokens = kSoftTokensDefault, seconds = 10;
  int threads = 0, layers = 0, repeat = 3;
  ReportFlags report;
};

std::string config_json(const ModelShape& shape) {
  const bool unified = std::string(shape.model_type) != "gemma4", small = shape.hidden_size_per_layer_input > 0;
  return fmt::format(fmt::runtime(unified ? kUnified : small ? kSmall : kLarge), shape.hidden_size);
}

template <class Config>
Config cut(Config config, int layers) {
  if (layers > 0) config.num_hidden_layers = std::min(config.num_hidden_layers, layers);
  return config;
}

Picture random_picture(std::int64_t height, std::int64_t width) {
  Picture picture{.height = height, .width = width, .rgb = {}};
  picture.rgb.resize(static_cast<std::size_t>(3 * height * width));
  CounterRng rng(11);
  for (std::uint8_t& value : picture.rgb) value = static_cast<std::uint8_t>(rng.below(256));
  return picture;
}

/// Returns the least of several times.
template <typename Work>
double best_ms(int repeat, const Work& work) {
  double best = 1e12;
  for (int i = 0; i < repeat; ++i) {
    const TimePoint start = now();
    work();
    best = std::min(best, to_seconds(now() - start) * 1e3);
  }
  return best;
}

/// Adds the figures of a picture.
void bench_vision(const TowerFlags& flags, const ModelShape& shape, WeightType type, Row& report) {
  const VisionConfig config = cut(or_throw(parse_vision_config(config_json(shape), shape.name)), flags.layers);
  const auto tower = or_throw(PictureEncoder::load(config, random_weights(type, "random tower of " + flags.shape)));
  const Picture picture = random_picture(flags.height, flags.width);
  const Picture resized = resize_for_tower(picture, config, flags.soft_tokens);
  const Patches patches = or_throw(cut_into_patches(resized, config));
  const double resize_ms = best_ms(flags.repeat, [&] { resize_for_tower(picture, config, flags.soft_tokens); });
  tower->encode(patches);  // the first maps pages and grows buffers
  report.add({{"gemm", tower->gemm_implementation()},
              {"picture_layers", config.num_hidden_layers},
              {"picture", fmt::format("{} x {}", flags.width, flags.height)},
              {"picture_resized", fmt::format("{} x {}", resized.width, resized.height)},
              {"picture_patches", patches.rows * patches.columns},
              {"picture_soft_tokens", soft_token_count(resized.height, resized.width, config)},
              {"picture_resize_ms", resize_ms},
              {"picture_encode_ms", best_ms(flags.repeat, [&] { tower->encode(patches); })}});
}

/// Times a sound, if the model has audio.
void bench_audio(const TowerFlags& flags, const ModelShape& shape, WeightType type, Row& report) {
  const Result<AudioConfig> audio = parse_audio_config(config_json(shape), shape.name);
  if (!audio) return;
  const AudioConfig config = cut(*audio, flags.layers);
  const auto tower = or_throw(SoundEncoder::load(config, random_weights(type, "random tower of " + flags.shape)));
  std::vector<float> samples(static_cast<std::size_t>(flags.seconds * kSampleRate));
  CounterRng rng(12);
  for (float& sample : samples) sample = static_cast<float>(rng.uniform() - 0.5);
  tower->encode(samples);
  report.add({{"sound_layers", config.num_hidden_layers},
              {"sound_seconds", flags.seconds},
              {"sound_soft_tokens", config.soft_tokens(std::ssize(samples))},
              {"sound_encode_ms", best_ms(flags.repeat, [&] { tower->encode(samples); })}});
  if (!config.without_tower)
    report.add({{"sound_features_ms", best_ms(flags.repeat, [&] { audio_features(samples); })}});
}

void bench_towers(const TowerFlags& flags) {
  init_logging("outrider", "warn");
  if (std::ranges::find(kSoftTokenBudgets, flags.soft_tokens) == kSoftTokenBudgets.end())
    throw CommandError("--soft-tokens {}, wanted 70, 140, 280, 560 or 1120", flags.soft_tokens);
  set_team_size(thread_count(flags.threads));
  const ModelShape shape = or_throw(published_shape(flags.shape));
  const WeightType type = or_throw(parse_weight_type(flags.dtype));
  Row report = {{"shape", flags.shape}, {"dtype", to_string(tower_type(type))}};
  bench_vision(flags, shape, type, report);
  bench_audio(flags, shape, type, report);
  report.add(machine_row(thread_count(flags.threads)));
  write_report(flags.report, report, key_lines(report));
}

}  // namespace

void add_bench_towers_command(Command& bench) {
  Command* command = bench.add_subcommand(
      "towers", "Time the encoding of a picture and a sound, with random weights of published towers");
  auto flags = std::make_shared<TowerFlags>();
  command
      ->add_option("--shape", flags->shape,
                   published_names() + "; 12b has matrices instead of towers; 26b-a4b and 31b have no audio tower")
      ->capture_default_str();
  ModelFlags::add_dtype(*command, flags->dtype);
  add_number(*command, "--width", flags->width, 1, 8192, "Width of the picture in pixels");
  add_number(*command, "--height", flags->height, 1, 8192, "Height of the picture in pixels");
  command->add_option("--soft-tokens", flags->soft_tokens, "Maximum soft tokens: 70, 140, 280, 560 or 1120")
      ->capture_default_str();
  add_number(*command, "--seconds", flags->seconds, std::int64_t{1}, kSamplesMax / kSampleRate, "Length of the sound");
  add_number(*command, "--layers", flags->layers, 0, 1024,
             "Layers of each tower; 0: all. Results are for these layers, not scaled");
  add_number(*command, "--threads", flags->threads, 0, 1024, "Threads; 0: every core");
  add_number(*command, "--repeat", flags->repeat, 1, 1000, "Number of measurements; the best is reported");
  flags->report.add_to(*command);
  command->callback([flags] { bench_towers(*flags); });
}

}  // namespace outrider
