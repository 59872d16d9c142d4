// Reads AWQ's files (github.com/casper-hansen/AutoAWQ, "gemm"): qweight, qzeros, scales.
#include <fmt/format.h>

#include "common/model/checkpoint/quantized.h"

namespace outrider {

QuantizedFormat make_awq(const JsonFields& config) {
  const std::int64_t group_size = config.integer("group_size", 128, -1, 1 << 20);
  config.integer("bits", 4, 4, 4);
  config.choice("version", "gemm", {"gemm", "GEMM"});
  return [group_size](const TensorEntry& tensor, Tensors tensors) -> Result<std::optional<TensorEntry>> {
    const std::optional<std::string> module = module_of(tensor, ".qweight");
    if (!module) return std::optional<TensorEntry>();
    GroupedCodes m{.packing = CodePacking::kAwq, .codes = &tensor, .transposed = true, .group_sizes = {group_size}};
    ASSIGN_OR_RETURN(m.scales, need(tensor, tensors, *module + ".scales"));
    ASSIGN_OR_RETURN(m.zeros, need(tensor, tensors, *module + ".qzeros"));
    m.in = tensor.shape.empty() ? 0 : tensor.shape[0];
    m.out = tensor.shape.size() == 2 ? codes_in(tensor.shape[1], 8) : 0;
    return coded_entry(*module + ".weight", m);
  };
}

}  // namespace outrider
