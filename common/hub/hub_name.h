#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace outrider {

/// A model of the Hugging Face hub: ORG/NAME[@REVISION][:FILE].
struct HubName {
  std::string repository;         ///< ORG/NAME
  std::string revision = "main";  ///< a branch, a tag, or the 40 digits of a commit
  std::string file = {};          ///< GGUF model of the repository, such as Q4_0; empty: not given

  /// @return none for a text that is no such name, or ends like a file (.gguf)
  static std::optional<HubName> parse(std::string_view text);
  /// Returns the name of a model in a cache, in models--ORG--NAME/snapshots/COMMIT. Its `file` is empty.
  static std::optional<HubName> of_path(const std::filesystem::path& path);

  std::string text() const;
  /// NAME.
  std::string model() const { return repository.substr(repository.find('/') + 1); }
  /// Returns its folder in a cache: models--ORG--NAME.
  std::string folder() const;
};

/// Returns true if a revision is a commit, which never changes.
bool is_commit(std::string_view revision);

}  // namespace outrider
