#include "common/pair/pair_files.h"

#include <limits.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/complain.h"
#include "common/base/json_fields.h"
#include "common/model/checkpoint/gguf.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/backbone.h"
#include "common/os/files.h"
#include "common/pair/assistant_names.h"

namespace outrider {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr char kPairJson[] = "pair.json", kModelName[] = "gemma4_speculative_pair";

std::string hex(std::uint64_t x) { return fmt::format("{:016x}", x); }

Result<PairPaths> read_pair_json(const fs::path& dir) {
  const fs::path file = dir / kPairJson;
  ASSIGN_OR_RETURN(const std::string text, read_text(file));
  ASSIGN_OR_RETURN(const json root, parse_json_object(text, file.string()));
  FirstError wrong{file.string()};
  const JsonFields top(root, "", wrong);
  top.choice("model", {}, {kModelName});
  const auto part = [&](const char* name) -> Result<fs::path> {
    const JsonFields fields = top.object(name);
    const std::string weights = fields.text("weights"), wanted = fields.text("fingerprint");
    if (wrong.error) return *wrong.error;
    const fs::path relative = fs::path(weights).lexically_normal();
    if (relative.empty() || relative.is_absolute() || *relative.begin() == "..") {
      fields.fail(Errc::kMalformed, "weights", weights, "a directory beside it");
      return *wrong.error;
    }
    const fs::path path = dir / relative;
    if (!is_pack(path)) return path;
    ASSIGN_OR_RETURN(const auto pack, Pack::open(path));
    if (const std::string seen = hex(pack->info().fingerprint); seen != wanted)
      return file_error(Errc::kMismatch, file, "{} has fingerprint {}, wanted {}", path.string(), seen, wanted);
    return path;
  };
  PairPaths paths;
  ASSIGN_OR_RETURN(paths.backbone, part("target"));
  ASSIGN_OR_RETURN(paths.assistant, part("draft"));
  return paths;
}

/// Returns the assistant that unsloth publishes beside a GGUF, mtp-NAME.gguf for a model of the same size; empty: there
/// is none.
fs::path mtp_beside(const fs::path& gguf) {
  const auto size_of = [](const fs::path& path) {  // "gemma-4-E4B"
    const std::optional<std::string> assistant = published_assistant(path.filename().string());
    return assistant ? assistant->substr(0, assistant->find("-it-")) : "";
  };
  const std::string size = size_of(gguf);
  fs::path first;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(gguf.parent_path(), ignored)) {
    const fs::path& path = entry.path();
    const bool drafts = path.extension() == ".gguf" && path.filename().string().starts_with("mtp-");
    if (drafts && !size.empty() && size_of(path) == size && (first.empty() || path < first)) first = path;
  }
  return first;
}

/// Returns the first of these repositories that is complete in a cache; empty: none is.
fs::path first_in_cache(const fs::path& cache, const std::vector<std::string>& repositories) {
  for (const std::string& repository : repositories)
    if (auto found = find_in_cache(cache, {.repository = repository})) return found->path;
  return {};
}

}  // namespace

std::vector<std::string> possible_assistants(const fs::path& backbone) {
  fs::path path = fs::absolute(backbone).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // NAME/
  if (const auto name = HubName::of_path(path)) return assistant_repositories(name->repository);
  return assistant_names((path.extension() == ".gguf" ? path.stem() : path.filename()).string());
}

fs::path assistant_beside(const fs::path& backbone) {
  const std::vector<std::string> names = possible_assistants(backbone);
  if (const auto cache = cache_of(backbone)) return first_in_cache(*cache, names);
  std::error_code ignored;
  const bool file = backbone.extension() == ".gguf";
  const fs::path folder = (fs::absolute(backbone) / "").lexically_normal().parent_path().parent_path();
  for (const std::string& name : names) {
    for (const char* ending : {file ? ".gguf" : "", file ? "" : ".gguf"})
      if (const fs::path beside = folder / (name + ending); fs::exists(beside, ignored)) return beside;
  }
  const auto gguf = find_gguf(fs::absolute(backbone));
  return gguf && *gguf ? mtp_beside(**gguf) : fs::path();
}

fs::path fetch_assistant(const HubSettings& hub, const HubName& backbone, bool of_any_name) {
  const std::optional<std::string> published = published_assistant(backbone.model());
  for (const std::string& repository : assistant_repositories(backbone.repository)) {
    const bool known = published && repository.ends_with(*published);
    if (!known && !of_any_name) continue;
    const Result<fs::path> fetched = fetch_from_hub(hub, {.repository = repository});
    if (fetched) return *fetched;
    if (known || fetched.error().code != Errc::kNotFound) complain("no drafts: {}", fetched.error().message);
  }
  return {};
}

Result<PairPaths> model_pair(const fs::path& model, const PairNeed& need) {
  const std::optional<HubName> name = hub_name(model);
  if (!name) return PairPaths{model, need.assistant ? assistant_beside(model) : fs::path()};
  const HubSettings hub = HubSettings::of_environment();
  const bool cached = find_in_cache(hub.cache, *name, need.files).has_value();
  PairPaths paths;
  ASSIGN_OR_RETURN(paths.backbone, cached_or_fetched(hub, *name, need.files));
  if (!need.assistant) return paths;
  paths.assistant = first_in_cache(hub.cache, assistant_repositories(name->repository));
  if (paths.assistant.empty() && !hub.offline) paths.assistant = fetch_assistant(hub, *name, /*of_any_name=*/!cached);
  return paths;
}

Result<PairPaths> pair_paths(const fs::path& dir, const PairNeed& need) {
  std::error_code ignored;
  if (!dir.empty()) {
    if (fs::exists(dir / kPairJson, ignored)) return read_pair_json(dir);
    const bool two = !fs::exists(dir / "config.json", ignored) &&
                     (fs::exists(dir / "backbone", ignored) || fs::exists(dir / "assistant", ignored));
    return two ? PairPaths{dir / "backbone", dir / "assistant"} : model_pair(dir, need);
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (fs::path root :
       {program / "../models/nano", program / "../share/outrider/models/nano", fs::path(OUTRIDER_NANO_DIR)}) {
    if (fs::exists(root / "backbone", ignored)) return pair_paths(root.lexically_normal());
  }
  return pair_paths(OUTRIDER_NANO_DIR);
}

std::string pair_json(const TextConfig& target, const AssistantConfig& draft, std::uint64_t target_fingerprint,
                      std::uint64_t draft_fingerprint, DType bridge_dtype) {
  const json root = {{"model", kModelName},
                     {"target",
                      {{"weights", "target"},
                       {"hidden_export", "target_hidden_stream"},
                       {"hidden_size", target.hidden_size},
                       {"fingerprint", hex(target_fingerprint)}}},
                     {"draft",
                      {{"weights", "assistant"},
                       {"assistant_role", "mtp_drafter"},
                       {"backbone_hidden_size", draft.backbone_hidden_size},
                       {"hidden_size", draft.text.hidden_size},
                       {"fingerprint", hex(draft_fingerprint)}}},
                     {"bridge",
                      {{"source", "target_hidden_stream"},
                       {"dest", "draft_backbone_stream"},
                       {"shape", {1, target.hidden_size}},
                       {"dtype", to_string(bridge_dtype)}}}};
  return root.dump(2) + "\n";
}

PairFacts pair_facts(const TextConfig& config, const WeightSource& backbone) {
  const DType activations = activation_dtype(backbone.type());
  PairFacts facts{.backbone_fingerprint = backbone.fingerprint(),
                  .embedding_fingerprint = backbone.embedding_fingerprint(),
                  .hidden_size = static_cast<std::int32_t>(config.hidden_size),
                  .vocab_size = static_cast<std::int32_t>(config.vocab_size),
                  .context_max = config.max_position_embeddings,
                  .kv_dtype = activations,
                  .hidden_dtype = activations};
  for (const AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
    const int donor = config.last_owner(kind);
    if (donor < 0) continue;  // no backbone or assistant loads without both; an encoder does
    const LayerConfig& layer = config.layers[static_cast<std::size_t>(donor)];
    const bool sliding = kind == AttentionKind::kSliding;
    facts.donors.push_back({.sliding = sliding,
                            .layer = donor,
                            .num_key_value_heads = static_cast<std::int32_t>(layer.num_key_value_heads),
                            .head_dim = static_cast<std::int32_t>(layer.head_dim),
                            .sliding_window = sliding ? static_cast<std::int32_t>(config.sliding_window) : 0});
  }
  return facts;
}

void add_kv_cost(const KvCache& cache, KvCost* cost) {
  for (std::size_t i = 0; i < cache.layer_count(); ++i) {
    const LayerKv& layer = cache.layer(i);
    const auto bytes = 2 * static_cast<std::int64_t>(layer.row_bytes());
    (layer.ring_rows() > 0 ? cost->ring_bytes_per_position : cost->bytes_per_position) += bytes;
    cost->ring_rows = std::max(cost->ring_rows, layer.ring_rows());
  }
}

KvCost kv_cost_of(const KvCache& cache) {
  KvCost cost;
  add_kv_cost(cache, &cost);
  return cost;
}

std::string node_name(const std::string& what) {
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, sizeof host);
  return fmt::format("{}-{}-{}", what, host, getpid());
}

}  // namespace outrider
