#include "server/request_memory.h"

#include <malloc.h>

#include <fmt/format.h>

namespace outrider {

bool RequestMemory::take(std::int64_t bytes) {
  // glibc keeps freed memory per thread. A large part of it must be returned.
  constexpr std::int64_t kTrimBytes = 32 << 20;
  if (bytes_ - bytes > kTrimBytes) malloc_trim(0);
  if (!memory_->change(client_, bytes_, bytes)) return false;
  bytes_ = bytes;
  return true;
}

std::optional<ApiError> RequestMemory::reserve(std::int64_t bytes) {
  const std::int64_t most = memory_->most_of_one();
  if (bytes > most)
    return ApiError{413, fmt::format("this would take {} MB of memory, wanted at most {}", bytes >> 20, most >> 20)};
  return take(bytes) ? std::nullopt : std::optional(ApiError{503, "too many large requests at once"});
}

}  // namespace outrider
