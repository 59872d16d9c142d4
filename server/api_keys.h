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

/// The keys that a server knows, as hashes. Any thread.
class ApiKeys {
 public:
  /// One key, without limits.
  static std::shared_ptr<ApiKeys> of(std::string_view key);
  /// A file of lines `NAME sha256:HEX [max_requests=N] [tokens_per_minute=N]`, of empty ones and of comments (#). It is
  /// read again when it has changed; while what it has then is wrong, that is logged and what it had before holds.
  /// @return kMalformed and the line, as MappedFile::open; kOutOfRange for more than kKeysMax.
  static Result<std::shared_ptr<ApiKeys>> load(const std::filesystem::path& file);

  /// The search takes a time that tells nothing about the keys. @return null if there is no such key.
  std::shared_ptr<const ApiKey> find(std::string_view key);

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
  std::optional<FileWatch> file_;  ///< that they are from
};

inline constexpr std::size_t kKeysMax = 4096;

/// The key in an Authorization header: 'Bearer KEY', or 'Basic ...' with the key as password, which is how a browser
/// asks its user. Empty if there is none.
std::string key_of_authorization(std::string_view header);

}  // namespace outrider
