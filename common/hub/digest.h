#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace outrider {

/// The digest of a file as the hub names it, fed in pieces: SHA-256 of a large file (Git LFS), or git's SHA-1 of a blob
/// (`git hash-object`). In one file, on OpenSSL.
class FileDigest {
 public:
  /// @param etag  what the hub calls the file: 64 hexadecimal digits, or 40. @param size  of the whole file, bytes
  FileDigest(std::string_view etag, std::uint64_t size);
  ~FileDigest();
  FileDigest(FileDigest&&) noexcept;
  FileDigest& operator=(FileDigest&&) noexcept;

  void add(std::string_view bytes);
  /// It is in lower case, and is called once, at the end.
  std::string hex();
  /// "SHA-256" or "git's SHA-1".
  const char* name() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace outrider
