#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/hub/hub_files.h"
#include "common/hub/hub_name.h"

// Models by name, from the Hugging Face hub, through the cache that all of this user's programs share (docs/models.md).

namespace outrider {

/// Settings of the hub, read from huggingface_hub's environment variables.
struct HubSettings {
  std::filesystem::path cache;  ///< HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, or hub/ in HF_HOME
  std::string endpoint;         ///< HF_ENDPOINT, without a slash at its end
  std::string token;            ///< HF_TOKEN, or the contents of HF_TOKEN_PATH or HF_HOME/token; empty: none
  bool offline = false;         ///< HF_HUB_OFFLINE

  static HubSettings of_environment();
};

/// Forbids requests to the hub in this process and its children, as HF_HUB_OFFLINE=1 does.
void forbid_asking_hub();

/// A model in the cache.
struct CachedModel {
  std::filesystem::path path;  ///< its folder, or a GGUF's (first) file
  std::string commit;
  std::vector<std::string> unknown;  ///< HubFiles::absent, without those that the repository is known to lack
};
/// Finds a model with all of its weights in the cache, without any request.
std::optional<CachedModel> find_in_cache(const std::filesystem::path& cache, const HubName& name,
                                         HubNeed need = HubNeed::kAll);

/// Returns the hub's present version: downloads missing files, after one line on stderr with their number and size.
/// @return an error beginning with the model's name: kUnavailable if the hub must not be asked or is busy, kNotFound if
/// there is no such model or the token may not read it, kMismatch for a file with another checksum, kOutOfRange if the
/// disk is full, and those of choose_files(), follow_http() and files
Result<std::filesystem::path> fetch_from_hub(const HubSettings& hub, const HubName& name, HubNeed need = HubNeed::kAll);

/// Returns the path of a model that is whole in the cache, or is fetched into it. Where only texts may be missing, the
/// hub is asked for those of the cached commit; if it does not answer, what is there is used, after one line on stderr.
Result<std::filesystem::path> cached_or_fetched(const HubSettings& hub, const HubName& name, HubNeed need);

/// Returns a model's path: `given`, if that exists or cannot be a name of the hub's; else cached_or_fetched().
Result<std::filesystem::path> model_path(const std::filesystem::path& given, HubNeed need = HubNeed::kAll);

/// Returns the name on the hub: none if there is such a file or folder, or `given` cannot be a name.
std::optional<HubName> hub_name(const std::filesystem::path& given);

/// Returns the cache of a path such as ROOT/models--ORG--NAME/snapshots/COMMIT; none for a path elsewhere.
std::optional<std::filesystem::path> cache_of(const std::filesystem::path& path);

/// Returns a model's name for people: ORG/NAME if it is in a cache, else its path.
std::string shown_model(const std::filesystem::path& path);

}  // namespace outrider
