#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/os/descriptor.h"

namespace outrider {

/// An open file. Errors name it and have the operating system's message. Move only.
class DurableFile {
 public:
  /// @param flags  of open(2)
  /// @param mode  permissions of a file that this creates, before the umask
  /// @return kNotFound or kIo
  static Result<DurableFile> open(const std::filesystem::path& path, int flags, mode_t mode = 0666);

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  Result<std::uint64_t> size() const;
  /// Reads up to `length` bytes; fewer only at the end of the file.
  Result<std::string> read_at(std::uint64_t offset, std::size_t length) const;
  /// Writes all of it.
  Result<void> write_at(std::uint64_t offset, std::string_view bytes) const;
  Result<void> cut_to(std::uint64_t size) const;
  /// Syncs written data to disk.
  Result<void> sync() const;
  /// See lock_file().
  Result<void> lock() const;

 private:
  DurableFile(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  Error error(const char* action) const;

  std::filesystem::path path_;
  Descriptor descriptor_;
};

/// Locks a file or folder until all copies of the descriptor are closed (flock). @param path  for messages
/// @return kUnavailable if another process has locked it; kUnsupported if the file system has no locks; kIo
Result<void> lock_file(int descriptor, const std::filesystem::path& path);

/// Syncs the folder of `path`: its created, renamed and removed entries.
Result<void> sync_folder_of(const std::filesystem::path& path);

/// Returns a unique part of a name, also across containers, whose processes may have equal numbers.
std::string unused_name();

/// Returns the file that is opened under this name: a symbolic link's target, even if that does not exist.
std::filesystem::path behind_links(std::filesystem::path path);

/// Replaces the whole file by `text`: a reader sees the old or the new one. Follows symbolic links. Keeps mode, group
/// and, if permitted, owner. Not synced: after a crash of the machine it may be either, or empty.
/// @return kNotFound if there is no such folder, kIo if it cannot be written; the old one remains
Result<void> replace_text(const std::filesystem::path& path, std::string_view text);

/// The same for a file of any size that must survive a crash of the machine: what `write` appends is synced.
using AppendBytes = std::function<Result<void>(std::string_view bytes)>;
using WriteFile = std::function<Result<void>(const AppendBytes& append)>;
Result<void> replace_file(const std::filesystem::path& path, const WriteFile& write);

/// Removes temporary files of killed programs. The caller must know that nobody is replacing the file.
void remove_halves_of(const std::filesystem::path& path);

}  // namespace outrider
