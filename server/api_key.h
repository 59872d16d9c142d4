#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/base/time.h"
#include "server/api_error.h"

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
  Result<std::shared_ptr<const void>, ApiError> begin(TimePoint now) const;
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

}  // namespace outrider
