#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/kernels/linear.h"

namespace outrider {

struct TileArgs;
using TileKernel = void (*)(const TileArgs&);

/// One packed weight matrix behind oneDNN's matmul, for a few fixed numbers of rows.
/// The only place that uses oneDNN; compiles against 2.6 and 3.x.
///
/// Batch invariance: a height (number of rows) is used only if its primitive gives, on random input
/// and weights, the very bits of the kRowTile-row primitive, row by row. This is checked once per shape,
/// when the first matrix of that shape is made; a height that fails is left out (docs/numerics.md). The
/// tile itself must give the same bits wherever in it a row lies.
class OnednnGemm {
 public:
  virtual ~OnednnGemm() = default;

  /// Whether oneDNN is to multiply matrices of this shape: false where it has no optimised implementation
  /// on the active ISA, not an exact one (int8 without VNNI may saturate in 16 bits), not a
  /// batch-invariant one (AVX2 sgemm, bfloat16 with an odd number of inputs), or one whose weights no WeightLayout
  /// describes. The check's temporary matrix is as large as the real one: ask before making that.
  static bool supports(WeightType type, std::int64_t in_features, std::int64_t out_features);
  /// @param weights [out, in] row-major: float, Bf16 or int8 by `type`.
  /// @pre supports(type, in_features, out_features)
  static std::shared_ptr<const OnednnGemm> pack(WeightType type, std::int64_t in_features, std::int64_t out_features,
                                                const void* weights);
  /// Over weights that pack made elsewhere, 64-byte aligned; they are neither copied nor written.
  /// @return null where pack would make another layout or number of bytes.
  /// @pre supports(type, in_features, out_features)
  static std::shared_ptr<const OnednnGemm> map(WeightType type, std::int64_t in_features, std::int64_t out_features,
                                               const std::string& layout, std::span<const std::byte> weights,
                                               std::shared_ptr<const void> keep_alive);

  /// The packed weights and the name of their layout (weight_layout.h).
  virtual std::span<const std::byte> weights() const = 0;
  virtual const std::string& layout() const = 0;
  /// What multiplies the weights instead of oneDNN, where they are whole steps of TileArgs and this machine has the
  /// kernel (ADR 5): then no height was checked, and neither height() nor execute() is called. Null elsewhere.
  virtual TileKernel tile_kernel() const = 0;
  /// How many rows the next execute should take when `rows` are left: more than `rows` only up to
  /// kRowTile, and then the surplus is padding.
  virtual std::int64_t height(std::int64_t rows) const = 0;
  /// dst [height, out] = src [height, in] W^T. src: float, Bf16 or int8; dst: float, for int8 int32.
  virtual void execute(std::int64_t height, const void* src, void* dst) const = 0;
  virtual std::string implementation() const = 0;
  /// Bytes of oneDNN's scratchpad that the calling thread holds.
  static std::size_t thread_scratch_bytes();
};

/// "3.7.2": of the library that is linked.
std::string onednn_version();

}  // namespace outrider
