#include "common/hub/hub.h"

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/ascii.h"
#include "common/base/complain.h"
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

/// Expands ~ to the home, and $NAME or ${NAME} to a variable that is set, like huggingface_hub.
fs::path expanded(const fs::path& path) {
  static const std::regex kVariable(R"(\$(?:(\w+)|\{([^}]*)\}))");
  std::string left = path.string(), done;
  if (left.starts_with("~/")) left.replace(0, 1, variable("HOME"));
  for (std::smatch found; std::regex_search(left, found, kVariable); left = found.suffix().str()) {
    const char* const value = std::getenv((found.str(1) + found.str(2)).c_str());
    done += found.prefix().str() + (value == nullptr ? found.str() : value);
  }
  return done + left;
}

bool is_true(const std::string& value) {
  const std::string text = in_lower_case(value);
  return text == "1" || text == "on" || text == "yes" || text == "true";
}

/// Removes line ends, and blanks at both ends, like huggingface_hub.
std::string trimmed(std::string text) {
  std::erase_if(text, [](unsigned char c) { return c < ' '; });
  text.erase(0, text.find_first_not_of(' '));
  text.erase(text.find_last_not_of(' ') + 1);
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
  const fs::path home = expanded(first_of({variable("HF_HOME"), below(variable("XDG_CACHE_HOME"), "huggingface"),
                                           below(variable("HOME"), ".cache/huggingface"), "/var/cache/huggingface"}));
  hub.cache = expanded(first_of({variable("HF_HUB_CACHE"), variable("HUGGINGFACE_HUB_CACHE"), home / "hub"}));
  hub.endpoint = variable("HF_ENDPOINT").empty() ? "https://huggingface.co" : variable("HF_ENDPOINT");
  while (hub.endpoint.ends_with('/')) hub.endpoint.pop_back();
  hub.offline = is_true(variable(kOffline).empty() ? variable("TRANSFORMERS_OFFLINE") : variable(kOffline));
  if (is_true(variable("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) return hub;
  hub.token = trimmed(variable("HF_TOKEN").empty() ? variable("HUGGING_FACE_HUB_TOKEN") : variable("HF_TOKEN"));
  if (!hub.token.empty()) return hub;
  const Result<std::string> file = read_text(expanded(first_of({variable("HF_TOKEN_PATH"), home / "token"})));
  if (file) hub.token = trimmed(*file);
  return hub;
}

void forbid_asking_hub() { setenv(kOffline, "1", /*overwrite=*/1); }

std::optional<CachedModel> find_in_cache(const fs::path& cache, const HubName& name, HubNeed need) {
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
  // What the repository lacks is marked, as by huggingface_hub.
  std::error_code ignored;
  std::erase_if(files->absent,
                [&](const auto& text) { return fs::exists(folder / ".no_exist" / commit / text, ignored); });
  return CachedModel{files->model.empty() ? snapshot : snapshot / files->model, commit, std::move(files->absent)};
}

Result<fs::path> cached_or_fetched(const HubSettings& hub, const HubName& name, HubNeed need) {
  const std::optional<CachedModel> cached = find_in_cache(hub.cache, name, need);
  if (cached && cached->unknown.empty()) return cached->path;
  if (!cached) return fetch_from_hub(hub, name, need);
  HubName same = name;
  same.revision = cached->commit;
  Result<fs::path> fetched = fetch_from_hub(hub, same, need);
  if (fetched) return fetched;
  complain("{}; using what is there, without {}", fetched.error().message, fmt::join(cached->unknown, ", "));
  return cached->path;
}

std::optional<HubName> hub_name(const fs::path& given) {
  std::error_code ignored;
  return fs::exists(given, ignored) ? std::nullopt : HubName::parse(given.string());
}

Result<fs::path> model_path(const fs::path& given, HubNeed need) {
  const std::optional<HubName> name = hub_name(given);
  if (!name) return given;
  return cached_or_fetched(HubSettings::of_environment(), *name, need);
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
