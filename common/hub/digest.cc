#include "common/hub/digest.h"

#include <openssl/evp.h>

#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/check.h"

namespace outrider {

FileDigest::FileDigest(std::string_view etag, std::uint64_t size)
    : sha256_(etag.size() == 64), context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  const int begun = EVP_DigestInit_ex(context_.get(), sha256_ ? EVP_sha256() : EVP_sha1(), nullptr);
  CHECK(begun == 1, "OpenSSL has no {}", name());
  if (sha256_) return;
  std::string header = fmt::format("blob {}", size);
  header.push_back('\0');
  add(header);
}

void FileDigest::add(std::string_view bytes) {
  CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "{} bytes", bytes.size());
}

std::string FileDigest::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1, "{} is not finished", name());
  return fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + size, ""));
}

}  // namespace outrider
