#include "common/config/pair.h"

#include <algorithm>

#include "common/base/random.h"
#include "common/model/backbone.h"

namespace outrider {
namespace fs = std::filesystem;

PairPaths pair_paths(const fs::path& dir) {
  if (!dir.empty()) return {dir / "backbone", dir / "assistant"};
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (fs::path root : {program / "../models/nano", program / "../share/outrider/models/nano", fs::path(OUTRIDER_NANO_DIR)}) {
    if (fs::exists(root / "backbone", ignored)) return pair_paths(root.lexically_normal());
  }
  return pair_paths(OUTRIDER_NANO_DIR);
}

PairFacts pair_facts(const TextConfig& config, const WeightSource& backbone) {
  const DType activations = activation_dtype(backbone.type());
  PairFacts facts{.backbone_fingerprint = backbone.fingerprint(),
                  .hidden_size = static_cast<std::int32_t>(config.hidden_size),
                  .vocab_size = static_cast<std::int32_t>(config.vocab_size),
                  .context_max = config.max_position_embeddings,
                  .kv_dtype = activations,
                  .hidden_dtype = activations};
  // The table is all that a drafter holds of the target: some of its rows stand for the whole.
  if (const auto table = backbone.table(text_prefix(backbone) + "embed_tokens.weight", config.vocab_size, config.hidden_size)) {
    const std::size_t step = std::max<std::size_t>(1, table->bytes.size() / 4096);
    std::uint64_t hash = table->bytes.size();
    for (std::size_t i = 0; i < table->bytes.size(); i += step) hash = mix64(hash ^ static_cast<std::uint64_t>(table->bytes[i]));
    facts.embedding_fingerprint = hash;
  }
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

}  // namespace outrider
