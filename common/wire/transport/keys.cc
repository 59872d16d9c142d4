#include "common/wire/transport/keys.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/check.h"
#include "common/base/text.h"
#include "common/os/descriptor.h"
#include "common/os/durable_file.h"
#include "common/os/files.h"

namespace outrider {
namespace {

constexpr std::size_t kZ85Bytes = 41;  // including the terminating zero
constexpr const char* kPrivateWord = "outrider-private-key";

Key from_z85(const char* text) {
  Key key{};
  CHECK(zmq_z85_decode(key.data(), text) != nullptr);
  return key;
}

Key open_half(const Key& secret) {
  char z85_secret[kZ85Bytes], z85_open[kZ85Bytes];
  CHECK(zmq_z85_encode(z85_secret, secret.data(), secret.size()) != nullptr);
  CHECK(zmq_curve_public(z85_open, z85_secret) == 0, "zmq_curve_public: {}", zmq_strerror(errno));
  return from_z85(z85_open);
}

std::string reason(int number) { return std::generic_category().message(number); }

/// Writes a new file; leaves none after an error. @param mode  its permissions
Result<void> write_new(const std::filesystem::path& path, const std::string& text, mode_t mode) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (file < 0 && errno == EEXIST)
    return Error(Errc::kInvalidArgument, "{} is there already; it is not overwritten", path.string());
  if (file >= 0 && ::write(file, text.data(), text.size()) == std::ssize(text)) return {};
  const int number = errno;
  if (file >= 0) ::unlink(path.c_str());
  return Error(Errc::kIo, "{}: cannot be written: {}", path.string(), reason(number));
}

Result<void> make_folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.parent_path();
  std::error_code failed;
  if (folder.empty() || std::filesystem::exists(folder, failed)) return {};
  std::filesystem::create_directories(folder, failed);
  if (!failed) std::filesystem::permissions(folder, std::filesystem::perms::owner_all, failed);
  if (failed) return Error(Errc::kIo, "{}: cannot be made: {}", folder.string(), failed.message());
  return {};
}

/// Locks a folder against others that change its files. If the lock cannot be opened, neither can the file.
Descriptor lock_folder_of(const std::filesystem::path& file) {
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  Descriptor lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ::flock(lock, LOCK_EX);
  return lock;
}

/// Rejects a file of ours that others may read. A file of root's may be readable by its group, whoever we are, because
/// Kubernetes mounts a Secret with fsGroup that way, also for a process that is root.
Result<void> check_private(const std::filesystem::path& path, const struct stat& facts) {
  const bool of_root = facts.st_uid == 0;
  if (facts.st_uid != geteuid() && !of_root) {
    return Error(Errc::kInvalidArgument, "{}: this private key belongs to user {}, wanted {} or root", path.string(),
                 facts.st_uid, geteuid());
  }
  if ((facts.st_mode & (of_root ? 037 : 077)) == 0) return {};
  return Error(Errc::kInvalidArgument, "{0}: others may read this private key (mode {1:04o}); run: chmod {2} {0}",
               path.string(), facts.st_mode & 07777, of_root ? "640" : "600");
}

/// Returns the words of a line, up to a comment.
std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line.substr(0, line.find('#')));
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

Result<void> check_name(std::string_view name) {
  if (is_word(name, ".-_@")) return {};
  return Error(Errc::kInvalidArgument, "'{:.80}' is no name: wanted 1 to {} of letters, digits and .-_@",
               parse_key(name) ? "a key" : name, kWordMax);
}

/// Parses one line; none for an empty one.
Result<std::optional<AuthorizedKey>> parse_authorized_key(const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  if (words.empty()) return std::optional<AuthorizedKey>();
  if (words.size() != 3) return Error(Errc::kMalformed, "has {} words, wanted ROLE KEY NAME", words.size());
  ASSIGN_OR_RETURN(const KeyRole role, parse_key_role(words[0]));
  const std::optional<Key> key = parse_key(words[1]);
  if (!key) return Error(Errc::kMalformed, "'{:.80}' is no key, wanted 64 hexadecimal digits", words[1]);
  RETURN_IF_ERROR(check_name(words[2]));
  return std::optional(AuthorizedKey{role, *key, words[2]});
}

}  // namespace

std::string to_text(const Key& key) { return fmt::format("{:02x}", fmt::join(key, "")); }

std::optional<Key> parse_key(std::string_view text) {
  Key key{};
  return read_hex(text, key) ? std::optional(key) : std::nullopt;
}

KeyPair new_key_pair() {
  char open[kZ85Bytes], secret[kZ85Bytes];
  CHECK(zmq_curve_keypair(open, secret) == 0, "zmq_curve_keypair: {}", zmq_strerror(errno));
  return {from_z85(secret), from_z85(open)};
}

std::filesystem::path key_folder() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') return std::filesystem::path(config) / "outrider";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? std::filesystem::path(home) / ".config" / "outrider"
                                          : std::filesystem::path();
}

Result<KeyPair> create_private_key(const std::filesystem::path& path) {
  const std::filesystem::path open = path.string() + ".pub";
  std::error_code ignored;
  if (std::filesystem::exists(open, ignored))
    return Error(Errc::kInvalidArgument, "{} is there already; it is not overwritten", open.string());
  RETURN_IF_ERROR(make_folder_of(path));
  const KeyPair pair = new_key_pair();
  RETURN_IF_ERROR(write_new(path, fmt::format("{} {}\n", kPrivateWord, to_text(pair.secret)), 0600));
  if (const Result<void> both = write_new(open, to_text(pair.open) + "\n", 0644); !both) {
    std::filesystem::remove(path, ignored);
    return both.error();
  }
  return pair;
}

Result<KeyPair> read_private_key(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text(path));
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return Error(Errc::kIo, "{}: cannot stat: {}", path.string(), reason(errno));
  RETURN_IF_ERROR(check_private(path, facts));
  const std::vector<std::string> words = words_of(text);
  const std::optional<Key> secret = words.size() == 2 && words[0] == kPrivateWord ? parse_key(words[1]) : std::nullopt;
  if (!secret) {
    return Error(Errc::kMalformed, "{}: is no private key, wanted '{} KEY' as 'outrider keys new' writes it",
                 path.string(), kPrivateWord);
  }
  return KeyPair{*secret, open_half(*secret)};
}

Result<std::vector<Key>> read_public_keys(const std::string& text) {
  if (const std::optional<Key> key = parse_key(text)) return std::vector{*key};
  const Result<std::string> content = read_text(text);
  if (!content) {
    return Error(content.error().code, "{}, wanted a public key of 64 hexadecimal digits or a file of them",
                 content.error().message);
  }
  std::vector<Key> keys;
  int number = 0;
  for (const std::string& line : lines_of(*content)) {
    ++number;
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    const std::optional<Key> key = parse_key(words[0]);
    if (!key) {
      const bool secret = words[0] == kPrivateWord;
      return Error(Errc::kMalformed, "{}: line {} {}, wanted a public key of 64 hexadecimal digits", text, number,
                   secret ? "is a private key, which is nobody else's matter" : "is no key");
    }
    keys.push_back(*key);
  }
  if (keys.empty()) return Error(Errc::kMalformed, "{}: has no key", text);
  return keys;
}

Result<KeyRole> parse_key_role(std::string_view text) {
  for (const KeyRole role : kKeyRoles) {
    if (text == to_string(role)) return role;
  }
  return Error(Errc::kInvalidArgument, "'{:.80}' is no role, wanted verifier, drafter, encoder or client",
               std::string(text));
}

AuthorizedKeys parse_authorized_keys(std::string_view text) {
  AuthorizedKeys result;
  int number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    const auto parsed = parse_authorized_key(line);
    if (!parsed) {
      result.problems.push_back(fmt::format("line {}: {}", number, parsed.error().message));
    } else if (*parsed) {
      result.keys.push_back(**parsed);
    }
  }
  return result;
}

std::pair<std::vector<AuthorizedKey>, Result<void>> read_authorized_keys(const std::filesystem::path& list) {
  const Result<std::string> text = read_text(list);
  if (!text) return {{}, text.error()};
  AuthorizedKeys lines = parse_authorized_keys(*text);
  if (lines.problems.empty()) return {std::move(lines.keys), {}};
  return {std::move(lines.keys), file_error(Errc::kMalformed, list, "{}", fmt::join(lines.problems, "; "))};
}

Result<void> authorize_key(const std::filesystem::path& list, const AuthorizedKey& key) {
  const std::filesystem::path file = behind_links(list);
  RETURN_IF_ERROR(check_name(key.name));
  RETURN_IF_ERROR(make_folder_of(file));
  const Descriptor lock = lock_folder_of(file);
  std::string text;
  if (std::error_code ignored; std::filesystem::exists(file, ignored)) {
    ASSIGN_OR_RETURN(text, read_text(file));
  }
  for (const AuthorizedKey& known : parse_authorized_keys(text).keys) {
    if (known.key == key.key && known.role == key.role)
      return Error(Errc::kInvalidArgument, "{}: this key is authorized already, as {} {}", file.string(),
                   to_string(known.role), known.name);
  }
  if (!text.empty() && text.back() != '\n') text += '\n';
  return replace_text(file, fmt::format("{}{} {} {}\n", text, to_string(key.role), to_text(key.key), key.name));
}

Result<int> revoke_keys(const std::filesystem::path& list, std::string_view name) {
  const std::filesystem::path file = behind_links(list);
  const Descriptor lock = lock_folder_of(file);
  ASSIGN_OR_RETURN(const std::string text, read_text(file));
  std::string kept;
  int revoked = 0;
  for (const std::string& line : lines_of(text)) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() == 3 && words[2] == name) {
      ++revoked;
    } else {
      kept += line + '\n';
    }
  }
  if (revoked > 0) RETURN_IF_ERROR(replace_text(file, kept));
  return revoked;
}

}  // namespace outrider
