#include "launch/suitable_type.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <system_error>

#include <fmt/format.h>

#include "common/base/random.h"
#include "common/compute/tensor/decode.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/tower.h"

namespace outrider {
namespace {

bool is_of(const TensorEntry& tensor, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(parts, [&](const char* part) { return tensor.name.find(part) != std::string::npos; });
}

/// Returns true if a checkpoint's tensor is kept in memory: a matrix, not a table that stays in the file.
bool is_held(const TensorEntry& tensor) {
  return tensor.shape.size() >= 2 && !is_of(tensor, {"embed_tokens_per_layer", "position_embedding_table"});
}

bool is_of_a_tower(const TensorEntry& tensor) {
  return is_of(tensor, {"vision_tower", "audio_tower", "embed_vision", "embed_audio"});
}

struct Stored {
  double elements = 0, of_towers = 0, on_grid = 0;
  GridShare of_layers = {};
  /// The type that most weights are stored in, and true if it has fewer than 16 bits a weight.
  struct Kind {
    double elements = 0;
    bool is_small = false;
    double int8_error = 0;  ///< of one of its matrices, if small: product_error()
  };
  std::map<std::string, Kind> by_kind;
  std::pair<std::string, Kind> most() const {
    const auto most = std::ranges::max_element(by_kind, {}, [](const auto& kind) { return kind.second.elements; });
    if (most == by_kind.end()) return {"BF16", {}};
    return {most->first, most->second};
  }
};

/// @return the distance of a type's products from those of a matrix as stored: root mean square error over root mean
/// square, of some rows of both
double product_error(const TensorEntry& tensor, WeightType type) {
  constexpr std::int64_t kOutputs = 64, kRows = 8;
  const std::int64_t in = tensor.shape.back(), out = std::min(kOutputs, tensor.element_count() / in);
  const WeightRows rows{out, [&](std::int64_t row, std::span<float> to) { tensor.read_row(row, to); }};
  Tensor x(padded_rows(kRows), in), exact(padded_rows(kRows), out), rounded(padded_rows(kRows), out);
  CounterRng rng(1);
  for (std::int64_t r = 0; r < kRows; ++r)
    for (float& value : x.view()[r].span()) value = static_cast<float>(2 * rng.uniform() - 1);
  Linear::pack(WeightType::kF32, in, {&rows, 1}).forward(x.view().rows(0, kRows), exact.view().rows(0, kRows));
  Linear::pack(type, in, {&rows, 1}).forward(x.view().rows(0, kRows), rounded.view().rows(0, kRows));
  double errors = 0, sizes = 0;
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t o = 0; o < out; ++o) {
      const double wanted = static_cast<double>(exact.view()[r][o]), seen = static_cast<double>(rounded.view()[r][o]);
      errors += (seen - wanted) * (seen - wanted), sizes += wanted * wanted;
    }
  }
  return sizes > 0 ? std::sqrt(errors / sizes) : 0;
}

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
      Stored::Kind& kind = stored.by_kind[tensor.type_name()];
      const std::size_t block = block_elements(tensor.dtype);
      kind.is_small = tensor.coded || stored_bytes(tensor.dtype, block) < 2 * block;
      const bool is_first = kind.elements == 0 && count > 0 && (tensor.coded || is_decodable(tensor.dtype));
      if (kind.is_small && is_first) kind.int8_error = product_error(tensor, WeightType::kInt8);
      kind.elements += count;
      if (stored.of_layers.add(tensor)) stored.on_grid += count;
    }
  }
  return stored;
}

}  // namespace

Result<SuitableType> suitable_type(const PairPaths& paths, std::optional<std::int64_t> memory_bytes) {
  ASSIGN_OR_RETURN(const std::optional<WeightType> packed, packed_type(paths.backbone));
  if (packed) return SuitableType{*packed, ""};
  ASSIGN_OR_RETURN(const Stored backbone, stored(paths.backbone));
  double elements = backbone.elements, on_grid = backbone.on_grid;
  std::error_code ignored;
  const bool drafts = !paths.assistant.empty() && std::filesystem::exists(paths.assistant, ignored);
  if (drafts && !is_pack(paths.assistant)) {  // a pack's type is its own
    ASSIGN_OR_RETURN(const Stored assistant, stored(paths.assistant));
    elements += assistant.elements;
    on_grid += assistant.on_grid;
  }
  const auto [most, kind] = backbone.most();
  const bool is_small = kind.is_small;
  SuitableType chosen{is_small ? WeightType::kInt8 : WeightType::kBf16, ""};
  if (backbone.of_layers.is_most()) {
    chosen = {WeightType::kQ4, "its weights lie on a 4-bit grid, which q4 keeps"};
  } else if (is_small) {
    chosen.why = fmt::format("its file holds {}", most);
    if (kind.int8_error > 0)
      chosen.why += fmt::format(", of which int8 makes products that are {:.1f} % off", 100 * kind.int8_error);
  }
  const auto needed = [&](WeightType type) {
    const double kept = type == WeightType::kQ4 ? (elements - on_grid) * (is_small ? 1 : 2) : 0,
                 rounded = type == WeightType::kQ4 ? on_grid : elements;
    return rounded * bytes_per_weight(type) + kept + backbone.of_towers * bytes_per_weight(tower_type(type));
  };
  while (memory_bytes && chosen.type != WeightType::kInt4 && needed(chosen.type) > static_cast<double>(*memory_bytes)) {
    chosen.why = fmt::format("{} would take {:.1f} GiB, and {:.1f} are free", to_string(chosen.type),
                             needed(chosen.type) / (1 << 30), static_cast<double>(*memory_bytes) / (1 << 30));
    chosen.type = chosen.type == WeightType::kBf16 ? WeightType::kInt8 : WeightType::kInt4;
  }
  return chosen;
}

}  // namespace outrider
