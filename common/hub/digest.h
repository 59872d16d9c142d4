#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace outrider {

/// The digest of a file in the hub's form, computed incrementally: SHA-256 of a large file (Git LFS), or git's SHA-1 of
/// a blob (`git hash-object`). Uses OpenSSL, which stays inside digest.cc.
class FileDigest {
 public:
  /// @param etag  the hub's digest of the file: 64 hexadecimal digits, or 40 @param size  of the whole file, bytes
  FileDigest(std::string_view etag, std::uint64_t size);

  void add(std::string_view bytes);
  /// Returns the digest in lower case; called once, at the end.
  std::string hex();
  /// "SHA-256" or "git's SHA-1".
  const char* name() const { return sha256_ ? "SHA-256" : "git's SHA-1"; }

 private:
  bool sha256_;
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

}  // namespace outrider
