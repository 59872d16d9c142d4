#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/base/time.h"
#include "server/api_error.h"

namespace outrider {

/// A client's key and its limits. Any thread.
class ApiKey {
 public:
  struct Limits {
    std::int64_t requests_max = 0;       ///< concurrent requests; 0: no limit
    std::int64_t tokens_per_minute = 0;  ///< of prompts and answers; 0: no limit
  };

  /// @param name  empty: the one key that all clients share
  ApiKey(std::string name, const Limits& limits);

  const std::string& name() const { return name_; }
  /// Begins a request. @return an object whose destruction ends it; or status 429 with the reason
  Result<std::shared_ptr<const void>, ApiError> begin(TimePoint now) const;
  /// Counts a request's tokens. A key that has emptied or overdrawn its bucket gets 429 until it has tokens again;
  /// running requests continue.
  void spend(std::int64_t tokens, TimePoint now) const;
  /// Takes over the use of an earlier key of this name.
  void take_over(const ApiKey& earlier);

 private:
  struct Use;

  std::string name_;
  std::shared_ptr<Use> use_;
};

/// Counts a request's tokens for its key. @param key  null: nothing is counted
inline void spend(const std::shared_ptr<const ApiKey>& key, std::int64_t tokens) {
  if (key != nullptr) key->spend(tokens, now());
}

}  // namespace outrider
