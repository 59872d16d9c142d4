#include "tests/support/ggml_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace outrider {
namespace {

std::uint8_t& at(std::string& bytes, std::size_t i) { return reinterpret_cast<std::uint8_t&>(bytes[i]); }

void put_half(std::string& bytes, std::size_t offset, std::uint16_t half) { std::memcpy(&bytes[offset], &half, 2); }

bool is_k(DType type) { return type == DType::kQ4_K || type == DType::kQ5_K || type == DType::kQ6_K; }

}  // namespace

std::uint16_t to_half(float x) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const float magnitude = std::abs(x);
  if (std::isnan(x)) return 0x7e00;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const auto fraction = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));  // in [0, 2048]
  // A fraction of 2048 carries into the exponent by itself; below 1024 the number is subnormal.
  const int bits = std::min(((exponent + 14) << 10) + fraction, 0x7c00);
  return static_cast<std::uint16_t>(sign | bits);
}

float half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                        : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

GgmlFormat ggml_format(DType type) {
  switch (type) {
    case DType::kQ8_0: return {32, 32, -128, 127, 0, 1, 1, false};
    case DType::kQ4_0: return {32, 32, 0, 15, 8, 1, 1, false};
    case DType::kQ4_1: return {32, 32, 0, 15, 0, 1, 1, true};
    case DType::kQ5_0: return {32, 32, 0, 31, 16, 1, 1, false};
    case DType::kQ5_1: return {32, 32, 0, 31, 0, 1, 1, true};
    case DType::kQ4_K: return {256, 32, 0, 15, 0, 0, 63, true};
    case DType::kQ5_K: return {256, 32, 0, 31, 0, 0, 63, true};
    case DType::kQ6_K: return {256, 16, 0, 63, 32, -128, 127, false};
    default: CHECK(false, "{}", to_string(type));
  }
}

std::vector<float> GgmlBlock::values(DType type) const {
  const GgmlFormat format = ggml_format(type);
  std::vector<float> out;
  for (int i = 0; i < format.elements; ++i) {
    const auto run = static_cast<std::size_t>(i / format.run);
    const int c = code[static_cast<std::size_t>(i)] - format.offset;
    if (!is_k(type)) {
      out.push_back(half_value(d) * static_cast<float>(c) + (format.has_minimum ? half_value(m) : 0.0f));
      continue;
    }
    const float step = half_value(d) * static_cast<float>(scale[run]);
    const float base = format.has_minimum ? half_value(m) * static_cast<float>(minimum[run]) : 0.0f;
    out.push_back(format.has_minimum ? step * static_cast<float>(c) - base : step * static_cast<float>(c));
  }
  return out;
}

std::string GgmlBlock::bytes(DType type) const {
  const GgmlFormat format = ggml_format(type);
  const auto count = static_cast<std::size_t>(format.elements);
  std::string out(stored_bytes(type, count), '\0');
  const auto or_in = [&](std::size_t byte, int bits) {
    at(out, byte) = static_cast<std::uint8_t>(at(out, byte) | bits);
  };
  // Two nibbles a byte: element i of the first half of a group in the low one.
  const auto put_nibble = [&](std::size_t start, std::size_t group, std::size_t i, int nibble) {
    const std::size_t within = i % group;
    or_in(start + i / group * (group / 2) + within % (group / 2), within < group / 2 ? nibble : nibble << 4);
  };
  if (type == DType::kQ6_K) {
    put_half(out, 208, d);
    for (std::size_t i = 0; i < count; ++i) {
      put_nibble(0, 128, i, code[i] & 15);
      or_in(128 + i / 128 * 32 + i % 32, (code[i] >> 4) << (i % 128 / 32 * 2));
    }
    for (std::size_t run = 0; run < 16; ++run) at(out, 192 + run) = static_cast<std::uint8_t>(scale[run]);
    return out;
  }
  put_half(out, 0, d);
  std::size_t next = 2;
  if (format.has_minimum) put_half(out, std::exchange(next, 4), m);
  if (is_k(type)) {
    for (std::size_t j = 0; j < 4; ++j) {
      or_in(4 + j, scale[j]);
      or_in(8 + j, minimum[j]);
      or_in(12 + j, scale[j + 4] & 15);
      or_in(12 + j, (minimum[j + 4] & 15) << 4);
      or_in(4 + j, (scale[j + 4] >> 4) << 6);
      or_in(8 + j, (minimum[j + 4] >> 4) << 6);
    }
    next = 16;
  }
  if (type == DType::kQ8_0) {
    for (std::size_t i = 0; i < count; ++i) at(out, next + i) = static_cast<std::uint8_t>(code[i]);
    return out;
  }
  if (type == DType::kQ5_0 || type == DType::kQ5_1) {
    for (std::size_t i = 0; i < count; ++i) or_in(next + i / 8, (code[i] >> 4) << (i % 8));
    next += 4;
  }
  if (type == DType::kQ5_K) {
    for (std::size_t i = 0; i < count; ++i) or_in(next + i % 32, (code[i] >> 4) << (i / 32));
    next += 32;
  }
  for (std::size_t i = 0; i < count; ++i) put_nibble(next, is_k(type) ? 64 : 32, i, code[i] & 15);
  return out;
}

namespace {

/// Elements to codes, one scale (and minimum) per run.
GgmlBlock quantise(DType type, std::span<const float> x) {
  const GgmlFormat format = ggml_format(type);
  const auto run_size = static_cast<std::size_t>(format.run), runs = x.size() / run_size;
  const bool with_scales = is_k(type);
  GgmlBlock block;
  // The step of a run, and how far its smallest element lies below 0.
  std::vector<float> step(runs), below(runs);
  for (std::size_t r = 0; r < runs; ++r) {
    const auto part = x.subspan(r * run_size, run_size);
    const float low = std::min(0.0f, *std::ranges::min_element(part)),
                high = std::max(0.0f, *std::ranges::max_element(part));
    const int half_range = format.code_max - format.offset;
    below[r] = format.has_minimum ? -low : 0.0f;
    step[r] = format.has_minimum ? (high - low) / static_cast<float>(format.code_max)
                                 : std::max(-low, high) / static_cast<float>(half_range);
  }
  const float largest_step = *std::ranges::max_element(step), largest_below = *std::ranges::max_element(below);
  const auto scale_max = static_cast<float>(format.scale_max);
  block.d = to_half(with_scales ? largest_step / scale_max : largest_step);
  block.m = to_half(with_scales ? largest_below / 63 : -largest_below);
  const float d = half_value(block.d), m = half_value(block.m);
  for (std::size_t r = 0; r < runs; ++r) {
    const auto in_steps = [](float value, float unit, int most) {
      return unit == 0 ? 0 : std::min(static_cast<int>(std::nearbyint(value / unit)), most);
    };
    block.scale.push_back(with_scales ? in_steps(step[r], d, format.scale_max) : 1);
    block.minimum.push_back(with_scales ? in_steps(below[r], m, 63) : 1);
    const float unit = d * static_cast<float>(block.scale[r]);
    const float base = !format.has_minimum ? 0.0f : with_scales ? -m * static_cast<float>(block.minimum[r]) : m;
    for (std::size_t i = 0; i < run_size; ++i) {
      const float code = unit == 0 ? 0 : std::nearbyint((x[r * run_size + i] - base) / unit);
      block.code.push_back(std::clamp(static_cast<int>(code) + format.offset, format.code_min, format.code_max));
    }
  }
  return block;
}

}  // namespace

std::string encode(DType type, std::span<const float> elements) {
  std::string out;
  const auto append = [&out](const auto& value) { out.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  if (block_elements(type) == 1) {
    for (const float x : elements) {
      if (type == DType::kF32) append(x);
      if (type == DType::kBf16) append(to_bf16(x));
      if (type == DType::kF16) append(to_half(x));
    }
    CHECK(out.size() == stored_bytes(type, elements.size()), "{} are no floats", to_string(type));
    return out;
  }
  for (std::size_t i = 0; i < elements.size(); i += block_elements(type)) {
    out += quantise(type, elements.subspan(i, block_elements(type))).bytes(type);
  }
  return out;
}

}  // namespace outrider
