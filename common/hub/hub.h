#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/hub/hub_files.h"
#include "common/hub/hub_name.h"

// Models by name, from the Hugging Face hub by way of the cache that all programs of this user share
// (docs/models.md).

namespace outrider {

/// Where models are looked for, as huggingface_hub reads it from the environment.
struct HubSettings {
  std::filesystem::path cache;  ///< HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, or hub/ in HF_HOME
  std::string endpoint;         ///< HF_ENDPOINT, without a slash at its end
  std::string token;            ///< HF_TOKEN, or what HF_TOKEN_PATH or HF_HOME/token holds; empty: none
  bool offline = false;         ///< HF_HUB_OFFLINE

  static HubSettings of_environment();
};

/// For the rest of this process and for its children: nobody is asked, as with HF_HUB_OFFLINE=1.
void forbid_asking_hub();

/// A model in the cache, whose files are all there. Asks nobody.
/// @return its folder, or of a GGUF its (first) file; nothing where a file is missing.
std::optional<std::filesystem::path> find_in_cache(const std::filesystem::path& cache, const HubName& name,
                                                   HubNeed need = HubNeed::kAll);

/// The same of what the hub has now: downloads what is missing, after one line on stderr that says what and how much.
/// @return what went wrong, beginning with the model's name: kUnavailable where the hub must not be asked or is busy,
///   kNotFound for what is not there or not for this token, kMismatch for a file with another checksum, kOutOfRange
///   where the disk has no room, and as choose_files(), follow_http() and for files.
Result<std::filesystem::path> fetch_from_hub(const HubSettings& hub, const HubName& name, HubNeed need = HubNeed::kAll);

/// Where a model is: `given`, if that exists or can be no name of the hub's; else in the cache, or else fetched into
/// it.
Result<std::filesystem::path> model_path(const std::filesystem::path& given, HubNeed need = HubNeed::kAll);

/// It is the name on the hub: nothing where there is such a file or folder, or where `given` can be no name.
std::optional<HubName> hub_name(const std::filesystem::path& given);

/// The cache that a path lies in, as in ROOT/models--ORG--NAME/snapshots/COMMIT; nothing for a path elsewhere.
std::optional<std::filesystem::path> cache_of(const std::filesystem::path& path);

/// How people call a model: ORG/NAME of one in a cache, else its path.
std::string shown_model(const std::filesystem::path& path);

}  // namespace outrider
