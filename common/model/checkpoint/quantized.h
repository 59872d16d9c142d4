#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
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

/// Replaces quantised tensors, according to config.json's `quantization_config` or the hf_quant_config.json beside it,
/// by coded matrices under their own names and shapes; keeps scales and zeros. Does nothing without such settings.
/// @return kUnsupported for an unsupported method, kMalformed for a key or a tensor that violates its method's format:
/// the error has the name, the value seen and the value wanted
Result<void> decode_quantized(const std::filesystem::path& config, std::vector<TensorEntry>& tensors);

// ---- for the formats: each has a file with its factory function, and a row of the table in quantized.cc ----

using Tensors = std::span<const TensorEntry>;

/// A quantisation method, configured by a `quantization_config`: returns the matrix whose codes are in `tensor`, with
/// its name and shape; none if there is none. @param tensors  the whole checkpoint's, by name
using QuantizedFormat = std::function<Result<std::optional<TensorEntry>>(const TensorEntry& tensor, Tensors tensors)>;

/// Reads the keys of its configuration; an invalid one becomes `config`'s first error.
using MakeQuantizedFormat = QuantizedFormat(const JsonFields& config);

/// Arrangement of codes in their tensor. An int32 has 32 / n codes of n bits, the first in the lowest bits.
enum class CodePacking {
  kInt32,            ///< [out, words of inputs]
  kInt32Transposed,  ///< [words of inputs, out]
  kAwq,              ///< [in, words of outputs], with a word's outputs in the order 0 2 4 6 1 3 5 7
  kInt8,             ///< [out, in], signed
  kF8,               ///< [out, in]
  kF4,  ///< [out, bytes of inputs], the first in the low half: sign bit, two exponent bits, one fraction bit
};

/// A matrix whose weight (o, i) is (code - zero) * scale, with scale and zero by the group of i or by block.
struct GroupedCodes {
  CodePacking packing = CodePacking::kInt32;
  int bits = 4;
  std::int64_t out = 0, in = 0;  ///< out: of all matrices, if `codes` is a stack of them (as of experts)
  const TensorEntry* codes = nullptr;
  const TensorEntry* scales = nullptr;  ///< [blocks of outputs, groups], or transposed
  const TensorEntry* zeros = nullptr;   ///< packed as in the method; null: zero is the codes' middle, or 0 if signed
  int zero_bias = 0;                    ///< added to stored zeros
  bool transposed = false;              ///< of scales and zeros: [groups, out]
  float factor = 1;                     ///< of all scales
  float divisor = 1;                    ///< of all scales
  /// Candidate sizes of a group of inputs and of a block of outputs, from the configuration: the first that matches the
  /// number of scales counts. Without candidates the parts are equal.
  std::vector<std::int64_t> group_sizes = {}, block_sizes = {};
  std::vector<std::int64_t> group_of = {};  ///< per input; empty: in order

  /// Returns true for codes of floats, which are signed and have no zeros.
  bool floats() const { return packing == CodePacking::kF8 || packing == CodePacking::kF4; }
};

/// Makes such a matrix's entry. @return kMalformed if the sizes or types of its tensors do not fit each other
Result<std::optional<TensorEntry>> coded_entry(std::string name, GroupedCodes matrix);

/// Returns the size [outputs, inputs] of a block that shares a scale; none if the key is absent.
std::optional<std::pair<std::int64_t, std::int64_t>> block_sizes(const JsonFields& config, const char* key);

/// Returns `tensor`'s name without `suffix`; none if it does not end with it.
std::optional<std::string> module_of(const TensorEntry& tensor, std::string_view suffix);

/// Returns the number of codes in `size` words or bytes of `each`; an impossible size gives another impossible one.
inline std::int64_t codes_in(std::int64_t size, std::int64_t each) {
  constexpr std::int64_t kSizeMax = std::int64_t{1} << 32;
  return std::min(size, kSizeMax) * each;
}

/// Returns the rows of a matrix, or of all stacked matrices; 0 of another tensor.
std::int64_t rows_of(const TensorEntry& tensor);

/// Returns GroupedCodes::group_of from the tensor `name`; empty if there is none.
Result<std::vector<std::int64_t>> group_order(Tensors tensors, const std::string& name);

/// The tensor called `name`; an error if it is not there.
Result<const TensorEntry*> need(const TensorEntry& codes, Tensors tensors, const std::string& name);

}  // namespace outrider
