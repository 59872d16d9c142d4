// Reads GPTQ's files (AutoGPTQ, GPTQModel and AutoRound): qweight, qzeros, scales, and g_idx if inputs were sorted by
// importance.
#include <bit>

#include <fmt/format.h>

#include "common/model/checkpoint/quantized.h"

namespace outrider {

MakeQuantizedFormat make_awq;

/// @param zero_bias  1 if zeros are stored minus one
static QuantizedFormat make_gptq(const JsonFields& config, int zero_bias) {
  const auto bits = static_cast<int>(config.integer("bits", {}, 2, 8));
  if (!std::has_single_bit(static_cast<unsigned>(bits))) config.fail(Errc::kUnsupported, "bits", bits, "2, 4 or 8");
  const std::int64_t group_size = config.integer("group_size", 128, -1, 1 << 20);
  return [=](const TensorEntry& tensor, Tensors tensors) -> Result<std::optional<TensorEntry>> {
    const std::optional<std::string> module = module_of(tensor, ".qweight");
    if (!module) return std::optional<TensorEntry>();
    GroupedCodes m{
        .packing = CodePacking::kInt32Transposed, .bits = bits, .codes = &tensor, .group_sizes = {group_size}};
    ASSIGN_OR_RETURN(m.scales, need(tensor, tensors, *module + ".scales"));
    ASSIGN_OR_RETURN(m.zeros, need(tensor, tensors, *module + ".qzeros"));
    m.zero_bias = zero_bias;
    m.transposed = true;
    m.out = tensor.shape.size() == 2 ? tensor.shape[1] : 0;
    // In a file of mixed widths the configuration states one; the words in a row of zeros show the real one.
    const auto fits = [&](int width) {
      return m.zeros->shape.size() == 2 && m.zeros->shape[1] == (m.out - 1) / (32 / width) + 1;
    };
    for (const int other : {2, 4, 8})
      if (!fits(m.bits) && fits(other)) m.bits = other;
    m.in = tensor.shape.empty() ? 0 : codes_in(tensor.shape[0], 32 / m.bits);
    ASSIGN_OR_RETURN(m.group_of, group_order(tensors, *module + ".g_idx"));
    return coded_entry(*module + ".weight", m);
  };
}

QuantizedFormat make_gptq(const JsonFields& config) {
  const char* const key = config.find("checkpoint_format") != nullptr ? "checkpoint_format" : "format";
  return make_gptq(config, config.choice(key, "gptq", {"gptq", "gptq_v2"}) == "gptq_v2" ? 0 : 1);
}

QuantizedFormat make_auto_round(const JsonFields& config) {
  const std::string packing = config.choice("packing_format", "auto_round:auto_gptq",
                                            {"auto_round:auto_gptq", "auto_round", "auto_round:exllamav2",
                                             "auto_round:tritonv2", "auto_round:gptqmodel", "auto_round:auto_awq"});
  if (packing == "auto_round:auto_awq") return make_awq(config);
  return make_gptq(config, packing == "auto_round:auto_gptq" ? 1 : 0);
}

}  // namespace outrider
