#include "http-server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <mutex>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "common/base/file_watch.h"
#include "common/base/files.h"
#include "common/base/text.h"
#include "common/logging/logging.h"

namespace outrider {
namespace {

using Hash = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

/// Plain SHA-256 is enough: a key is drawn at random, not thought out, so nobody can try all that are likely.
Hash hash_of(std::string_view key) {
  Hash hash;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), hash.data());
  return hash;
}

std::optional<Hash> parse_hash(std::string_view text) {
  constexpr std::string_view kKind = "sha256:";
  Hash hash;
  const bool fits = text.starts_with(kKind) && read_hex(text.substr(kKind.size()), hash);
  return fits ? std::optional(hash) : std::nullopt;
}

struct Entry {
  Hash hash;
  std::shared_ptr<ApiKey> key;
};
using Entries = std::vector<Entry>;

/// @return why a line is none, or nothing.
std::optional<std::string> read_line(const std::string& line, Entries& entries) {
  std::istringstream words(line);
  std::string name, hash, option;
  if (!(words >> name) || name.starts_with('#')) return std::nullopt;
  if (!is_word(name, "_-.@"))
    return fmt::format("the name '{}', wanted 1 to {} letters, digits, '_', '-', '.' and '@'", name, kWordMax);
  words >> hash;
  const std::optional<Hash> parsed = parse_hash(hash);
  if (!parsed) return fmt::format("'{}' of {}, wanted sha256: and 64 hexadecimal digits", hash, name);
  ApiKey::Limits limits;
  while (words >> option) {
    const std::size_t is = option.find('=');
    const std::string key = option.substr(0, is);
    std::int64_t* const limit = key == "max_requests"        ? &limits.requests_max
                                : key == "tokens_per_minute" ? &limits.tokens_per_minute
                                                             : nullptr;
    const char* const end = option.data() + option.size();
    if (limit == nullptr || is == option.npos || std::from_chars(option.data() + is + 1, end, *limit).ptr != end ||
        *limit < 1)
      return fmt::format("'{}' of {}, wanted max_requests=N or tokens_per_minute=N, N from 1", option, name);
  }
  for (const Entry& other : entries) {
    if (other.key->name() == name) return fmt::format("a second line of {}", name);
    if (other.hash == *parsed) return fmt::format("{} has the key of {}", name, other.key->name());
  }
  entries.push_back({*parsed, std::make_shared<ApiKey>(name, limits)});
  return std::nullopt;
}

Result<Entries> read_entries(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const std::string text, read_text(file));
  Entries entries;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (const auto wrong = read_line(line, entries))
      return Error{Errc::kMalformed, fmt::format("{}:{}: {}", file.string(), number, *wrong)};
    if (entries.size() > kKeysMax)
      return Error{Errc::kOutOfRange, fmt::format("{}: more than {} keys", file.string(), kKeysMax)};
  }
  return entries;
}

class KnownKeys : public ApiKeys {
 public:
  explicit KnownKeys(Entries entries) : entries_(std::move(entries)) {}

  std::shared_ptr<const ApiKey> find(std::string_view key) override {
    const Hash hash = hash_of(key);
    const std::lock_guard lock(mutex_);
    refresh();
    std::shared_ptr<const ApiKey> found;
    for (const Entry& entry : entries_) {
      if (CRYPTO_memcmp(entry.hash.data(), hash.data(), hash.size()) == 0) found = entry.key;
    }
    return found;
  }

 protected:
  virtual void refresh() {}
  Entries entries_;

 private:
  std::mutex mutex_;
};

class KeysOfFile final : public KnownKeys {
 public:
  KeysOfFile(FileWatch file, Entries entries) : KnownKeys(std::move(entries)), file_(std::move(file)) {}

 private:
  void refresh() override {
    if (!file_.changed()) return;
    Result<Entries> read = read_entries(file_.path());
    if (!read)
      return log_error("event=api_keys_kept reason=\"{}\": the keys before that hold on", read.error().message);
    for (const Entry& entry : *read) {
      const auto before = std::ranges::find(entries_, entry.key->name(), [](const Entry& e) { return e.key->name(); });
      if (before != entries_.end()) entry.key->take_over(*before->key);
    }
    entries_ = std::move(*read);
  }

  FileWatch file_;
};

}  // namespace

std::shared_ptr<ApiKeys> ApiKeys::of(std::string_view key) {
  return std::make_shared<KnownKeys>(Entries{{hash_of(key), std::make_shared<ApiKey>("", ApiKey::Limits())}});
}

Result<std::shared_ptr<ApiKeys>> ApiKeys::load(const std::filesystem::path& file) {
  FileWatch watch(file);  // before it is read: what comes between is a change
  ASSIGN_OR_RETURN(Entries entries, read_entries(file));
  return std::shared_ptr<ApiKeys>(std::make_shared<KeysOfFile>(std::move(watch), std::move(entries)));
}

std::string key_of_authorization(std::string_view header) {
  const auto after = [&](std::string_view scheme) -> std::optional<std::string_view> {
    const auto same = [](char a, char b) { return (a | 0x20) == (b | 0x20); };
    if (header.size() < scheme.size() || !std::equal(scheme.begin(), scheme.end(), header.begin(), same)) return {};
    return header.substr(scheme.size());
  };
  if (const auto key = after("Bearer ")) return std::string(*key);
  const auto coded = after("Basic ");
  if (!coded || coded->size() % 4 != 0 || coded->size() > 4096) return "";
  std::string user_and_key(coded->size() / 4 * 3, '\0');
  const int size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(user_and_key.data()),
                      reinterpret_cast<const unsigned char*>(coded->data()), static_cast<int>(coded->size()));
  if (size < 0) return "";
  user_and_key.resize(static_cast<std::size_t>(size));
  for (std::string_view rest = *coded; rest.ends_with('=') && !user_and_key.empty(); rest.remove_suffix(1))
    user_and_key.pop_back();  // what stands for the padding
  const std::size_t colon = user_and_key.find(':');
  return colon == user_and_key.npos ? "" : user_and_key.substr(colon + 1);
}

}  // namespace outrider
