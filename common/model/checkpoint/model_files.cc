#include "common/model/checkpoint/model_files.h"

#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/base/json_fields.h"
#include "common/model/checkpoint/gguf_config.h"
#include "common/model/checkpoint/gguf_projector.h"
#include "common/os/files.h"

namespace outrider {
namespace {

/// Returns the template in tokenizer_config.json: a string, or a list of named ones. Null for none.
const std::string* template_of(const nlohmann::json& tokenizer_config) {
  const nlohmann::json& stated = member(tokenizer_config, "chat_template");
  if (!stated.is_array()) return stated.get_ptr<const std::string*>();
  for (const nlohmann::json& entry : stated) {
    if (member(entry, "name") != "default") continue;
    if (const auto* text = member(entry, "template").get_ptr<const std::string*>()) return text;
  }
  return nullptr;
}

}  // namespace

Result<ModelFiles> ModelFiles::open(const std::filesystem::path& path) {
  ModelFiles files;
  files.path_ = path;
  ASSIGN_OR_RETURN(const auto gguf, find_gguf(path));
  std::error_code ignored;
  if (gguf) {
    ASSIGN_OR_RETURN(GgufModel model, GgufModel::open(*gguf));
    files.gguf_ = std::make_shared<const GgufModel>(std::move(model));
    files.projector_error_ = files.open_projector(*gguf);
  } else if (!std::filesystem::exists(path, ignored)) {
    return file_error(Errc::kNotFound, path, "no such file or directory, wanted a model");
  }
  return files;
}

std::string ModelFiles::open_projector(const std::filesystem::path& text_model) {
  const auto architecture = gguf_->metadata.find<std::string_view>("general.architecture");
  if (!architecture || *architecture != "gemma4") return "";  // an assistant may be in its target's folder
  const auto tried = [&]() -> Result<void> {
    const auto file = find_projector(text_model);
    if (!file) return {};
    ASSIGN_OR_RETURN(GgufModel projector, GgufModel::open(*file));
    ASSIGN_OR_RETURN(const ModelText config, gguf_config(*gguf_));
    ASSIGN_OR_RETURN(const nlohmann::json whole, add_projector(nlohmann::json::parse(config.text), *gguf_, projector));
    whole_config_ = whole.dump();
    projector_ = std::make_shared<const GgufModel>(std::move(projector));
    return {};
  }();
  return tried ? "" : tried.error().message;
}

Result<std::optional<ModelText>> ModelFiles::read(const char* name) const {
  const std::filesystem::path file = path_ / name;
  Result<std::string> text = read_text(file);
  if (text) return std::optional(ModelText{std::move(*text), file.string()});
  if (text.error().code == Errc::kNotFound) return std::optional<ModelText>();
  return text.error();
}

Result<std::optional<ModelText>> ModelFiles::config_json() const {
  if (!gguf_) return read("config.json");
  ASSIGN_OR_RETURN(ModelText config, gguf_config(*gguf_));
  if (projector_) config.text = whole_config_;
  if (!projector_error_.empty()) config.notes.push_back(projector_error_ + ": pictures and sounds are refused");
  return std::optional(std::move(config));
}

Result<ModelText> ModelFiles::need_config_json() const {
  ASSIGN_OR_RETURN(std::optional<ModelText> text, config_json());
  if (text) return *std::move(text);
  return file_error(Errc::kNotFound, path_, "is no model: no config.json is there, nor a GGUF model");
}

Result<ModelText> ModelFiles::tower_config_json() const {
  if (!gguf_ || projector_) return need_config_json();
  if (!projector_error_.empty()) return Error{Errc::kNotFound, projector_error_};
  return file_error(Errc::kNotFound, path_,
                    "has no projector beside it, a GGUF with mmproj in its name: it has no towers, and cannot see "
                    "pictures, nor hear sounds");
}

Result<std::optional<ModelText>> ModelFiles::generation_config_json() const {
  if (!gguf_) return read("generation_config.json");
  ASSIGN_OR_RETURN(ModelText config, gguf_generation_config(gguf_->metadata));
  return std::optional(std::move(config));
}

Result<std::optional<ModelText>> ModelFiles::chat_template() const {
  if (gguf_) {
    constexpr const char* kKey = "tokenizer.chat_template";
    ASSIGN_OR_RETURN(const auto jinja, gguf_->metadata.find<std::string_view>(kKey));
    if (!jinja) return std::optional<ModelText>();
    return std::optional(ModelText{std::string(*jinja), fmt::format("{}: {}", gguf_->file.string(), kKey)});
  }
  ASSIGN_OR_RETURN(std::optional<ModelText> own, read("chat_template.jinja"));
  if (own) return own;
  ASSIGN_OR_RETURN(const std::optional<ModelText> config, read("tokenizer_config.json"));
  if (!config) return std::optional<ModelText>();
  ASSIGN_OR_RETURN(const nlohmann::json root, parse_json_object(config->text, config->name));
  const std::string* const text = template_of(root);
  return text == nullptr ? std::nullopt : std::optional(ModelText{*text, config->name});
}

Result<std::optional<ModelText>> ModelFiles::tokenizer_json() const { return read("tokenizer.json"); }

Result<Checkpoint> ModelFiles::checkpoint() const {
  return gguf_ ? Checkpoint::from_gguf(gguf_, path_, projector_) : Checkpoint::open(path_);
}

}  // namespace outrider
