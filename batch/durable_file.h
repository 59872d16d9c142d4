#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace outrider {

/// An open file. Errors name it and say what the operating system said. Move only.
class DurableFile {
 public:
  /// @param flags  of open(2). @return kNotFound or kIo.
  static Result<DurableFile> open(const std::filesystem::path& path, int flags);
  DurableFile(DurableFile&& other) noexcept;
  DurableFile& operator=(DurableFile&& other) noexcept;
  ~DurableFile();

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  Result<std::uint64_t> size() const;
  /// At most `length` bytes; fewer only at the end of the file.
  Result<std::string> read_at(std::uint64_t offset, std::size_t length) const;
  /// All of it, in as many writes as that takes.
  Result<void> write_at(std::uint64_t offset, std::string_view bytes) const;
  Result<void> cut_to(std::uint64_t size) const;
  /// What was written is on the disk.
  Result<void> sync() const;
  /// Nobody else has it: kUnavailable where somebody does. Until it is closed.
  Result<void> lock() const;

 private:
  DurableFile(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  Error error(const char* action) const;

  std::filesystem::path path_;
  int descriptor_;
};

/// What was created, renamed or removed in the folder of `path` is on the disk.
Result<void> sync_folder_of(const std::filesystem::path& path);

/// The file is what `write` appends, or as it was: written beside it, synced, renamed.
using AppendBytes = std::function<Result<void>(std::string_view bytes)>;
Result<void> replace_file(const std::filesystem::path& path,
                          const std::function<Result<void>(const AppendBytes& append)>& write);

/// The lines of a file, in memory that does not grow with it.
class LineReader {
 public:
  /// A longer line is passed over.
  static constexpr std::size_t kLineBytesMax = 16u << 20;
  struct Line {
    std::string_view text;  ///< without the newline; until the next call. Empty if it is too long
    std::uint64_t offset = 0;
    bool ended = true;  ///< by a newline, not by the end of the file
    bool too_long = false;
  };

  /// @param file  outlives it.
  /// @param on_bytes  gets all that is read.
  explicit LineReader(
      const DurableFile& file, std::function<void(std::string_view)> on_bytes = [](std::string_view) {})
      : file_(file), on_bytes_(std::move(on_bytes)) {}
  /// Nothing at the end of the file.
  Result<std::optional<Line>> next();

 private:
  /// @return whether there was more.
  Result<bool> read_more();

  const DurableFile& file_;
  std::function<void(std::string_view)> on_bytes_;
  std::string buffer_;
  std::size_t taken_ = 0, searched_ = 0;  ///< of buffer_
  std::uint64_t offset_ = 0;              ///< of buffer_ in the file
  bool too_long_ = false;                 ///< the line that buffer_ begins in
  std::uint64_t line_offset_ = 0;         ///< of the line that comes next
};

}  // namespace outrider
