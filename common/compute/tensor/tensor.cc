#include "common/compute/tensor/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>

namespace outrider {

namespace {

/// Name of a type, elements of a block, and its bytes.
struct DTypeFacts {
  const char* name;
  std::size_t elements, bytes;
};
/// Indexed by DType.
constexpr DTypeFacts kDTypes[] = {
    {"F32", 1, 4},
    {"BF16", 1, 2},
    {"I8", 1, 1},
    {"I32", 1, 4},
    {"I64", 1, 8},
    {"U8", 1, 1},
    {"F16", 1, 2},
    {"Q8_0", 32, 34},
    {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},
    {"Q5_0", 32, 22},
    {"Q5_1", 32, 24},
    {"Q4_K", 256, 144},
    {"Q5_K", 256, 176},
    {"Q6_K", 256, 210},
    {"Q2_K", 256, 84},
    {"Q3_K", 256, 110},
    {"IQ4_NL", 32, 18},
    {"IQ4_XS", 256, 136},
    {"IQ2_XXS", 256, 66},
    {"IQ2_XS", 256, 74},
    {"IQ2_S", 256, 82},
    {"IQ3_XXS", 256, 98},
    {"IQ3_S", 256, 110},
    {"MXFP4", 32, 17},
    {"F8_E4M3", 1, 1},
    {"F8_E5M2", 1, 1},
    {"F8_E8M0", 1, 1},
    {"F64", 1, 8},
    {"I16", 1, 2},
    {"U16", 1, 2},
    {"U32", 1, 4},
    {"U64", 1, 8},
};
static_assert(std::size(kDTypes) == static_cast<std::size_t>(DType::kU64) + 1);

const DTypeFacts& facts_of(DType dtype) {
  CHECK(static_cast<std::size_t>(dtype) < std::size(kDTypes), "DType {}", static_cast<int>(dtype));
  return kDTypes[static_cast<std::size_t>(dtype)];
}

}  // namespace

std::size_t block_elements(DType dtype) { return facts_of(dtype).elements; }

std::size_t stored_bytes(DType dtype, std::size_t elements) {
  const DTypeFacts& block = facts_of(dtype);
  CHECK(elements % block.elements == 0, "{} elements of {}, wanted a multiple of {}", elements, to_string(dtype),
        block.elements);
  return elements / block.elements * block.bytes;
}

std::size_t size_bytes(DType dtype) {
  const DTypeFacts& block = facts_of(dtype);
  CHECK(block.elements == 1, "one element of {} has no bytes of its own", to_string(dtype));
  return block.bytes;
}

const char* to_string(DType dtype) {
  const auto at = static_cast<std::size_t>(dtype);
  return at < std::size(kDTypes) ? kDTypes[at].name : "?";
}

std::optional<DType> parse_dtype(std::string_view name) {
  const auto* const type = std::ranges::find(kDTypes, name, &DTypeFacts::name);
  return type == std::end(kDTypes) ? std::nullopt : std::optional(static_cast<DType>(type - kDTypes));
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
