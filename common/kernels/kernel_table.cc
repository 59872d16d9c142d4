#include "common/kernels/kernel_table.h"

namespace outrider {

const KernelTable& kernel_table(Isa isa) {
  static const KernelTable amx = [] {
    KernelTable table = kAvx512Kernels;
    table.attend_bf16 = attend_amx;
    return table;
  }();
  const KernelTable* const tables[] = {&kScalarKernels, &kAvx2Kernels, &kAvx512Kernels, &amx};
  return *tables[static_cast<std::size_t>(isa)];
}

const KernelTable& kernels() {
  static const KernelTable& table = kernel_table(active_isa());
  return table;
}

}  // namespace outrider
