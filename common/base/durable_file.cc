#include "common/base/durable_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

#include "common/base/files.h"

namespace outrider {
namespace {

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// Writes a file beside `path`, which takes its place when it is whole and is removed where it does not come to that.
Result<void> replace(const std::filesystem::path& path,
                     const std::function<Result<void>(const DurableFile& file)>& write) {
  const std::filesystem::path beside = path.string() + ".tmp";
  ASSIGN_OR_RETURN(const DurableFile file, DurableFile::open(beside, O_WRONLY | O_CREAT | O_TRUNC));
  Result<void> done = write(file);
  if (done && ::rename(beside.c_str(), path.c_str()) != 0) done = system_error(path, "rename to");
  if (!done) ::unlink(beside.c_str());
  return done;
}

/// All that `write` appends, which is then on the disk.
Result<void> write_synced(const DurableFile& file, const WriteFile& write) {
  constexpr std::size_t kBufferBytes = 1u << 20;
  std::string buffer;
  std::uint64_t written = 0;
  const auto flush = [&]() -> Result<void> {
    RETURN_IF_ERROR(file.write_at(written, buffer));
    written += buffer.size();
    buffer.clear();
    return {};
  };
  RETURN_IF_ERROR(write([&](std::string_view bytes) -> Result<void> {
    buffer += bytes;
    return buffer.size() < kBufferBytes ? Result<void>() : flush();
  }));
  RETURN_IF_ERROR(flush());
  return file.sync();
}

}  // namespace

Result<DurableFile> DurableFile::open(const std::filesystem::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor < 0) return system_error(path, (flags & O_CREAT) != 0 ? "create" : "open");
  DurableFile file(path, descriptor);
  struct stat status;
  if (::fstat(descriptor, &status) != 0) return file.error("stat");
  if (S_ISDIR(status.st_mode)) return file_error(Errc::kIo, path, "is a folder, wanted a file");
  if (!S_ISREG(status.st_mode)) return file_error(Errc::kIo, path, "not a regular file");
  return file;
}

Error DurableFile::error(const char* action) const { return system_error(path_, action); }

Result<std::uint64_t> DurableFile::size() const {
  struct stat status;
  if (::fstat(descriptor_, &status) != 0) return error("stat");
  return static_cast<std::uint64_t>(status.st_size);
}

Result<std::string> DurableFile::read_at(std::uint64_t offset, std::size_t length) const {
  std::string bytes(length, '\0');
  std::size_t have = 0;
  while (have < length) {
    const ssize_t got = ::pread(descriptor_, bytes.data() + have, length - have, static_cast<off_t>(offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error("read");
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

Result<void> DurableFile::write_at(std::uint64_t offset, std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return error("write");
    bytes.remove_prefix(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
  return {};
}

Result<void> DurableFile::cut_to(std::uint64_t size) const {
  if (::ftruncate(descriptor_, static_cast<off_t>(size)) != 0) return error("truncate");
  return {};
}

Result<void> DurableFile::sync() const {
  if (::fdatasync(descriptor_) != 0) return error("sync");
  return {};
}

Result<void> DurableFile::lock() const {
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return {};
  if (errno != EWOULDBLOCK) return error("lock");
  return file_error(Errc::kUnavailable, path_, "another process is writing it");
}

Result<void> sync_folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = folder_of(path);
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor < 0) return system_error(folder, "open");
  // EINVAL: a file system without
  if (::fsync(descriptor) != 0 && errno != EINVAL) return system_error(folder, "sync");
  return {};
}

Result<void> replace_text(const std::filesystem::path& path, std::string_view text) {
  return replace(path, [&](const DurableFile& file) { return file.write_at(0, text); });
}

Result<void> replace_file(const std::filesystem::path& path, const WriteFile& write) {
  RETURN_IF_ERROR(replace(path, [&](const DurableFile& file) { return write_synced(file, write); }));
  return sync_folder_of(path);
}

}  // namespace outrider
