#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace outrider {

/// Somebody needs this of a model.
enum class HubNeed {
  kAll,
  kText,  ///< what a client must know: no weights, but of a GGUF, which holds all in one
};

/// A file of a repository.
struct HubFile {
  std::string name;        ///< stays in the folder that it is put into
  std::string etag;        ///< SHA-256, or git's SHA-1, and so the blob's name
  std::uint64_t size = 0;  ///< bytes
};

/// A commit of a repository.
struct HubListing {
  std::string commit;
  std::map<std::string, HubFile> files;

  std::vector<std::string> names() const;
};

/// It reads the hub's `/api/models/.../revision/...?blobs=true`. Files whose name or checksum it does not say, that
/// would lie outside, or that no file system holds, are left out.
Result<HubListing> read_listing(std::string_view text);
inline constexpr std::int64_t kListingBytesMax = 64 << 20;

/// The files that are used of a repository.
struct HubFiles {
  std::vector<std::string> names;  ///< the weights last; without the shards that `index` lists
  std::string index = {};          ///< model.safetensors.index.json; empty: there are no such shards
  std::string model = {};          ///< a GGUF's (first) file; empty: the model is the folder
};

/// Chooses from the files of a repository, or of what a cache has of one. A GGUF's projector (mmproj*.gguf) comes with
/// it, one of 16 bits rather than another.
/// @param file  as HubName::file
/// @return kNotFound where nothing fits, kInvalidArgument where several GGUF models do; both list the choices.
Result<HubFiles> choose_files(const std::vector<std::string>& listing, const std::string& file, HubNeed need);

/// The shards that a model.safetensors.index.json names, each once. @param where  for messages
Result<std::vector<std::string>> shards_of_index(std::string_view index, const std::string& where);

}  // namespace outrider
