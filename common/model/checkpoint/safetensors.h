#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/model/checkpoint/checkpoint.h"

namespace outrider {

/// Private to this room: the two JSON texts of safetensors, read strictly. Both readers accept only
/// the structure they expect, so nesting is bounded and a repeated key is seen.

/// Of a file's metadata and list of tensors: the limit of safetensors' own implementation. Gemma's GGUF takes 15 MB.
inline constexpr std::size_t kMetadataBytesMax = 100'000'000;

/// The tensors of one mapped .safetensors file, sorted by name, every range checked. Bytes that
/// belong to no tensor are allowed.
Result<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file_bytes,
                                                   const std::filesystem::path& file);

/// weight_map of a model.safetensors.index.json, turned round: shard -> names of its tensors.
/// Shards are relative paths that stay inside the directory.
Result<std::map<std::string, std::vector<std::string>>> parse_index(std::span<const std::byte> file_bytes,
                                                                    const std::filesystem::path& file);

/// Refuses tensors of one file whose bytes overlap.
Result<void> check_no_overlap(const std::vector<TensorEntry>& tensors, const std::filesystem::path& file);

/// A name from a file as it may appear in a one-line message: quoted, escaped, cut when long.
std::string quote(std::string_view text);

/// Sorts a range by a key. @return the first of two with the same key, or null.
template <typename Range, typename Projection>
auto* sort_for_repeated(Range& range, Projection key) {
  std::ranges::sort(range, {}, key);
  const auto at = std::ranges::adjacent_find(range, {}, key);
  return at == range.end() ? nullptr : &*at;
}

}  // namespace outrider
