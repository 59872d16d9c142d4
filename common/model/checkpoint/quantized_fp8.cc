// Reads FP8 files of transformers and vLLM (`fp8`: weight, and weight_scale_inv or weight_scale) and of NVIDIA's Model
// Optimizer (`modelopt`: weight and weight_scale; for NVFP4 weight_scale_2 too). The tensors determine which matrices
// are coded, and how.
#include <fmt/format.h>

#include "common/model/checkpoint/quantized.h"
#include "common/model/checkpoint/safetensors.h"

namespace outrider {

/// @param block, group  sizes; 0: not stated
static QuantizedFormat make_format(std::int64_t block, std::int64_t group) {
  return [=](const TensorEntry& tensor, Tensors tensors) -> Result<std::optional<TensorEntry>> {
    const TensorEntry* scales = find_tensor(tensors, tensor.name + "_scale_inv");
    if (scales == nullptr) scales = find_tensor(tensors, tensor.name + "_scale");
    // The stacked matrices of experts have names without ".weight".
    const bool stacked = tensor.shape.size() == 3 && tensor.dtype == DType::kF8_E4M3 && scales != nullptr;
    const std::optional<std::string> module = module_of(tensor, stacked ? "" : ".weight");
    const bool codes = tensor.dtype == DType::kF8_E4M3 || tensor.dtype == DType::kU8;
    if (!module || !codes || (tensor.shape.size() != 2 && !stacked)) return std::optional<TensorEntry>();
    if (const TensorEntry* const before = find_tensor(tensors, *module + ".pre_quant_scale"))
      return file_error(Errc::kUnsupported, before->file, "tensor {} scales the inputs of {}: that is not read",
                        quote(before->name), quote(tensor.name));
    GroupedCodes m{.packing = CodePacking::kF8,
                   .bits = 8,
                   .out = rows_of(tensor),
                   .in = tensor.shape.back(),
                   .codes = &tensor,
                   .scales = scales,
                   .group_sizes = {group},
                   .block_sizes = {block}};
    if (scales == nullptr) {
      ASSIGN_OR_RETURN(m.scales, need(tensor, tensors, tensor.name + "_scale"));
    }
    if (tensor.dtype == DType::kU8) {
      m.packing = CodePacking::kF4;
      m.bits = 4;
      m.in = codes_in(m.in, 2);
      ASSIGN_OR_RETURN(const TensorEntry* global, need(tensor, tensors, tensor.name + "_scale_2"));
      RETURN_IF_ERROR(read_f32(*global, {&m.factor, 1}));
    }
    return coded_entry(tensor.name, m);
  };
}

QuantizedFormat make_fp8(const JsonFields& config) {
  config.choice("activation_scheme", "dynamic", {"dynamic", "static"});
  const auto block = block_sizes(config, "weight_block_size").value_or(std::pair<std::int64_t, std::int64_t>());
  return make_format(block.first, block.second);
}

QuantizedFormat make_modelopt(const JsonFields& config) {
  config.choice("quant_algo", {}, {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"});
  return make_format(0, config.integer("group_size", 16, 1, 1 << 20));
}

}  // namespace outrider
