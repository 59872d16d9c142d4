#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/compute/tensor/bf16.h"

namespace outrider {

/// Element types of files and of the wire. Those from kQ8_0 to kMXFP4 are ggml's block types: a block of consecutive
/// elements of a row shares scales.
enum class DType : std::uint8_t {
  kF32,
  kBf16,
  kI8,
  kI32,
  kI64,
  kU8,
  kF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kQ2_K,
  kQ3_K,
  kIQ4_NL,
  kIQ4_XS,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
  kMXFP4,
  kF8_E4M3,  ///< one byte: no block type
  // Files may have these; decode() does not know them.
  kF8_E5M2,
  kF8_E8M0,
  kF64,
  kI16,
  kU16,
  kU32,
  kU64,
};

/// Elements per block: 1, or 32 or 256 for a block type.
std::size_t block_elements(DType dtype);
/// Bytes of `elements` elements. @pre a multiple of block_elements(dtype)
std::size_t stored_bytes(DType dtype, std::size_t elements);
/// Bytes of one element. @pre not a block type: its elements have no bytes of their own
std::size_t size_bytes(DType dtype);
/// Name as safetensors and ggml spell it: F32, BF16, I8, Q4_K, ...
const char* to_string(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);

/// Non-owning view of a row-major tensor; the last axis is contiguous. Copying a view
/// copies a pointer and a shape. The owner must outlive every view taken from it.
template <typename T, std::size_t Rank>
class TensorView {
 public:
  using Shape = std::array<std::int64_t, Rank>;
  TensorView(T* data, const Shape& shape) : data_(data), shape_(shape) {
    stride_[Rank - 1] = 1;
    for (std::size_t i = Rank - 1; i > 0; --i) stride_[i - 1] = stride_[i] * shape_[i];
  }
  TensorView(T* data, const Shape& shape, const Shape& stride) : data_(data), shape_(shape), stride_(stride) {}
  operator TensorView<const T, Rank>() const { return {data_, shape_, stride_}; }

  T* data() const { return data_; }
  std::int64_t size(std::size_t axis) const { return shape_[axis]; }
  /// Elements from one index of `axis` to the next.
  std::int64_t stride(std::size_t axis) const { return stride_[axis]; }
  /// The view of rank one less at `i` of the leading axis.
  auto operator[](std::int64_t i) const requires(Rank > 1) {
    DCHECK(0 <= i && i < shape_[0], "index {}, size {}", i, shape_[0]);
    typename TensorView<T, Rank - 1>::Shape shape, stride;
    std::copy(shape_.begin() + 1, shape_.end(), shape.begin());
    std::copy(stride_.begin() + 1, stride_.end(), stride.begin());
    return TensorView<T, Rank - 1>(data_ + i * stride_[0], shape, stride);
  }
  T& operator[](std::int64_t i) const requires(Rank == 1) {
    DCHECK(0 <= i && i < shape_[0], "index {}, size {}", i, shape_[0]);
    return data_[i];
  }
  std::span<T> span() const requires(Rank == 1) { return {data_, static_cast<std::size_t>(shape_[0])}; }
  /// Rows [first, first + count) of the leading axis.
  TensorView rows(std::int64_t first, std::int64_t count) const {
    DCHECK(0 <= first && first + count <= shape_[0]);
    Shape shape = shape_;
    shape[0] = count;
    return {data_ + first * stride_[0], shape, stride_};
  }
  /// Columns [first, first + count) of a matrix; rows keep their stride.
  TensorView columns(std::int64_t first, std::int64_t count) const requires(Rank == 2) {
    DCHECK(0 <= first && first + count <= shape_[1]);
    return {data_ + first, {shape_[0], count}, stride_};
  }

 private:
  T* data_;
  Shape shape_, stride_;
};

template <typename T>
using Vector = TensorView<T, 1>;
template <typename T>
using Matrix = TensorView<T, 2>;

/// Owner of `count` elements of T, 64-byte aligned, zeroed. Move only.
template <typename T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(std::size_t count)
      : data_(static_cast<T*>(allocate_zeroed(count * sizeof(T)))), count_(count) {}

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t i) { return data_.get()[i]; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }
  std::span<T> span() { return {data(), count_}; }
  std::span<const T> span() const { return {data(), count_}; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(static_cast<void*>(p)); }
  };
  static void* allocate_zeroed(std::size_t bytes);

  std::unique_ptr<T, Free> data_;
  std::size_t count_ = 0;
};

/// `bytes` zeroed bytes at a 64-byte boundary, to be released with std::free.
void* aligned_zeroed(std::size_t bytes);

template <typename T>
void* AlignedArray<T>::allocate_zeroed(std::size_t bytes) {
  return aligned_zeroed(bytes);
}

/// Owner of a float matrix, zeroed. Move only.
class Tensor {
 public:
  Tensor() = default;
  Tensor(std::int64_t rows, std::int64_t columns)
      : rows_(rows), columns_(columns), data_(static_cast<std::size_t>(rows * columns)) {}

  Matrix<float> view() { return {data_.data(), {rows_, columns_}}; }
  Matrix<const float> view() const { return {data_.data(), {rows_, columns_}}; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }

 private:
  std::int64_t rows_ = 0, columns_ = 0;
  AlignedArray<float> data_;
};

}  // namespace outrider
