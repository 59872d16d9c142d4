#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/model/checkpoint/checkpoint.h"
#include "common/model/checkpoint/gguf.h"

namespace outrider {

/// A small file of a model, or its equivalent from a GGUF.
struct ModelText {
  std::string text;
  std::string name;                     ///< in messages
  std::vector<std::string> notes = {};  ///< a warning each: metadata of a GGUF that its tensors contradict
};

/// A model's files, opened once: a Hugging Face directory, a GGUF, or a pack, which has the same small files as a
/// directory. All are presented as Hugging Face's files. A directory's files are read on demand; a GGUF is parsed by
/// open() only.
///
/// A value; copies share the open files. Any thread.
class ModelFiles {
 public:
  /// @param path  a directory, or a file with the weights alone (.gguf, .safetensors). A directory whose weights are
  /// one GGUF model (find_gguf) counts as that GGUF: of its other files only tokenizer.json and the projector are used.
  /// @return kNotFound if the path does not exist, kMismatch for a directory with several GGUF models; for a GGUF as
  /// GgufModel::open
  static Result<ModelFiles> open(const std::filesystem::path& path);

  /// The argument of open().
  const std::filesystem::path& path() const { return path_; }

  // Each returns nullopt if there is no such file, and an error if it cannot be read or converted.

  /// config.json. For a GGUF, made from its metadata and tensors (gguf_config.h).
  Result<std::optional<ModelText>> config_json() const;
  /// The same, but kNotFound if there is none.
  Result<ModelText> need_config_json() const;
  /// The same for its towers, but kNotFound, with the reason, if a GGUF has no projector that can be used.
  Result<ModelText> tower_config_json() const;
  /// generation_config.json. For a GGUF, the tokens that end an answer, those that must never be sampled, and how to
  /// sample the others.
  Result<std::optional<ModelText>> generation_config_json() const;
  /// The text of chat_template.jinja, or else the template in tokenizer_config.json.
  Result<std::optional<ModelText>> chat_template() const;
  /// tokenizer.json. For a GGUF's tokenizer see gguf_metadata().
  Result<std::optional<ModelText>> tokenizer_json() const;
  /// Null unless the model is a GGUF.
  const GgufMetadata* gguf_metadata() const { return gguf_ ? &gguf_->metadata : nullptr; }

  /// Opens the weights, unless they are packed. @return errors as Checkpoint::open
  Result<Checkpoint> checkpoint() const;

 private:
  ModelFiles() = default;
  /// Opens the towers beside a GGUF. @return projector_error_
  std::string open_projector(const std::filesystem::path& text_model);
  Result<std::optional<ModelText>> read(const char* name) const;

  std::filesystem::path path_;
  std::shared_ptr<const GgufModel> gguf_, projector_;
  std::string whole_config_;  ///< config.json with the projector's part
  std::string projector_error_;  ///< why a GGUF's projector cannot be used; empty: it can, or there is none
};

}  // namespace outrider
