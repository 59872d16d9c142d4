#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "common/base/result.h"

namespace outrider {

/// A file mapped read-only into memory. Move only; a span from bytes() is valid as long as the mapping, wherever the
/// MappedFile is moved.
///
/// Pages are read on first access. Shrinking a mapped file ends the process (SIGBUS): replace checkpoints by renaming,
/// never by writing into them.
class MappedFile {
 public:
  /// @return kNotFound if there is no such file, kIo if it is not a regular file or cannot be read.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  /// Empty for an empty file.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;  // munmap's argument; empty: nothing is mapped
};

/// Returns an error "FILE: PROBLEM". @param file  its path, or its name at the caller
template <typename... Args>
Error file_error(Errc code, const std::filesystem::path& file, fmt::format_string<Args...> problem, Args&&... args) {
  return {code, file.string() + ": " + fmt::format(problem, std::forward<Args>(args)...)};
}

/// Returns the last system call's error: "PATH: cannot ACTION: why". kNotFound if there is no such file, else kIo.
Error system_error(const std::filesystem::path& path, const char* action);

/// Returns the size of a file, or of the files of a directory, without those of directories in it; 0 if there is none.
std::uintmax_t bytes_on_disk(const std::filesystem::path& path);

/// Reads a small text file, without a byte order mark. @return errors as MappedFile::open; kOutOfRange beyond 100 MB
Result<std::string> read_text(const std::filesystem::path& path);

}  // namespace outrider
