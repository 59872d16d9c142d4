// The instruction sets of aarch64, their detection, and their kernels.
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {
namespace {

/// Returns NEON's kernels with other integer products.
KernelTable with_gemm(GemmKernel* int4, GemmKernel* q4, GemmKernel* int8) {
  KernelTable table = kNeonKernels;
  table.gemm_int4 = int4;
  table.gemm_q4 = q4;
  table.gemm_int8 = int8;
  return table;
}

}  // namespace

std::span<const Isa> isas() {
  static constexpr Isa kAll[] = {Isa::kScalar, Isa::kNeon, Isa::kDotprod, Isa::kI8mm};
  return kAll;
}

bool has_isa(Isa isa) {
  const bool dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  return isa < Isa::kDotprod || (dotprod && (isa == Isa::kDotprod || (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0));
}

const KernelTable& kernel_table(Isa isa) {
  static const KernelTable dotprod = with_gemm(gemm_int4_dotprod, gemm_q4_dotprod, gemm_int8_dotprod),
                           i8mm = with_gemm(gemm_int4_i8mm, gemm_q4_i8mm, gemm_int8_i8mm);
  return isa == Isa::kScalar    ? kScalarKernels
         : isa == Isa::kNeon    ? kNeonKernels
         : isa == Isa::kDotprod ? dotprod
                                : i8mm;
}

}  // namespace outrider
