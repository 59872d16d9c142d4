#include "server/request_memory.h"

#include <malloc.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "common/base/ascii.h"

namespace outrider {
namespace {

/// Returns the end of the string that starts after `begin`: its quote or the body's end.
std::size_t end_of_string(std::string_view body, std::size_t begin) {
  std::size_t at = begin;
  while (at < body.size() && body[at] != '"') at += body[at] == '\\' ? 2 : 1;
  return std::min(at, body.size());
}

}  // namespace

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

std::size_t file_characters(std::string_view body) {
  constexpr std::size_t kCharactersMin = 1024;
  constexpr std::string_view kOthers = "+/=:;,.-%\\";  // a backslash precedes a line end, or a slash
  static const auto kOfFile = [&] {
    std::array<bool, 256> of_file{};
    for (int c = 0; c < 256; ++c)
      of_file[static_cast<std::size_t>(c)] =
          is_letter_or_digit(static_cast<char>(c)) || kOthers.find(static_cast<char>(c)) != kOthers.npos;
    return of_file;
  }();
  std::size_t files = 0;
  for (std::size_t quote = body.find('"'); quote != body.npos;) {
    const std::size_t end = end_of_string(body, quote + 1);
    const std::string_view text = body.substr(quote + 1, end - quote - 1);
    if (text.size() >= kCharactersMin &&
        std::ranges::all_of(text, [](char c) { return kOfFile[static_cast<unsigned char>(c)]; }))
      files += text.size();
    quote = end < body.size() ? body.find('"', end + 1) : body.npos;
  }
  return files;
}

std::int64_t counted_bytes(std::string_view body) {
  const std::size_t files = file_characters(body);
  return counted_bytes(body.size() - files, files);
}

}  // namespace outrider
