// Rounds weights to int4: searches an output's scale and its groups' bytes.
#include <cstring>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "common/compute/kernels/int4.h"

namespace outrider {
namespace {

// Sixteen lanes on any CPU, with sums in one order, so that every CPU packs the same bits.
typedef float V __attribute__((vector_size(64)));
typedef float Quarter __attribute__((vector_size(16)));
// ThreadSanitizer instruments the resolver of clones, which runs before ThreadSanitizer's initialisation.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EVERY_CPU
#endif

/// V has an alignment of 16 bytes if the compiler's CPU has no wider lanes; the clones assume 64.
struct alignas(64) Group {
  V x[2] = {};
  float lowest = 0, highest = 0;  ///< of x and 0
};

struct Choice {
  float error = std::numeric_limits<float>::infinity();  ///< squared, in squared scales
  int byte = 0x91;
};

/// The values of a nibble under a group's byte, and the nibbles that give an int8.
struct Lattice {
  float multiplier, inverse, zero, first, last;
};
const std::array<Lattice, 256> kLattices = [] {
  std::array<Lattice, 256> lattices{};
  for (int byte = 0; byte < 256; ++byte) {
    const auto multiplier = static_cast<float>(std::max(1, int4_multiplier(byte))),
               zero = static_cast<float>(int4_zero(byte));
    lattices[static_cast<std::size_t>(byte)] = {multiplier, 1 / multiplier, zero,
                                                std::ceil(std::max(0.0f, zero - 128) / multiplier),
                                                std::floor(std::min(15 * multiplier, zero + 127) / multiplier)};
  }
  return lattices;
}();

/// Computes the nearest nibbles of weights in units of the scale, shifted by the lattice's zero.
inline __attribute__((always_inline)) void round_to(const Lattice& lattice, const V& from_zero, V& nibbles) {
  constexpr float kRoundingShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const V first = lattice.first - V{}, last = lattice.last - V{};
  nibbles = from_zero * lattice.inverse;
  nibbles = nibbles > first ? nibbles : first;
  nibbles = nibbles < last ? nibbles : last;
  nibbles = (nibbles + kRoundingShift) - kRoundingShift;
}

/// Searches the best byte for a group whose scale is 1 / inverse: steps of `shortest` to `longest` times the one that
/// just reaches from the lowest to the highest weight, and zeros up to `away` quarters from the one that centres the
/// lattice on the weights.
EVERY_CPU void search(const Group& group, float inverse, float shortest, float longest, int away, Choice& best) {
  const V x[2] = {group.x[0] * inverse, group.x[1] * inverse};
  const float step = std::max((group.highest - group.lowest) / 15, std::max(group.highest, -group.lowest) / 9.5f) *
                     inverse,
              middle = (group.highest + group.lowest) * inverse / 2;
  best = {};
  const auto whole = [](float steps) { return static_cast<int>(steps < 15.0f ? steps : 15.0f); };
  const int from = std::max(1, whole(step * shortest)), to = std::max(1, whole(step * longest + 0.999f));
  for (int multiplier = from; multiplier <= to; ++multiplier) {
    const float centred = 4 * (7.5f - middle * kLattices[static_cast<std::size_t>(multiplier)].inverse) - 23;
    const int near = static_cast<int>(std::max(0.0f, std::min(15.0f, centred)) + 0.5f);
    for (int place = std::max(0, near - away); place <= std::min(15, near + away); ++place) {
      const int byte = multiplier | place << 4;
      const Lattice& lattice = kLattices[static_cast<std::size_t>(byte)];
      V squares{};
      for (const V& some : x) {
        const V from_zero = some + lattice.zero;
        V nibbles;
        round_to(lattice, from_zero, nibbles);
        const V miss = from_zero - nibbles * lattice.multiplier;
        squares += miss * miss;
      }
      Quarter q[4];
      __builtin_memcpy(q, &squares, sizeof q);
      q[0] = (q[0] + q[2]) + (q[1] + q[3]);
      const float error = (q[0][0] + q[0][2]) + (q[0][1] + q[0][3]);
      if (error < best.error) best = {error, byte};
    }
  }
}

/// Writes a group's nibbles into an output's lane.
EVERY_CPU void write_nibbles(const Group& group, int byte, float inverse, std::uint8_t (*nibbles)[64],
                             std::int64_t lane) {
  for (int half = 0; half < 2; ++half) {
    const Lattice& lattice = kLattices[static_cast<std::size_t>(byte)];
    V rounded;
    round_to(lattice, group.x[half] * inverse + lattice.zero, rounded);
    float values[16];
    __builtin_memcpy(values, &rounded, sizeof values);
    for (int i = 0; i < 16; ++i)
      nibbles[i / 4][4 * lane + i % 4] |= static_cast<std::uint8_t>(static_cast<int>(values[i]) << 4 * half);
  }
}

std::vector<Group> groups_of(std::span<const float> row) {
  constexpr float kLargest = 1e30f;
  std::vector<Group> groups((row.size() + 63) / 64 * 2);  // whole steps
  for (std::size_t i = 0; i < row.size(); ++i) {
    Group& group = groups[i / kInt4Group];
    const float x = std::isnan(row[i]) ? 0 : std::clamp(row[i], -kLargest, kLargest);
    group.x[i % kInt4Group / 16][i % 16] = x;
    group.lowest = std::min(group.lowest, x);
    group.highest = std::max(group.highest, x);
  }
  return groups;
}

/// Returns the best of a few scales around the one at which the widest group's steps are 15 scales long and the largest
/// weight fits int8.
float choose_scale(const std::vector<Group>& groups) {
  constexpr int kScales = 9;
  float widest = 0, largest = 0;
  for (const Group& group : groups) {
    widest = std::max(widest, group.highest - group.lowest);
    largest = std::max(largest, std::max(group.highest, -group.lowest));
  }
  if (largest < 1e-30f) return 0;  // as elsewhere: the quotient could overflow a float
  const float middle = std::max(widest / (15 * 15), largest / 120);
  float best = 0, best_error = std::numeric_limits<float>::infinity(), scale = 0.8f * middle;
  for (int i = 0; i < kScales; ++i, scale *= 1.0574f) {  // up to 1.25 times
    float error = 0;
    for (const Group& group : groups) {
      Choice choice;
      search(group, 1 / scale, 0.9f, 1, 1, choice);
      error += choice.error;
    }
    error *= (scale / middle) * (scale / middle);
    if (error < best_error) {
      best_error = error;
      best = scale;
    }
  }
  return best;
}

}  // namespace

float pack_int4_row(std::span<const float> row, std::int64_t output, Int4Chunk* chunks) {
  const std::vector<Group> groups = groups_of(row);
  const float scale = choose_scale(groups);
  if (scale == 0) return 0;
  const std::int64_t steps = std::ssize(groups) / 2, lane = output % 16, half = output / 16 % 2;
  Int4Chunk* chunk = chunks + output / 64 * steps * 2 + output / 32 % 2;
  for (std::int64_t s = 0; s < steps; ++s, chunk += 2) {
    for (std::int64_t g = 0; g < 2; ++g) {
      const Group& group = groups[static_cast<std::size_t>(2 * s + g)];
      Choice choice;
      search(group, 1 / scale, 0.75f, 1.15f, 4, choice);
      chunk->group[half][g][lane] = static_cast<std::uint8_t>(choice.byte);
      write_nibbles(group, choice.byte, 1 / scale, chunk->nibbles[half][g], lane);
    }
  }
  return scale;
}

void copy_int4_row(const Int4Chunk* from, std::int64_t from_output, std::int64_t in_features, Int4Chunk* to,
                   std::int64_t to_output) {
  constexpr std::int64_t kStepInputs = 2 * kInt4Group;
  const std::int64_t steps = (in_features + kStepInputs - 1) / kStepInputs;
  const auto first_chunk = [&](std::int64_t output) { return output / 64 * steps * 2 + output / 32 % 2; };
  from += first_chunk(from_output);
  to += first_chunk(to_output);
  const std::int64_t from_lane = from_output % 16, to_lane = to_output % 16;
  for (std::int64_t s = 0; s < steps; ++s, from += 2, to += 2) {
    for (std::int64_t g = 0; g < 2; ++g) {
      const auto from_half = from_output / 16 % 2, to_half = to_output / 16 % 2;
      to->group[to_half][g][to_lane] = from->group[from_half][g][from_lane];
      for (std::int64_t j = 0; j < 4; ++j)
        std::memcpy(&to->nibbles[to_half][g][j][4 * to_lane], &from->nibbles[from_half][g][j][4 * from_lane], 4);
    }
  }
}

}  // namespace outrider
