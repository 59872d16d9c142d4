// Writes a pair of random weights with the widths of a published Gemma 4, as a checkpoint or packed, so that its memory
// and speed can be measured without its weights. Its output is noise.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/compute/tensor/bf16.h"
#include "common/model/gemma4/assistant.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/backbone.h"
#include "common/os/files.h"
#include "common/pair/pair_files.h"
#include "lab/random_weights.h"
#include "lab/shapes.h"
#include "launch/command_line.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

// ---- tensors ----

struct TensorSpec {
  enum Kind { kMatrix, kVector, kPermutation };
  std::vector<std::int64_t> shape;
  Kind kind;

  std::uint64_t elements() const {
    std::uint64_t product = 1;
    for (const std::int64_t size : shape) product *= static_cast<std::uint64_t>(size);
    return product;
  }
  std::uint64_t bytes() const { return elements() * (kind == kPermutation ? 8 : 2); }
};

/// Records the tensors and shapes that a model requests while it is loaded. Its tensors are empty.
class AskedFor final : public WeightSource {
 public:
  const std::map<std::string, TensorSpec>& specs() const { return specs_; }

  WeightType type() const override { return WeightType::kBf16; }
  bool has(const std::string& /*name*/) const override { return true; }
  std::uint64_t fingerprint() const override { return 0; }
  std::uint64_t embedding_fingerprint() const override { return 0; }
  const fs::path& path() const override { return path_; }

  Result<std::vector<float>> vector(const std::string& name, std::int64_t size) const override {
    specs_[name] = {{size}, TensorSpec::kVector};
    return std::vector<float>(static_cast<std::size_t>(size));
  }
  Result<RowTable> table(const std::string& name, std::int64_t rows, std::int64_t width) const override {
    specs_[name] = {{rows, width}, TensorSpec::kMatrix};
    return RowTable{.rows = rows, .width = width, .bytes = {}, .owner = {}};
  }
  Result<Linear> linear(WeightType, std::int64_t in_features, const std::vector<Part>& parts) const override {
    for (const Part& part : parts) {
      specs_[part.name] = {{part.rows, in_features}, TensorSpec::kMatrix};
      if (part.slices > 0) specs_[part.name].shape = {part.slices, part.rows, in_features};
    }
    return Linear();
  }
  Result<std::vector<TokenId>> permutation(const std::string& name, std::int64_t size) const override {
    specs_[name] = {{size}, TensorSpec::kPermutation};
    return std::vector<TokenId>(static_cast<std::size_t>(size));
  }
  Result<RowTable> ordered_rows(const std::string& name, std::int64_t width,
                                std::span<const TokenId> order) const override {
    return table(name, std::ssize(order), width);
  }

 private:
  fs::path path_ = "random weights";
  mutable std::map<std::string, TensorSpec> specs_;
};

// ---- files ----

void put(std::ofstream& file, const void* data, std::size_t bytes) {
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

void put_tensor(std::ofstream& file, const std::string& name, const TensorSpec& spec) {
  const auto random = random_weights(WeightType::kBf16, name);  // one for each tensor: it keeps its tables
  const std::int64_t width = spec.shape.back();
  switch (spec.kind) {
    case TensorSpec::kMatrix: {
      constexpr std::int64_t kSlice = 1 << 14;  // rows: a table of all may be larger than the memory
      const auto rows = static_cast<std::int64_t>(spec.elements()) / width;
      for (std::int64_t at = 0; at < rows; at += kSlice) {
        const RowTable slice =
            or_throw(random->table(fmt::format("{}.{}", name, at), std::min(kSlice, rows - at), width));
        put(file, slice.bytes.data(), slice.bytes.size());
      }
      return;
    }
    case TensorSpec::kVector:
      for (const float x : or_throw(random->vector(name, width))) {
        const Bf16 value = to_bf16(x);
        put(file, &value, sizeof value);
      }
      return;
    case TensorSpec::kPermutation: {
      const std::vector<TokenId> ids = or_throw(random->permutation(name, width));
      const std::vector<std::int64_t> order(ids.begin(), ids.end());
      return put(file, order.data(), spec.bytes());
    }
  }
}

/// Writes every tensor into one model.safetensors.
void write_weights(const fs::path& dir, const AskedFor& tensors) {
  const fs::path path = dir / "model.safetensors";
  json header = json::object();
  std::uint64_t offset = 0;
  for (const auto& [name, spec] : tensors.specs()) {
    header[name] = {{"dtype", spec.kind == TensorSpec::kPermutation ? "I64" : "BF16"},
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
  for (const auto& [name, spec] : tensors.specs()) put_tensor(file, name, spec);
  file.close();
  if (!file) throw std::runtime_error(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
  std::printf("%s: %zu tensors, %.2f GB\n", dir.c_str(), tensors.specs().size(), static_cast<double>(offset) / 1e9);
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(fmt::format("{}: cannot be written", path.string()));
}

const std::string kGeneration =
    json({{"bos_token_id", 2}, {"eos_token_id", {1, 106, 50}}, {"pad_token_id", 0}}).dump(2) + "\n";
/// The tokenizer and chat template of every variant.
const fs::path kTexts = fs::path(OUTRIDER_SOURCE_DIR) / "models/nano/backbone";
constexpr std::array kTextFiles = {"tokenizer.json", "tokenizer_config.json"};

void make_pair(const ModelShape& v, const fs::path& out) {
  fs::create_directories(out / "backbone");
  fs::create_directories(out / "assistant");
  write_text(out / "backbone/config.json", backbone_config_json(v));
  write_text(out / "backbone/generation_config.json", kGeneration);
  write_text(out / "assistant/config.json", assistant_config_json(v));
  for (const char* name : kTextFiles)
    fs::copy_file(kTexts / name, out / "backbone" / name, fs::copy_options::overwrite_existing);
  const TextConfig config = parse_text_config(backbone_config_json(v), v.name).value();
  const auto backbone = std::make_shared<AskedFor>(), assistant = std::make_shared<AskedFor>();
  Backbone::load(config, backbone, 1).value();
  write_weights(out / "backbone", *backbone);
  Assistant::load(parse_assistant_config(assistant_config_json(v), v.name).value(), assistant, config, *backbone)
      .value();
  write_weights(out / "assistant", *assistant);
}

/// Writes the pair as `outrider pack --pair` would, without a checkpoint in between.
void make_packs(const ModelShape& v, WeightType type, const fs::path& out) {
  fs::create_directories(out);
  const std::string name = v.name, text = backbone_config_json(v), assistant_text = assistant_config_json(v);
  const TextConfig config = or_throw(parse_text_config(text, name));
  const AssistantConfig assistant_config = or_throw(parse_assistant_config(assistant_text, name));
  const auto target = or_throw(PackWriter::create(out / "target")),
             drafter = or_throw(PackWriter::create(out / "assistant"));
  const auto weights = packing_weights(random_weights(type, name), *target),
             assistant_weights = packing_weights(random_weights(type, name + " assistant"), *drafter);
  or_throw(Assistant::load(assistant_config, assistant_weights, config, *weights));
  or_throw(Backbone::load(config, weights, 1));
  or_throw(target->add_file("config.json", text));
  or_throw(target->add_file("generation_config.json", kGeneration));
  for (const char* file : kTextFiles) or_throw(target->add_file(file, or_throw(read_text(kTexts / file))));
  or_throw(drafter->add_file("config.json", assistant_text));
  const auto finish = [&](PackWriter& writer, const WeightSource& source) {
    or_throw(writer.finish({.dtype = to_string(type),
                            .source = source.path().string(),
                            .fingerprint = source.fingerprint(),
                            .embedding_fingerprint = source.embedding_fingerprint()}));
  };
  finish(*target, *weights);
  finish(*drafter, *assistant_weights);
  write_text(out / "pair.json", pair_json(config, assistant_config, weights->fingerprint(),
                                          assistant_weights->fingerprint(), activation_dtype(type)));
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  CLI::App app("Write a pair of random bfloat16 weights with the widths of a published Gemma 4, and nano's tokenizer",
               "make_checkpoint");
  std::string name;
  std::filesystem::path out;
  int layers = 0;
  std::int64_t shrink = 1;
  std::vector<std::string> names;
  for (const outrider::ModelShape& variant : outrider::published_shapes()) names.push_back(variant.name);
  app.add_option("VARIANT", name, "Which one")->required()->check(CLI::IsMember(names));
  app.add_option("DIR", out, "Gets backbone/ and assistant/")->required();
  app.add_option("--layers", layers, "Backbone layers, in the published pattern (default: all)")
      ->check(CLI::Range(2, 1024));
  app.add_option("--shrink", shrink, "Divides every width and the vocabulary, for tests")
      ->check(CLI::IsMember(std::vector<std::int64_t>{1, 2, 4, 8, 16}))
      ->capture_default_str();
  std::string dtype;
  app.add_option("--dtype", dtype, "Write packs of this type: DIR/target and DIR/assistant (default: a checkpoint)")
      ->check(CLI::IsMember({"int4", "int8"}));
  app.callback([&] {
    const outrider::ModelShape variant = outrider::published_shape(name).value();
    const outrider::ModelShape shape =
        outrider::reduced(variant, layers > 0 ? layers : variant.num_hidden_layers, shrink);
    if (dtype.empty()) return outrider::make_pair(shape, out);
    outrider::make_packs(shape, outrider::parse_weight_type(dtype).value(), out);
  });
  return outrider::run_command_line(app, argc, argv);
}
