#include "tests/support/gguf_writer.h"

#include <algorithm>
#include <fstream>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/model/checkpoint/checkpoint.h"
#include "common/model/checkpoint/gguf_names.h"
#include "common/model/gemma4/config.h"
#include "tests/support/ggml_blocks.h"
#include "tests/support/model_at.h"

namespace outrider {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

template <typename T, typename Range>
std::vector<std::string> elements_bytes(const Range& range) {
  std::vector<std::string> bytes;
  for (const auto x : range) bytes.push_back(raw_bytes(static_cast<T>(x)));
  return bytes;
}

/// One number if all are the same, else an array: as the converter does.
void put_per_layer(GgufWriter& writer, const std::string& key, const std::vector<std::int64_t>& values) {
  if (std::ranges::count(values, values[0]) == std::ssize(values)) {
    writer.u32(key, values[0]);
  } else {
    writer.u32s(key, values);
  }
}

void put_config(GgufWriter& writer, const std::string& arch, const TextConfig& c) {
  writer.string("general.architecture", arch);
  const auto key = [&](const char* name) { return arch + "." + name; };
  std::vector<std::int64_t> kv_heads, widths;
  std::vector<bool> sliding;
  std::int64_t sliding_head_dim = c.layers.back().head_dim;
  for (const LayerConfig& layer : c.layers) {
    kv_heads.push_back(layer.num_key_value_heads);
    widths.push_back(layer.intermediate_size);
    sliding.push_back(layer.kind == AttentionKind::kSliding);
    if (sliding.back()) sliding_head_dim = layer.head_dim;
  }
  const std::int64_t head_dim = c.layers.back().head_dim;
  writer.u32(key("block_count"), c.num_hidden_layers);
  writer.u32(key("context_length"), c.max_position_embeddings);
  writer.u32(key("embedding_length"), c.hidden_size);
  put_per_layer(writer, key("feed_forward_length"), widths);
  writer.u32(key("attention.head_count"), c.num_attention_heads);
  put_per_layer(writer, key("attention.head_count_kv"), kv_heads);
  for (const char* name : {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
    writer.u32(key(name), head_dim);
    writer.u32(key(name) + "_swa", sliding_head_dim);
  }
  writer.u32(key("attention.sliding_window"), c.sliding_window);
  writer.bools(key("attention.sliding_window_pattern"), sliding);
  writer.u32(key("attention.shared_kv_layers"), c.num_hidden_layers - c.first_shared);
  writer.f32(key("attention.layer_norm_rms_epsilon"), c.rms_norm_eps);
  writer.u32(key("embedding_length_per_layer_input"), c.hidden_size_per_layer_input);
  writer.f32(key("rope.freq_base"), static_cast<float>(c.full_rope.rope_theta));
  writer.f32(key("rope.freq_base_swa"), static_cast<float>(c.sliding_rope.rope_theta));
  if (c.final_logit_softcapping > 0) writer.f32(key("final_logit_softcapping"), c.final_logit_softcapping);
  if (c.enable_moe_block) {
    writer.u32(key("expert_count"), c.num_experts);
    writer.u32(key("expert_used_count"), c.top_k_experts);
    writer.u32(key("expert_feed_forward_length"), c.moe_intermediate_size);
  }
  const auto pairs = static_cast<std::size_t>(head_dim / 2);
  std::vector<float> divisors(pairs, 1e30f);
  const auto rotating = static_cast<std::size_t>(c.full_rope.partial_rotary_factor * static_cast<double>(head_dim) / 2);
  std::fill_n(divisors.begin(), rotating, static_cast<float>(c.full_rope.factor));
  writer.tensor({"rope_freqs.weight", {pairs}, gguf_tensor_type(DType::kF32), encode(DType::kF32, divisors)});
}

void put_tokenizer(GgufWriter& writer, const fs::path& file) {
  const json root = json::parse(std::ifstream(file));
  const json& vocab = root["model"]["vocab"];
  std::vector<std::string> tokens(vocab.size()), merges;
  std::vector<std::int64_t> types(vocab.size(), 1);
  for (const auto& [text, id] : vocab.items()) {
    tokens[id.get<std::size_t>()] = text;
    if (text.size() == 6 && text.starts_with("<0x")) types[id.get<std::size_t>()] = 6;
  }
  // Those that the converter marks as user defined although they are special.
  const std::set<std::string> visible = {"<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
                                         "<|tool_response>", "<tool_response|>", "<|\"|>"};
  for (const json& added : root["added_tokens"]) {
    types[added["id"].get<std::size_t>()] = added["special"].get<bool>() && !visible.contains(added["content"]) ? 3 : 4;
  }
  for (const json& merge : root["model"]["merges"]) {
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  writer.string("tokenizer.ggml.model", "gemma4");
  writer.strings("tokenizer.ggml.tokens", tokens);
  writer.array("tokenizer.ggml.scores", GgufValueType::kF32, std::vector<std::string>(tokens.size(), raw_bytes(0.0f)));
  writer.i32s("tokenizer.ggml.token_type", types);
  writer.strings("tokenizer.ggml.merges", merges);
  writer.boolean("tokenizer.ggml.add_bos_token", true);
  writer.boolean("tokenizer.ggml.add_space_prefix", false);
  for (const auto& [key, text] :
       {std::pair("bos", "<bos>"), {"eos", "<eos>"}, {"unknown", "<unk>"}, {"padding", "<pad>"}, {"mask", "<mask>"}}) {
    writer.u32(fmt::format("tokenizer.ggml.{}_token_id", key), vocab[text].get<std::int64_t>());
  }
}

GgufWriter::Tensor to_gguf(const TensorEntry& entry, const std::string& name, DType wanted) {
  GgufWriter::Tensor tensor{name, {entry.shape.rbegin(), entry.shape.rend()}, 0, ""};
  const auto count = static_cast<std::size_t>(entry.element_count());
  if (entry.dtype == DType::kI64) {
    std::vector<std::int64_t> ids(count);
    CHECK(read_i64(entry, ids).has_value());
    for (const std::int64_t id : ids) tensor.data += raw_bytes(static_cast<std::int32_t>(id));
    tensor.type = gguf_tensor_type(DType::kI32);
    return tensor;
  }
  std::vector<float> floats(count);
  CHECK(read_f32(entry, floats).has_value());
  DType type = entry.shape.size() < 2 ? DType::kF32 : wanted;
  const auto row = static_cast<std::size_t>(entry.shape.empty() ? 1 : entry.shape.back());
  if (row % block_elements(type) != 0) type = row % 32 == 0 ? DType::kQ8_0 : DType::kF16;
  tensor.type = gguf_tensor_type(type);
  tensor.data = encode(type, floats);
  return tensor;
}

void write_file(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

}  // namespace

std::uint32_t gguf_tensor_type(DType type) {
  switch (type) {
    case DType::kF32: return 0;
    case DType::kF16: return 1;
    case DType::kQ4_0: return 2;
    case DType::kQ4_1: return 3;
    case DType::kQ5_0: return 6;
    case DType::kQ5_1: return 7;
    case DType::kQ8_0: return 8;
    case DType::kQ2_K: return 10;
    case DType::kQ3_K: return 11;
    case DType::kQ4_K: return 12;
    case DType::kQ5_K: return 13;
    case DType::kQ6_K: return 14;
    case DType::kIQ2_XXS: return 16;
    case DType::kIQ2_XS: return 17;
    case DType::kIQ3_XXS: return 18;
    case DType::kIQ4_NL: return 20;
    case DType::kIQ3_S: return 21;
    case DType::kIQ2_S: return 22;
    case DType::kIQ4_XS: return 23;
    case DType::kI8: return 24;
    case DType::kI32: return 26;
    case DType::kI64: return 27;
    case DType::kBf16: return 30;
    case DType::kMXFP4: return 39;
    default: break;
  }
  CHECK(false, "GGUF has no {}", to_string(type));
}

std::string raw_string(std::string_view text) { return raw_bytes<std::uint64_t>(text.size()) + std::string(text); }

std::vector<float> colours_first(const std::vector<float>& values, std::size_t pixels) {
  std::vector<float> turned(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t row = i / (3 * pixels), pixel = i / 3 % pixels, colour = i % 3;
    turned[(row * 3 + colour) * pixels + pixel] = values[i];
  }
  return turned;
}

void GgufWriter::put(const std::string& key, GgufValueType type, const std::string& value_bytes) {
  const std::string value = raw_bytes(static_cast<std::uint32_t>(type)) + value_bytes;
  const auto at = std::ranges::find(pairs_, key, [](const auto& pair) { return pair.first; });
  if (at == pairs_.end()) {
    pairs_.emplace_back(key, value);
  } else {
    at->second = value;
  }
}

void GgufWriter::erase(const std::string& key) {
  std::erase_if(pairs_, [&](const auto& pair) { return pair.first == key; });
}

void GgufWriter::array(const std::string& key, GgufValueType type, const std::vector<std::string>& elements) {
  std::string value = raw_bytes(static_cast<std::uint32_t>(type)) + raw_bytes<std::uint64_t>(elements.size());
  for (const std::string& element : elements) value += element;
  put(key, GgufValueType::kArray, value);
}

void GgufWriter::u32s(const std::string& key, const std::vector<std::int64_t>& x) {
  array(key, GgufValueType::kU32, elements_bytes<std::uint32_t>(x));
}
void GgufWriter::i32s(const std::string& key, const std::vector<std::int64_t>& x) {
  array(key, GgufValueType::kI32, elements_bytes<std::int32_t>(x));
}
void GgufWriter::bools(const std::string& key, const std::vector<bool>& x) {
  array(key, GgufValueType::kBool, elements_bytes<std::uint8_t>(x));
}

void GgufWriter::strings(const std::string& key, const std::vector<std::string>& x) {
  std::vector<std::string> elements;
  std::ranges::transform(x, std::back_inserter(elements), raw_string);
  array(key, GgufValueType::kString, elements);
}

void GgufWriter::rename_keys(const std::string& prefix, const std::string& to) {
  for (auto& [key, value] : pairs_)
    if (key.starts_with(prefix)) key.replace(0, prefix.size(), to);
}

GgufWriter::Tensor* GgufWriter::find(const std::string& name) {
  const auto at = std::ranges::find(tensors, name, &Tensor::name);
  return at == tensors.end() ? nullptr : &*at;
}

std::string GgufWriter::bytes() const {
  std::string header =
      "GGUF" + raw_bytes(version) + raw_bytes<std::uint64_t>(tensors.size()) + raw_bytes<std::uint64_t>(pairs_.size());
  for (const auto& [key, value] : pairs_) header += raw_string(key) + value;
  std::string data;
  for (const Tensor& tensor : tensors) {
    data.resize((data.size() + alignment - 1) / alignment * alignment);
    header += raw_string(tensor.name) + raw_bytes(static_cast<std::uint32_t>(tensor.extents.size()));
    for (const std::uint64_t extent : tensor.extents) header += raw_bytes(extent);
    header += raw_bytes(tensor.type) + raw_bytes<std::uint64_t>(tensor.offset.value_or(data.size()));
    data += tensor.data;
  }
  header.resize((header.size() + alignment - 1) / alignment * alignment);
  return header + data;
}

GgufWriter gguf_of(const fs::path& model_dir, const GgufOptions& options) {
  const Checkpoint checkpoint = Checkpoint::open(model_dir).value();
  const bool assistant = checkpoint.find("pre_projection.weight") != nullptr;
  GgufWriter writer;
  if (assistant) {
    const std::string arch = "gemma4-assistant";
    const AssistantConfig config = load_assistant_config(model_at(model_dir)).value();
    put_config(writer, arch, config.text);
    writer.u32(arch + ".embedding_length_out", config.backbone_hidden_size);
    writer.u32(arch + ".nextn_predict_layers", config.text.num_hidden_layers);
    if (config.use_ordered_embeddings) writer.u32(arch + ".masked_embedding.top_k", config.centroid_intermediate_top_k);
  } else {
    put_config(writer, "gemma4", load_text_config(model_at(model_dir)).value());
  }
  if (fs::exists(model_dir / "tokenizer.json")) put_tokenizer(writer, model_dir / "tokenizer.json");
  for (const TensorEntry& entry : checkpoint.tensors()) {
    constexpr std::string_view kNested = "model.language_model.";
    const std::string name =
        entry.name.starts_with(kNested) ? "model." + entry.name.substr(kNested.size()) : entry.name;
    if (const auto gguf = gguf_name(name)) writer.tensor(to_gguf(entry, *gguf, options.type));
  }
  if (options.edit) options.edit(writer);
  return writer;
}

fs::path write_gguf(const fs::path& model_dir, const fs::path& out, const GgufOptions& options) {
  GgufWriter whole = gguf_of(model_dir, options);
  if (options.shards == 1) {
    write_file(out, whole.bytes());
    return out;
  }
  const std::vector<GgufWriter::Tensor> tensors = std::move(whole.tensors);
  const auto shards = static_cast<std::size_t>(options.shards), per_shard = (tensors.size() + shards - 1) / shards;
  fs::path first;
  for (std::size_t i = 0; i < shards; ++i) {
    GgufWriter shard = i == 0 ? whole : GgufWriter();
    shard.u16("split.no", static_cast<std::uint16_t>(i));
    shard.u16("split.count", static_cast<std::uint16_t>(shards));
    shard.i32("split.tensors.count", static_cast<std::int32_t>(tensors.size()));
    shard.tensors.clear();
    for (std::size_t t = i * per_shard; t < std::min((i + 1) * per_shard, tensors.size()); ++t)
      shard.tensor(tensors[t]);
    const fs::path file = out.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf", out.stem().string(), i + 1, shards);
    write_file(file, shard.bytes());
    if (i == 0) first = file;
  }
  return first;
}

}  // namespace outrider
