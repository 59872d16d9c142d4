#include "common/os/durable_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <random>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "common/os/files.h"

namespace outrider {
namespace {

constexpr std::size_t kUnusedBytes = 8;     ///< of unused_name()
constexpr std::string_view kHalf = ".tmp";  ///< suffix of incomplete files

Error not_a_file(const std::filesystem::path& path, const struct stat& status) {
  return file_error(Errc::kIo, path, "{}",
                    S_ISDIR(status.st_mode) ? "is a folder, wanted a file" : "not a regular file");
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// Copies another file's mode, and its group and owner if permitted. Without the group, its rights are dropped.
Result<void> make_alike(const DurableFile& file, const struct stat& other) {
  const bool has_group = ::fchown(file.descriptor(), static_cast<uid_t>(-1), other.st_gid) == 0;
  [[maybe_unused]] const int of_root_alone = ::fchown(file.descriptor(), other.st_uid, static_cast<gid_t>(-1));
  const mode_t mode = other.st_mode & (has_group ? 07777 : 07707);
  struct stat status;
  const bool differs = ::fstat(file.descriptor(), &status) != 0 || (status.st_mode & 07777) != mode;
  if (differs && ::fchmod(file.descriptor(), mode) != 0) return system_error(file.path(), "change the mode of");
  return {};
}

/// Writes a temporary file beside `path`, which replaces it when complete, and is removed otherwise.
Result<void> replace(const std::filesystem::path& path,
                     const std::function<Result<void>(const DurableFile& file)>& write) {
  struct stat old;
  const bool there = ::stat(path.c_str(), &old) == 0;
  if (!there && errno != ENOENT) return system_error(path, "open");  // a cycle of links
  if (there && !S_ISREG(old.st_mode)) return not_a_file(path, old);
  const std::filesystem::path beside = fmt::format("{}.{}{}", path.string(), unused_name(), kHalf);
  ASSIGN_OR_RETURN(const DurableFile file, DurableFile::open(beside, O_WRONLY | O_CREAT | O_EXCL, there ? 0600 : 0666));
  Result<void> done = there ? make_alike(file, old) : Result<void>();
  if (done) done = write(file);
  if (done && ::rename(beside.c_str(), path.c_str()) != 0) done = system_error(path, "rename to");
  if (!done) ::unlink(beside.c_str());
  return done;
}

/// Appends and syncs everything that `write` writes.
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

Result<DurableFile> DurableFile::open(const std::filesystem::path& path, int flags, mode_t mode) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, mode);
  if (descriptor < 0) return system_error(path, (flags & O_CREAT) != 0 ? "create" : "open");
  DurableFile file(path, descriptor);
  struct stat status;
  if (::fstat(descriptor, &status) != 0) return file.error("stat");
  if (!S_ISREG(status.st_mode)) return not_a_file(path, status);
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

Result<void> DurableFile::lock() const { return lock_file(descriptor_, path_); }

Result<void> lock_file(int descriptor, const std::filesystem::path& path) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return {};
  if (errno == EWOULDBLOCK) return file_error(Errc::kUnavailable, path, "another process is writing it");
  if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP)
    return file_error(Errc::kUnsupported, path, "its file system has no locks");
  return system_error(path, "lock");
}

Result<void> sync_folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = folder_of(path);
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor < 0) return system_error(folder, "open");
  // EINVAL: the file system does not support it
  if (::fsync(descriptor) != 0 && errno != EINVAL) return system_error(folder, "sync");
  return {};
}

std::string unused_name() { return fmt::format("{:0{}x}", std::random_device()(), kUnusedBytes); }

std::filesystem::path behind_links(std::filesystem::path path) {
  constexpr int kLinksMax = 40;  // the kernel's limit
  std::error_code ignored;
  for (int i = 0; i < kLinksMax && std::filesystem::is_symlink(path, ignored); ++i)
    path = folder_of(path) / std::filesystem::read_symlink(path, ignored);
  return path;
}

void remove_halves_of(const std::filesystem::path& path) {
  const std::filesystem::path whole = behind_links(path);
  const std::string begin = whole.filename().string() + ".";
  std::error_code ignored;
  std::vector<std::filesystem::path> halves;
  for (const auto& entry : std::filesystem::directory_iterator(folder_of(whole), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin) && name.ends_with(kHalf) && name.size() == begin.size() + kUnusedBytes + kHalf.size())
      halves.push_back(entry.path());
  }
  for (const std::filesystem::path& half : halves) std::filesystem::remove(half, ignored);
}

Result<void> replace_text(const std::filesystem::path& path, std::string_view text) {
  return replace(behind_links(path), [&](const DurableFile& file) { return file.write_at(0, text); });
}

Result<void> replace_file(const std::filesystem::path& path, const WriteFile& write) {
  const std::filesystem::path file = behind_links(path);
  RETURN_IF_ERROR(replace(file, [&](const DurableFile& beside) { return write_synced(beside, write); }));
  return sync_folder_of(file);
}

}  // namespace outrider
