// Writes a pair of random weights with the widths of a published Gemma 4 (gemma4.md 1.2 and 1.3), so that
// its memory and speed can be measured without its weights. What it says is noise.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/base/random.h"
#include "common/tensor/bf16.h"
#include "lab/shapes.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kShardBytesMax = std::uint64_t{4} << 30;

// ---- tensors ----

struct TensorSpec {
  enum Kind { kMatrix, kVector, kPermutation };
  std::string name;
  std::vector<std::int64_t> shape;
  Kind kind;
  double scale;  ///< root mean square of a matrix, mean of a vector

  std::uint64_t elements() const {
    std::uint64_t product = 1;
    for (const std::int64_t size : shape) product *= static_cast<std::uint64_t>(size);
    return product;
  }
  std::uint64_t bytes() const { return elements() * (kind == kPermutation ? 8 : 2); }
};

/// The tensors of one model. Scales keep every activation near one, as in a trained model.
class Tensors {
 public:
  void matrix(const std::string& name, std::vector<std::int64_t> shape) {
    const double scale = 1 / std::sqrt(static_cast<double>(shape.back()));
    matrix(name, std::move(shape), scale);
  }
  void matrix(const std::string& name, std::vector<std::int64_t> shape, double scale) {
    specs_.push_back({name, std::move(shape), TensorSpec::kMatrix, scale});
  }
  void vector(const std::string& name, std::int64_t size, double mean = 1) {
    specs_.push_back({name, {size}, TensorSpec::kVector, mean});
  }
  void permutation(const std::string& name, std::int64_t size) {
    specs_.push_back({name, {size}, TensorSpec::kPermutation, 0});
  }

  /// What every layer has, of the backbone or the assistant.
  void layer(const std::string& prefix, std::int64_t hidden, std::int64_t heads, std::int64_t head_dim,
             std::int64_t inner) {
    for (const char* norm : {"input", "post_attention", "pre_feedforward", "post_feedforward"})
      vector(fmt::format("{}{}_layernorm.weight", prefix, norm), hidden);
    vector(prefix + "layer_scalar", 1, 0.8);
    matrix(prefix + "self_attn.q_proj.weight", {heads * head_dim, hidden});
    matrix(prefix + "self_attn.o_proj.weight", {hidden, heads * head_dim});
    vector(prefix + "self_attn.q_norm.weight", head_dim,
           1 / std::sqrt(static_cast<double>(head_dim)));  // scores are not scaled
    matrix(prefix + "mlp.gate_proj.weight", {inner, hidden});
    matrix(prefix + "mlp.up_proj.weight", {inner, hidden});
    matrix(prefix + "mlp.down_proj.weight", {hidden, inner});
  }
  const std::vector<TensorSpec>& specs() const { return specs_; }

 private:
  std::vector<TensorSpec> specs_;
};

Tensors backbone_tensors(const ModelShape& v) {
  Tensors t;
  const std::string prefix = "model.language_model.";
  const std::int64_t hidden = v.hidden_size, ple = v.hidden_size_per_layer_input, layers = v.num_hidden_layers;
  t.matrix(prefix + "embed_tokens.weight", {v.vocab_size, hidden});
  t.vector(prefix + "norm.weight", hidden);
  if (ple > 0) {
    t.matrix(prefix + "embed_tokens_per_layer.weight", {v.vocab_size, layers * ple},
             1 / std::sqrt(static_cast<double>(ple)));
    t.matrix(prefix + "per_layer_model_projection.weight", {layers * ple, hidden});
    t.vector(prefix + "per_layer_projection_norm.weight", ple);
  }
  for (int i = 0; i < v.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("{}layers.{}.", prefix, i);
    const bool full = v.is_full(i), shared = i >= v.num_hidden_layers - v.num_kv_shared_layers;
    const std::int64_t head_dim = full ? v.global_head_dim : v.head_dim;
    t.layer(layer, hidden, v.num_attention_heads, head_dim,
            v.intermediate_size * (shared && v.use_double_wide_mlp ? 2 : 1));
    if (!shared) {
      const std::int64_t kv = (full ? v.num_global_key_value_heads : v.num_key_value_heads) * head_dim;
      t.matrix(layer + "self_attn.k_proj.weight", {kv, hidden});
      t.vector(layer + "self_attn.k_norm.weight", head_dim);
      if (!(full && v.attention_k_eq_v)) t.matrix(layer + "self_attn.v_proj.weight", {kv, hidden});
    }
    if (ple > 0) {
      t.matrix(layer + "per_layer_input_gate.weight", {ple, hidden});
      t.matrix(layer + "per_layer_projection.weight", {hidden, ple});
      t.vector(layer + "post_per_layer_input_norm.weight", hidden);
    }
    if (v.num_experts > 0) {
      for (const char* norm :
           {"post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"}) {
        t.vector(fmt::format("{}{}.weight", layer, norm), hidden);
      }
      t.matrix(layer + "router.proj.weight", {v.num_experts, hidden}, 1);  // its input has the scale hidden^-0.5
      t.vector(layer + "router.scale", hidden);
      t.vector(layer + "router.per_expert_scale", v.num_experts);
      t.matrix(layer + "experts.gate_up_proj", {v.num_experts, 2 * v.moe_intermediate_size, hidden});
      t.matrix(layer + "experts.down_proj", {v.num_experts, hidden, v.moe_intermediate_size});
    }
  }
  return t;
}

Tensors assistant_tensors(const ModelShape& v) {
  Tensors t;
  const std::int64_t hidden = v.assistant.hidden_size;
  t.matrix("pre_projection.weight", {hidden, 2 * v.hidden_size});
  t.matrix("post_projection.weight", {v.hidden_size, hidden});
  t.matrix("model.embed_tokens.weight", {v.vocab_size, hidden});
  t.vector("model.norm.weight", hidden);
  for (int j = 0; j < kAssistantLayers; ++j) {
    t.layer(fmt::format("model.layers.{}.", j), hidden, v.assistant.num_attention_heads,
            j == kAssistantLayers - 1 ? v.global_head_dim : v.head_dim, v.assistant.intermediate_size);
  }
  if (v.assistant.use_ordered_embeddings) {
    t.matrix("masked_embedding.centroids.weight", {kNumCentroids, hidden});
    t.permutation("masked_embedding.token_ordering", v.vocab_size);
  }
  return t;
}

// ---- files ----

void put(std::ofstream& file, const void* data, std::size_t bytes) {
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

void put_tensor(std::ofstream& file, const TensorSpec& spec, CounterRng& rng) {
  const std::uint64_t count = spec.elements();
  switch (spec.kind) {
    case TensorSpec::kMatrix: {
      // Four bfloat16 of 64 random bits: sign and fraction are random, the exponent is the scale's.
      // Their magnitudes lie in [1, 2) * 2^e, with a root mean square of 1.53 * 2^e.
      const int exponent = static_cast<int>(std::lround(std::log2(spec.scale / 1.53)));
      const std::uint64_t exponents = static_cast<std::uint64_t>(127 + exponent) * 0x0080'0080'0080'0080;
      std::vector<std::uint64_t> block(1 << 17);
      for (std::uint64_t left = spec.bytes(); left > 0;) {
        for (std::uint64_t& four : block) four = (rng.next() & 0x807f'807f'807f'807f) | exponents;
        const std::uint64_t bytes = std::min<std::uint64_t>(left, block.size() * sizeof block[0]);
        put(file, block.data(), bytes);
        left -= bytes;
      }
      return;
    }
    case TensorSpec::kVector:
      for (std::uint64_t i = 0; i < count; ++i) {
        const Bf16 value = to_bf16(static_cast<float>(spec.scale * (0.9 + 0.2 * rng.uniform())));
        put(file, &value, sizeof value);
      }
      return;
    case TensorSpec::kPermutation: {
      std::vector<std::int64_t> order(count);
      std::iota(order.begin(), order.end(), 0);
      for (std::uint64_t i = count; i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
      put(file, order.data(), order.size() * sizeof order[0]);
      return;
    }
  }
}

void write_shard(const fs::path& path, std::span<const TensorSpec> specs, CounterRng& rng) {
  json header = json::object();
  std::uint64_t offset = 0;
  for (const TensorSpec& spec : specs) {
    header[spec.name] = {{"dtype", spec.kind == TensorSpec::kPermutation ? "I64" : "BF16"},
                         {"shape", spec.shape},
                         {"data_offsets", {offset, offset + spec.bytes()}}};
    offset += spec.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  put(file, &length, sizeof length);
  put(file, text.data(), text.size());
  for (const TensorSpec& spec : specs) put_tensor(file, spec, rng);
  file.close();
  if (!file) throw std::runtime_error(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(fmt::format("{}: cannot be written", path.string()));
}

void write_json(const fs::path& path, const json& value) { write_text(path, value.dump(2) + "\n"); }

/// One file, or shards and their index where that would be a large one.
void write_weights(const fs::path& dir, const Tensors& tensors, CounterRng& rng) {
  std::vector<std::vector<TensorSpec>> shards(1);
  std::uint64_t shard_bytes = 0, total = 0;
  for (const TensorSpec& spec : tensors.specs()) {
    if (!shards.back().empty() && shard_bytes + spec.bytes() > kShardBytesMax) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(spec);
    shard_bytes += spec.bytes();
    total += spec.bytes();
  }
  json weight_map = json::object();
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    write_shard(dir / name, shards[s], rng);
    for (const TensorSpec& spec : shards[s]) weight_map[spec.name] = name;
  }
  if (shards.size() > 1)
    write_json(dir / "model.safetensors.index.json",
               {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}});
  std::printf("%s: %zu tensors, %.2f GB\n", dir.c_str(), tensors.specs().size(), static_cast<double>(total) / 1e9);
}

void make_pair(const ModelShape& v, const fs::path& out) {
  CounterRng rng(1);
  fs::create_directories(out / "backbone");
  fs::create_directories(out / "assistant");
  write_text(out / "backbone/config.json", backbone_config_json(v));
  write_json(out / "backbone/generation_config.json",
             {{"bos_token_id", 2}, {"eos_token_id", {1, 106, 50}}, {"pad_token_id", 0}});
  write_text(out / "assistant/config.json", assistant_config_json(v));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(fs::path(OUTRIDER_SOURCE_DIR) / "models/nano/backbone" / name, out / "backbone" / name,
                  fs::copy_options::overwrite_existing);
  }
  write_weights(out / "backbone", backbone_tensors(v), rng);
  write_weights(out / "assistant", assistant_tensors(v), rng);
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  CLI::App app("Write a pair of random bfloat16 weights with the widths of a published Gemma 4, and nano's tokenizer");
  std::string name, out;
  int layers = 0;
  std::int64_t shrink = 1;
  std::vector<std::string> names;
  for (const outrider::ModelShape& variant : outrider::published_shapes()) names.push_back(variant.name);
  app.add_option("VARIANT", name, "Which one")->required()->check(CLI::IsMember(names));
  app.add_option("DIR", out, "Gets backbone/ and assistant/")->required();
  app.add_option("--layers", layers, "Backbone layers, in the published pattern (default: all)")
      ->check(CLI::Range(2, 1024));
  app.add_option("--shrink", shrink, "Divides every width and the vocabulary, for tests")
      ->check(CLI::IsMember({1, 2, 4, 8, 16}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    const outrider::ModelShape variant = outrider::published_shape(name).value();
    outrider::make_pair(outrider::reduced(variant, layers > 0 ? layers : variant.num_hidden_layers, shrink), out);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_checkpoint: %s\n", error.what());
    return 1;
  }
  return 0;
}
