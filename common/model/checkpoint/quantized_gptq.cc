// Reads GPTQ's files (AutoGPTQ, GPTQModel and AutoRound): qweight, qzeros, scales, and g_idx if inputs were sorted by
// importance.
#include <fmt/format.h>

#include "common/model/checkpoint/quantized.h"

namespace outrider {

std::unique_ptr<const QuantizedFormat> make_awq(const JsonFields& config);

namespace {

class Gptq final : public QuantizedFormat {
 public:
  /// @param zero_bias  1 if zeros are stored minus one
  Gptq(const JsonFields& config, int zero_bias)
      : bits_(static_cast<int>(config.integer("bits", {}, 2, 8))), zero_bias_(zero_bias) {
    if (bits_ == 3 || bits_ > 4) bits_ = static_cast<int>(config.integer("bits", {}, 8, 8));
    group_size_ = config.integer("group_size", 128, -1, 1 << 20);
  }

  Result<std::optional<TensorEntry>> matrix(const TensorEntry& tensor,
                                            std::span<const TensorEntry> tensors) const override {
    const std::optional<std::string> module = module_of(tensor, ".qweight");
    if (!module) return std::optional<TensorEntry>();
    GroupedCodes m{
        .packing = CodePacking::kInt32Transposed, .bits = bits_, .codes = &tensor, .group_sizes = {group_size_}};
    ASSIGN_OR_RETURN(m.scales, need(tensor, tensors, *module + ".scales"));
    ASSIGN_OR_RETURN(m.zeros, need(tensor, tensors, *module + ".qzeros"));
    m.zero_bias = zero_bias_;
    m.transposed = true;
    m.in = tensor.shape.empty() ? 0 : codes_in(tensor.shape[0], 32 / bits_);
    m.out = tensor.shape.size() == 2 ? tensor.shape[1] : 0;
    ASSIGN_OR_RETURN(m.group_of, group_order(tensors, *module + ".g_idx"));
    ASSIGN_OR_RETURN(TensorEntry entry, coded_entry(*module + ".weight", m));
    return std::optional(std::move(entry));
  }

 private:
  int bits_, zero_bias_;
  std::int64_t group_size_;
};

}  // namespace

std::unique_ptr<const QuantizedFormat> make_gptq(const JsonFields& config) {
  const bool second = config.choice("checkpoint_format", "gptq", {"gptq", "gptq_v2"}) == "gptq_v2";
  return std::make_unique<Gptq>(config, second ? 0 : 1);
}

std::unique_ptr<const QuantizedFormat> make_auto_round(const JsonFields& config) {
  const std::string packing = config.choice("packing_format", "auto_round:auto_gptq",
                                            {"auto_round:auto_gptq", "auto_round", "auto_round:exllamav2",
                                             "auto_round:tritonv2", "auto_round:gptqmodel", "auto_round:auto_awq"});
  if (packing == "auto_round:auto_awq") return make_awq(config);
  return std::make_unique<Gptq>(config, packing == "auto_round:auto_gptq" ? 1 : 0);
}

}  // namespace outrider
