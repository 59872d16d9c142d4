#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace outrider {

/// Required part of a model.
enum class HubNeed {
  kAll,
  kText,  ///< for clients: no weights, except for a GGUF, which is one file
};

/// A file of a repository.
struct HubFile {
  std::string name;        ///< stays inside its destination folder
  std::string etag;        ///< SHA-256, or git's SHA-1; also the blob's name
  std::uint64_t size = 0;  ///< bytes
};

/// A commit of a repository.
struct HubListing {
  std::string commit;
  std::map<std::string, HubFile> files;

  std::vector<std::string> names() const;
};

/// Parses the hub's `/api/models/.../revision/...?blobs=true`. Omits files without a name or checksum, outside the
/// folder, or larger than a file system holds.
Result<HubListing> read_listing(std::string_view text);
inline constexpr std::int64_t kListingBytesMax = 64 << 20;

/// The files of a repository that are used.
struct HubFiles {
  std::vector<std::string> names;  ///< the weights last; without the shards that `index` lists
  std::string index = {};          ///< model.safetensors.index.json; empty: there are no such shards
  std::string model = {};          ///< a GGUF's (first) file; empty: the model is the folder
  /// The texts of a folder that the list lacks. A model without them runs too, but with another prompt or sampling.
  std::vector<std::string> absent = {};
};

/// Chooses files from a repository's list, or from a cache's part of it. A GGUF's projector is included,
/// preferably one of 16 bits.
/// @param file  as in HubName::file
/// @return kNotFound if nothing fits, kInvalidArgument if several GGUF models do; both list the choices
Result<HubFiles> choose_files(const std::vector<std::string>& listing, const std::string& file, HubNeed need);

/// Returns the shards in a model.safetensors.index.json, each once. @param where  for messages
Result<std::vector<std::string>> shards_of_index(std::string_view index, const std::string& where);

}  // namespace outrider
