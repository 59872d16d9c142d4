#include "common/hub/hub.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/base/ascii.h"
#include "common/os/files.h"

namespace outrider {
namespace fs = std::filesystem;
namespace {

constexpr const char* kOffline = "HF_HUB_OFFLINE";

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path first_of(std::initializer_list<fs::path> paths) {
  return *std::ranges::find_if(paths, [](const fs::path& path) { return !path.empty(); });
}

fs::path below(const std::string& folder, const char* rest) {
  return folder.empty() ? fs::path() : folder / fs::path(rest);
}

/// Expands ~ to the home, like huggingface_hub.
fs::path without_tilde(const fs::path& path) {
  return path.string().starts_with("~/") ? below(variable("HOME"), path.string().c_str() + 2) : path;
}

bool is_true(const std::string& value) {
  const std::string text = in_lower_case(value);
  return text == "1" || text == "on" || text == "yes" || text == "true";
}

std::string trimmed(std::string text) {
  text.erase(std::ranges::find_if(text, [](char c) { return c <= ' '; }), text.end());
  return text;
}

/// Returns the files of a snapshot, including those in its folders.
std::vector<std::string> files_in(const fs::path& snapshot) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::recursive_directory_iterator at(snapshot, ignored), end; at != end; at.increment(ignored))
    if (at->is_regular_file(ignored)) names.push_back(at->path().lexically_relative(snapshot).string());
  return names;
}

}  // namespace

HubSettings HubSettings::of_environment() {
  HubSettings hub;
  const fs::path home =
      without_tilde(first_of({variable("HF_HOME"), below(variable("XDG_CACHE_HOME"), "huggingface"),
                              below(variable("HOME"), ".cache/huggingface"), "/var/cache/huggingface"}));
  hub.cache = without_tilde(first_of({variable("HF_HUB_CACHE"), variable("HUGGINGFACE_HUB_CACHE"), home / "hub"}));
  hub.endpoint = variable("HF_ENDPOINT").empty() ? "https://huggingface.co" : variable("HF_ENDPOINT");
  while (hub.endpoint.ends_with('/')) hub.endpoint.pop_back();
  hub.token = trimmed(variable("HF_TOKEN").empty() ? variable("HUGGING_FACE_HUB_TOKEN") : variable("HF_TOKEN"));
  if (hub.token.empty() && !is_true(variable("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) {
    const Result<std::string> file = read_text(without_tilde(first_of({variable("HF_TOKEN_PATH"), home / "token"})));
    if (file) hub.token = trimmed(*file);
  }
  hub.offline = is_true(variable(kOffline)) || is_true(variable("TRANSFORMERS_OFFLINE"));
  return hub;
}

void forbid_asking_hub() { setenv(kOffline, "1", /*overwrite=*/1); }

std::optional<fs::path> find_in_cache(const fs::path& cache, const HubName& name, HubNeed need) {
  const fs::path folder = cache / name.folder();
  std::string commit = name.revision;
  if (!is_commit(commit)) {
    const Result<std::string> ref = read_text(folder / "refs" / name.revision);
    if (!ref || !is_commit(trimmed(*ref))) return std::nullopt;
    commit = trimmed(*ref);
  }
  const fs::path snapshot = folder / "snapshots" / commit;
  const std::vector<std::string> listing = files_in(snapshot);
  Result<HubFiles> files = choose_files(listing, name.file, need);
  if (!files) return std::nullopt;
  if (!files->index.empty()) {
    const Result<std::string> index = read_text(snapshot / files->index);
    const auto shards = index ? shards_of_index(*index, files->index) : index.error();
    if (!shards) return std::nullopt;
    for (const std::string& shard : *shards)
      if (std::ranges::find(listing, shard) == listing.end()) return std::nullopt;
  }
  if (!files->model.empty()) return snapshot / files->model;
  // The absence of a file in the repository is marked, as by huggingface_hub.
  constexpr const char* kTokenizer = "tokenizer.json";
  std::error_code ignored;
  const bool known =
      fs::exists(snapshot / kTokenizer, ignored) || fs::exists(folder / ".no_exist" / commit / kTokenizer, ignored);
  return known ? std::optional(snapshot) : std::nullopt;
}

std::optional<HubName> hub_name(const fs::path& given) {
  std::error_code ignored;
  return fs::exists(given, ignored) ? std::nullopt : HubName::parse(given.string());
}

Result<fs::path> model_path(const fs::path& given, HubNeed need) {
  const std::optional<HubName> name = hub_name(given);
  if (!name) return given;
  const HubSettings hub = HubSettings::of_environment();
  if (auto found = find_in_cache(hub.cache, *name, need)) return *std::move(found);
  return fetch_from_hub(hub, *name, need);
}

std::optional<fs::path> cache_of(const fs::path& path) {
  const std::optional<HubName> name = HubName::of_path(path);
  if (!name) return std::nullopt;
  std::error_code ignored;  // found moments before
  const std::string whole = fs::absolute(path, ignored).lexically_normal().string();
  return whole.substr(0, whole.rfind("/" + name->folder() + "/"));
}

std::string shown_model(const fs::path& path) {
  const std::optional<HubName> name = HubName::of_path(path);
  return name ? name->repository : path.string();
}

}  // namespace outrider
