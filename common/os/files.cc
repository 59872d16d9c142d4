#include "common/os/files.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/base/text.h"
#include "common/os/descriptor.h"

namespace outrider {

Error system_error(const std::filesystem::path& path, const char* action) {
  const int number = errno;
  return file_error(number == ENOENT || number == ENOTDIR ? Errc::kNotFound : Errc::kIo, path, "cannot {}: {}", action,
                    std::generic_category().message(number));
}

std::uintmax_t bytes_on_disk(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return std::filesystem::file_size(path, ignored);
  std::uintmax_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(path, ignored))
    if (file.is_regular_file(ignored)) bytes += file.file_size(ignored);
  return bytes;
}

namespace {

Result<std::span<const std::byte>> map_descriptor(int fd, const std::filesystem::path& path) {
  struct stat status;
  if (::fstat(fd, &status) != 0) return system_error(path, "stat");
  if (!S_ISREG(status.st_mode)) return file_error(Errc::kIo, path, "not a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return std::span<const std::byte>();  // mmap refuses a length of 0
  void* const address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (address == MAP_FAILED) return system_error(path, "map");
  return std::span(static_cast<const std::byte*>(address), size);
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must fail instead of waiting for its writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // the mapping keeps it
  if (file < 0) return system_error(path, "open");
  ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, map_descriptor(file, path));
  return MappedFile(bytes);
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<std::string> read_text(const std::filesystem::path& path) {
  constexpr std::size_t kBytesMax = 100'000'000;  // the largest, a tokenizer.json, has a third of it
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  if (file.bytes().size() > kBytesMax) {
    return file_error(Errc::kOutOfRange, path, "{} bytes long, wanted at most {}", file.bytes().size(), kBytesMax);
  }
  return std::string(
      without_byte_order_mark({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}));
}

}  // namespace outrider
