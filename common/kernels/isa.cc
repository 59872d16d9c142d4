#include "common/kernels/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

namespace outrider {
namespace {

constexpr const char* kNames[] = {"scalar", "avx2", "avx512", "amx"};  ///< by Isa

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

Isa choose_isa() {
  const Isa detected = detect_isa();
  const char* wanted = std::getenv("OUTRIDER_ISA");
  if (wanted == nullptr || *wanted == '\0') return detected;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (std::string_view(wanted) != to_string(isa)) continue;
    if (isa <= detected) return isa;
    throw std::runtime_error(fmt::format("OUTRIDER_ISA={}, but this CPU has only {}", wanted, to_string(detected)));
  }
  throw std::runtime_error(fmt::format("OUTRIDER_ISA={}, wanted scalar, avx2, avx512 or amx", wanted));
}

Gemm choose_gemm() {
  const char* const set = std::getenv("OUTRIDER_GEMM");
  const std::string_view wanted = set == nullptr ? "" : set;
  if (wanted.empty()) return Gemm::kFastest;
  if (wanted == "onednn") return Gemm::kOnednn;
  if (wanted == "own") return Gemm::kOwn;
  throw std::runtime_error(fmt::format("OUTRIDER_GEMM={}, wanted onednn or own", wanted));
}

}  // namespace

const char* to_string(Isa isa) { return kNames[static_cast<std::size_t>(isa)]; }

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

Isa active_isa() {
  static const Isa isa = choose_isa();
  return isa;
}

Gemm active_gemm() {
  static const Gemm gemm = choose_gemm();
  return gemm;
}

}  // namespace outrider
