#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "common/base/result.h"
#include "common/base/time.h"
#include "http-server/api_error.h"

namespace outrider {

/// Whoever may ask, and how much. Any thread.
class ApiKey {
 public:
  struct Limits {
    std::int64_t requests_max = 0;       ///< open at once; 0: no limit
    std::int64_t tokens_per_minute = 0;  ///< of prompts and answers; 0: no limit
  };

  /// @param name  empty: the one key that all clients share
  ApiKey(std::string name, const Limits& limits);

  const std::string& name() const { return name_; }
  /// Begins a request. @return what ends it when it is dropped; or why it may not be now, with status 429.
  std::variant<std::shared_ptr<const void>, ApiError> begin(TimePoint now) const;
  /// Tokens that a request has read or written. Who has spent more than his minute's is told 429 until it is made up
  /// for: what is open goes on.
  void spend(std::int64_t tokens, TimePoint now) const;
  /// Goes on with what an earlier key of this name has used.
  void take_over(const ApiKey& earlier);

 private:
  struct Use;

  std::string name_;
  std::shared_ptr<Use> use_;
};

/// The keys that a server knows, as hashes. Any thread.
class ApiKeys {
 public:
  /// One key, without limits.
  static std::shared_ptr<ApiKeys> of(std::string_view key);
  /// A file of lines `NAME sha256:HEX [max_requests=N] [tokens_per_minute=N]`, of empty ones and of comments (#). It is
  /// read again when it has changed; while what it has then is wrong, that is logged and what it had before holds.
  /// @return kMalformed and the line, as MappedFile::open; kOutOfRange for more than kKeysMax.
  static Result<std::shared_ptr<ApiKeys>> load(const std::filesystem::path& file);

  virtual ~ApiKeys() = default;
  /// In a time that tells nothing about the keys. @return null if there is no such key.
  virtual std::shared_ptr<const ApiKey> find(std::string_view key) = 0;
};

inline constexpr std::size_t kKeysMax = 4096;

/// The key in an Authorization header: 'Bearer KEY', or 'Basic ...' with the key as password, which is how a browser
/// asks its user. Empty if there is none.
std::string key_of_authorization(std::string_view header);

}  // namespace outrider
