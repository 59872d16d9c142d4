#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/shares.h"
#include "server/api_error.h"
#include "server/http_message.h"

namespace outrider {

/// Memory reserved by running requests.
class ServerMemory {
 public:
  explicit ServerMemory(std::int64_t bytes_max) : bytes_max_(bytes_max), shares_(bytes_max) {}
  /// Returns the limit of one request, half of all.
  std::int64_t most_of_one() const { return bytes_max_ / 2; }
  /// Shares::change(), for many threads.
  bool change(const std::string& client, std::int64_t from, std::int64_t to) {
    const std::lock_guard lock(mutex_);
    return shares_.change(client, from, to);
  }

 private:
  const std::int64_t bytes_max_;
  std::mutex mutex_;
  Shares shares_;
};

/// One request's share of the memory.
class RequestMemory {
 public:
  RequestMemory(std::shared_ptr<ServerMemory> memory, std::string client)
      : memory_(std::move(memory)), client_(std::move(client)) {}
  ~RequestMemory() { take(0); }
  RequestMemory(const RequestMemory&) = delete;
  RequestMemory& operator=(const RequestMemory&) = delete;
  /// Replaces the reservation by `bytes`. @return true if so much was free; otherwise the reservation stays
  bool take(std::int64_t bytes);
  /// See HttpRequest::reserve.
  std::optional<ApiError> reserve(std::int64_t bytes);

 private:
  std::shared_ptr<ServerMemory> memory_;
  std::string client_;
  std::int64_t bytes_ = 0;
};

/// Returns the memory to reserve for a body before it is parsed.
inline std::int64_t counted_bytes(std::size_t text_bytes, std::size_t file_bytes) {
  return static_cast<std::int64_t>(text_bytes) * kBytesPerBodyByte +
         static_cast<std::int64_t>(file_bytes) * kBytesPerFileByte;
}

/// Returns the characters of a body's JSON that are base64 files: strings of at least 1,024 characters, made only of
/// base64, line ends (\n) and the head of a data: URL.
std::size_t file_characters(std::string_view body);
/// Returns the memory to reserve for a JSON body before it is parsed.
std::int64_t counted_bytes(std::string_view body);

}  // namespace outrider
