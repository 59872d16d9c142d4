#include "server/api_key.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace outrider {

constexpr double kRetryAfterMax = 86'400;  // seconds: a day

/// A bucket of one minute's tokens. It refills continuously, and running requests may overdraw it.
struct ApiKey::Use {
  explicit Use(const Limits& wanted) : limits(wanted), left(static_cast<double>(wanted.tokens_per_minute)) {}

  void fill(TimePoint now) {
    const double of_a_minute = static_cast<double>(limits.tokens_per_minute);
    if (filled) left = std::min(of_a_minute, left + to_seconds(now - *filled) / 60 * of_a_minute);
    filled = now;
  }

  std::mutex mutex;
  Limits limits;
  std::int64_t open = 0;
  double left;  ///< tokens
  std::optional<TimePoint> filled;
};

ApiKey::ApiKey(std::string name, const Limits& limits) : name_(std::move(name)), use_(std::make_shared<Use>(limits)) {}

Result<std::shared_ptr<const void>, ApiError> ApiKey::begin(TimePoint now) const {
  const std::shared_ptr<Use> use = use_;
  const std::lock_guard lock(use->mutex);
  const Limits& limits = use->limits;
  ApiError refused{.status = 429, .message = "", .code = "rate_limit_exceeded"};
  if (limits.requests_max > 0 && use->open >= limits.requests_max) {
    refused.message =
        fmt::format("the key '{}' has {} requests open, wanted at most {}", name_, use->open, limits.requests_max);
    return refused;
  }
  use->fill(now);
  if (limits.tokens_per_minute > 0 && use->left <= 0) {
    refused.message = fmt::format("the key '{}' has used its {} tokens a minute", name_, limits.tokens_per_minute);
    const double minutes = -use->left / static_cast<double>(limits.tokens_per_minute);
    refused.retry_after_s = 1 + static_cast<int>(std::min(60 * minutes, kRetryAfterMax));
    return refused;
  }
  ++use->open;
  return std::shared_ptr<const void>(this, [use](const void*) {
    const std::lock_guard end(use->mutex);
    --use->open;
  });
}

void ApiKey::spend(std::int64_t tokens, TimePoint now) const {
  const std::lock_guard lock(use_->mutex);
  use_->fill(now);
  if (use_->limits.tokens_per_minute > 0) use_->left -= static_cast<double>(tokens);
}

void ApiKey::take_over(const ApiKey& earlier) {
  const Limits limits = use_->limits;
  use_ = earlier.use_;
  const std::lock_guard lock(use_->mutex);
  // A new limit starts with a full minute.
  if (use_->limits.tokens_per_minute == 0) use_->left = static_cast<double>(limits.tokens_per_minute);
  use_->limits = limits;
}

}  // namespace outrider
