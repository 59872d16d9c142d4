#include "launch/cluster/run_keys.h"

#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/os/files.h"
#include "common/wire/transport/keys.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

constexpr const char* kCoordinator = "coordinator";

/// The files of a role in the folder, each with its option.
std::vector<std::pair<std::string, std::string>> file_names(const std::string& role) {
  if (role == kCoordinator) return {{"--key", kCoordinator}, {"--authorized", kAuthorizedFile}};
  return {{"--key", role}, {"--coordinator-key", fmt::format("{}.pub", kCoordinator)}};
}

}  // namespace

Result<RunKeys> RunKeys::create(const RunFolder& folder) {
  const fs::path keys = folder.path() / "keys";
  if (keys.string().find(',') != std::string::npos)  // --coordinator-key takes several, with commas between
    return file_error(Errc::kInvalidArgument, folder.path(), "a run with keys, wanted a folder without a comma");
  std::error_code error;
  fs::create_directory(keys, error);
  if (!error) fs::permissions(keys, fs::perms::owner_all, error);
  if (error) return Error(Errc::kIo, "{}: {}", keys.string(), error.message());
  RETURN_IF_ERROR(create_private_key(keys / kCoordinator));
  for (const KeyRole role : kKeyRoles) {
    ASSIGN_OR_RETURN(const KeyPair pair, create_private_key(keys / to_string(role)));
    RETURN_IF_ERROR(authorize_key(keys / kAuthorizedFile, {role, pair.open, to_string(role)}));
  }
  return RunKeys(keys);
}

std::optional<RunKeys> RunKeys::of(const RunFolder& folder) {
  std::error_code ignored;
  const fs::path keys = folder.path() / "keys";
  if (!fs::exists(keys, ignored)) return {};
  return RunKeys(keys);
}

std::vector<std::string> RunKeys::options(const fs::path& keys, const std::string& role) {
  std::vector<std::string> words;
  for (const auto& [option, name] : file_names(role)) words.insert(words.end(), {option, (keys / name).string()});
  return words;
}

Result<std::vector<std::pair<std::string, std::string>>> RunKeys::files(const std::string& role) const {
  std::vector<std::pair<std::string, std::string>> result;
  for (const auto& [option, name] : file_names(role)) {
    ASSIGN_OR_RETURN(std::string text, read_text(folder_ / name));
    result.emplace_back(option, std::move(text));
  }
  return result;
}

Security RunKeys::client() const {
  return {.key = folder_ / to_string(KeyRole::kClient),
          .authorized = {},
          .coordinator_keys = {(folder_ / fmt::format("{}.pub", kCoordinator)).string()},
          .insecure = false};
}

}  // namespace outrider
