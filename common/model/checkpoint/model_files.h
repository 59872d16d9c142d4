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

/// A small file of a model, or what a GGUF says in its place.
struct ModelText {
  std::string text;
  std::string name;                     ///< in messages
  std::vector<std::string> notes = {};  ///< for a warning each: what a GGUF says and its tensors refute
};

/// What lies at the path of a model, opened once: a directory as Hugging Face has it, a GGUF, or a pack, whose
/// files beside the weights are as in a directory. Whatever it is, it answers in Hugging Face's words. A
/// directory's files are read when they are asked for; a GGUF is parsed by open() and never again.
///
/// A value; copies share what is open. Any thread.
class ModelFiles {
 public:
  /// @param path  a directory, or a file with the weights alone (.gguf, .safetensors). A directory whose weights are
  ///   one GGUF model (find_gguf) counts as that GGUF: but for a tokenizer.json and the file of its vision tower
  ///   (mmproj*.gguf), files beside it do not count.
  /// @return kNotFound if nothing is there, kMismatch for a directory with several GGUF models; for a GGUF as
  ///   GgufModel::open.
  static Result<ModelFiles> open(const std::filesystem::path& path);

  /// What open() was given.
  const std::filesystem::path& path() const { return path_; }

  // Each is nullopt where there is no such file, and an error where it cannot be read or translated.

  /// config.json. Of a GGUF, what its metadata and tensors amount to (gguf_config.h).
  Result<std::optional<ModelText>> config_json() const;
  /// The same, and kNotFound where there is none.
  Result<ModelText> need_config_json() const;
  /// generation_config.json. Of a GGUF, the tokens that end a text, and those that must never be sampled.
  Result<std::optional<ModelText>> generation_config_json() const;
  /// The text of chat_template.jinja, else of the template in tokenizer_config.json.
  Result<std::optional<ModelText>> chat_template() const;
  /// tokenizer.json. A GGUF has another: gguf_metadata().
  Result<std::optional<ModelText>> tokenizer_json() const;
  /// Why the file of a GGUF's vision tower, mmproj*.gguf beside it, cannot be used; empty: it can, or there is none.
  const std::string& projector_error() const { return projector_error_; }
  /// Null unless it is a GGUF.
  const GgufMetadata* gguf_metadata() const { return gguf_ ? &gguf_->metadata : nullptr; }

  /// The weights, unless they are packed. @return as Checkpoint::open.
  Result<Checkpoint> checkpoint() const;

 private:
  ModelFiles() = default;
  /// Opens what lies beside a GGUF. @return as projector_error().
  std::string open_projector(const std::filesystem::path& text_model);
  Result<std::optional<ModelText>> read(const char* name) const;

  std::filesystem::path path_;
  std::shared_ptr<const GgufModel> gguf_, projector_;
  std::string projector_error_;
};

}  // namespace outrider
