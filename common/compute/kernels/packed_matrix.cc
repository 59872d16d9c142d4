#include "common/compute/kernels/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <type_traits>

#include <fmt/format.h>

#include "common/base/names.h"
#include "common/compute/kernels/int4.h"
#include "common/compute/kernels/kernel_table.h"
#include "common/compute/kernels/q4.h"
#include "common/compute/kernels/team.h"
#include "common/compute/kernels/weight_layout.h"
#include "common/compute/tensor/f16.h"

namespace outrider {
namespace {

/// Rotates a row before integer rounding, which makes its numbers similar in size (ADR 14). In the calling thread's
/// memory.
std::span<const float> rotated(std::span<const float> row) {
  auto* const y = scratch<float>(Scratch::kRotated, std::ssize(row));
  std::ranges::copy(row, y);
  kernels().rotate(y, std::ssize(row));
  return {y, row.size()};
}

template <typename Element>
float store_elements(std::span<const float> row, std::int64_t output, std::byte* weights) {
  auto* const to = reinterpret_cast<Element*>(weights) + output * std::ssize(row);
  if constexpr (std::is_same_v<Element, std::int8_t>) {
    return kernels().quantize(rotated(row).data(), std::ssize(row), to);
  } else if constexpr (std::is_same_v<Element, Bf16>) {
    kernels().to_bf16(row.data(), std::ssize(row), to);
  } else {
    std::ranges::copy(row, to);
  }
  return 1;
}

template <typename Element, auto kDot>
float dot_floats(const std::byte* x, const std::byte* w, std::int64_t n, float, float) {
  return (kernels().*kDot)(reinterpret_cast<const Element*>(x), reinterpret_cast<const Element*>(w), n);
}

/// For instruction sets without gemm_int8.
float dot_int8(const std::byte* x, const std::byte* w, std::int64_t n, float x_scale, float w_scale) {
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<std::int8_t>(x[i]) * static_cast<std::int8_t>(w[i]);
  float y = 0;
  kernels().dequantize(&sum, x_scale, &w_scale, 1, &y);
  return y;
}

float store_int4(std::span<const float> row, std::int64_t output, std::byte* weights) {
  return pack_int4_row(rotated(row), output, reinterpret_cast<Int4Chunk*>(weights));
}

float store_q4(std::span<const float> row, std::int64_t output, std::byte* weights) {
  return pack_q4_row(row, output, reinterpret_cast<Q4Chunk*>(weights));
}

template <typename Chunk, auto kCopy>
void copy_chunks(const std::byte* from, std::int64_t from_output, std::int64_t in, std::byte* to,
                 std::int64_t to_output) {
  kCopy(reinterpret_cast<const Chunk*>(from), from_output, in, reinterpret_cast<Chunk*>(to), to_output);
}

// Root mean squares of uniform integers: of 4 bits less 8, of 8 bits.
constexpr double kInt4Rms = 4.64, kInt8Rms = 73.9;
constexpr std::uint8_t kInt4Byte = 0x98;  ///< of every group: 8 * (nibble - 8)

/// Sets what the weights of a group share.
template <typename Chunk, auto kMember, typename Value>
void set_groups(std::span<std::byte> weights, Value value) {
  auto* const chunks = reinterpret_cast<Chunk*>(weights.data());
  team_for(std::ssize(weights) / static_cast<std::int64_t>(sizeof(Chunk)), kInputsPerPiece, [&](std::int64_t c) {
    std::fill_n(&(chunks[c].*kMember)[0][0][0], sizeof(chunks[c].*kMember) / sizeof value, value);
  });
}

double random_int8(std::span<std::byte> /*weights*/) { return kInt8Rms; }

double random_int4(std::span<std::byte> weights) {
  set_groups<Int4Chunk, &Int4Chunk::group>(weights, kInt4Byte);
  return int4_multiplier(kInt4Byte) * kInt4Rms;
}

double random_q4(std::span<std::byte> weights) {
  set_groups<Q4Chunk, &Q4Chunk::scale>(weights, to_f16(1).bits);
  return kInt4Rms;
}

/// Indexed by WeightType.
constexpr WeightFormat kFormats[] = {
    {"f32", "rows", 1, 1, 4, false, 1e-4, store_elements<float>, dot_floats<float, &KernelTable::dot_f32>},
    {"bf16", "rows", 1, 1, 2, false, 0.1, store_elements<Bf16>, dot_floats<Bf16, &KernelTable::dot_bf16>},
    {"int8", "rows", 1, 1, 1, true, 0.4, store_elements<std::int8_t>, dot_int8, nullptr, random_int8},
    {"int4", kInt4Layout, kBlockOutputs, kStepBytes, 2 * sizeof(Int4Chunk), true, 1, store_int4, nullptr,
     copy_chunks<Int4Chunk, copy_int4_row>, random_int4},
    {"q4", kQ4Layout, kBlockOutputs, kStepBytes, 2 * sizeof(Q4Chunk), true, 1, store_q4, nullptr,
     copy_chunks<Q4Chunk, copy_q4_row>, random_q4},
};

thread_local AlignedArray<std::byte> thread_scratch[static_cast<std::size_t>(Scratch::kCount)];

}  // namespace

const WeightFormat& format_of(WeightType type) { return kFormats[static_cast<std::size_t>(type)]; }

const char* to_string(WeightType type) { return format_of(type).name; }

double bytes_per_weight(WeightType type) {
  const WeightFormat& format = format_of(type);
  return static_cast<double>(format.unit_bytes) / static_cast<double>(format.unit_outputs * format.unit_inputs);
}

Result<WeightType> parse_weight_type(const std::string& name) {
  const auto* const format = std::ranges::find(kFormats, name, &WeightFormat::name);
  if (format != std::end(kFormats)) return static_cast<WeightType>(format - kFormats);
  return Error(Errc::kInvalidArgument, "dtype '{}', wanted {}", name, names_of(kWeightTypes));
}

PackedWeights as_rows(const PackedWeights& weights) {
  if (weights.layout == "rows") return weights;
  std::vector<std::int32_t> all(static_cast<std::size_t>(weights.out));
  std::iota(all.begin(), all.end(), 0);
  return select_outputs(weights, all);
}

PackedWeights select_outputs(const PackedWeights& weights, std::span<const std::int32_t> outputs) {
  const WeightFormat& format = format_of(weights.type);
  const auto count = std::ssize(outputs);
  const auto memory = std::make_shared<AlignedArray<std::byte>>(format.bytes(weights.in, count));
  if (format.is_elements()) {
    const WeightLayout layout = WeightLayout::parse(weights.layout, weights.in, weights.out).value();
    const std::vector<std::int64_t> in_offset = layout.offsets(0), out_offset = layout.offsets(1);
    std::vector<std::int64_t> runs;  // first inputs of runs that lie together
    for (std::int64_t i = 0, next = -1; i < weights.in; ++i) {
      const std::int64_t offset = in_offset[static_cast<std::size_t>(i)];
      if (offset != next) runs.push_back(i);
      next = offset + 1;
    }
    runs.push_back(weights.in);
    team_for(count, kInputsPerPiece / weights.in + 1, [&](std::int64_t o) {
      const std::int64_t first = out_offset[static_cast<std::size_t>(outputs[static_cast<std::size_t>(o)])];
      std::byte* to = memory->data() + o * weights.in * format.unit_bytes;
      for (std::size_t r = 0; r + 1 < runs.size(); ++r) {
        const std::int64_t from = in_offset[static_cast<std::size_t>(runs[r])] + first;
        std::memcpy(to + runs[r] * format.unit_bytes, weights.bytes.data() + from * format.unit_bytes,
                    static_cast<std::size_t>((runs[r + 1] - runs[r]) * format.unit_bytes));
      }
    });
  } else {
    for (std::int64_t o = 0; o < count; ++o)
      format.copy_output(weights.bytes.data(), outputs[static_cast<std::size_t>(o)], weights.in, memory->data(), o);
  }
  std::vector<float> scales;
  for (const std::int32_t output : outputs)
    if (format.has_scales) scales.push_back(weights.scales[static_cast<std::size_t>(output)]);
  return {weights.type, weights.in, count, format.layout, memory->span(), memory, std::move(scales)};
}

std::byte* scratch_bytes(Scratch use, std::size_t bytes) {
  AlignedArray<std::byte>& piece = thread_scratch[static_cast<std::size_t>(use)];
  if (piece.size() < bytes) piece = AlignedArray<std::byte>(bytes);
  return piece.data();
}

}  // namespace outrider
