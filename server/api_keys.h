#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/os/file_watch.h"
#include "server/api_key.h"

namespace outrider {

/// A server's keys, as hashes. Any thread.
class ApiKeys {
 public:
  /// Makes a single key without limits.
  static std::shared_ptr<ApiKeys> of(std::string_view key);
  /// Loads lines `NAME sha256:HEX [max_requests=N] [tokens_per_minute=N]`, empty ones and comments (#). A changed file
  /// is read again; if it is invalid, the error is logged and the previous keys stay in use.
  /// @return kMalformed with the line, errors as MappedFile::open; kOutOfRange for more than kKeysMax
  static Result<std::shared_ptr<ApiKeys>> load(const std::filesystem::path& file);

  /// Finds a key in a time independent of the keys. @return null if there is no such key
  std::shared_ptr<const ApiKey> find(std::string_view key);
  /// Finds a key by its name. @return null if there is no such key
  std::shared_ptr<const ApiKey> named(std::string_view name);

  struct Entry {
    std::array<unsigned char, 32> hash;  ///< SHA-256
    std::shared_ptr<ApiKey> key;
  };
  ApiKeys(std::vector<Entry> entries, std::optional<FileWatch> file)
      : entries_(std::move(entries)), file_(std::move(file)) {}

 private:
  void refresh();

  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::optional<FileWatch> file_;  ///< their source
};

inline constexpr std::size_t kKeysMax = 4096;

/// Returns the key in an Authorization header: 'Bearer KEY', or 'Basic ...' with the key as password, which browsers
/// ask their users for. Empty if there is none.
std::string key_of_authorization(std::string_view header);

}  // namespace outrider
