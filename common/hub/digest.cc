#include "common/hub/digest.h"

#include <openssl/evp.h>

#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/check.h"

namespace outrider {

struct FileDigest::State {
  bool sha256;
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

FileDigest::FileDigest(std::string_view etag, std::uint64_t size) : state_(new State{.sha256 = etag.size() == 64}) {
  const int begun = EVP_DigestInit_ex(state_->context.get(), state_->sha256 ? EVP_sha256() : EVP_sha1(), nullptr);
  CHECK(begun == 1, "OpenSSL has no {}", name());
  if (!state_->sha256) {
    std::string header = fmt::format("blob {}", size);
    header.push_back('\0');
    add(header);
  }
}

FileDigest::~FileDigest() = default;
FileDigest::FileDigest(FileDigest&&) noexcept = default;
FileDigest& FileDigest::operator=(FileDigest&&) noexcept = default;

void FileDigest::add(std::string_view bytes) {
  CHECK(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()) == 1, "{} bytes", bytes.size());
}

std::string FileDigest::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  CHECK(EVP_DigestFinal_ex(state_->context.get(), digest.data(), &size) == 1, "{} is not finished", name());
  return fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + size, ""));
}

const char* FileDigest::name() const { return state_->sha256 ? "SHA-256" : "git's SHA-1"; }

}  // namespace outrider
