// The instruction sets of x86-64, their detection, and their kernels.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {
namespace {

/// Bits of cpuid's leaf 7.
struct Leaf7 {
  unsigned edx = 0;    ///< of subleaf 0
  unsigned eax_1 = 0;  ///< of subleaf 1
};
Leaf7 leaf_7() {
  Leaf7 leaf;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return leaf;
  leaf.edx = d;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) leaf.eax_1 = a;
  return leaf;
}

/// Returns true with tiles, their int8 and bfloat16 products, and the conversion to bfloat16 that comes with them.
/// Linux gives a process the tile registers on request (Documentation/arch/x86/xstate.rst).
bool may_use_amx() {
  constexpr unsigned kBf16Products = 1u << 22, kTiles = 1u << 24, kInt8Products = 1u << 25, kAvx512Bf16 = 1u << 5;
  constexpr unsigned kWanted = kTiles | kInt8Products | kBf16Products;
  const Leaf7 leaf = leaf_7();
  if ((leaf.edx & kWanted) != kWanted || (leaf.eax_1 & kAvx512Bf16) == 0) return false;
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

/// g++ 12's __builtin_cpu_supports does not know it.
bool has_avx_vnni() { return (leaf_7().eax_1 & (1u << 4)) != 0; }

/// clang's __builtin_cpu_supports does not know it.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1u << 29)) != 0;
}

}  // namespace

std::span<const Isa> isas() {
  static constexpr Isa kAll[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx2Vnni, Isa::kAvx512, Isa::kAmx};
  return kAll;
}

bool has_isa(Isa isa) {
  __builtin_cpu_init();
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(),
                    avx2_vnni = avx2 && has_avx_vnni(),
                    avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                             __builtin_cpu_supports("avx512vnni"),
                    amx = avx512 && may_use_amx();
  const bool has[] = {true, avx2, avx2_vnni, avx512, amx};
  return has[static_cast<std::size_t>(isa)];
}

const KernelTable& kernel_table(Isa isa) {
  static const KernelTable avx2_vnni = [] {
    KernelTable table = kAvx2Kernels;
    table.gemm_int4 = gemm_int4_avx2_vnni;
    table.gemm_q4 = gemm_q4_avx2_vnni;
    table.gemm_int8 = gemm_int8_avx2_vnni;
    return table;
  }();
  static const KernelTable amx = [] {
    KernelTable table = kAvx512Kernels;
    table.gemm_int4_tiles = gemm_int4_amx;
    table.gemm_q4_tiles = gemm_q4_amx;
    table.gemm_int8_tiles = gemm_int8_amx;
    table.gemm_bf16_tiles = gemm_bf16_amx;
    table.attend_bf16 = attend_amx;
    return table;
  }();
  const KernelTable* const tables[] = {&kScalarKernels, &kAvx2Kernels, &avx2_vnni, &kAvx512Kernels, &amx};
  return *tables[static_cast<std::size_t>(isa)];
}

}  // namespace outrider
