// The block layouts are ggml's (ggml-common.h, ggml-quants.c): little endian, one f16 scale per block
// of 32, or per super-block of 256 with small integer scales (and minima) for its sub-blocks.
#include "common/compute/tensor/decode.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/compute/tensor/f16.h"

namespace outrider {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read as they lie in memory");

float read_half(const std::uint8_t* from) {
  F16 half;
  std::memcpy(&half, from, sizeof(half));
  return to_float(half);
}

template <typename Word>
std::uint32_t read_word(const std::uint8_t* from) {
  Word word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

int nibble(const std::uint8_t* from, std::size_t i) { return from[i / 2] >> (i % 2 * 4) & 15; }

/// FP8 with 4 bits of exponent and 3 of fraction (OCP, arXiv 2209.05433): no infinity, and NaN with all bits set.
struct F8 {
  std::uint8_t bits;
};
using outrider::to_float;
float to_float(F8 x) {
  const int exponent = x.bits >> 3 & 15, fraction = x.bits & 7;
  if ((x.bits & 127) == 127) return std::numeric_limits<float>::quiet_NaN();
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                   : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return x.bits >> 7 != 0 ? -size : size;
}

template <typename Stored>
void decode_elements(const std::byte* from, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored element;
    std::memcpy(&element, from + i * sizeof(Stored), sizeof(Stored));
    out[i] = to_float(element);
  }
}

/// d, int8[32].
void decode_q8_0(const std::uint8_t* block, float* out) {
  const float d = read_half(block);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<std::int8_t>(block[2 + j]));
}

// In the 4- and 5-bit blocks, byte j's low nibble is element j and its high nibble element j + 16.

/// d, nibbles[16]; codes are offset by 8.
void decode_q4_0(const std::uint8_t* block, float* out) {
  const float d = read_half(block);
  const std::uint8_t* const codes = block + 2;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((codes[j] & 15) - 8);
    out[j + 16] = d * static_cast<float>((codes[j] >> 4) - 8);
  }
}

/// d, minimum, nibbles[16].
void decode_q4_1(const std::uint8_t* block, float* out) {
  const float d = read_half(block), minimum = read_half(block + 2);
  const std::uint8_t* const codes = block + 4;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(codes[j] & 15) + minimum;
    out[j + 16] = d * static_cast<float>(codes[j] >> 4) + minimum;
  }
}

/// The fifth bits of elements j and j + 16, each in place as 16.
struct FifthBits {
  std::uint32_t bits;
  explicit FifthBits(const std::uint8_t* from) : bits(read_word<std::uint32_t>(from)) {}
  int low(int j) const { return static_cast<int>(bits >> j & 1u) << 4; }
  int high(int j) const { return static_cast<int>(bits >> (j + 16) & 1u) << 4; }
};

/// d, fifth bits[4], nibbles[16]; codes are offset by 16.
void decode_q5_0(const std::uint8_t* block, float* out) {
  const float d = read_half(block);
  const FifthBits fifth(block + 2);
  const std::uint8_t* const codes = block + 6;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(((codes[j] & 15) | fifth.low(j)) - 16);
    out[j + 16] = d * static_cast<float>(((codes[j] >> 4) | fifth.high(j)) - 16);
  }
}

/// d, minimum, fifth bits[4], nibbles[16].
void decode_q5_1(const std::uint8_t* block, float* out) {
  const float d = read_half(block), minimum = read_half(block + 2);
  const FifthBits fifth(block + 4);
  const std::uint8_t* const codes = block + 8;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((codes[j] & 15) | fifth.low(j)) + minimum;
    out[j + 16] = d * static_cast<float>((codes[j] >> 4) | fifth.high(j)) + minimum;
  }
}

/// Eight sub-blocks' 6-bit scales and minima in 12 bytes: the first four are whole in the low six bits of bytes 0..3
/// (scales) and 4..7 (minima); the last four have their low nibbles in bytes 8..11 and their upper two bits on top of
/// bytes 0..7.
struct SubScales {
  std::array<float, 8> scale, minimum;
  SubScales(float d, float d_minimum, const std::uint8_t* packed) {
    for (std::size_t j = 0; j < 4; ++j) {
      scale[j] = d * static_cast<float>(packed[j] & 63);
      minimum[j] = d_minimum * static_cast<float>(packed[j + 4] & 63);
      scale[j + 4] = d * static_cast<float>((packed[j + 8] & 15) | (packed[j] >> 6) << 4);
      minimum[j + 4] = d_minimum * static_cast<float>((packed[j + 8] >> 4) | (packed[j + 4] >> 6) << 4);
    }
  }
};

/// d, d of the minima, scales[12], nibbles[128]: of each 32 bytes the low nibbles are one sub-block,
/// the high ones the next.
void decode_q4_k(const std::uint8_t* block, float* out) {
  const SubScales sub(read_half(block), read_half(block + 2), block + 4);
  for (std::size_t s = 0; s < 8; ++s) {
    const std::uint8_t* const codes = block + 16 + s / 2 * 32;
    for (std::size_t l = 0; l < 32; ++l) {
      const int code = s % 2 == 0 ? codes[l] & 15 : codes[l] >> 4;
      out[s * 32 + l] = sub.scale[s] * static_cast<float>(code) - sub.minimum[s];
    }
  }
}

/// As Q4_K, with 32 bytes before the nibbles whose bit s is the fifth bit of sub-block s.
void decode_q5_k(const std::uint8_t* block, float* out) {
  const SubScales sub(read_half(block), read_half(block + 2), block + 4);
  const std::uint8_t* const fifth = block + 16;
  for (std::size_t s = 0; s < 8; ++s) {
    const std::uint8_t* const codes = block + 48 + s / 2 * 32;
    for (std::size_t l = 0; l < 32; ++l) {
      const int low = s % 2 == 0 ? codes[l] & 15 : codes[l] >> 4;
      const int code = low | (fifth[l] >> s & 1) << 4;
      out[s * 32 + l] = sub.scale[s] * static_cast<float>(code) - sub.minimum[s];
    }
  }
}

/// Nibbles[128], upper two bits[64], int8 scales[16] of 16 elements each, d; codes are offset by 32.
/// In each half of 128 elements, 64 nibble bytes and 32 bit bytes serve four runs of 32.
void decode_q6_k(const std::uint8_t* block, float* out) {
  const float d = read_half(block + 208);
  for (std::size_t i = 0; i < 256; ++i) {
    const std::size_t half = i / 128, run = i % 128 / 32, l = i % 32;
    const std::uint8_t nibbles = block[half * 64 + run % 2 * 32 + l];
    const int low = run < 2 ? nibbles & 15 : nibbles >> 4;
    const int high = block[128 + half * 32 + l] >> (2 * run) & 3;
    const auto scale = static_cast<std::int8_t>(block[192 + i / 16]);
    out[i] = d * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
  }
}

// The 2- and 3-bit blocks: in each half of 128 elements, 32 bytes have four runs of 32, two bits each.
int two_bits(const std::uint8_t* codes, std::size_t i) {
  return codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

/// Scales (low nibble) and minima (high) of 16 sub-blocks of 16[16], two bits[64], d, d of the minima.
void decode_q2_k(const std::uint8_t* block, float* out) {
  const float d = read_half(block + 80), d_minimum = read_half(block + 82);
  for (std::size_t i = 0; i < 256; ++i) {
    const std::uint8_t scale = block[i / 16];
    out[i] = d * static_cast<float>(scale & 15) * static_cast<float>(two_bits(block + 16, i)) -
             d_minimum * static_cast<float>(scale >> 4);
  }
}

/// Third bits[32], two bits[64], scales[12], d. Bit i / 32 of a third byte belongs to element i, and subtracts 4 if it
/// is clear. Scale s of 16 sub-blocks has its low nibble in the first 8 bytes (for s < 8 the low half), its upper two
/// bits in byte 8 + s % 4; scales are offset by 32.
void decode_q3_k(const std::uint8_t* block, float* out) {
  const std::uint8_t* const scales = block + 96;
  const float d = read_half(block + 108);
  for (std::size_t i = 0; i < 256; ++i) {
    const std::size_t s = i / 16;
    const int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
    const int scale = (low | (scales[8 + s % 4] >> (s / 4 * 2) & 3) << 4) - 32;
    const int code = two_bits(block + 32, i) - ((block[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4);
    out[i] = d * static_cast<float>(scale) * static_cast<float>(code);
  }
}

/// Values of the nibbles of IQ4_NL and IQ4_XS: denser near zero, as weights are.
constexpr std::array<float, 16> kNonLinear = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/// Values of MXFP4's nibbles: E2M1 floats, doubled. Negative zero is zero, as in ggml.
constexpr std::array<float, 16> kE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// Decodes 32 elements from 16 bytes of nibbles: element j low, j + 16 high.
void look_up(float scale, const std::array<float, 16>& values, const std::uint8_t* codes, float* out) {
  for (int j = 0; j < 16; ++j) {
    out[j] = scale * values[codes[j] & 15];
    out[j + 16] = scale * values[codes[j] >> 4];
  }
}

/// d, nibbles[16].
void decode_iq4_nl(const std::uint8_t* block, float* out) { look_up(read_half(block), kNonLinear, block + 2, out); }

/// d, upper two bits of eight scales[2], their low nibbles[4], nibbles[128]; scales are offset by 32.
void decode_iq4_xs(const std::uint8_t* block, float* out) {
  const float d = read_half(block);
  const int high = block[2] | block[3] << 8;
  for (int s = 0; s < 8; ++s) {
    const int low = nibble(block + 4, static_cast<std::size_t>(s));
    const int scale = (low | (high >> (s * 2) & 3) << 4) - 32;
    look_up(d * static_cast<float>(scale), kNonLinear, block + 8 + s * 16, out + s * 32);
  }
}

// The 2- and 3-bit blocks IQ2 and IQ3: points of a lattice by their number, which have magnitudes of 8 (IQ2) or 4 (IQ3)
// elements, and a sign bit for each element.
#include "common/compute/tensor/iq_points.inc"

constexpr std::array<float, 4> kIq2 = {8, 25, 43};
constexpr std::array<float, 8> kIq3Xxs = {4, 12, 20, 28, 36, 44, 52, 62}, kIq3S = {1, 3, 5, 7, 9, 11, 13, 15};

/// Decodes the elements of a point, of `kBits` bits each.
template <int kBits, std::size_t kValues>
void decode_point(float scale, std::uint16_t point, const std::array<float, kValues>& values, unsigned signs,
                  float* out) {
  for (int j = 0; j < 16 / kBits; ++j) {
    const float x = scale * values[point >> (j * kBits) & (kValues - 1)];
    out[j] = (signs >> j & 1) != 0 ? -x : x;
  }
}

/// Signs of 8 elements from 7 bits: the eighth makes the number of negative elements even.
unsigned even_signs(std::uint32_t bits) {
  const unsigned seven = bits & 127;
  return seven | (std::popcount(seven) & 1u) << 7;
}

/// d, and for each 32 elements: points[4], then a word with 7 bits of signs for each point and a scale of 4 bits.
void decode_iq2_xxs(const std::uint8_t* block, float* out) {
  const float d = read_half(block);
  for (std::size_t g = 0; g < 32; ++g) {
    const std::uint8_t* const points = block + 2 + g / 4 * 8;
    const auto word = read_word<std::uint32_t>(points + 4);
    const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
    decode_point<2>(scale, kIq2XxsPoints[points[g % 4]], kIq2, even_signs(word >> (g % 4 * 7)), out + g * 8);
  }
}

/// d, words[32] of a point (9 bits) and signs (7 bits), scales[8] of 4 bits for 16 elements.
void decode_iq2_xs(const std::uint8_t* block, float* out) {
  const float d = read_half(block);
  for (std::size_t g = 0; g < 32; ++g) {
    const auto word = read_word<std::uint16_t>(block + 2 + g * 2);
    const float scale = d * (0.5f + static_cast<float>(nibble(block + 66, g / 2))) * 0.25f;
    decode_point<2>(scale, kIq2XsPoints[word & 511], kIq2, even_signs(word >> 9), out + g * 8);
  }
}

/// d, points[32], signs[32], upper two bits of the points[8], scales[8] of 4 bits for 16 elements.
void decode_iq2_s(const std::uint8_t* block, float* out) {
  const float d = read_half(block);
  for (std::size_t g = 0; g < 32; ++g) {
    const int point = block[2 + g] | (block[66 + g / 4] >> (g % 4 * 2) & 3) << 8;
    const float scale = d * (0.5f + static_cast<float>(nibble(block + 74, g / 2))) * 0.25f;
    decode_point<2>(scale, kIq2SPoints[static_cast<std::size_t>(point)], kIq2, block[34 + g], out + g * 8);
  }
}

/// d, points[64], and for each 32 elements a word with 7 bits of signs for each 8, and a scale of 4 bits.
void decode_iq3_xxs(const std::uint8_t* block, float* out) {
  const float d = read_half(block);
  for (std::size_t i = 0; i < 64; ++i) {
    const auto word = read_word<std::uint32_t>(block + 66 + i / 8 * 4);
    const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    const unsigned signs = even_signs(word >> (i / 2 % 4 * 7)) >> (i % 2 * 4);
    decode_point<4>(scale, kIq3XxsPoints[block[2 + i]], kIq3Xxs, signs, out + i * 4);
  }
}

/// d, points[64], their ninth bits[8], signs[32], scales[4] of 4 bits for 32 elements.
void decode_iq3_s(const std::uint8_t* block, float* out) {
  const float d = read_half(block);
  for (std::size_t i = 0; i < 64; ++i) {
    const int point = block[2 + i] | (block[66 + i / 8] >> (i % 8) & 1) << 8;
    const float scale = d * static_cast<float>(1 + 2 * nibble(block + 106, i / 8));
    decode_point<4>(scale, kIq3SPoints[static_cast<std::size_t>(point)], kIq3S, block[74 + i / 2] >> (i % 2 * 4),
                    out + i * 4);
  }
}

/// E8M0 exponent, nibbles[16]. The scale is half of 2^(e - 127), for the doubled values; e = 0 is subnormal.
void decode_mxfp4(const std::uint8_t* block, float* out) {
  look_up(std::ldexp(1.0f, block[0] - 128), kE2m1, block + 1, out);
}

using DecodeBlock = void (*)(const std::uint8_t* block, float* out);

DecodeBlock block_decoder(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0: return decode_q8_0;
    case DType::kQ4_0: return decode_q4_0;
    case DType::kQ4_1: return decode_q4_1;
    case DType::kQ5_0: return decode_q5_0;
    case DType::kQ5_1: return decode_q5_1;
    case DType::kQ4_K: return decode_q4_k;
    case DType::kQ5_K: return decode_q5_k;
    case DType::kQ6_K: return decode_q6_k;
    case DType::kQ2_K: return decode_q2_k;
    case DType::kQ3_K: return decode_q3_k;
    case DType::kIQ4_NL: return decode_iq4_nl;
    case DType::kIQ4_XS: return decode_iq4_xs;
    case DType::kIQ2_XXS: return decode_iq2_xxs;
    case DType::kIQ2_XS: return decode_iq2_xs;
    case DType::kIQ2_S: return decode_iq2_s;
    case DType::kIQ3_XXS: return decode_iq3_xxs;
    case DType::kIQ3_S: return decode_iq3_s;
    case DType::kMXFP4: return decode_mxfp4;
    default: return nullptr;
  }
}

}  // namespace

bool is_decodable(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF8_E4M3 ||
         block_decoder(dtype) != nullptr;
}

void decode(DType dtype, const std::byte* from, std::span<float> out) {
  switch (dtype) {
    case DType::kF32: return decode_elements<float>(from, out);
    case DType::kBf16: return decode_elements<Bf16>(from, out);
    case DType::kF16: return decode_elements<F16>(from, out);
    case DType::kF8_E4M3: return decode_elements<F8>(from, out);
    default: break;
  }
  const DecodeBlock decode_block = block_decoder(dtype);
  const std::size_t elements = block_elements(dtype), bytes = stored_bytes(dtype, elements);
  CHECK(decode_block != nullptr, "{} elements are no floats", to_string(dtype));
  CHECK(out.size() % elements == 0, "{} elements of {}, wanted a multiple of {}", out.size(), to_string(dtype),
        elements);
  const auto* block = reinterpret_cast<const std::uint8_t*>(from);
  for (std::size_t i = 0; i < out.size(); i += elements, block += bytes) decode_block(block, out.data() + i);
}

namespace {

constexpr std::size_t kBlock = 32;

/// Writes a block's scale.
/// @return the factor that turns its elements into codes; 0 if the written scale is 0, or an element is not finite:
/// then neither is the scale, which shows readers the error.
float write_scale(std::span<const float> block, float scale, std::byte* to) {
  float sum = 0;
  for (const float x : block) sum += 0 * x;  // NaN if x is not finite
  const F16 stored = to_f16(scale + sum);
  std::memcpy(to, &stored, sizeof(stored));
  return std::abs(to_float(stored)) > 0 ? 1.0f / scale : 0;
}

}  // namespace

void encode_q8_0(std::span<const float> from, std::byte* to) {
  CHECK(from.size() % kBlock == 0, "{} elements, wanted a multiple of {}", from.size(), kBlock);
  for (; !from.empty(); from = from.subspan(kBlock)) {
    const std::span<const float> block = from.first(kBlock);
    float largest = 0;
    for (const float x : block) largest = std::max(largest, std::abs(x));
    const float inverse = write_scale(block, largest / 127.0f, to);
    to += sizeof(F16);
    for (const float x : block)
      *to++ = static_cast<std::byte>(inverse == 0 ? 0 : static_cast<std::int8_t>(std::round(x * inverse)));
  }
}

void encode_q4_0(std::span<const float> from, std::byte* to) {
  CHECK(from.size() % kBlock == 0, "{} elements, wanted a multiple of {}", from.size(), kBlock);
  for (; !from.empty(); from = from.subspan(kBlock)) {
    const std::span<const float> block = from.first(kBlock);
    float largest = 0;
    for (const float x : block)
      if (std::abs(x) > std::abs(largest)) largest = x;
    const float inverse = write_scale(block, largest / -8.0f, to);
    to += sizeof(F16);
    const auto code = [&](float x) {
      return static_cast<unsigned>(inverse == 0 ? 8.0f : std::min(15.0f, std::floor(x * inverse + 8.5f)));
    };
    for (std::size_t j = 0; j < kBlock / 2; ++j)
      *to++ = static_cast<std::byte>(code(block[j]) | code(block[j + kBlock / 2]) << 4);
  }
}

void encode(DType dtype, std::span<const float> from, std::byte* to) {
  switch (dtype) {
    case DType::kF32: std::memcpy(to, from.data(), from.size_bytes()); return;
    case DType::kBf16:
      for (const float x : from) {
        const Bf16 rounded = to_bf16(x);
        std::memcpy(to, &rounded, sizeof(rounded));
        to += sizeof(rounded);
      }
      return;
    case DType::kQ8_0: return encode_q8_0(from, to);
    case DType::kQ4_0: return encode_q4_0(from, to);
    default: CHECK(false, "nothing is made {}", to_string(dtype));
  }
}

}  // namespace outrider
