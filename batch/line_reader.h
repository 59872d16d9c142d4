#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/os/durable_file.h"

namespace outrider {

/// Reads the lines of a file, with bounded memory.
class LineReader {
 public:
  /// Of an input.
  static constexpr std::size_t kLineBytesMax = 16u << 20;
  struct Line {
    std::string_view text;  ///< without the newline; valid until the next call. Empty if it is too long
    std::uint64_t offset = 0;
    bool ended = true;  ///< by a newline, not by the end of the file
    bool too_long = false;
  };

  /// @param file  outlives it @param line_bytes_max  a longer line is skipped @param on_bytes  receives all bytes read
  explicit LineReader(
      const DurableFile& file, std::size_t line_bytes_max = kLineBytesMax,
      std::function<void(std::string_view)> on_bytes = [](std::string_view) {})
      : file_(file), line_bytes_max_(line_bytes_max), on_bytes_(std::move(on_bytes)) {}
  /// Returns the next line; none at the end of the file.
  Result<std::optional<Line>> next();

 private:
  const DurableFile& file_;
  const std::size_t line_bytes_max_;
  std::function<void(std::string_view)> on_bytes_;
  std::string chunk_, line_;
  std::size_t taken_ = 0;     ///< of chunk_
  std::uint64_t offset_ = 0;  ///< of the rest in the file
};

}  // namespace outrider
