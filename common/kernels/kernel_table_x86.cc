// What x86-64 has: the instruction sets, which of them this CPU runs, and their kernels.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

/// Tiles, their int8 and bfloat16 products, and the conversion to bfloat16 that comes with them. Linux gives a process
/// the tile registers when it asks for them (Documentation/arch/x86/xstate.rst).
bool may_use_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16Products = 1u << 22, kTiles = 1u << 24, kInt8Products = 1u << 25, kAvx512Bf16 = 1u << 5;
  constexpr unsigned kWanted = kTiles | kInt8Products | kBf16Products;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kWanted) != kWanted) return false;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || (a & kAvx512Bf16) == 0) return false;
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

/// clang's __builtin_cpu_supports does not know it.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1u << 29)) != 0;
}

}  // namespace

std::span<const Isa> isas() {
  static constexpr Isa kAll[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};
  return kAll;
}

Isa detect_isa() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return Isa::kScalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  if (!avx512) return Isa::kAvx2;
  static const bool amx = may_use_amx();
  return amx ? Isa::kAmx : Isa::kAvx512;
}

const KernelTable& kernel_table(Isa isa) {
  static const KernelTable amx = [] {
    KernelTable table = kAvx512Kernels;
    table.gemm_int4_tiles = gemm_int4_amx;
    table.gemm_int8_tiles = gemm_int8_amx;
    table.gemm_bf16_tiles = gemm_bf16_amx;
    table.attend_bf16 = attend_amx;
    return table;
  }();
  const KernelTable* const tables[] = {&kScalarKernels, &kAvx2Kernels, &kAvx512Kernels, &amx};
  return *tables[static_cast<std::size_t>(isa)];
}

}  // namespace outrider
