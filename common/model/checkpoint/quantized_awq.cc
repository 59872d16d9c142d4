// Reads AWQ's files (github.com/casper-hansen/AutoAWQ, "gemm"): qweight, qzeros, scales.
#include <fmt/format.h>

#include "common/model/checkpoint/quantized.h"

namespace outrider {
namespace {

class Awq final : public QuantizedFormat {
 public:
  explicit Awq(const JsonFields& config) : group_size_(config.integer("group_size", 128, -1, 1 << 20)) {
    config.integer("bits", 4, 4, 4);
    config.choice("version", "gemm", {"gemm", "GEMM"});
  }

  Result<std::optional<TensorEntry>> matrix(const TensorEntry& tensor,
                                            std::span<const TensorEntry> tensors) const override {
    const std::optional<std::string> module = module_of(tensor, ".qweight");
    if (!module) return std::optional<TensorEntry>();
    GroupedCodes m{.packing = CodePacking::kAwq, .codes = &tensor, .transposed = true, .group_sizes = {group_size_}};
    ASSIGN_OR_RETURN(m.scales, need(tensor, tensors, *module + ".scales"));
    ASSIGN_OR_RETURN(m.zeros, need(tensor, tensors, *module + ".qzeros"));
    m.in = tensor.shape.empty() ? 0 : tensor.shape[0];
    m.out = tensor.shape.size() == 2 ? codes_in(tensor.shape[1], 8) : 0;
    ASSIGN_OR_RETURN(TensorEntry entry, coded_entry(*module + ".weight", m));
    return std::optional(std::move(entry));
  }

 private:
  std::int64_t group_size_;
};

}  // namespace

std::unique_ptr<const QuantizedFormat> make_awq(const JsonFields& config) { return std::make_unique<Awq>(config); }

}  // namespace outrider
