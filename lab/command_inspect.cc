#include <algorithm>
#include <cctype>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/pack.h"
#include "common/model/backbone.h"
#include "common/model/config.h"
#include "common/model/kv_cache.h"
#include "lab/commands.h"
#include "launch/command_support.h"

namespace outrider {
namespace {
using nlohmann::json;

struct InspectFlags {
  std::filesystem::path path;
  std::optional<Position> context;
  bool json = false, tensors = false;
};

/// Which part of the model a tensor belongs to.
std::string part_of(const std::string& name) {
  const auto has = [&](const char* what) { return name.find(what) != std::string::npos; };
  if (has("vision_tower") || has("embed_vision")) return "vision";
  if (has("audio_tower") || has("embed_audio")) return "audio";
  if (has("embed_tokens_per_layer")) return "per_layer_embedding_table";
  if (has("embed_tokens") || has("lm_head")) return "embedding";
  if (has("masked_embedding")) return "centroids";
  if (has("norm") || has("layer_scalar")) return "norms";
  if (has("experts")) return "experts";
  if (has("router")) return "router";
  if (has("self_attn")) return "attention";
  if (has(".mlp.")) return "mlp";
  if (has("per_layer")) return "per_layer_input";
  if (has("pre_projection") || has("post_projection")) return "bridge";
  return "other";
}

/// "model.layers.3.mlp.x" -> "model.layers.*.mlp.x": tensors that layers have in common.
std::string without_index(const std::string& name) {
  std::string pattern;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(name[i])) != 0;
    if (!digit) pattern += name[i];
    if (digit && !pattern.ends_with('*')) pattern += '*';
  }
  return pattern;
}

/// One stored tensor, of a checkpoint or of a pack.
struct Stored {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::size_t bytes;
  std::int64_t elements() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
};

/// A pack's scales belong to its matrices, and its tied head is the embedding once more: neither is a
/// parameter of its own.
std::vector<Stored> stored_tensors(const ModelFiles& files) {
  std::vector<Stored> tensors;
  if (!is_pack(files.path())) {
    const Checkpoint checkpoint = or_throw(files.checkpoint());
    for (const TensorEntry& t : checkpoint.tensors()) {
      const bool configuration = t.name == "rope_freqs.weight";  // of a GGUF; nothing was trained there
      if (!configuration) tensors.push_back({t.name, to_string(t.dtype), t.shape, t.bytes.size()});
    }
    return tensors;
  }
  const std::shared_ptr<const Pack> pack = or_throw(Pack::open(files.path()));
  for (const PackEntry& entry : pack->entries()) {
    const std::string name = entry.layout.empty() ? entry.name : entry.name.substr(entry.name.find(':') + 1);
    const bool again = !entry.layout.empty() && pack->find(name) != nullptr;
    if (!again && !name.ends_with(".scales")) tensors.push_back({name, entry.type, entry.shape, entry.size});
  }
  return tensors;
}

/// Bits that a weight takes once packed, scales of groups included.
double bits_per_weight(WeightType type) {
  switch (type) {
    case WeightType::kF32: return 32;
    case WeightType::kBf16: return 16;
    case WeightType::kInt8: return 8;
    case WeightType::kInt4: return 4.5;
  }
  return 0;
}

json inspect(const InspectFlags& flags) {
  // An assistant's config.json has a text_config too, so it is asked for first.
  const ModelFiles files = open_model(flags.path);
  const Result<AssistantConfig> assistant = load_assistant_config(files);
  const TextConfig config = assistant ? assistant->text : or_throw(load_text_config(files));
  const std::vector<Stored> stored = stored_tensors(files);
  const Position context = flags.context.value_or(config.max_position_embeddings);

  json values = {{"model_type", config.model_type},
                 {"vocab_size", config.vocab_size},
                 {"hidden_size", config.hidden_size},
                 {"intermediate_size", config.intermediate_size},
                 {"num_hidden_layers", config.num_hidden_layers},
                 {"num_attention_heads", config.num_attention_heads},
                 {"sliding_window", config.sliding_window},
                 {"rms_norm_eps", config.rms_norm_eps},
                 {"final_logit_softcapping", config.final_logit_softcapping},
                 {"hidden_size_per_layer_input", config.hidden_size_per_layer_input},
                 {"enable_moe_block", config.enable_moe_block},
                 {"num_experts", config.num_experts},
                 {"top_k_experts", config.top_k_experts},
                 {"moe_intermediate_size", config.moe_intermediate_size},
                 {"max_position_embeddings", config.max_position_embeddings}};
  if (assistant) {
    values["backbone_hidden_size"] = assistant->backbone_hidden_size;
    values["use_ordered_embeddings"] = assistant->use_ordered_embeddings;
    values["num_centroids"] = assistant->num_centroids;
    values["centroid_intermediate_top_k"] = assistant->centroid_intermediate_top_k;
  }

  json layers = json::array();
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    const bool sliding = layer.kind == AttentionKind::kSliding;
    layers.push_back({{"index", i},
                      {"kind", sliding ? "sliding" : "full"},
                      {"head_dim", layer.head_dim},
                      {"num_key_value_heads", layer.num_key_value_heads},
                      {"kv", layer.owns_kv                  ? "own"
                             : layer.donor == kDonorOutside ? "of the target"
                                                            : fmt::format("of layer {}", layer.donor)},
                      {"k_eq_v", layer.k_eq_v},
                      {"mlp", layer.intermediate_size},
                      {"experts", config.num_experts},
                      {"window", sliding ? config.sliding_window : 0}});
  }

  // Parameters: what a token of text passes through, and tables of which it reads a row.
  std::map<std::string, std::int64_t> parts;
  struct Group {
    std::int64_t count = 0, elements = 0;
    std::size_t bytes = 0;
    const Stored* first = nullptr;
  };
  std::map<std::string, Group> groups;
  std::int64_t total = 0, matrix_elements = 0, matrix_rows = 0, mapped_bytes = 0, vector_elements = 0;
  for (const Stored& tensor : stored) {
    const std::int64_t elements = tensor.elements();
    const std::string part = part_of(tensor.name);
    parts[part] += elements;
    total += elements;
    Group& group = groups[flags.tensors ? tensor.name : without_index(tensor.name)];
    if (group.first == nullptr) group.first = &tensor;
    group.count += 1;
    group.elements += elements;
    group.bytes += tensor.bytes;
    const bool table = part == "embedding" || part == "per_layer_embedding_table";
    if (table) mapped_bytes += static_cast<std::int64_t>(tensor.bytes);
    if (part == "vision" || part == "audio" || part == "per_layer_embedding_table") continue;
    if (tensor.shape.size() >= 2) {
      matrix_elements += elements;  // the embedding table too: it is packed once more as the head
      if (elements > 0) matrix_rows += elements / tensor.shape.back();
    } else {
      vector_elements += elements;
    }
  }
  // Of a table a token reads a row, of the experts the best top_k; the head reads the embedding table once more.
  std::int64_t active = total - parts["vision"] - parts["audio"] - parts["per_layer_embedding_table"];
  if (config.num_experts > 0)
    active -= parts["experts"] / config.num_experts * (config.num_experts - config.top_k_experts);

  json memory = json::object();
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    const DType kv = activation_dtype(type);
    std::size_t sliding = 0, full = 0;
    if (assistant) {
      // The drafter's copy of one donor of each kind.
      for (const AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
        const auto layer = std::find_if(config.layers.begin(), config.layers.end(),
                                        [&](const LayerConfig& l) { return l.kind == kind; });
        if (layer == config.layers.end()) continue;
        const bool ring = kind == AttentionKind::kSliding;
        (ring ? sliding : full) +=
            LayerKv(kv, layer->num_key_value_heads, layer->head_dim, ring ? drafter_window(config.sliding_window) : 0)
                .bytes_at(context);
      }
    } else {
      constexpr std::int64_t kRowsMax = 256;  // a verifier's
      const std::vector<KvCache::LayerShape> shapes = kv_layer_shapes(config);
      const KvCache cache(kv, shapes, kRowsMax);
      for (std::size_t i = 0; i < shapes.size(); ++i)
        (shapes[i].sliding_window > 0 ? sliding : full) += cache.layer(i).bytes_at(context);
    }
    const auto packed = static_cast<std::int64_t>(static_cast<double>(matrix_elements) * bits_per_weight(type) / 8);
    const std::int64_t weights = packed + (type == WeightType::kInt8 ? matrix_rows * 4 : 0) + vector_elements * 4;
    memory[to_string(type)] = {{"weights_bytes", weights},
                               {"kv_sliding_bytes", sliding},
                               {"kv_full_bytes", full},
                               {"total_bytes", weights + static_cast<std::int64_t>(sliding + full)}};
  }

  json tensors = json::array();
  for (const auto& [name, group] : groups) {
    tensors.push_back({{"name", name},
                       {"count", group.count},
                       {"dtype", group.first->dtype},
                       {"shape", group.first->shape},
                       {"elements", group.elements},
                       {"bytes", group.bytes}});
  }
  return {{"path", flags.path.string()},
          {"kind", assistant ? "assistant" : "backbone"},
          {"config", values},
          {"layers", layers},
          {"tensors", tensors},
          {"parameters", {{"total", total}, {"active_per_token", active}, {"parts", parts}}},
          {"memory", {{"context", context}, {"by_dtype", memory}, {"mapped_table_bytes", mapped_bytes}}}};
}

void print(const json& report) {
  std::printf("%s: %s\n\n", report["path"].get<std::string>().c_str(), report["kind"].get<std::string>().c_str());
  for (const auto& [key, value] : report["config"].items())
    std::printf("%-30s %s\n", key.c_str(), (value.is_string() ? value.get<std::string>() : value.dump()).c_str());
  std::printf("\nlayer  kind     head_dim  kv_heads  K/V            mlp     experts  window\n");
  for (const json& l : report["layers"]) {
    std::printf("%5d  %-7s  %8d  %8d  %-13s  %6d  %7d  %6d%s\n", l["index"].get<int>(),
                l["kind"].get<std::string>().c_str(), l["head_dim"].get<int>(), l["num_key_value_heads"].get<int>(),
                l["kv"].get<std::string>().c_str(), l["mlp"].get<int>(), l["experts"].get<int>(),
                l["window"].get<int>(), l["k_eq_v"].get<bool>() ? "  V = K" : "");
  }
  std::printf("\ntensors (layers of one name together; shape of the first)\n");
  for (const json& t : report["tensors"]) {
    std::printf("%4d x %-70s %-5s %-16s %14lld bytes\n", t["count"].get<int>(), t["name"].get<std::string>().c_str(),
                t["dtype"].get<std::string>().c_str(), t["shape"].dump().c_str(), t["bytes"].get<long long>());
  }
  const json& parameters = report["parameters"];
  std::printf("\nparameters %lld, of which %lld work on a token\n", parameters["total"].get<long long>(),
              parameters["active_per_token"].get<long long>());
  for (const auto& [part, count] : parameters["parts"].items())
    std::printf("  %-28s %14lld\n", part.c_str(), count.get<long long>());
  const json& memory = report["memory"];
  std::printf("\nMiB at %lld positions   weights  K/V sliding  K/V full     total\n",
              memory["context"].get<long long>());
  for (const auto& [dtype, m] : memory["by_dtype"].items()) {
    const auto mib = [&](const char* key) { return m[key].get<double>() / (1 << 20); };
    std::printf("  %-18s %10.1f %12.1f %9.1f %9.1f\n", dtype.c_str(), mib("weights_bytes"), mib("kv_sliding_bytes"),
                mib("kv_full_bytes"), mib("total_bytes"));
  }
  std::printf("  and %.1f MiB of tables mapped from the file\n",
              memory["mapped_table_bytes"].get<double>() / (1 << 20));
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("inspect", "Explain a checkpoint: configuration, layers, tensors, parameters, memory");
  auto flags = std::make_shared<InspectFlags>();
  command->add_option("PATH", flags->path, "Checkpoint of a backbone or an assistant")->required();
  command->add_option("--context", flags->context, "Positions to compute memory for (default: the model's largest)")
      ->check(CLI::Range(1, 1 << 24));
  command->add_flag("--tensors", flags->tensors, "List every tensor");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags] {
    const json report = inspect(*flags);
    if (flags->json) {
      std::printf("%s\n", report.dump(2, ' ', false, json::error_handler_t::replace).c_str());
    } else {
      print(report);
    }
  });
}

}  // namespace outrider
