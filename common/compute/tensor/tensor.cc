#include "common/compute/tensor/tensor.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace outrider {

namespace {

/// Elements of a block, and its bytes.
struct Block {
  std::size_t elements, bytes;
};

Block block_of(DType dtype) {
  switch (dtype) {
    case DType::kI8:
    case DType::kU8:
    case DType::kF8_E4M3: return {1, 1};
    case DType::kBf16:
    case DType::kF16: return {1, 2};
    case DType::kF32:
    case DType::kI32: return {1, 4};
    case DType::kI64: return {1, 8};
    case DType::kQ8_0: return {32, 34};
    case DType::kQ4_0: return {32, 18};
    case DType::kQ4_1: return {32, 20};
    case DType::kQ5_0: return {32, 22};
    case DType::kQ5_1: return {32, 24};
    case DType::kQ4_K: return {256, 144};
    case DType::kQ5_K: return {256, 176};
    case DType::kQ6_K: return {256, 210};
    case DType::kQ2_K: return {256, 84};
    case DType::kQ3_K: return {256, 110};
    case DType::kIQ4_NL: return {32, 18};
    case DType::kIQ4_XS: return {256, 136};
    case DType::kIQ2_XXS: return {256, 66};
    case DType::kIQ2_XS: return {256, 74};
    case DType::kIQ2_S: return {256, 82};
    case DType::kIQ3_XXS: return {256, 98};
    case DType::kIQ3_S: return {256, 110};
    case DType::kMXFP4: return {32, 17};
  }
  CHECK(false, "DType {}", static_cast<int>(dtype));
}

}  // namespace

std::size_t block_elements(DType dtype) { return block_of(dtype).elements; }

std::size_t stored_bytes(DType dtype, std::size_t elements) {
  const Block block = block_of(dtype);
  CHECK(elements % block.elements == 0, "{} elements of {}, wanted a multiple of {}", elements, to_string(dtype),
        block.elements);
  return elements / block.elements * block.bytes;
}

std::size_t size_bytes(DType dtype) {
  const Block block = block_of(dtype);
  CHECK(block.elements == 1, "one element of {} has no bytes of its own", to_string(dtype));
  return block.bytes;
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
    case DType::kQ8_0: return "Q8_0";
    case DType::kQ4_0: return "Q4_0";
    case DType::kQ4_1: return "Q4_1";
    case DType::kQ5_0: return "Q5_0";
    case DType::kQ5_1: return "Q5_1";
    case DType::kQ4_K: return "Q4_K";
    case DType::kQ5_K: return "Q5_K";
    case DType::kQ6_K: return "Q6_K";
    case DType::kQ2_K: return "Q2_K";
    case DType::kQ3_K: return "Q3_K";
    case DType::kIQ4_NL: return "IQ4_NL";
    case DType::kIQ4_XS: return "IQ4_XS";
    case DType::kIQ2_XXS: return "IQ2_XXS";
    case DType::kIQ2_XS: return "IQ2_XS";
    case DType::kIQ2_S: return "IQ2_S";
    case DType::kIQ3_XXS: return "IQ3_XXS";
    case DType::kIQ3_S: return "IQ3_S";
    case DType::kMXFP4: return "MXFP4";
    case DType::kF8_E4M3: return "F8_E4M3";
  }
  return "?";
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(DType::kF8_E4M3); ++i) {
    if (const auto dtype = static_cast<DType>(i); name == to_string(dtype)) return dtype;
  }
  return std::nullopt;
}

void* aligned_zeroed(std::size_t bytes) {
  const std::size_t rounded = (bytes + 63) / 64 * 64;
  if (rounded == 0) return nullptr;
  // Puts matrices into huge pages if the system grants them: reading is 5 % faster. The remainder stays in small pages,
  // so that no memory is lost. (aligned_alloc requires a multiple of the alignment.)
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const bool huge = rounded >= 2 * kHugePage;
  void* p = nullptr;
  if (posix_memalign(&p, huge ? kHugePage : 64, rounded) != 0) throw std::bad_alloc();
  if (huge) madvise(p, rounded / kHugePage * kHugePage, MADV_HUGEPAGE);
  std::memset(p, 0, rounded);
  return p;
}

}  // namespace outrider
