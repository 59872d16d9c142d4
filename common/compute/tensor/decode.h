#pragma once

#include <cstddef>
#include <span>

#include "common/compute/tensor/tensor.h"

namespace outrider {

/// Returns true for the types of decode(): F32, BF16, F16, F8_E4M3 and the block types.
bool is_decodable(DType dtype);

/// Decodes stored elements: exact for F32, BF16, F16 and F8_E4M3, and for block types equal to ggml's dequantize_row_*
/// (each value is rounded at most once, so that the order of operations does not matter).
///
/// @param from  stored_bytes(dtype, out.size()) bytes at any alignment; for a block type, whole blocks
/// @pre is_decodable(dtype); out.size() is a multiple of block_elements(dtype)
void decode(DType dtype, const std::byte* from, std::span<float> out);

/// ggml's quantize_row_q8_0: per 32 elements the scale max|x| / 127, rounded to f16, and int8 codes. No element is off
/// by more than 0.57 of that scale. If one of the 32 is not finite, decode() returns non-finite values for all of them.
/// @param to  stored_bytes(DType::kQ8_0, from.size()) bytes
/// @pre from.size() is a multiple of 32
void encode_q8_0(std::span<const float> from, std::byte* to);

/// ggml's quantize_row_q4_0: per 32 elements the scale x / -8 of the x with the greatest |x|, rounded to f16, and codes
/// from -8 to 7. No element is off by more than 1.01 of that scale: the greatest one of the other sign may lack a code.
/// Non-finite numbers and `to` are as in encode_q8_0(). @pre from.size() is a multiple of 32
void encode_q4_0(std::span<const float> from, std::byte* to);

/// Inverts decode(), rounding to the type's nearest numbers: exact for F32, nearest even for BF16, else one of the
/// above.
/// @param to  stored_bytes(dtype, from.size()) bytes at any alignment
/// @pre dtype is F32, BF16, Q8_0 or Q4_0; from.size() is a multiple of block_elements(dtype)
void encode(DType dtype, std::span<const float> from, std::byte* to);

}  // namespace outrider
