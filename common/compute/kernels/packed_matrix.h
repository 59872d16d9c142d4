#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/compute/kernels/linear.h"

namespace outrider {

/// How floats become a type's weights: a row of the table in packed_matrix.cc for each type.
struct WeightFormat {
  const char* name;
  /// Of what store_row makes: "rows", and then the elements may lie in any WeightLayout as well; or the type's only
  /// one.
  const char* layout;
  /// Weights are stored together by so many outputs and inputs (1 x 1: elements), padded to whole units.
  std::int64_t unit_outputs, unit_inputs, unit_bytes;
  bool has_scales;  ///< one for each output, of weights, or row, of inputs
  /// Writes output `output` of the matrix that is stored at `weights`, or row `output` of its inputs if they are
  /// elements. @return its scale; 1 where the type has none
  float (*store_row)(std::span<const float> row, std::int64_t output, std::byte* weights);
  /// A stored row of inputs times one of weights; null if the type's are not elements.
  float (*dot)(const std::byte* x, const std::byte* w, std::int64_t n, float x_scale, float w_scale);
  /// Copies output `from_output` of a matrix of so many inputs to a place in another, all zeros there; null for
  /// elements.
  void (*copy_output)(const std::byte* from, std::int64_t from_output, std::int64_t in, std::byte* to,
                      std::int64_t to_output) = nullptr;

  bool is_elements() const { return dot != nullptr; }
  /// Of a matrix as store_row makes it.
  std::size_t bytes(std::int64_t in, std::int64_t out) const {
    return static_cast<std::size_t>((out + unit_outputs - 1) / unit_outputs * ((in + unit_inputs - 1) / unit_inputs) *
                                    unit_bytes);
  }
};

const WeightFormat& format_of(WeightType type);

/// A matrix's weights, and how they lie in memory.
struct PackedWeights {
  WeightType type = WeightType::kF32;
  std::int64_t in = 0, out = 0;
  std::string layout;                 ///< the type's own (WeightFormat) or the name of a WeightLayout
  std::span<const std::byte> bytes;   ///< 64-byte aligned
  std::shared_ptr<const void> owner;  ///< of the bytes
  std::vector<float> scales;          ///< [out] if the type has scales
};

/// A packed, immutable matrix and one way to multiply it. Each way is a file that derives from this, and a row of the
/// table in linear.cc. Thread-safe: scratch is per thread.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  /// y [rows, out], rows y_stride apart, = x [rows, in] W^T, rows >= 1, with the storage that Linear::forward asks for.
  /// A row's result is the same, bit for bit, whatever the other rows are.
  virtual void multiply(const float* x, std::int64_t rows, float* y, std::int64_t y_stride) const = 0;
  /// Whether an output is the same, bit for bit, in a matrix of some of the outputs. False: that is to be seen.
  virtual bool keeps_bits_in_part() const { return true; }

  const PackedWeights& weights() const { return weights_; }
  /// For logs and benchmarks: "plain avx2".
  const std::string& implementation() const { return implementation_; }

 protected:
  PackedMatrix(PackedWeights weights, std::string implementation)
      : weights_(std::move(weights)), implementation_(std::move(implementation)) {}

 private:
  PackedWeights weights_;
  std::string implementation_;
};

/// Makes the matrix of weights that lie in any layout of their type: in place if this way multiplies them as they lie,
/// else from a copy. Null where this way does not multiply such a matrix, or not on this CPU.
using MakeMatrix = std::shared_ptr<const PackedMatrix>(const PackedWeights& weights);

// ---- for those who implement it ----

/// The same elements in the layout "rows", copied if they do not lie so. @pre the type's weights are elements.
PackedWeights as_rows(const PackedWeights& weights);

/// Copies some outputs, in this order, into a matrix in the type's first layout.
PackedWeights select_outputs(const PackedWeights& weights, std::span<const std::int32_t> outputs);

/// What the calling thread keeps memory for. A piece grows and is freed when its thread ends.
enum class Scratch { kRotated, kInput, kRowScale, kSums, kOutput, kPicked, kOnednn };

/// At least `bytes` of it, 64-byte aligned, with whatever its last user left there.
std::byte* scratch_bytes(Scratch use, std::size_t bytes);
template <typename T>
T* scratch(Scratch use, std::int64_t count) {
  return reinterpret_cast<T*>(scratch_bytes(use, static_cast<std::size_t>(count) * sizeof(T)));
}

/// Bytes of weights that make a piece of a team's work: some 3 us for a row, more for more.
inline constexpr std::int64_t kPieceBytes = 32 * 1024;
/// Elements of rows that make a piece of storing them: some 3 us.
inline constexpr std::int64_t kInputsPerPiece = 8 * 1024;

}  // namespace outrider
