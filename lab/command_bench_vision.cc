// bench vision: what a picture takes before the text model sees it, on random weights of a published tower.
#include <algorithm>

#include <fmt/format.h>

#include "common/base/random.h"
#include "common/base/time.h"
#include "common/kernels/team.h"
#include "common/logging/logging.h"
#include "common/vision/vision_tower.h"
#include "lab/commands.h"
#include "lab/random_weights.h"
#include "lab/reporting.h"
#include "lab/shapes.h"
#include "launch/command_support.h"

namespace outrider {
namespace {

/// The two published towers (gemma4.md 8.2).
constexpr const char* kSmall =
    R"({{"vision_config": {{"use_clipped_linears": true}}, "text_config": {{"hidden_size": {}}}}})";
constexpr const char* kLarge =
    R"({{"vision_config": {{"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
         "num_attention_heads": 16, "head_dim": 72, "standardize": true}}, "text_config": {{"hidden_size": {}}}}})";

struct VisionFlags {
  std::string shape = "e4b", dtype = "int8";
  std::int64_t width = 1024, height = 768, soft_tokens = kSoftTokensDefault;
  int threads = 0, layers = 0, repeat = 3;
  ReportFlags report;
};

VisionConfig tower_config(const ModelShape& shape, int layers) {
  if (std::string(shape.model_type) != "gemma4")
    throw std::runtime_error(fmt::format("{} has no vision tower, wanted another shape", shape.name));
  const bool small = shape.hidden_size_per_layer_input > 0;
  const std::string json = small ? fmt::format(kSmall, shape.hidden_size) : fmt::format(kLarge, shape.hidden_size);
  VisionConfig config = or_throw(parse_vision_config(json, shape.name));
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

/// The least of several.
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

void bench_vision(const VisionFlags& flags) {
  init_logging("outrider", "warn");
  if (std::ranges::find(kSoftTokenBudgets, flags.soft_tokens) == kSoftTokenBudgets.end())
    throw std::runtime_error(fmt::format("--soft-tokens {}, wanted 70, 140, 280, 560 or 1120", flags.soft_tokens));
  set_team_size(thread_count(flags.threads));
  const VisionConfig config = tower_config(or_throw(published_shape(flags.shape)), flags.layers);
  const WeightType type = or_throw(parse_weight_type(flags.dtype));
  const auto tower = or_throw(VisionTower::load(config, random_weights(type, "random tower of " + flags.shape)));
  const Picture picture = random_picture(flags.height, flags.width);
  const Picture resized = resize_for_tower(picture, config, flags.soft_tokens);
  const Patches patches = or_throw(cut_into_patches(resized, config));
  const double resize_ms = best_ms(flags.repeat, [&] { resize_for_tower(picture, config, flags.soft_tokens); });
  tower->encode(patches);  // the first maps pages and grows buffers
  const double encode_ms = best_ms(flags.repeat, [&] { tower->encode(patches); });
  Row report = {{"shape", flags.shape},
                {"dtype", to_string(tower_type(type))},
                {"layers", config.num_hidden_layers},
                {"picture", fmt::format("{} x {}", flags.width, flags.height)},
                {"resized", fmt::format("{} x {}", resized.width, resized.height)},
                {"patches", patches.rows * patches.columns},
                {"soft_tokens", soft_token_count(resized, config)},
                {"weight_mib", static_cast<double>(tower->weight_bytes()) / kMiB},
                {"gemm", tower->gemm_implementation()},
                {"resize_ms", resize_ms},
                {"encode_ms", encode_ms}};
  report.add(machine_row(thread_count(flags.threads)));
  write_report(flags.report, report, key_lines(report));
}

}  // namespace

void add_bench_vision_command(Command& bench) {
  Command* command = bench.add_subcommand("vision", "Soft tokens of a picture, on random weights of a published tower");
  auto flags = std::make_shared<VisionFlags>();
  command->add_option("--shape", flags->shape, published_names() + "; 12b has no tower")->capture_default_str();
  ModelFlags::add_dtype(*command, flags->dtype);
  command->add_option("--width", flags->width, "Of the picture, pixels")
      ->check(in_range(1, 8192))
      ->capture_default_str();
  command->add_option("--height", flags->height, "Of the picture, pixels")
      ->check(in_range(1, 8192))
      ->capture_default_str();
  command->add_option("--soft-tokens", flags->soft_tokens, "It becomes at most so many: 70, 140, 280, 560 or 1120")
      ->capture_default_str();
  command->add_option("--layers", flags->layers, "Layers of the tower; 0: all. Results are of these layers, not scaled")
      ->check(in_range(0, 1024))
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "Threads; 0: every core")
      ->check(in_range(0, 1024))
      ->capture_default_str();
  command->add_option("--repeat", flags->repeat, "Times each is measured; the best counts")
      ->check(in_range(1, 1000))
      ->capture_default_str();
  flags->report.add_to(*command);
  command->callback([flags] { bench_vision(*flags); });
}

}  // namespace outrider
