#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/compute/kernels/shards.h"
#include "common/compute/tensor/tensor.h"

namespace outrider {

/// Storage and arithmetic of a matrix.
enum class WeightType {
  kF32,   ///< for parity tests
  kBf16,  ///< bf16 weights and inputs, float32 accumulation
  kInt8,  ///< int8 weights per output channel, int8 inputs per row (both symmetric), int32 accumulation
  kInt4,  ///< 4 bits per weight that expand to int8 (int4.h), one scale per output channel; the rest as kInt8
  kQ4,    ///< 4 bits on a 4-bit file's grid, exact; inputs of 16 bits (q4.h)
};

const char* to_string(WeightType type);
inline constexpr WeightType kWeightTypes[] = {WeightType::kF32, WeightType::kBf16, WeightType::kInt8, WeightType::kInt4,
                                              WeightType::kQ4};
/// Excludes the scales, which are one float per output: 0.5 for int4.
double bytes_per_weight(WeightType type);
Result<WeightType> parse_weight_type(const std::string& name);

/// Rows of a matrix that is to be packed.
struct WeightRows {
  std::int64_t rows;
  std::function<void(std::int64_t row, std::span<float> out)> read;  ///< writes a row's floats; any thread

  /// Rows stored one after the other, of a type that decode() knows. May be unaligned.
  static WeightRows of(DType dtype, const std::byte* data, std::int64_t rows);
};

/// A oneDNN primitive's height is the number of rows that it multiplies. Rows are multiplied at this height, or at
/// others that were verified to give the same bits (docs/numerics.md). Matrices that a GEMM reads or writes have room
/// for whole heights.
inline constexpr std::int64_t kGemmHeight = 16;
/// Height for prompts.
inline constexpr std::int64_t kPromptHeight = 64;

constexpr std::int64_t padded_rows(std::int64_t rows) { return (rows + kGemmHeight - 1) / kGemmHeight * kGemmHeight; }

/// A packed matrix, in memory or as stored in a file. `layout` defines the bytes, on any machine: kInt4Layout (int4.h),
/// kQ4Layout (q4.h) or the name of a WeightLayout (weight_layout.h).
struct PackedWeights {
  WeightType type = WeightType::kF32;
  std::int64_t in = 0, out = 0;
  std::string layout;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  ///< of the bytes, which must not change
  std::vector<float> scales;          ///< [out] for the integer types, else empty
};

/// y = x W^T for a packed, immutable W [out_features, in_features]. Thread-safe once packed (scratch is per thread).
class Linear {
 public:
  Linear() = default;
  /// Stacks the parts' rows (for example q, k and v) into one matrix and packs it.
  static Linear pack(WeightType type, std::int64_t in_features, std::span<const WeightRows> parts);

  /// Restores a packed matrix. If this machine's packing has the same layout, the bytes are used in place; otherwise,
  /// or if they are not 64-byte aligned, they are converted and copied. The bits of forward() are those after pack()
  /// here.
  /// @param weights  may come from a file: kMalformed if layout, bytes or scales do not fit the shape, or the shape is
  /// beyond 2^30
  static Result<Linear> map(PackedWeights weights);

  /// Returns a copy of some outputs, in this order. Sums of floats may be rounded differently than here.
  Linear select(std::span<const std::int32_t> outputs) const;
  /// Returns a copy of some ranges of outputs, concatenated, with exactly the bits that they have here; this matrix may
  /// then be freed. If this machine sums differently in a smaller matrix, which random rows show, the part keeps and
  /// multiplies the whole matrix.
  Linear part(std::span<const Columns> outputs) const;
  /// Returns the same matrix, of which each shard stores and multiplies its share of the outputs; forward() then
  /// gathers them.
  /// @param shards  outlives it; null: this matrix
  Linear split(Shards* shards) const;

  /// Returns the matrix as packed for this machine. @pre packed
  const PackedWeights& packed() const;

  /// @param x [rows, in_features], contiguous; storage for padded_rows(rows) rows.
  /// @param y [rows, out_features]; storage for padded_rows(rows) rows. Rows past `rows` may be overwritten if they are
  ///          contiguous. Must not overlap x.
  void forward(Matrix<const float> x, Matrix<float> y) const;

  /// Consecutive rows of a grouped product, all multiplied by one matrix.
  struct Group {
    const Linear* linear;
    std::int64_t rows;  ///< >= 1
  };
  /// Grouped GEMM: forward() of each group, with the same bits, as one job of the team where possible.
  /// @param groups  of matrices of one shape, not split(), in the order of their rows in x and y. A file may have
  ///                experts of several types, whose products are jobs of their own
  /// @param x [rows of all groups, in_features], y [rows of all groups, out_features], both contiguous; storage for
  ///          kGemmHeight rows more.
  static void forward_groups(std::span<const Group> groups, Matrix<const float> x, Matrix<float> y);

  std::int64_t in_features() const { return in_features_; }
  std::int64_t out_features() const { return out_features_; }
  /// Bytes read by one forward here.
  std::size_t weight_bytes() const;
  WeightType type() const { return type_; }
  /// Name of the implementation, for logs and benchmarks: "onednn brg:avx512_core_vnni", "plain avx2". @pre packed
  const std::string& implementation() const;

 private:
  Linear(WeightType type, std::int64_t in_features, std::int64_t out_features,
         std::shared_ptr<const class PackedMatrix> matrix)
      : type_(type), in_features_(in_features), out_features_(out_features), matrix_(std::move(matrix)) {}

  WeightType type_ = WeightType::kF32;
  std::int64_t in_features_ = 0, out_features_ = 0;
  std::shared_ptr<const class PackedMatrix> matrix_;  ///< null until packed, or without outputs
  Shards* shards_ = nullptr;  ///< not null: `matrix_` has the outputs `own_`
  Columns own_ = {};
};

/// Version of the linked oneDNN, such as "3.7.2"; "none" without it.
std::string onednn_version();

}  // namespace outrider
