#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/tensor/tensor.h"

namespace outrider {

/// How a matrix is stored and multiplied.
enum class WeightType {
  kF32,   ///< the parity path
  kBf16,  ///< bf16 weights and inputs, float32 accumulation
  kInt8,  ///< int8 weights per output channel, int8 inputs per row (both symmetric), int32 accumulation
};

const char* to_string(WeightType type);
Result<WeightType> parse_weight_type(const std::string& name);

/// Rows [out, in] of a stored matrix, row-major, F32 or BF16. The bytes need no alignment.
struct WeightRows {
  DType dtype;
  const std::byte* data;
  std::int64_t rows;
};

/// Rows are multiplied in tiles: of this many, or of a smaller or larger number that was seen to give
/// the same bits (docs/numerics.md). Matrices that a GEMM reads or writes have room for whole tiles.
inline constexpr std::int64_t kRowTile = 16;
/// The tile of prompts.
inline constexpr std::int64_t kPromptTile = 64;

constexpr std::int64_t padded_rows(std::int64_t rows) { return (rows + kRowTile - 1) / kRowTile * kRowTile; }

/// y = x W^T for a packed, immutable W [out_features, in_features]. Thread-safe once packed, as long
/// as every caller thread is its own (scratch is per thread).
class Linear {
 public:
  Linear() = default;
  /// Stacks the parts' rows (for example q, k and v) into one matrix and packs it.
  static Linear pack(WeightType type, std::int64_t in_features, std::span<const WeightRows> parts);

  /// @param x [rows, in_features], contiguous; storage for padded_rows(rows) rows.
  /// @param y [rows, out_features], contiguous; storage for padded_rows(rows) rows. Rows past
  ///          `rows` may be overwritten. Must not overlap x.
  void forward(Matrix<const float> x, Matrix<float> y) const;

  std::int64_t in_features() const { return in_features_; }
  std::int64_t out_features() const { return out_features_; }
  /// Bytes that one forward reads.
  std::size_t weight_bytes() const { return weight_bytes_; }
  /// Bytes that it holds: the packing's padding and the scales included.
  std::size_t held_bytes() const;
  /// Bytes of scratch that the calling thread holds after its forwards, all matrices together.
  static std::size_t thread_scratch_bytes();
  WeightType type() const { return type_; }
  /// Name of the implementation, for logs and benchmarks: "onednn brg:avx512_core_amx", "own avx2".
  const std::string& implementation() const { return implementation_; }

 private:
  void forward_tile(const float* x, std::int64_t rows, std::int64_t height, float* y) const;
  void forward_own(const float* x, std::int64_t rows, float* y) const;

  WeightType type_ = WeightType::kF32;
  std::int64_t in_features_ = 0, out_features_ = 0;
  std::size_t weight_bytes_ = 0;
  std::string implementation_;
  std::shared_ptr<const class OnednnGemm> gemm_;  ///< null: our own loop over `own_weights_`
  AlignedArray<std::byte> own_weights_;           ///< [out, in] in the stored type
  std::vector<float> column_scale_;               ///< [out], int8 only
};

}  // namespace outrider
