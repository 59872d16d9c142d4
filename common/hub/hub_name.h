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
  std::string file = {};          ///< which GGUF model of the repository, as Q4_0; empty: nobody said

  /// @return nothing for what can be no such name: another text, or one that ends as a file does (.gguf).
  static std::optional<HubName> parse(std::string_view text);
  /// It names a model in a cache, in models--ORG--NAME/snapshots/COMMIT. Its `file` stays empty.
  static std::optional<HubName> of_path(const std::filesystem::path& path);

  std::string text() const;
  /// NAME.
  std::string model() const { return repository.substr(repository.find('/') + 1); }
  /// It is the folder in a cache: models--ORG--NAME.
  std::string folder() const;
};

/// Whether a revision is a commit, which never changes.
bool is_commit(std::string_view revision);

}  // namespace outrider
