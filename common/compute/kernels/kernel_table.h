#pragma once

#include <cstddef>
#include <cstdint>

#include "common/compute/kernels/int4.h"
#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/q4.h"
#include "common/compute/tensor/bf16.h"

namespace outrider {

/// One head of a query row: its visible keys and its results.
struct AttendQuery {
  const float* q;           ///< [head_dim]
  std::int64_t begin, end;  ///< visible keys [begin, end) of AttendArgs, at least one
  float* scores;            ///< scratch, [AttendArgs::count]
  float* out;               ///< [head_dim]: sum over the keys j of exp(q . k_j - largest) v_j
  float* largest;           ///< of q . k_j
  float* sum;               ///< of exp(q . k_j - largest)
};

/// Queries of one sequence against keys of one K/V head: all visible keys, or a part. A query's result does not depend
/// on the others; together they read each key once. Key j (0 <= j < count) is that of position first + j, in slot
/// (first + j) mod capacity of a ring of rows.
template <typename Kv>
struct AttendArgs {
  const AttendQuery* queries;
  std::int64_t query_count;
  std::int64_t head_dim;
  const Kv* k;  ///< this K/V head's first column; rows row_stride apart
  const Kv* v;
  std::int64_t row_stride;
  std::int64_t capacity;  ///< rows in the ring
  std::int64_t first;
  std::int64_t count;  ///< >= 1
};

/// Our kernels multiply blocks of 64 outputs in steps of 64 bytes of inputs per output. In a step, int8 and bfloat16
/// weights have oneDNN's packing, four bytes per output in turn; int4 and q4 weights are chunks (int4.h, q4.h).
constexpr std::int64_t kBlockOutputs = 64, kStepBytes = 64;
/// Rows of a tile, an AMX register, and its columns of four bytes.
constexpr std::int64_t kTileRows = 16;
/// Rows that a walk of a block multiplies, at most: with vectors, and q4's with tiles.
constexpr std::int64_t kWalkRows = 48, kQ4TileWalkRows = 64;

/// Rows times a block.
struct GemmArgs {
  const std::byte* weights;  ///< int8, bfloat16: [steps, 16, 64 outputs, 4 bytes of inputs]; int4: [steps, 2]
                             ///< Int4Chunk; q4: [steps, 2] Q4Chunk
  std::int64_t steps;
  /// For vectors: [rows, steps, 64 bytes]; 128 bytes for bfloat16, as float32. For q4, also with tiles:
  /// [rows, steps, 2] Q4Input. For tiles: [tiles of rows, steps, 16 rows, 64 bytes]; beyond 16 rows an even number of
  /// tiles is read, whatever their contents.
  const std::byte* x;
  const std::int16_t* sums;  ///< for vectors, [rows, steps, 2]: sums of 32 inputs
  std::byte* expanded;       ///< scratch for tiles against int4, [steps, 64 outputs, 64]
  std::int64_t rows;
  std::int64_t outputs;       ///< columns of y to write; only a matrix's last block has fewer than 64
  const float* row_scale;     ///< [rows]; for int4 and int8
  const float* column_scale;  ///< [outputs]; null for bfloat16
  float* y;                   ///< [rows, outputs], row stride y_stride
  std::int64_t y_stride;
};

using GemmKernel = void(const GemmArgs& args);

/// The row kernels of one instruction set. Every function computes a row from that row's inputs alone, in an order
/// fixed by the row's length: this makes results batch-invariant.
struct KernelTable {
  /// y = x / sqrt(mean(x^2) + eps) * weight; weight may be null. y may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t n, float* y);
  /// y = gelu_tanh(gate) * up. y may be either input.
  void (*gelu_mul)(const float* gate, const float* up, std::int64_t n, float* y);
  /// x += y
  void (*add)(float* x, const float* y, std::int64_t n);
  /// x *= factor
  void (*scale)(float* x, float factor, std::int64_t n);
  /// x = cap * tanh(x / cap)
  void (*softcap)(float* x, float cap, std::int64_t n);
  /// y = exp((x - highest) / temperature), the weights of a softmax; 0 below exp(-87), about the smallest normal float.
  void (*softmax_weights)(const float* x, float highest, float temperature, std::int64_t n, float* y);
  /// Half-split rotation of one head, x [2 * pairs]: pairs (i, i + pairs).
  void (*rope)(float* x, const float* cos, const float* sin, std::int64_t pairs);
  /// Index of the largest value; the lowest index among equals.
  std::int64_t (*argmax)(const float* x, std::int64_t n);
  void (*to_bf16)(const float* x, std::int64_t n, Bf16* y);
  /// Symmetric int8: y = round(x / scale), scale = max|x| / 127. @return scale; 0 for a zero row, not finite if
  /// an x is not.
  float (*quantize)(const float* x, std::int64_t n, std::int8_t* y);
  /// x = R x, with R = R^T = R^-1: a Hadamard matrix over x's 64 equal parts (16, 4 or 1 if n has fewer factors of 4),
  /// by radix 4. The same bits in every table. QuaRot, arXiv 2404.00456.
  void (*rotate)(float* x, std::int64_t n);
  /// y = x * row_scale * column_scale
  void (*dequantize)(const std::int32_t* x, float row_scale, const float* column_scale, std::int64_t n, float* y);
  float (*dot_f32)(const float* x, const float* w, std::int64_t n);
  float (*dot_bf16)(const Bf16* x, const Bf16* w, std::int64_t n);
  /// x . w, with w in blocks of Q8_0 (DType::kQ8_0: a half-precision scale, then 32 int8), at any alignment. n is a
  /// multiple of 32.
  float (*dot_q8_0)(const float* x, const std::byte* w, std::int64_t n);
  /// y = the exact int32 product, times both scales as in dequantize().
  GemmKernel* gemm_int4;
  /// y = the product times the column's scale: a chain over groups of fma(weights' scale * inputs' scale, a group's sum
  /// of integers, chain), the same bits in every table.
  GemmKernel* gemm_q4;
  GemmKernel* gemm_int8;  ///< null: row-by-row products
  /// y = the product: a chain of fma in the order of the inputs, the same bits in every table. Null as above.
  GemmKernel* gemm_bf16 = nullptr;
  /// With tiles; null without. Integer products equal those with vectors.
  GemmKernel* gemm_int4_tiles = nullptr;
  GemmKernel* gemm_q4_tiles = nullptr;
  GemmKernel* gemm_int8_tiles = nullptr;
  /// y = the product: per step a chain of fma over the even inputs and one over the odd, both added to the sum.
  GemmKernel* gemm_bf16_tiles = nullptr;
  /// softmax(q . k) . v per head, before the division by the sum, so that parts of a long row can be merged (ops.cc).
  /// Scores are not scaled (gemma4.md 3.4).
  void (*attend_f32)(const AttendArgs<float>& args);
  void (*attend_bf16)(const AttendArgs<Bf16>& args);
};

/// Returns the table of one instruction set. @pre it is one of isas(), and has_isa(isa)
const KernelTable& kernel_table(Isa isa);

/// Returns the table of active_isa().
const KernelTable& kernels();

extern const KernelTable kScalarKernels;
// x86-64.
extern const KernelTable kAvx2Kernels, kAvx512Kernels;
GemmKernel gemm_int4_avx2, gemm_int4_avx2_vnni, gemm_int4_avx512, gemm_int4_amx;
GemmKernel gemm_q4_avx2, gemm_q4_avx2_vnni, gemm_q4_avx512, gemm_q4_amx;
GemmKernel gemm_int8_avx2, gemm_int8_avx2_vnni, gemm_int8_avx512, gemm_int8_amx;
GemmKernel gemm_bf16_avx2, gemm_bf16_avx512, gemm_bf16_amx;
void attend_amx(const AttendArgs<Bf16>& args);
// aarch64.
extern const KernelTable kNeonKernels;
GemmKernel gemm_int4_neon, gemm_int4_dotprod, gemm_int4_i8mm;
GemmKernel gemm_q4_neon, gemm_q4_dotprod, gemm_q4_i8mm;
GemmKernel gemm_int8_neon, gemm_int8_dotprod, gemm_int8_i8mm;

}  // namespace outrider
