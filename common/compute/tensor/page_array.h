#pragma once

#include <cstddef>
#include <utility>

namespace outrider {

/// Owner of zeroed bytes straight from the kernel, for arrays that may become large and are filled from the front. Only
/// written pages take memory, and growing moves page tables, not bytes. Move only; page aligned.
class PageArray {
 public:
  PageArray() = default;
  explicit PageArray(std::size_t bytes) { grow(bytes); }
  PageArray(PageArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  PageArray& operator=(PageArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~PageArray();

  /// Grows to `bytes` and keeps the contents; new bytes are zero. Pointers into it become invalid. Throws
  /// std::bad_alloc. @pre bytes >= size()
  void grow(std::size_t bytes);

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  /// Memory of the first `bytes` bytes once they have been written.
  static std::size_t resident_bytes(std::size_t bytes);

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace outrider
