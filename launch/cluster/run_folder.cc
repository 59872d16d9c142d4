#include "launch/cluster/run_folder.h"

#include <fcntl.h>

#include <algorithm>
#include <sstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/base/json_fields.h"
#include "common/base/text.h"
#include "common/base/utf8.h"
#include "common/os/durable_file.h"
#include "common/os/files.h"
#include "common/wire/transport/keys.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
constexpr const char *kLedger = "ledger.jsonl", *kKeys = "keys";

Error is_a_run(const fs::path& path) {
  return {Errc::kInvalidArgument, "{}: is a run already, wanted a new folder", path.string()};
}

constexpr const char* kCoordinator = "coordinator";

/// Returns the files of a role in the folder, each with its option.
std::vector<std::pair<std::string, std::string>> file_names(const std::string& role, bool listens_for_shards) {
  if (role == kCoordinator) return {{"--key", kCoordinator}, {"--authorized", kAuthorizedFile}};
  if (role == "shard") return {{"--key", "verifier"}, {"--coordinator-key", "verifier.pub"}};  // it dials its verifier
  std::vector<std::pair<std::string, std::string>> names = {
      {"--key", role}, {"--coordinator-key", fmt::format("{}.pub", kCoordinator)}};
  if (listens_for_shards) names.emplace_back("--authorized", kAuthorizedFile);
  return names;
}
}  // namespace

Result<RunFolder> RunFolder::create(const fs::path& path, const nlohmann::json& plan) {
  std::error_code error;
  fs::create_directories(path / "logs", error);
  if (error) return Error(Errc::kIo, "{}: {}", path.string(), error.message());
  RunFolder folder(fs::absolute(path));
  ASSIGN_OR_RETURN(folder.held_, DurableFile::open(path / "launcher.lock", O_WRONLY | O_CREAT));
  const Result<void> held = folder.held_->lock();  // some cluster file systems have no locks: then begin() decides
  if ((!held && held.error().code == Errc::kUnavailable) || fs::exists(path / kLedger, error) ||
      fs::exists(path / kKeys, error))
    return is_a_run(path);
  RETURN_IF_ERROR(folder.write("plan.json", nlohmann::ordered_json(plan)));
  return folder;
}

Result<RunFolder> RunFolder::open(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path / "plan.json", error))
    return Error(Errc::kNotFound, "{}: no plan.json, wanted the folder of a run", path.string());
  return RunFolder(fs::absolute(path));
}

std::string RunFolder::log_end(const std::string& name, std::size_t lines) const {
  const Result<std::string> text = read_text(log(name));
  const std::vector<std::string> all = text ? lines_of(*text) : std::vector<std::string>();
  std::string end;
  for (std::size_t i = all.size() - std::min(all.size(), lines); i < all.size(); ++i) end += printable(all[i]) + "\n";
  return end;
}

Result<void> RunFolder::write(const std::string& name, const std::string& text) const {
  return replace_text(path_ / name, text);
}

Result<void> RunFolder::write(const std::string& name, const nlohmann::ordered_json& value) const {
  return write(name, value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

Result<nlohmann::json> RunFolder::read_json(const std::string& name) const {
  ASSIGN_OR_RETURN(const std::string text, read_text(path_ / name));
  return parse_json_object(text, (path_ / name).string(), std::size_t{64} << 20);
}

Result<void> RunFolder::begin(const LedgerEntry& launcher) const {
  // Created by exactly one of the launches that found no ledger.
  const Result<DurableFile> made = DurableFile::open(path_ / kLedger, O_WRONLY | O_CREAT | O_EXCL);
  if (made) return append(launcher);
  std::error_code error;
  return fs::exists(path_ / kLedger, error) ? is_a_run(path_) : made.error();
}

Result<void> RunFolder::append(const LedgerEntry& entry) const {
  nlohmann::ordered_json line = {{"name", entry.name}, {"where", entry.where}, {"host", entry.host.name}};
  if (entry.where == "slurm") {
    line["job"] = entry.job;
  } else {
    line.update({{"pid", entry.process.pid}, {"start", entry.process.start}});
  }
  if (backend_named(entry.where).value_or(Backend::kLocal) != Backend::kLocal)
    line.update({{"address", entry.host.address}, {"ssh", entry.host.ssh}});
  ASSIGN_OR_RETURN(const DurableFile file, DurableFile::open(path_ / kLedger, O_WRONLY | O_CREAT | O_APPEND));
  return file.write_at(0, line.dump() + "\n");  // O_APPEND: at the end, whatever the offset
}

Result<std::vector<LedgerEntry>> RunFolder::ledger() const {
  const std::string file = (path_ / kLedger).string();
  std::error_code error;
  if (!fs::exists(file, error)) return std::vector<LedgerEntry>();
  ASSIGN_OR_RETURN(const std::string text, read_text(file));
  std::vector<LedgerEntry> entries;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line) && !lines.eof();) {  // a line without its end was cut off
    ASSIGN_OR_RETURN(const nlohmann::json object, parse_json_object(line, file));
    FirstError first_error{.file = file};
    const JsonFields keys(object, "", first_error);
    LedgerEntry entry;
    entry.name = keys.text("name");
    entry.where = keys.choice("where", {}, {"local", "ssh", "srun", "slurm"});
    entry.host.name = keys.text("host");
    entry.host.address = keys.text("address", entry.host.name);
    entry.job = keys.text("job", "");
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    entry.process.pid = static_cast<pid_t>(keys.integer("pid", 0, 0, 1 << 30));
    entry.process.start = static_cast<std::uint64_t>(keys.integer("start", 0, 0, kMost));
    if (keys.find("ssh") != nullptr) {
      for (const nlohmann::json& word : keys.array("ssh")) {
        if (word.is_string()) entry.host.ssh.push_back(word);
      }
    }
    if (first_error.error) return *first_error.error;
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<std::string> RunFolder::addresses() const {
  const Result<std::string> text = read_text(address_file());
  return text ? lines_of(*text) : std::vector<std::string>();
}

// ---- keys ----

Result<RunKeys> RunKeys::create(const RunFolder& folder) {
  const fs::path keys = folder.path() / kKeys;
  if (keys.string().find(',') != std::string::npos)  // --coordinator-key separates several by commas
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
  const fs::path keys = folder.path() / kKeys;
  if (!fs::exists(keys, ignored)) return {};
  return RunKeys(keys);
}

std::vector<std::string> RunKeys::options(const fs::path& keys, const std::string& role, bool listens_for_shards) {
  std::vector<std::string> words;
  for (const auto& [option, name] : file_names(role, listens_for_shards))
    words.insert(words.end(), {option, (keys / name).string()});
  return words;
}

Result<std::vector<std::pair<std::string, std::string>>> RunKeys::files(const std::string& role,
                                                                        bool listens_for_shards) const {
  std::vector<std::pair<std::string, std::string>> result;
  for (const auto& [option, name] : file_names(role, listens_for_shards)) {
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
