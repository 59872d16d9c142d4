// Simple versions: the reference in tests of the fast ones.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/compute/kernels/kernel_table.h"
#include "common/compute/tensor/f16.h"

namespace outrider {
namespace {

void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, float* y) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * factor * (weight == nullptr ? 1.0f : weight[i]);
}

float gelu_tanh(float z) {
  constexpr float kSqrt2OverPi = 0.7978845608028654f;
  return 0.5f * z * (1.0f + std::tanh(kSqrt2OverPi * (z + 0.044715f * z * z * z)));
}

void gelu_mul(const float* gate, const float* up, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = gelu_tanh(gate[i]) * up[i];
}

void add(float* x, const float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] += y[i];
}

void scale(float* x, float factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

void softcap(float* x, float cap, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

void softmax_weights(const float* x, float highest, float temperature, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float power = (x[i] - highest) / temperature;
    y[i] = power < -87.0f ? 0 : std::exp(power);
  }
}

void rope(float* x, const float* cos, const float* sin, std::int64_t pairs) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float a = x[i], b = x[i + pairs];
    x[i] = a * cos[i] - b * sin[i];
    x[i + pairs] = b * cos[i] + a * sin[i];
  }
}

std::int64_t argmax(const float* x, std::int64_t n) {
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < n; ++i) {
    if (x[i] > x[best]) best = i;
  }
  return best;
}

void to_bf16_row(const float* x, std::int64_t n, Bf16* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = to_bf16(x[i]);
}

float quantize(const float* x, std::int64_t n, std::int8_t* y) {
  std::int32_t largest_bits = 0;  // as bits, magnitudes compare like their values, and NaN is the largest
  for (std::int64_t i = 0; i < n; ++i)
    largest_bits = std::max(largest_bits, std::bit_cast<std::int32_t>(std::fabs(x[i])));
  const auto largest = std::bit_cast<float>(largest_bits);
  const float inverse = largest < 1e-30f ? 0 : 127.0f / largest;  // the quotient could overflow a float
  for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<std::int8_t>(std::nearbyint(x[i] * inverse));
  return largest / 127.0f;
}

void rotate(float* x, std::int64_t n) {
  for (std::int64_t all = n, pass = 0; pass < 3 && all % 4 == 0; all /= 4, ++pass) {
    const std::int64_t quarter = all / 4;
    for (float* first = x; first < x + n; first += all) {
      for (float* p = first; p < first + quarter; ++p) {
        const float a = p[0] + p[quarter], b = p[0] - p[quarter], c = p[2 * quarter] + p[3 * quarter],
                    d = p[2 * quarter] - p[3 * quarter];
        p[0] = 0.5f * (a + c), p[quarter] = 0.5f * (b + d);
        p[2 * quarter] = 0.5f * (a - c), p[3 * quarter] = 0.5f * (b - d);
      }
    }
  }
}

void dequantize(const std::int32_t* x, float row_scale, const float* column_scale, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i]) * row_scale * column_scale[i];
}

template <typename X>
float dot(const X* x, const X* w, std::int64_t n) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += to_float(x[i]) * to_float(w[i]);
  return sum;
}

float dot_q8_0(const float* x, const std::byte* w, std::int64_t n) {
  constexpr std::int64_t kBlock = 32;
  float sum = 0;
  for (std::int64_t i = 0; i < n; i += kBlock) {
    F16 scale;
    std::int8_t codes[kBlock];
    std::memcpy(&scale, w, sizeof(scale));
    std::memcpy(codes, w + sizeof(scale), sizeof(codes));
    w += sizeof(scale) + sizeof(codes);
    for (std::int64_t j = 0; j < kBlock; ++j) sum += x[i + j] * (static_cast<float>(codes[j]) * to_float(scale));
  }
  return sum;
}

void gemm_int4(const GemmArgs& a) {
  const auto* const chunks = reinterpret_cast<const Int4Chunk*>(a.weights);
  const auto* const x = reinterpret_cast<const std::int8_t*>(a.x);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t o = 0; o < a.outputs; ++o) {
      const std::int64_t half = o / 16 % 2, lane = o % 16;
      std::int32_t sum = 0;
      for (std::int64_t i = 0; i < a.steps * kStepBytes; ++i) {
        const Int4Chunk& chunk = chunks[i / 64 * 2 + o / kInt4ChunkOutputs];
        const std::int64_t g = i / 32 % 2;
        const int group = chunk.group[half][g][lane], pair = chunk.nibbles[half][g][i % 16 / 4][4 * lane + i % 4];
        const int nibble = i / 16 % 2 == 0 ? pair & 15 : pair >> 4;
        sum += x[r * a.steps * kStepBytes + i] * (nibble * int4_multiplier(group) - int4_zero(group));
      }
      dequantize(&sum, a.row_scale[r], a.column_scale + o, 1, a.y + r * a.y_stride + o);
    }
  }
}

void gemm_q4(const GemmArgs& a) {
  const auto* const chunks = reinterpret_cast<const Q4Chunk*>(a.weights);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const Q4Input* const inputs = reinterpret_cast<const Q4Input*>(a.x) + r * 2 * a.steps;
    for (std::int64_t o = 0; o < a.outputs; ++o) {
      const std::int64_t half = o / 16 % 2, lane = o % 16;
      float total = 0;
      for (std::int64_t g = 0; g < 2 * a.steps; ++g) {
        const Q4Chunk& chunk = chunks[g / 2 * 2 + o / 32];
        std::int32_t sum = inputs[g].offset;
        for (std::int64_t i = 0; i < 32; ++i) {
          const int pair = chunk.nibbles[half][g % 2][i % 16 / 4][4 * lane + i % 4],
                    nibble = i < 16 ? pair & 15 : pair >> 4;
          sum += nibble * (256 * inputs[g].high[i] + inputs[g].low[i]);
        }
        const float scale = to_float(F16{chunk.scale[half][g % 2][lane]}) * inputs[g].scale;
        total = std::fma(scale, static_cast<float>(sum), total);
      }
      a.y[r * a.y_stride + o] = total * a.column_scale[o];
    }
  }
}

template <typename Kv>
void attend(const AttendArgs<Kv>& a) {
  const auto row = [&](std::int64_t j) { return (a.first + j) % a.capacity * a.row_stride; };
  for (std::int64_t i = 0; i < a.query_count; ++i) {
    const AttendQuery& query = a.queries[i];
    float largest = -INFINITY;
    for (std::int64_t j = query.begin; j < query.end; ++j) {
      float score = 0;
      for (std::int64_t d = 0; d < a.head_dim; ++d) score += query.q[d] * to_float(a.k[row(j) + d]);
      query.scores[j] = score;
      largest = std::fmax(largest, score);
    }
    float sum = 0;
    for (std::int64_t j = query.begin; j < query.end; ++j) sum += query.scores[j] = std::exp(query.scores[j] - largest);
    for (std::int64_t d = 0; d < a.head_dim; ++d) query.out[d] = 0;
    for (std::int64_t j = query.begin; j < query.end; ++j) {
      for (std::int64_t d = 0; d < a.head_dim; ++d) query.out[d] += query.scores[j] * to_float(a.v[row(j) + d]);
    }
    *query.largest = largest;
    *query.sum = sum;
  }
}

}  // namespace

const KernelTable kScalarKernels = {
    .rms_norm = rms_norm,
    .gelu_mul = gelu_mul,
    .add = add,
    .scale = scale,
    .softcap = softcap,
    .softmax_weights = softmax_weights,
    .rope = rope,
    .argmax = argmax,
    .to_bf16 = to_bf16_row,
    .quantize = quantize,
    .rotate = rotate,
    .dequantize = dequantize,
    .dot_f32 = dot<float>,
    .dot_bf16 = dot<Bf16>,
    .dot_q8_0 = dot_q8_0,
    .gemm_int4 = gemm_int4,
    .gemm_q4 = gemm_q4,
    .gemm_int8 = nullptr,
    .attend_f32 = attend<float>,
    .attend_bf16 = attend<Bf16>,
};

}  // namespace outrider
