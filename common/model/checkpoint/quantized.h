#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/json_fields.h"
#include "common/base/result.h"
#include "common/model/checkpoint/checkpoint.h"

namespace outrider {

/// Replaces what a config.json's `quantization_config`, or the hf_quant_config.json beside it, says to be codes by
/// coded matrices under their own names and shapes; scales and zeros stay beside them. Does nothing where there is
/// neither.
/// @return kUnsupported for a method that we do not read, kMalformed for a key or a tensor that is not as its method
/// has
///   it: the error names it, what was seen and what was wanted.
Result<void> decode_quantized(const std::filesystem::path& config, std::vector<TensorEntry>& tensors);

// ---- for the formats: each is a file with a function that makes it, and a row of the table in quantized.cc ----

/// A method of quantisation, as a file's `quantization_config` sets it up.
class QuantizedFormat {
 public:
  virtual ~QuantizedFormat() = default;
  /// The matrix that `tensor` has the codes of, with its name and shape; none where it has none.
  /// @param tensors  of the whole checkpoint, by name
  virtual Result<std::optional<TensorEntry>> matrix(const TensorEntry& tensor,
                                                    std::span<const TensorEntry> tensors) const = 0;
};

/// Reads the keys of its configuration; what is wrong with them becomes `config`'s first error.
using MakeQuantizedFormat = std::unique_ptr<const QuantizedFormat>(const JsonFields& config);

/// How codes lie in their tensor. Those of n bits: 32 / n in an int32, the first in the lowest bits.
enum class CodePacking {
  kInt32,            ///< [out, words of inputs]
  kInt32Transposed,  ///< [words of inputs, out]
  kAwq,              ///< [in, words of outputs], the outputs of a word in the order 0 2 4 6 1 3 5 7
  kInt8,             ///< [out, in] with signs
  kF8,               ///< [out, in]
  kF4,  ///< [out, bytes of inputs], the first in the low half: one bit of sign, two of exponent, one of fraction
};

/// A matrix of which weight (o, i) is (code - zero) * scale, scale and zero of the group of i or of a block.
struct GroupedCodes {
  CodePacking packing = CodePacking::kInt32;
  int bits = 4;
  std::int64_t out = 0, in = 0;
  const TensorEntry* codes = nullptr;
  const TensorEntry* scales = nullptr;  ///< [blocks of outputs, groups], or transposed
  const TensorEntry* zeros = nullptr;   ///< packed as the method does; null: zero is the codes' middle, or 0 with signs
  int zero_bias = 0;                    ///< what zeros have too little
  bool transposed = false;              ///< of scales and zeros: [groups, out]
  float factor = 1;                     ///< of all scales
  float divisor = 1;                    ///< of all scales
  /// Inputs of a group and outputs of a block, as the configuration has them: the first size that gives as many as
  /// there are scales. Without one the parts are equal.
  std::vector<std::int64_t> group_sizes = {}, block_sizes = {};
  std::vector<std::int64_t> group_of = {};  ///< of each input; empty: in order
};

/// The entry of such a matrix. @return kMalformed where a tensor has not the size or type that the others want
Result<TensorEntry> coded_entry(std::string name, const GroupedCodes& matrix);

/// Two sizes, [outputs, inputs], of a block that shares a scale; nothing where the key is absent.
std::optional<std::pair<std::int64_t, std::int64_t>> block_sizes(const JsonFields& config, const char* key);

/// `tensor`'s name without `suffix`; none where it does not end so.
std::optional<std::string> module_of(const TensorEntry& tensor, std::string_view suffix);

/// How many codes lie in so many words or bytes of `each`; for a size that no matrix has, one that none has either.
inline std::int64_t codes_in(std::int64_t size, std::int64_t each) {
  constexpr std::int64_t kSizeMax = std::int64_t{1} << 32;
  return std::min(size, kSizeMax) * each;
}

/// GroupedCodes::group_of by the tensor `name`; empty where there is none.
Result<std::vector<std::int64_t>> group_order(std::span<const TensorEntry> tensors, const std::string& name);

/// The tensor called `name`; an error if it is not there.
Result<const TensorEntry*> need(const TensorEntry& codes, std::span<const TensorEntry> tensors,
                                const std::string& name);

}  // namespace outrider
