// main() of the programs that ctest runs once per instruction set, and linear_test also per OUTRIDER_GEMM: exits 77,
// which ctest counts as skipped, where this CPU lacks the set that OUTRIDER_ISA asks for, or has no better one, which
// is what the test without OUTRIDER_ISA runs on; or OUTRIDER_GEMM is set and it has no AVX-512.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <gtest/gtest.h>

#include "common/compute/kernels/isa.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const char* wanted = std::getenv("OUTRIDER_ISA")) {
    for (const outrider::Isa isa : outrider::isas()) {
      if (std::string_view(wanted) != to_string(isa)) continue;
      const bool has = has_isa(isa);
      if (has && isa != outrider::detect_isa()) continue;
      std::printf(has ? "without OUTRIDER_ISA it is %s too\n" : "this CPU has no %s\n", wanted);
      return 77;
    }
  }
  if (outrider::active_gemm() != outrider::Gemm::kFastest && outrider::active_isa() < outrider::Isa::kAvx512) {
    std::printf("without avx512 there are no two that multiply equally well\n");
    return 77;
  }
  return RUN_ALL_TESTS();
}
