#include "common/tensor/tensor.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace outrider {

std::size_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kI8:
    case DType::kU8: return 1;
    case DType::kBf16:
    case DType::kF16: return 2;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kI64: return 8;
  }
  return 0;
}

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kBf16: return "BF16";
    case DType::kI8: return "I8";
    case DType::kI32: return "I32";
    case DType::kI64: return "I64";
    case DType::kU8: return "U8";
    case DType::kF16: return "F16";
  }
  return "?";
}

void* aligned_zeroed(std::size_t bytes) {
  const std::size_t rounded = (bytes + 63) / 64 * 64;
  if (rounded == 0) return nullptr;
  void* p = std::aligned_alloc(64, rounded);
  if (p == nullptr) throw std::bad_alloc();
  std::memset(p, 0, rounded);
  return p;
}

}  // namespace outrider
