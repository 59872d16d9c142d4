#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "common/compute/kernels/kernel_table.h"
#include "common/compute/kernels/linear.h"
#include "common/compute/kernels/team.h"

namespace outrider {

/// Conversion of floats to a type's weights: a row per type of the table in packed_matrix.cc.
struct WeightFormat {
  const char* name;
  /// Layout of store_row's output: "rows", in which case elements may be in any WeightLayout; or the type's only
  /// layout.
  const char* layout;
  /// Outputs and inputs of a storage unit (1 x 1: elements); matrices are padded to whole units.
  std::int64_t unit_outputs, unit_inputs, unit_bytes;
  bool has_scales;  ///< one per output of weights, or per row of inputs
  /// Greatest error of a hidden state or logit of the golden models, relative to the largest. f32 is for parity; the
  /// others round the inputs of every product, and random weights do not average that out. Their bounds were measured,
  /// and detect blunders only.
  double parity_bound;
  /// Writes output `output` of the matrix at `weights`, or row `output` of its inputs if they are elements.
  /// @return its scale; 1 if the type has none
  float (*store_row)(std::span<const float> row, std::int64_t output, std::byte* weights);
  /// Dot product of a stored row of inputs and one of weights; null unless the type's weights are elements.
  float (*dot)(const std::byte* x, const std::byte* w, std::int64_t n, float x_scale, float w_scale);
  /// Copies output `from_output` of a matrix with `in` inputs to a zeroed place in another; null for elements.
  void (*copy_output)(const std::byte* from, std::int64_t from_output, std::int64_t in, std::byte* to,
                      std::int64_t to_output) = nullptr;
  /// Makes typical weights of random bits. @return their root mean square over the scale of their output; null for
  /// floats
  double (*from_random)(std::span<std::byte> weights) = nullptr;

  bool is_elements() const { return dot != nullptr; }
  /// Size of a matrix as stored by store_row.
  std::size_t bytes(std::int64_t in, std::int64_t out) const {
    return static_cast<std::size_t>((out + unit_outputs - 1) / unit_outputs * ((in + unit_inputs - 1) / unit_inputs) *
                                    unit_bytes);
  }
};

const WeightFormat& format_of(WeightType type);

class PackedMatrix;

/// Consecutive rows of a grouped product, all multiplied by one matrix.
struct ProductGroup {
  const PackedMatrix* matrix;
  std::int64_t rows;  ///< >= 1
};

/// A packed, immutable matrix with one implementation of its product. Each implementation is a file with a derived
/// class, and a row of the table in linear.cc. Thread-safe: scratch is per thread.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  /// y [rows, out], rows y_stride apart, = x [rows, in] W^T, rows >= 1, with the storage required by Linear::forward. A
  /// row's result is the same, bit for bit, whatever the other rows are.
  virtual void multiply(const float* x, std::int64_t rows, float* y, std::int64_t y_stride) const = 0;
  /// multiply() of each group. The groups' rows follow each other in x and in y.
  /// @param groups  of matrices of one shape; this is the first
  virtual void multiply_groups(std::span<const ProductGroup> groups, const float* x, float* y,
                               std::int64_t y_stride) const {
    for (const ProductGroup& group : groups) {
      group.matrix->multiply(x, group.rows, y, y_stride);
      x += group.rows * weights_.in, y += group.rows * y_stride;
    }
  }
  /// Returns true if an output has the same bits in a matrix of some of the outputs. False: must be tested.
  virtual bool keeps_bits_in_part() const { return true; }

  /// The bytes are 64-byte aligned.
  const PackedWeights& weights() const { return weights_; }
  /// Name for logs and benchmarks: "plain avx2".
  const std::string& implementation() const { return implementation_; }

 protected:
  PackedMatrix(PackedWeights weights, std::string implementation)
      : weights_(std::move(weights)), implementation_(std::move(implementation)) {}

 private:
  PackedWeights weights_;
  std::string implementation_;
};

/// Makes the matrix of weights in any layout of their type: in place if this implementation uses that layout, else from
/// a copy. Null if it does not support such a matrix, or this CPU.
using MakeMatrix = std::shared_ptr<const PackedMatrix>(const PackedWeights& weights);

// ---- for implementations ----

/// Returns the same elements in the layout "rows", copied if necessary. @pre the type's weights are elements
PackedWeights as_rows(const PackedWeights& weights);

/// Copies some outputs, in this order, into a matrix in the type's first layout.
PackedWeights select_outputs(const PackedWeights& weights, std::span<const std::int32_t> outputs);

/// Purposes of a thread's scratch memory. A piece grows and is freed when its thread ends.
enum class Scratch { kRotated, kInput, kRowScale, kSums, kOutput, kPicked, kOnednn, kGroups, kCount };

/// Returns at least `bytes` of scratch, 64-byte aligned, with arbitrary contents.
std::byte* scratch_bytes(Scratch use, std::size_t bytes);
template <typename T>
T* scratch(Scratch use, std::int64_t count) {
  return reinterpret_cast<T*>(scratch_bytes(use, static_cast<std::size_t>(count) * sizeof(T)));
}

/// The ratio rounded up. gemm_vector.inc has a copy for each instruction set, so that the linker cannot mix them.
constexpr std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

/// Bytes of weights per piece of a team's work: some 3 us for a row, more for more.
inline constexpr std::int64_t kPieceBytes = 32 * 1024;
/// Elements of rows per piece when storing them: some 3 us.
inline constexpr std::int64_t kInputsPerPiece = 8 * 1024;

/// Blocks of outputs in a piece of a product of so many rows.
constexpr std::int64_t product_grain(std::int64_t block_bytes, std::int64_t rows) {
  return rows > kTileRows ? 1 : kPieceBytes / block_bytes + 1;
}

/// Calls multiply(block, first_row, row_count) for every block of outputs and every row, shared among the team. Blocks
/// that are too few for the team are split by rows, into groups of a multiple of `unit` rows: narrow matrices (64 to
/// 2,560 outputs) would leave most of many threads idle.
/// @param unit  rows that a kernel multiplies together
template <typename Multiply>
void share_product(std::int64_t blocks, std::int64_t block_bytes, std::int64_t rows, std::int64_t unit,
                   const Multiply& multiply) {
  constexpr std::int64_t kPiecesPerThread = 4;
  const std::int64_t units = divide_up(rows, unit);
  const std::int64_t wanted = team_size() == 1 ? 1 : divide_up(kPiecesPerThread * team_size(), blocks);
  const std::int64_t group_rows = divide_up(units, std::min(wanted, units)) * unit;
  const std::int64_t groups = divide_up(rows, group_rows);
  team_for(blocks * groups, product_grain(block_bytes, rows), [&](std::int64_t piece) {
    const std::int64_t first = piece % groups * group_rows;
    multiply(piece / groups, first, std::min(group_rows, rows - first));
  });
}

}  // namespace outrider
