#include "common/compute/tensor/page_array.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "common/base/check.h"

namespace outrider {

PageArray::~PageArray() {
  if (data_ != nullptr) munmap(data_, size_);
}

void PageArray::grow(std::size_t bytes) {
  CHECK(bytes >= size_, "{} bytes, {} are in use", bytes, size_);
  if (bytes == size_) return;
  // No reserve: unwritten pages must not count against an over-commit limit.
  void* const p = data_ == nullptr
                      ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                      : mremap(data_, size_, bytes, MREMAP_MAYMOVE);
  if (p == MAP_FAILED) throw std::bad_alloc();
  // Where huge pages are for all (Debian's default), the first byte of an array would take 2 MiB. mremap keeps this.
  if (data_ == nullptr) madvise(p, bytes, MADV_NOHUGEPAGE);
  data_ = static_cast<std::byte*>(p);
  size_ = bytes;
}

std::size_t PageArray::resident_bytes(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace outrider
