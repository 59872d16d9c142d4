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

/// An open file. Errors name it and say what the operating system said. Move only.
class DurableFile {
 public:
  /// @param flags  of open(2)
  /// @param mode  who may read and write a file that this creates, less the umask
  /// @return kNotFound or kIo.
  static Result<DurableFile> open(const std::filesystem::path& path, int flags, mode_t mode = 0666);

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
  Descriptor descriptor_;
};

/// What was created, renamed or removed in the folder of `path` is on the disk.
Result<void> sync_folder_of(const std::filesystem::path& path);

/// A part of a name that nobody else uses, in no other container either: processes may have one number.
std::string unused_name();

/// The file that is opened under this name: what a symbolic link leads to, also where nothing is there yet.
std::filesystem::path behind_links(std::filesystem::path path);

/// Makes `text` the whole file: a reader sees the old one or the new one. Of a symbolic link it is the file behind that
/// changes. Mode, group and, where we may, owner stay. Not synced: after a crash of the machine it may be either, or
/// empty. @return kNotFound if there is no such folder, kIo if it cannot be written; the old one is there then.
Result<void> replace_text(const std::filesystem::path& path, std::string_view text);

/// The same for a file of any size that is to outlive a crash of the machine: what `write` appends, synced.
using AppendBytes = std::function<Result<void>(std::string_view bytes)>;
using WriteFile = std::function<Result<void>(const AppendBytes& append)>;
Result<void> replace_file(const std::filesystem::path& path, const WriteFile& write);

/// Removes what programs have left that were killed while they replaced it. For who knows that nobody replaces it now.
void remove_halves_of(const std::filesystem::path& path);

}  // namespace outrider
