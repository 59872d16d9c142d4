#include "launch/suitable_type.h"

#include <algorithm>
#include <map>
#include <system_error>

#include <fmt/format.h>

#include "common/checkpoint/model_files.h"
#include "common/checkpoint/pack.h"
#include "common/model/tower.h"

namespace outrider {
namespace {

bool is_of(const TensorEntry& tensor, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(parts, [&](const char* part) { return tensor.name.find(part) != std::string::npos; });
}

/// What is held in memory of a checkpoint's weights: its matrices, not the tables that stay in the file.
bool is_held(const TensorEntry& tensor) {
  return tensor.shape.size() >= 2 && !is_of(tensor, {"embed_tokens_per_layer", "position_embedding_table"});
}

bool is_of_a_tower(const TensorEntry& tensor) {
  return is_of(tensor, {"vision_tower", "audio_tower", "embed_vision", "embed_audio"});
}

struct Stored {
  double elements = 0, of_towers = 0;
  std::map<DType, double> by_type;
  DType most() const {
    DType most = DType::kBf16;
    double largest = -1;
    for (const auto& [type, count] : by_type)
      if (count > largest) most = type, largest = count;
    return most;
  }
};

Result<Stored> stored(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(path));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, files.checkpoint());
  Stored stored;
  for (const TensorEntry& tensor : checkpoint.tensors()) {
    if (!is_held(tensor)) continue;
    const auto count = static_cast<double>(tensor.element_count());
    if (is_of_a_tower(tensor)) {
      stored.of_towers += count;
    } else {
      stored.elements += count;
      stored.by_type[tensor.dtype] += count;
    }
  }
  return stored;
}

}  // namespace

Result<SuitableType> suitable_type(const PairPaths& paths, std::int64_t memory_bytes) {
  std::error_code ignored;
  for (const std::filesystem::path& path : {paths.backbone, paths.assistant}) {
    if (path.empty() || !std::filesystem::exists(path, ignored)) continue;
    if (is_pack(path)) {
      ASSIGN_OR_RETURN(const std::shared_ptr<const Pack> pack, Pack::open(path));
      ASSIGN_OR_RETURN(const WeightType type, parse_weight_type(pack->info().dtype));
      return SuitableType{type, ""};
    }
  }
  ASSIGN_OR_RETURN(const Stored backbone, stored(paths.backbone));
  double elements = backbone.elements;
  if (!paths.assistant.empty() && std::filesystem::exists(paths.assistant, ignored)) {
    ASSIGN_OR_RETURN(const Stored assistant, stored(paths.assistant));
    elements += assistant.elements;
  }
  const DType most = backbone.most();
  const bool is_small = stored_bytes(most, block_elements(most)) < 2 * block_elements(most);
  SuitableType chosen{is_small ? WeightType::kInt8 : WeightType::kBf16, ""};
  if (is_small) chosen.why = fmt::format("its file holds {}", to_string(most));
  const auto needed = [&](WeightType type) {
    return elements * bytes_per_weight(type) + backbone.of_towers * bytes_per_weight(tower_type(type));
  };
  while (chosen.type != WeightType::kInt4 && needed(chosen.type) > static_cast<double>(memory_bytes)) {
    chosen.why = fmt::format("{} would take {:.1f} GiB, and {:.1f} are free", to_string(chosen.type),
                             needed(chosen.type) / (1 << 30), static_cast<double>(memory_bytes) / (1 << 30));
    chosen.type = chosen.type == WeightType::kBf16 ? WeightType::kInt8 : WeightType::kInt4;
  }
  return chosen;
}

}  // namespace outrider
