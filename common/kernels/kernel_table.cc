#include "common/kernels/kernel_table.h"

namespace outrider {

const KernelTable& kernel_table(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return kScalarKernels;
    case Isa::kAvx2: return kAvx2Kernels;
    case Isa::kAvx512:
    case Isa::kAmx: return kAvx512Kernels;
  }
  return kScalarKernels;
}

const KernelTable& kernels() {
  static const KernelTable& table = kernel_table(active_isa());
  return table;
}

}  // namespace outrider
