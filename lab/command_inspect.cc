#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <regex>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/compute/kernels/packed_matrix.h"
#include "common/model/audio/audio_config.h"
#include "common/model/block_drafter/block_config.h"
#include "common/model/checkpoint/checkpoint.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/backbone.h"
#include "common/model/gemma4/config.h"
#include "common/model/gemma4/kv_cache.h"
#include "common/model/vision/vision_config.h"
#include "lab/in_process_pair.h"
#include "lab/reporting.h"
#include "launch/model_flags.h"

namespace outrider {
namespace {

struct InspectFlags {
  std::filesystem::path path;
  ReportFlags report;
  std::optional<Position> context;
  bool tensors = false;
};

/// Returns the part of the model that a tensor belongs to.
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

/// "model.layers.3.mlp.x" -> "model.layers.*.mlp.x": common to all layers.
std::string without_index(const std::string& name) {
  static const std::regex kDigits("[0-9]+");
  return std::regex_replace(name, kDigits, "*");
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

/// Omits a pack's scales, which belong to its matrices, and its tied head, which is the embedding once more: neither is
/// a parameter of its own.
std::vector<Stored> stored_tensors(const ModelFiles& files) {
  std::vector<Stored> tensors;
  if (!is_pack(files.path())) {
    const Checkpoint checkpoint = or_throw(files.checkpoint());
    for (const TensorEntry& t : checkpoint.tensors()) {
      const bool configuration = t.name == "rope_freqs.weight";  // of a GGUF, not trained
      if (!configuration) tensors.push_back({t.name, t.type_name(), t.shape, t.bytes.size()});
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

/// Returns config.json's values, with the assistant's own keys if it is one.
Row config_row(const TextConfig& config, const Result<AssistantConfig>& assistant) {
  Row row = {{"model_type", config.model_type},
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
    row.add({{"backbone_hidden_size", assistant->backbone_hidden_size},
             {"use_ordered_embeddings", assistant->use_ordered_embeddings},
             {"num_centroids", assistant->num_centroids},
             {"centroid_intermediate_top_k", assistant->centroid_intermediate_top_k}});
  }
  return row;
}

/// Returns the vision tower of a multimodal model.
Row vision_row(const VisionConfig& config) {
  if (config.without_tower)
    return {
        {"hidden_size", config.hidden_size}, {"num_hidden_layers", 0}, {"soft_token_pixels", config.soft_token_side()}};
  return {{"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"head_dim", config.head_dim},
          {"use_clipped_linears", config.use_clipped_linears},
          {"standardize", config.standardize},
          {"soft_token_pixels", config.soft_token_side()}};
}

/// Returns the audio tower of a multimodal model.
Row audio_row(const AudioConfig& config) {
  if (config.without_tower) return {{"hidden_size", config.hidden_size}, {"num_hidden_layers", 0}};
  return {{"hidden_size", config.hidden_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"conv_kernel_size", config.conv_kernel_size},
          {"output_proj_dims", config.output_proj_dims},
          {"use_clipped_linears", config.use_clipped_linears}};
}

std::vector<Row> layer_rows(const TextConfig& config) {
  std::vector<Row> rows;
  for (const LayerConfig& layer : config.layers) {
    const bool sliding = layer.kind == AttentionKind::kSliding;
    rows.push_back({{"index", rows.size(), "layer"},
                    {"kind", sliding ? "sliding" : "full", "kind"},
                    {"head_dim", layer.head_dim, "head_dim"},
                    {"num_key_value_heads", layer.num_key_value_heads, "kv_heads"},
                    {"kv",
                     layer.owns_kv                  ? "own"
                     : layer.donor == kDonorOutside ? "of the target"
                                                    : fmt::format("of layer {}", layer.donor),
                     "K/V"},
                    {"k_eq_v", layer.k_eq_v, "V = K"},
                    {"mlp", layer.intermediate_size, "mlp"},
                    {"experts", config.num_experts, "experts"},
                    {"window", sliding ? config.sliding_window : 0, "window"}});
  }
  return rows;
}

/// Returns tensors by name, or grouped over layers, with the shape of the first.
std::vector<Row> tensor_rows(const std::vector<Stored>& stored, bool every_tensor) {
  struct Group {
    std::int64_t count = 0, elements = 0;
    std::size_t bytes = 0;
    const Stored* first = nullptr;
  };
  std::map<std::string, Group> groups;
  for (const Stored& tensor : stored) {
    Group& group = groups[every_tensor ? tensor.name : without_index(tensor.name)];
    if (group.first == nullptr) group.first = &tensor;
    group.count += 1;
    group.elements += tensor.elements();
    group.bytes += tensor.bytes;
  }
  std::vector<Row> rows;
  for (const auto& [name, group] : groups) {
    rows.push_back({{"count", group.count, "count"},
                    {"name", name, "tensors (layers of one name together; shape of the first)"},
                    {"dtype", group.first->dtype, "type"},
                    {"shape", group.first->shape},
                    {"", fmt::format("{}", fmt::join(group.first->shape, " x ")), "shape"},
                    {"elements", group.elements},
                    {"bytes", group.bytes, "bytes"}});
  }
  return rows;
}

/// Parameters of the parts, and their memory.
struct Sizes {
  std::map<std::string, std::int64_t> parts;
  std::int64_t total = 0, matrix_elements = 0, matrix_rows = 0, mapped_bytes = 0, vector_elements = 0;

  explicit Sizes(const std::vector<Stored>& stored) {
    for (const Stored& tensor : stored) {
      const std::int64_t elements = tensor.elements();
      const std::string part = part_of(tensor.name);
      parts[part] += elements;
      total += elements;
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
  }
  /// Returns the parameters used by one text token: one row of a table, the best top_k experts, and the embedding table
  /// once more in the head.
  std::int64_t active(const TextConfig& config) const {
    const auto of = [&](const char* part) { return parts.contains(part) ? parts.at(part) : 0; };
    const std::int64_t idle =
        config.num_experts > 0 ? of("experts") / config.num_experts * (config.num_experts - config.top_k_experts) : 0;
    return total - of("vision") - of("audio") - of("per_layer_embedding_table") - idle;
  }
  std::int64_t weight_bytes(WeightType type) const {
    const WeightFormat& format = format_of(type);
    return matrix_elements * format.unit_bytes / (format.unit_outputs * format.unit_inputs) +
           (format.has_scales ? matrix_rows * 4 : 0) + vector_elements * 4;
  }
};

/// Returns the bytes of K/V at so many positions, of sliding and of full layers: a backbone's, or an assistant's copy
/// of one donor of each kind.
std::pair<std::int64_t, std::int64_t> kv_bytes(const TextConfig& config, bool assistant, DType dtype,
                                               Position context) {
  std::size_t sliding = 0, full = 0;
  if (!assistant) {
    const std::vector<KvCache::LayerShape> shapes = kv_layer_shapes(config);
    const KvCache cache(dtype, shapes, kRowsMax);
    for (std::size_t i = 0; i < shapes.size(); ++i)
      (shapes[i].sliding_window > 0 ? sliding : full) += cache.layer(i).bytes_at(context);
    return {sliding, full};
  }
  for (const AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
    const auto layer =
        std::find_if(config.layers.begin(), config.layers.end(), [&](const LayerConfig& l) { return l.kind == kind; });
    if (layer == config.layers.end()) continue;
    const bool ring = kind == AttentionKind::kSliding;
    (ring ? sliding : full) +=
        LayerKv(dtype, layer->num_key_value_heads, layer->head_dim, ring ? drafter_window(config.sliding_window) : 0)
            .bytes_at(context);
  }
  return {sliding, full};
}

/// The facts of one model as JSON, and as text, with the most important first.
struct Inspection {
  Row report;
  std::string memory, details;
};

Inspection inspect(const InspectFlags& flags, const std::filesystem::path& path) {
  // An assistant's config.json has a text_config too, and so is tried first.
  const ModelFiles files = open_model(path);
  const Result<AssistantConfig> assistant = load_assistant_config(files);
  const TextConfig config = assistant ? assistant->text : or_throw(load_text_config(files));
  const std::vector<Stored> stored = stored_tensors(files);
  const Position context = flags.context.value_or(config.max_position_embeddings);
  const Sizes sizes(stored);

  Row by_dtype;
  std::vector<Row> memory;
  for (const WeightType type : kWeightTypes) {
    const std::int64_t weights = sizes.weight_bytes(type);
    const auto [sliding, full] = kv_bytes(config, assistant.has_value(), activation_dtype(type), context);
    memory.push_back({{"", to_string(type), "MiB"},
                      {"weights_bytes", weights, "weights", 1, kMiB},
                      {"kv_sliding_bytes", sliding, "K/V sliding", 1, kMiB},
                      {"kv_full_bytes", full, "K/V full", 1, kMiB},
                      {"total_bytes", weights + sliding + full, "total", 1, kMiB}});
    by_dtype.push_back({to_string(type), memory.back()});
  }
  const char* kind = assistant ? "assistant" : "backbone";
  const double on_grid = is_pack(path) ? 0 : grid_share(or_throw(files.checkpoint())).value();
  Row values = config_row(config, assistant);
  if (const Result<VisionConfig> vision = load_vision_config(files))
    values.push_back({"vision_tower", vision_row(*vision)});
  if (const Result<AudioConfig> audio = load_audio_config(files)) values.push_back({"audio_tower", audio_row(*audio)});
  const std::vector<Row> layers = layer_rows(config), tensors = tensor_rows(stored, flags.tensors);
  const Row report = {
      {"path", path.string()},
      {"kind", kind},
      {"config", values},
      {"layers", layers},
      {"tensors", tensors},
      {"parameters", Row{{"total", sizes.total}, {"active_per_token", sizes.active(config)}, {"parts", sizes.parts}}},
      {"q4_grid_share", on_grid},
      {"memory", Row{{"context", context}, {"by_dtype", by_dtype}, {"mapped_table_bytes", sizes.mapped_bytes}}}};
  return {report,
          fmt::format("{}: {}\nMemory at {} positions\n{}and {:.1f} MiB of tables mapped from the file\n"
                      "parameters {}, of which {} work on a token\n{}{}",
                      path.string(), kind, context, table(memory), static_cast<double>(sizes.mapped_bytes) / kMiB,
                      sizes.total, sizes.active(config),
                      on_grid > 0 ? fmt::format("{:.0f} % of the layers' weights lie on a 4-bit grid, which q4 keeps\n",
                                                100 * on_grid)
                                  : "",
                      key_lines(sizes.parts)),
          fmt::format("{}: configuration\n{}\n{}\n{}", kind, key_lines(values), table(layers), table(tensors))};
}

/// Reports a drafter with hidden rows, without its target.
void inspect_block_drafter(const InspectFlags& flags, const std::filesystem::path& path) {
  const ModelFiles files = open_model(path);
  const ModelText text = or_throw(files.need_config_json());
  const BlockConfig config = or_throw(parse_block_config(text.text, text.name));
  const std::vector<Stored> stored = stored_tensors(files);
  const Sizes sizes(stored);
  const char* kind = config.eagle3 ? "EAGLE-3 drafter" : config.markov_rank > 0 ? "DSpark drafter" : "DFlash drafter";
  const std::int64_t layers = std::ssize(config.sliding);
  const std::vector<Row> tensors = tensor_rows(stored, flags.tensors);
  const Row values = {{"drafts_per_pass", config.eagle3 ? 1 : config.drafts()},
                      {"target_layers", config.hidden_layers},
                      {"row_bytes_bf16", 2 * config.target_row()},
                      {"kv_bytes_per_position_bf16", 4 * layers * config.num_key_value_heads * config.head_dim},
                      {"vocab_size", config.vocab_size},
                      {"hidden_size", config.hidden_size},
                      {"num_hidden_layers", layers},
                      {"num_attention_heads", config.num_attention_heads},
                      {"num_key_value_heads", config.num_key_value_heads},
                      {"head_dim", config.head_dim},
                      {"parameters", sizes.total}};
  write_report(
      flags.report,
      {{"path", path.string()}, {"kind", kind}, {"config", values}, {"parts", sizes.parts}, {"tensors", tensors}},
      fmt::format("{}: {}\n{}\n{}\n{}", path.string(), kind, key_lines(values), key_lines(sizes.parts),
                  table(tensors)));
}

/// Returns the assistant that belongs to a backbone by its name.
std::string assistant_line(const std::filesystem::path& backbone, Row& report) {
  const std::filesystem::path found = assistant_beside(backbone);
  const std::vector<std::string> names = possible_assistants(backbone);
  report.add({{"assistant", found.empty() ? Json() : Json(found.string())}, {"assistant_names", names}});
  if (!found.empty()) return fmt::format("assistant: {}\n", found.string());
  return fmt::format("assistant: none; tried {}\n", fmt::join(names, ", "));
}

void inspect(const InspectFlags& flags) {
  std::error_code ignored;
  const bool pair = std::filesystem::exists(flags.path / "pair.json", ignored) ||
                    std::filesystem::exists(flags.path / "backbone", ignored);
  if (!pair) {
    const std::filesystem::path path = or_throw(model_path(flags.path));
    if (is_block_drafter(path)) return inspect_block_drafter(flags, path);
    auto [report, memory, details] = inspect(flags, path);
    if (!load_assistant_config(open_model(path))) memory += "\n" + assistant_line(path, report);
    return write_report(flags.report, report, memory + "\n" + details);
  }
  const PairPaths paths = or_throw(pair_paths(flags.path));
  const Inspection backbone = inspect(flags, paths.backbone), assistant = inspect(flags, paths.assistant);
  write_report(flags.report, {{"backbone", backbone.report}, {"assistant", assistant.report}},
               backbone.memory + "\n" + assistant.memory + "\n" + backbone.details + "\n" + assistant.details);
}

}  // namespace

void add_inspect_command(Command& app) {
  Command* command =
      app.add_subcommand("inspect", "Explain a checkpoint: parameters, memory, configuration, layers, tensors");
  auto flags = std::make_shared<InspectFlags>();
  command
      ->add_option("PATH", flags->path,
                   "Checkpoint of a backbone or an assistant, its name on the hub, or the directory of a pair")
      ->required();
  command->add_option("--context", flags->context, "Positions to compute memory for (default: the model's largest)")
      ->check(CLI::Range(1, 1 << 24));
  command->add_flag("--tensors", flags->tensors, "List every tensor");
  flags->report.add_to(*command);
  command->callback([flags] { inspect(*flags); });
}

}  // namespace outrider
