#include "server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "common/base/text.h"
#include "common/os/files.h"
#include "common/os/logging.h"
#include "server/content_parts.h"

namespace outrider {
namespace {

using Entry = ApiKeys::Entry;
using Entries = std::vector<Entry>;
using Hash = decltype(Entry::hash);
static_assert(sizeof(Hash) == SHA256_DIGEST_LENGTH);

/// Plain SHA-256 suffices: keys are random, so that guessing likely ones is impossible.
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

/// @return the reason that a line is invalid, if it is
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
    if (limit == nullptr || is == option.npos ||
        (*limit = to_number<std::int64_t>(option.substr(is + 1)).value_or(0)) < 1)
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
  int number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    if (const auto wrong = read_line(line, entries))
      return Error(Errc::kMalformed, "{}:{}: {}", file.string(), number, *wrong);
    if (entries.size() > kKeysMax) return file_error(Errc::kOutOfRange, file, "more than {} keys", kKeysMax);
  }
  return entries;
}

}  // namespace

std::shared_ptr<const ApiKey> ApiKeys::find(std::string_view key) {
  const Hash hash = hash_of(key);
  const std::lock_guard lock(mutex_);
  refresh();
  std::shared_ptr<const ApiKey> found;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.hash.data(), hash.data(), hash.size()) == 0) found = entry.key;
  }
  return found;
}

std::shared_ptr<const ApiKey> ApiKeys::named(std::string_view name) {
  const std::lock_guard lock(mutex_);
  refresh();
  const auto found = std::ranges::find(entries_, name, [](const Entry& entry) { return entry.key->name(); });
  return found == entries_.end() ? nullptr : found->key;
}

void ApiKeys::refresh() {
  if (!file_ || !file_->changed()) return;
  Result<Entries> read = read_entries(file_->path());
  if (!read) return log_error("event=api_keys_kept reason=\"{}\": the keys before that hold on", read.error().message);
  for (const Entry& entry : *read) {
    const auto before = std::ranges::find(entries_, entry.key->name(), [](const Entry& e) { return e.key->name(); });
    if (before != entries_.end()) entry.key->take_over(*before->key);
  }
  entries_ = std::move(*read);
}

std::shared_ptr<ApiKeys> ApiKeys::of(std::string_view key) {
  return std::make_shared<ApiKeys>(Entries{{hash_of(key), std::make_shared<ApiKey>("", ApiKey::Limits())}},
                                   std::nullopt);
}

Result<std::shared_ptr<ApiKeys>> ApiKeys::load(const std::filesystem::path& file) {
  FileWatch watch(file);  // made before reading, so that a change in between is noticed
  ASSIGN_OR_RETURN(Entries entries, read_entries(file));
  return std::make_shared<ApiKeys>(std::move(entries), std::move(watch));
}

std::string key_of_authorization(std::string_view header) {
  const auto after = [&](std::string_view scheme) -> std::optional<std::string_view> {
    const auto same = [](char a, char b) { return (a | 0x20) == (b | 0x20); };
    if (header.size() < scheme.size() || !std::equal(scheme.begin(), scheme.end(), header.begin(), same)) return {};
    return header.substr(scheme.size());
  };
  if (const auto key = after("Bearer ")) return std::string(*key);
  const Result<std::string> user_and_key = decode_base64(after("Basic ").value_or(""));
  const std::size_t colon = user_and_key ? user_and_key->find(':') : std::string::npos;
  return colon == std::string::npos ? "" : user_and_key->substr(colon + 1);
}

}  // namespace outrider
