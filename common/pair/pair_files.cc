#include "common/pair/pair_files.h"

#include <limits.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/base/json_fields.h"
#include "common/checkpoint/pack.h"
#include "common/model/backbone.h"

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

}  // namespace

fs::path assistant_beside(const fs::path& backbone) {
  std::error_code ignored;
  fs::path path = fs::absolute(backbone).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // NAME/
  const bool file = path.extension() == ".gguf";
  const fs::path beside =
      path.parent_path() / ((file ? path.stem() : path.filename()).string() + "-assistant" + (file ? ".gguf" : ""));
  return fs::exists(beside, ignored) ? beside : fs::path();
}

Result<PairPaths> pair_paths(const fs::path& dir) {
  std::error_code ignored;
  if (!dir.empty()) {
    if (fs::exists(dir / kPairJson, ignored)) return read_pair_json(dir);
    const bool two = !fs::exists(dir / "config.json", ignored) &&
                     (fs::exists(dir / "backbone", ignored) || fs::exists(dir / "assistant", ignored));
    return two ? PairPaths{dir / "backbone", dir / "assistant"} : PairPaths{dir, assistant_beside(dir)};
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

std::string node_name(const std::string& what) {
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, sizeof host);
  return fmt::format("{}-{}-{}", what, host, getpid());
}

}  // namespace outrider
