// Reads vLLM's compressed-tensors (github.com/vllm-project/compressed-tensors): pack-quantized, int-quantized,
// float-quantized, nvfp4-pack-quantized, mxfp4-pack-quantized, mxfp8-quantized, naive-quantized. The tensors determine
// which matrices are coded, and how.
#include <algorithm>

#include <fmt/format.h>

#include "common/compute/tensor/decode.h"
#include "common/model/checkpoint/quantized.h"
#include "common/model/checkpoint/safetensors.h"

namespace outrider {
namespace {

class CompressedTensors {
 public:
  explicit CompressedTensors(const JsonFields& config) {
    static constexpr std::initializer_list<const char*> kFormats = {
        "pack-quantized",       "int-quantized",        "float-quantized",
        "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized",
        "naive-quantized",      "mixed-precision",      "dense"};
    config.choice("format", "pack-quantized", kFormats);
    config.choice("quantization_status", "compressed", {"compressed", "frozen"});
    // Rotations of activations (SpinQuant, QuIP) happen while the model runs; those of weights are in the file.
    const JsonFields transform = config.object("transform_config");
    for (const nlohmann::json& scheme : member(transform.raw(), "config_groups")) {
      for (const nlohmann::json& apply : member(scheme, "apply")) {
        const nlohmann::json& location = member(apply, "location");
        if (location != "weight_input" && location != "weight_output")
          transform.fail(Errc::kUnsupported, "location", location, "weight_input or weight_output");
      }
    }
    const JsonFields groups = config.object("config_groups");
    for (const auto& [name, unused] : groups.raw().items()) {
      const JsonFields group = groups.object(name.c_str());
      group.choice("format", "dense", kFormats);  // of mixed-precision
      const JsonFields weights = group.object("weights");
      if (member(weights.raw(), "num_bits") == 2)  // Google's qat-mobile
        weights.fail(Errc::kUnsupported, "num_bits", 2, "4 to 8: 2-bit weights were trained with rounded activations");
      const bool floats = weights.choice("type", "int", {"int", "float"}) == "float";
      const std::int64_t bits = weights.integer("num_bits", 8, 4, 8);
      weights.choice("strategy", "tensor", {"tensor", "channel", "group", "block", "tensor_group"});
      group_sizes_.push_back(weights.integer("group_size", -1, -1, 1 << 20));
      if (const auto block = block_sizes(weights, "block_structure")) {
        block_sizes_.push_back(block->first);
        group_sizes_.push_back(block->second);
      }
      weights.boolean("symmetric", true);
      if (!floats) int_bits_.push_back(bits);
    }
  }

  Result<std::optional<TensorEntry>> operator()(const TensorEntry& tensor, Tensors tensors) const {
    // The stacked matrices of experts have names without ".weight", and no weight_shape.
    const bool stacked = tensor.shape.size() == 3 && tensor.name.ends_with("_packed");
    const bool packed = stacked || tensor.name.ends_with(".weight_packed");
    const std::string name = module_of(tensor, packed ? "_packed" : "").value_or("");
    const bool codes = tensor.dtype == DType::kI8 || tensor.dtype == DType::kF8_E4M3;
    if (!packed && !(name.ends_with(".weight") && codes && tensor.shape.size() == 2))
      return std::optional<TensorEntry>();
    GroupedCodes m{.codes = &tensor, .group_sizes = group_sizes_, .block_sizes = block_sizes_};
    ASSIGN_OR_RETURN(m.scales, need(tensor, tensors, name + "_scale"));
    m.zeros = find_tensor(tensors, name + "_zero_point");
    m.out = rows_of(tensor);
    if (packed && tensor.dtype == DType::kU8) {
      m.packing = CodePacking::kF4;
      if (m.scales->dtype != DType::kU8) {  // MXFP4 has no global scale
        ASSIGN_OR_RETURN(const TensorEntry* global, need(tensor, tensors, name + "_global_scale"));
        RETURN_IF_ERROR(read_f32(*global, {&m.divisor, 1}));
      }
      m.in = m.out > 0 ? codes_in(tensor.shape.back(), 2) : 0;
    } else if (stacked) {
      m.in = inputs_of(tensor, *m.scales);
      ASSIGN_OR_RETURN(m.bits, bits_of(tensor, m.in));
    } else if (packed) {
      ASSIGN_OR_RETURN(const TensorEntry* shape, need(tensor, tensors, name + "_shape"));
      std::vector<std::int64_t> sizes(2);
      RETURN_IF_ERROR(read_i64(*shape, sizes));
      m.out = sizes[0], m.in = sizes[1];
      ASSIGN_OR_RETURN(m.bits, bits_of(tensor, m.in));
    } else {
      m.packing = tensor.dtype == DType::kI8 ? CodePacking::kInt8 : CodePacking::kF8;
      m.bits = 8;
      m.in = tensor.shape[1];
    }
    if (m.floats()) m.zeros = nullptr;
    ASSIGN_OR_RETURN(m.group_of, group_order(tensors, name + "_g_idx"));
    return coded_entry(name, m);
  }

 private:
  /// Returns the codes in a row's words, of the first bit width that gives the scales' groups; 0 if none does.
  std::int64_t inputs_of(const TensorEntry& tensor, const TensorEntry& scales) const {
    for (const std::int64_t bits : int_bits_) {
      const std::int64_t in = codes_in(tensor.shape.back(), 32 / bits);
      for (const std::int64_t size : group_sizes_)
        if (size > 0 && !scales.shape.empty() && scales.shape.back() == (in - 1) / size + 1) return in;
    }
    return 0;
  }
  /// Returns the bit width, among those of the configuration's groups, that matches the words of a row.
  Result<int> bits_of(const TensorEntry& tensor, std::int64_t in) const {
    for (const std::int64_t bits : int_bits_) {
      const std::int64_t per_word = 32 / bits;
      if (!tensor.shape.empty() && in > 0 && tensor.shape.back() == (in - 1) / per_word + 1)
        return static_cast<int>(bits);
    }
    return file_error(
        Errc::kMalformed, tensor.file,
        "tensor {} has {} words a row for {} inputs, which no num_bits of quantization_config.config_groups "
        "gives",
        quote(tensor.name), tensor.shape.empty() ? 0 : tensor.shape.back(), in);
  }

  std::vector<std::int64_t> int_bits_, group_sizes_, block_sizes_;
};

}  // namespace

QuantizedFormat make_compressed_tensors(const JsonFields& config) { return CompressedTensors(config); }

}  // namespace outrider
