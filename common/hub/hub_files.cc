#include "common/hub/hub_files.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/base/ascii.h"
#include "common/base/json_fields.h"
#include "common/base/text.h"
#include "common/hub/hub_name.h"
#include "common/model/checkpoint/gguf.h"

namespace outrider {
namespace {
using Names = std::vector<std::string>;

constexpr const char *kConfigs[] = {"config.json", "hf_quant_config.json"},
                     *kTexts[] = {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                  "chat_template.jinja"};
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::size_t kIndexBytesMax = 64 << 20;
constexpr std::uint64_t kFileBytesMax = std::numeric_limits<std::int64_t>::max();

std::string folder_of(const std::string& name) { return name.substr(0, name.rfind('/') + 1); }
std::string base_of(const std::string& name) { return name.substr(name.rfind('/') + 1); }

/// A GGUF model: its folder, its name without ending and number, and its shards, if it has several.
struct GgufChoice {
  std::string folder, stem;
  std::optional<GgufShard> shards = {};

  /// Parses the name of any file of a model. None for a file that is not GGUF.
  static std::optional<GgufChoice> of(const std::string& name) {
    constexpr std::string_view kEnding = ".gguf";
    const std::string base = base_of(name);
    if (!base.ends_with(kEnding) || base.size() == kEnding.size()) return std::nullopt;
    GgufChoice choice{.folder = folder_of(name), .stem = base.substr(0, base.size() - kEnding.size())};
    choice.shards = GgufShard::of(base);
    if (choice.shards) choice.stem = choice.shards->stem;
    return choice;
  }
  int index() const { return shards ? shards->index : 1; }
  int count() const { return shards ? shards->count : 1; }
  std::string shard(int i) const { return folder + (shards ? shards->file(i) : stem + ".gguf"); }
  /// @param wanted  in lower case
  bool is(const std::string& wanted) const { return in_lower_case(stem) == wanted; }
  bool fits(const std::string& wanted) const {
    const std::string name = in_lower_case(stem);
    const std::size_t before = name.size() - wanted.size() - 1;
    return is(wanted) || in_lower_case(folder) == wanted + "/" ||
           (name.size() > wanted.size() && name.ends_with(wanted) && !is_letter_or_digit(name[before]));
  }
};

Result<GgufChoice> choose_gguf(const std::vector<GgufChoice>& models, const std::string& file) {
  std::string wanted = in_lower_case(base_of(file));
  if (const auto whole = GgufChoice::of(wanted)) wanted = whole->stem;
  std::vector<GgufChoice> fitting;
  for (const GgufChoice& model : models)
    if (file.empty() || model.fits(wanted)) fitting.push_back(model);
  if (!file.empty() && std::ranges::any_of(fitting, [&](const auto& model) { return model.is(wanted); }))
    std::erase_if(fitting, [&](const auto& model) { return !model.is(wanted); });
  if (fitting.size() == 1) return fitting[0];
  Names choices;
  for (const GgufChoice& model : fitting.empty() ? models : fitting) choices.push_back(model.stem);
  std::ranges::sort(choices);
  if (fitting.empty())
    return Error(Errc::kNotFound, "no GGUF model there is called '{}', wanted one of {}", file,
                 fmt::join(choices, ", "));
  return Error(Errc::kInvalidArgument,
               "holds {} GGUF models ({}): name one behind a colon, by how its name ends: ORG/NAME:Q4_0",
               choices.size(), fmt::join(choices, ", "));
}

/// Returns the vision tower beside a GGUF model; empty: none.
std::string projector_beside(const Names& listing, const GgufChoice& model) {
  Names beside;
  for (const std::string& name : listing)
    if (folder_of(name) == model.folder) beside.push_back(base_of(name));
  const std::string tower = choose_projector(std::move(beside), model.stem + ".gguf");
  return tower.empty() ? tower : model.folder + tower;
}

bool is_etag(const std::string& text) {
  return (text.size() == 40 || text.size() == 64) && text.find_first_not_of("0123456789abcdef") == text.npos;
}

/// Returns true if the hub's path stays inside its destination folder.
bool is_inside(const std::string& name) {
  const std::filesystem::path path(name);
  return !name.empty() && name.size() < 512 && path.is_relative() && path.lexically_normal() == path &&
         *path.begin() != ".." && path.has_filename();
}

}  // namespace

Names HubListing::names() const {
  Names all;
  for (const auto& [name, file] : files) all.push_back(name);
  return all;
}

Result<HubListing> read_listing(std::string_view text) {
  using nlohmann::json;
  ASSIGN_OR_RETURN(const json root, parse_json_object(text, "the hub's list of files", kListingBytesMax));
  const auto text_of = [](const json& object, const char* key) {
    const auto* value = member(object, key).get_ptr<const std::string*>();
    return value == nullptr ? std::string() : *value;
  };
  HubListing listing{.commit = text_of(root, "sha"), .files = {}};
  if (!is_commit(listing.commit))
    return Error(Errc::kMalformed, "the hub's list of files is of commit '{}', wanted 40 digits", listing.commit);
  for (const json& entry : member(root, "siblings")) {
    const json& lfs = member(entry, "lfs");
    HubFile file{.name = text_of(entry, "rfilename"), .etag = text_of(lfs, "sha256")};
    if (file.etag.empty()) file.etag = text_of(entry, "blobId");
    const json& size = member(entry, "size");
    if (!is_inside(file.name) || !is_etag(file.etag) || !size.is_number_unsigned() || size > kFileBytesMax) continue;
    file.size = size.get<std::uint64_t>();
    listing.files.emplace(file.name, file);
  }
  return listing;
}

Result<HubFiles> choose_files(const Names& listing, const std::string& file, HubNeed need) {
  const auto has = [&](const char* name) { return std::ranges::find(listing, name) != listing.end(); };
  std::vector<GgufChoice> models;
  const Names usual = gguf_models(listing);
  const std::string whole = in_lower_case(base_of(file));
  for (const std::string& name : listing) {
    const auto model = GgufChoice::of(name);
    if (!model || model->index() != 1) continue;
    // A drafter beside the model has to be called by its whole name; no projector is a model by itself.
    const bool named = in_lower_case(base_of(name)) == whole && !gguf_models({name}).empty();
    if (named || std::ranges::find(usual, name) != usual.end()) models.push_back(*model);
  }
  HubFiles files;
  const bool folder = has("config.json") && (models.empty() || has("model.safetensors") || has(kIndex));
  if (file.empty() && folder) {
    for (const char* config : kConfigs)
      if (has(config)) files.names.push_back(config);
    for (const char* text : kTexts) (has(text) ? files.names : files.absent).push_back(text);
    if (need == HubNeed::kText) return files;
    if (!has("model.safetensors") && !has(kIndex))
      return Error{Errc::kNotFound, "holds neither model.safetensors, nor its index, nor a GGUF model"};
    if (!has("model.safetensors")) files.index = kIndex;
    for (const char* weights : {"vision.safetensors", "audio.safetensors", "model.safetensors"})
      if (files.index.empty() && has(weights)) files.names.push_back(weights);
    return files;
  }
  if (models.empty())
    return Error(Errc::kNotFound, "holds no {}", file.empty() ? "config.json, nor a GGUF model" : "GGUF model");
  ASSIGN_OR_RETURN(const GgufChoice model, choose_gguf(models, file));
  if (const std::string tower = projector_beside(listing, model); !tower.empty()) files.names.push_back(tower);
  for (int i = 1; i <= model.count(); ++i) {
    files.names.push_back(model.shard(i));
    if (!has(files.names.back().c_str()))
      return Error(Errc::kNotFound, "lacks {}, shard {} of {}", files.names.back(), i, model.count());
  }
  files.model = model.shard(1);
  return files;
}

Result<Names> shards_of_index(std::string_view index, const std::string& where) {
  ASSIGN_OR_RETURN(const nlohmann::json root, parse_json_object(index, where, kIndexBytesMax));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : member(root, "weight_map").items()) {
    const auto* name = shard.get_ptr<const std::string*>();
    if (name == nullptr || name->empty() || name->front() == '.' || name->find('/') != name->npos)
      return Error(Errc::kMalformed, "{}: the shard of {} is {}, wanted a file beside it", where, tensor,
                   to_text(shard));
    shards.insert(*name);
  }
  if (shards.empty()) return Error(Errc::kMalformed, "{}: has no weight_map", where);
  return Names(shards.begin(), shards.end());
}

}  // namespace outrider
