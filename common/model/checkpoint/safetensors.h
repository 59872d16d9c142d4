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

/// Private to this room: strict readers of safetensors' two JSON texts. Both accept only the expected structure, so
/// that nesting is bounded and repeated keys are detected.

/// Limit of a file's metadata and tensor list: that of safetensors' own implementation. Gemma's GGUF has 15 MB.
inline constexpr std::size_t kMetadataBytesMax = 100'000'000;

/// Returns the tensors of one mapped .safetensors file, sorted by name, with every range checked. Unused bytes are
/// allowed.
Result<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file_bytes,
                                                   const std::filesystem::path& file);

/// Inverts the weight_map of a model.safetensors.index.json: shard -> names of its tensors. Shards are relative paths
/// inside the directory.
Result<std::map<std::string, std::vector<std::string>>> parse_index(std::span<const std::byte> file_bytes,
                                                                    const std::filesystem::path& file);

/// Rejects a file whose tensors overlap.
Result<void> check_no_overlap(const std::vector<TensorEntry>& tensors, const std::filesystem::path& file);

/// Formats a name from a file for a one-line message: quoted, escaped, cut when long.
std::string quote(std::string_view text);

/// Sorts a range by a key. @return the first of two with the same key, or null.
template <typename Range, typename Projection>
auto* sort_for_repeated(Range& range, Projection key) {
  std::ranges::sort(range, {}, key);
  const auto at = std::ranges::adjacent_find(range, {}, key);
  return at == range.end() ? nullptr : &*at;
}

}  // namespace outrider
