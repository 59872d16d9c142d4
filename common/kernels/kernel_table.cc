#include "common/kernels/kernel_table.h"

namespace outrider {

const KernelTable& kernel_table(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return kScalarKernels;
    case Isa::kAvx2: return kAvx2Kernels;
    case Isa::kAvx512: return kAvx512Kernels;
    case Isa::kAmx: {
      static const KernelTable amx = [] {
        KernelTable table = kAvx512Kernels;
        table.gemm_int4 = gemm_int4_amx;
        table.gemm_int8 = gemm_int8_amx;
        table.gemm_bf16 = gemm_bf16_amx;
        table.attend_bf16 = attend_amx;
        return table;
      }();
      return amx;
    }
  }
  return kScalarKernels;
}

const KernelTable& kernels() {
  static const KernelTable& table = kernel_table(active_isa());
  return table;
}

}  // namespace outrider
