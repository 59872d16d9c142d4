// A picture through our vision tower and through llama.cpp's (libmtmd's clip.cpp): the same random weights, the same
// pixels, in turns in one process, with what both make of it compared. Built only where llama.cpp's source is.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <clip-impl.h>
#include <clip.h>
#include <fmt/format.h>
#include <ggml-backend.h>
#include <nlohmann/json.hpp>

#include "common/base/random.h"
#include "common/base/time.h"
#include "common/compute/kernels/team.h"
#include "common/compute/tensor/bf16.h"
#include "common/model/vision/vision_tower.h"
#include "lab/reporting.h"
#include "launch/command_line.h"
#include "tests/support/gguf_writer.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

/// E4B's (gemma4.md 8.2).
constexpr const char* kConfig =
    R"({"vision_config": {"use_clipped_linears": true}, "text_config": {"hidden_size": 2560}})";
/// Between llama.cpp's turn and ours, so that no spinning worker of the one is in the other's way.
constexpr auto kPause = std::chrono::milliseconds(100);

struct Flags {
  fs::path folder;
  std::string type = "int8", theirs = "q8_0";
  std::int64_t width = 912, height = 672;  ///< what a picture of 1,024 x 768 is resized to at 280 soft tokens
  int layers = 0, threads = 1, repeat = 5;
};

struct RandomTensor {
  std::string ours, theirs;
  std::vector<std::int64_t> shape;
  std::vector<float> values;  ///< each of them a bf16
};

/// Every tensor of the tower, of values that leave activations near one.
std::vector<RandomTensor> random_tower(const VisionConfig& config) {
  std::vector<RandomTensor> tensors;
  CounterRng rng(7);
  const auto add = [&](std::string ours, std::string theirs, std::vector<std::int64_t> shape, double low, double high) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    RandomTensor tensor{std::move(ours), std::move(theirs), std::move(shape), {}};
    for (std::int64_t i = 0; i < count; ++i)
      tensor.values.push_back(to_float(to_bf16(static_cast<float>(low + (high - low) * rng.uniform()))));
    tensors.push_back(std::move(tensor));
  };
  const auto matrix = [&](std::string ours, std::string theirs, std::vector<std::int64_t> shape) {
    const double most = std::sqrt(3.0 / static_cast<double>(shape.back()));
    add(std::move(ours), std::move(theirs), std::move(shape), -most, most);
  };
  const std::int64_t hidden = config.hidden_size, mlp = config.intermediate_size, head = config.head_dim,
                     heads = config.num_attention_heads * head;
  matrix("model.vision_tower.patch_embedder.input_proj.weight", "v.patch_embd.weight", {hidden, config.patch_floats()});
  matrix("model.vision_tower.patch_embedder.position_embedding_table", "v.position_embd.weight",
         {2, config.position_embedding_size, hidden});
  for (int l = 0; l < config.num_hidden_layers; ++l) {
    const std::string ours = fmt::format("model.vision_tower.encoder.layers.{}.", l),
                      theirs = fmt::format("v.blk.{}.", l);
    for (const auto& [from, to, size] : {std::tuple("input_layernorm", "ln1", hidden),
                                         {"post_attention_layernorm", "attn_post_norm", hidden},
                                         {"pre_feedforward_layernorm", "ln2", hidden},
                                         {"post_feedforward_layernorm", "ffn_post_norm", hidden},
                                         {"self_attn.q_norm", "attn_q_norm", head},
                                         {"self_attn.k_norm", "attn_k_norm", head}})
      add(ours + from + ".weight", theirs + to + ".weight", {size}, 0.4, 0.6);
    for (const auto& [from, to, rows, columns] : {std::tuple("self_attn.q_proj", "attn_q", heads, hidden),
                                                  {"self_attn.k_proj", "attn_k", heads, hidden},
                                                  {"self_attn.v_proj", "attn_v", heads, hidden},
                                                  {"self_attn.o_proj", "attn_out", hidden, heads},
                                                  {"mlp.gate_proj", "ffn_gate", mlp, hidden},
                                                  {"mlp.up_proj", "ffn_up", mlp, hidden},
                                                  {"mlp.down_proj", "ffn_down", hidden, mlp}}) {
      matrix(ours + from + ".linear.weight", theirs + to + ".weight", {rows, columns});
      for (const auto& [bound, value] :
           {std::pair("input_min", -8.0), {"input_max", 8.0}, {"output_min", -8.0}, {"output_max", 8.0}})
        add(fmt::format("{}{}.{}", ours, from, bound), fmt::format("{}{}.{}", theirs, to, bound), {1}, value, value);
    }
  }
  matrix("model.embed_vision.embedding_projection.weight", "mm.input_projection.weight",
         {config.text_hidden_size, hidden});
  return tensors;
}

/// config.json and model.safetensors.
void write_checkpoint(const fs::path& folder, const std::vector<RandomTensor>& tensors) {
  std::ofstream(folder / "config.json") << kConfig;
  json header = json::object();
  std::vector<Bf16> data;
  for (const RandomTensor& tensor : tensors) {
    const std::size_t begin = data.size() * sizeof(Bf16);
    for (const float value : tensor.values) data.push_back(to_bf16(value));
    const bool scalar = tensor.shape == std::vector<std::int64_t>{1};
    header[tensor.ours] = {{"dtype", "BF16"},
                           {"shape", scalar ? std::vector<std::int64_t>{} : tensor.shape},
                           {"data_offsets", {begin, data.size() * sizeof(Bf16)}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::ofstream file(folder / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(text.data(), std::ssize(text));
  file.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size() * sizeof(Bf16)));
  file.close();
  if (!file) throw std::runtime_error(fmt::format("{}: cannot be written", folder.string()));
}

/// The same as llama.cpp's converter writes it, with matrices of `type`.
void write_projector(const fs::path& path, const VisionConfig& config, const std::vector<RandomTensor>& tensors,
                     ggml_type type) {
  gguf_context* const file = gguf_init_empty();
  gguf_set_val_str(file, "general.architecture", "clip");
  gguf_set_val_bool(file, "clip.has_vision_encoder", true);
  gguf_set_val_str(file, "clip.vision.projector_type", "gemma4v");
  // The converter leaves it out, and then llama.cpp computes another function than the model's.
  gguf_set_val_bool(file, "clip.use_gelu", true);
  for (const auto& [key, value] : {std::pair("image_size", std::int64_t{224}),
                                   {"patch_size", config.patch_size},
                                   {"embedding_length", config.hidden_size},
                                   {"feed_forward_length", config.intermediate_size},
                                   {"block_count", std::int64_t{config.num_hidden_layers}},
                                   {"attention.head_count", config.num_attention_heads},
                                   {"projection_dim", config.text_hidden_size}})
    gguf_set_val_u32(file, fmt::format("clip.vision.{}", key).c_str(), static_cast<std::uint32_t>(value));
  gguf_set_val_f32(file, "clip.vision.attention.layer_norm_epsilon", config.rms_norm_eps);
  const float means[] = {0, 0, 0}, deviations[] = {1, 1, 1};
  gguf_set_arr_data(file, "clip.vision.image_mean", GGUF_TYPE_FLOAT32, means, 3);
  gguf_set_arr_data(file, "clip.vision.image_std", GGUF_TYPE_FLOAT32, deviations, 3);
  ggml_context* const memory = ggml_init({.mem_size = std::size_t{2} << 30, .mem_buffer = nullptr, .no_alloc = false});
  for (const RandomTensor& tensor : tensors) {
    const bool patches = tensor.theirs == "v.patch_embd.weight",
               is_matrix = tensor.shape.size() == 2 && !patches;  // the others stay F32, as the converter has it
    std::vector<std::int64_t> extents(tensor.shape.rbegin(), tensor.shape.rend());
    if (patches) extents = {config.patch_size, config.patch_size, 3, config.hidden_size};
    ggml_tensor* const made =
        ggml_new_tensor(memory, is_matrix ? type : GGML_TYPE_F32, static_cast<int>(extents.size()), extents.data());
    ggml_set_name(made, tensor.theirs.c_str());
    const std::vector<float> values =
        patches ? colours_first(tensor.values, static_cast<std::size_t>(config.patch_size * config.patch_size))
                : tensor.values;
    ggml_quantize_chunk(made->type, values.data(), made->data, 0, std::ssize(values) / extents[0], extents[0], nullptr);
    gguf_add_tensor(file, made);
  }
  if (!gguf_write_to_file(file, path.c_str(), false))
    throw std::runtime_error(fmt::format("{}: cannot be written", path.string()));
  ggml_free(memory);
  gguf_free(file);
}

/// llama.cpp's vision tower.
class Theirs {
 public:
  Theirs(const fs::path& projector, clip_flash_attn_type attention) {
    clip_context_params params = {};
    params.use_gpu = false;
    params.flash_attn_type = attention;
    clip_ = clip_init(projector.c_str(), params).ctx_v;
    if (clip_ == nullptr) throw std::runtime_error(fmt::format("{}: llama.cpp refuses it", projector.string()));
  }
  ~Theirs() { clip_free(clip_); }
  Theirs(const Theirs&) = delete;
  Theirs& operator=(const Theirs&) = delete;

  std::vector<float> encode(const Picture& picture, int threads) {
    clip_image_f32 pixels;
    pixels.set_size({static_cast<int>(picture.width), static_cast<int>(picture.height)}, false, false);
    std::vector<float> values;
    for (const std::uint8_t value : picture.rgb) values.push_back(static_cast<float>(value) / 255);
    pixels.cpy_buf(values);
    std::vector<float> rows(static_cast<std::size_t>(clip_n_output_tokens(clip_, &pixels)) *
                            static_cast<std::size_t>(clip_n_mmproj_embd(clip_)));
    if (!clip_image_encode(clip_, threads, &pixels, rows)) throw std::runtime_error("llama.cpp encodes nothing");
    return rows;
  }

 private:
  clip_ctx* clip_ = nullptr;
};

/// The root of the mean square of the differences, as a share of that of `theirs`.
double relative_difference(Matrix<const float> ours, const std::vector<float>& theirs) {
  if (ours.size(0) * ours.size(1) != std::ssize(theirs)) {
    throw std::runtime_error(
        fmt::format("{} x {} numbers of ours, {} of llama.cpp's", ours.size(0), ours.size(1), theirs.size()));
  }
  double differences = 0, squares = 0;
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    const double value = theirs[i], difference = static_cast<double>(ours.data()[i]) - value;
    differences += difference * difference;
    squares += value * value;
  }
  return std::sqrt(differences / squares);
}

/// What several turns of one side took: of the clock, and of all threads' CPU time, which neighbours disturb less.
struct Times {
  std::vector<double> wall_ms, cpu_ms;

  template <typename Work>
  void time(const Work& work) {
    std::this_thread::sleep_for(kPause);
    const TimePoint start = now();
    const std::clock_t cpu = std::clock();
    work();
    wall_ms.push_back(to_seconds(now() - start) * 1e3);
    cpu_ms.push_back(static_cast<double>(std::clock() - cpu) * 1e3 / CLOCKS_PER_SEC);
  }
  json summary() const;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

json Times::summary() const {
  return {{"ms", median(wall_ms)}, {"best_ms", std::ranges::min(wall_ms)}, {"cpu_ms", median(cpu_ms)}};
}

/// Turn by turn, how many times as long theirs took.
double ratio(const std::vector<double>& theirs, const std::vector<double>& ours) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(theirs[i] / ours[i]);
  return median(ratios);
}

Picture random_picture(std::int64_t height, std::int64_t width) {
  Picture picture{.height = height, .width = width, .rgb = {}};
  CounterRng rng(11);
  for (std::int64_t i = 0; i < 3 * height * width; ++i)
    picture.rgb.push_back(static_cast<std::uint8_t>(rng.below(256)));
  return picture;
}

void run_both(const Flags& flags) {
  const std::map<std::string, ggml_type> types = {
      {"f32", GGML_TYPE_F32}, {"f16", GGML_TYPE_F16}, {"bf16", GGML_TYPE_BF16}, {"q8_0", GGML_TYPE_Q8_0}};
  VisionConfig config = or_throw(parse_vision_config(kConfig, "E4B"));
  if (flags.layers > 0) config.num_hidden_layers = std::min(config.num_hidden_layers, flags.layers);
  const fs::path projector = flags.folder / fmt::format("mmproj-{}.gguf", flags.theirs);
  if (!fs::exists(projector)) {
    fs::create_directories(flags.folder);
    const std::vector<RandomTensor> tensors = random_tower(config);
    write_checkpoint(flags.folder, tensors);
    write_projector(projector, config, tensors, types.at(flags.theirs));
  }
  set_team_size(flags.threads);
  const ModelFiles weights = or_throw(ModelFiles::open(flags.folder / "model.safetensors"));
  const auto tower =
      or_throw(VisionTower::load(config, or_throw(open_weights(weights, or_throw(parse_weight_type(flags.type))))));
  const Picture picture = random_picture(flags.height, flags.width);
  const Patches patches = or_throw(cut_into_patches(picture, config));
  Theirs flash(projector, CLIP_FLASH_ATTN_TYPE_ENABLED), plain(projector, CLIP_FLASH_ATTN_TYPE_DISABLED);
  // The first maps pages and grows buffers.
  const std::vector<float> by_flash = flash.encode(picture, flags.threads),
                           by_plain = plain.encode(picture, flags.threads);
  const Matrix<const float> soft = tower->encode(patches);
  json report = {{"type", flags.type},
                 {"llama.cpp", flags.theirs},
                 {"layers", config.num_hidden_layers},
                 {"patches", patches.rows * patches.columns},
                 {"gemm", tower->gemm_implementation()},
                 {"flash_difference", relative_difference(soft, by_flash)},
                 {"plain_difference", relative_difference(soft, by_plain)}};
  Times ours, theirs_flash, theirs_plain;
  for (int i = 0; i < flags.repeat; ++i) {
    ours.time([&] { tower->encode(patches); });
    theirs_flash.time([&] { flash.encode(picture, flags.threads); });
    theirs_plain.time([&] { plain.encode(picture, flags.threads); });
  }
  report["ours"] = ours.summary();
  report["flash"] = theirs_flash.summary();
  report["plain"] = theirs_plain.summary();
  report["flash_by_ours"] = ratio(theirs_flash.wall_ms, ours.wall_ms);
  report["plain_by_ours"] = ratio(theirs_plain.wall_ms, ours.wall_ms);
  for (const Field& field : machine_row(flags.threads)) report[field.key] = field.value;
  std::printf("%s\n", report.dump().c_str());
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  CLI::App app("A picture through E4B's vision tower, ours and llama.cpp's in turns", "mtmd_compare");
  outrider::Flags flags;
  app.add_option("DIR", flags.folder, "Gets the random weights, unless it has them")->required();
  app.add_option("--type", flags.type, "Ours: f32, bf16 or int8")->capture_default_str();
  app.add_option("--theirs", flags.theirs, "llama.cpp's: f32, f16, bf16 or q8_0")
      ->check(CLI::IsMember(std::vector<std::string>{"f32", "f16", "bf16", "q8_0"}))
      ->capture_default_str();
  app.add_option("--width", flags.width, "Pixels, a multiple of 48")->capture_default_str();
  app.add_option("--height", flags.height, "Pixels, a multiple of 48")->capture_default_str();
  outrider::add_number(app, "--layers", flags.layers, 0, 1024, "The first so many; 0: all");
  outrider::add_number(app, "--threads", flags.threads, 1, 1024, "Of both");
  outrider::add_number(app, "--repeat", flags.repeat, 1, 1000, "Turns");
  app.callback([&] { outrider::run_both(flags); });
  return outrider::run_command_line(app, argc, argv);
}
