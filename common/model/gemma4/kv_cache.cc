#include "common/model/gemma4/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {

LayerKv::LayerKv(DType dtype, std::int64_t num_key_value_heads, std::int64_t head_dim, std::int64_t ring_rows)
    : dtype_(dtype),
      num_key_value_heads_(num_key_value_heads),
      head_dim_(head_dim),
      row_bytes_(static_cast<std::size_t>(num_key_value_heads * head_dim) * size_bytes(dtype)),
      grows_(ring_rows == 0),
      capacity_(ring_rows),
      k_(static_cast<std::size_t>(ring_rows) * row_bytes_),
      v_(static_cast<std::size_t>(ring_rows) * row_bytes_) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBf16);
}

void LayerKv::reserve(Position end) {
  if (!grows_ || end <= capacity_) return;
  // Grows by half: the number of moves stays logarithmic, and unwritten pages cost nothing.
  const std::int64_t capacity = std::max<std::int64_t>({end, 256, capacity_ + capacity_ / 2});
  k_.grow(static_cast<std::size_t>(capacity) * row_bytes_);
  v_.grow(static_cast<std::size_t>(capacity) * row_bytes_);
  capacity_ = capacity;
}

void LayerKv::write(Position position, std::span<const float> k, std::span<const float> v) {
  DCHECK(!grows_ || position < capacity_, "position {}, capacity {}", position, capacity_);
  const auto put = [&](std::span<const float> row, std::byte* to) {
    if (dtype_ == DType::kF32) {
      std::memcpy(to, row.data(), row_bytes_);
    } else {
      kernels().to_bf16(row.data(), static_cast<std::int64_t>(row.size()), reinterpret_cast<Bf16*>(to));
    }
  };
  put(k, k_.data() + offset(position));
  put(v, v_.data() + offset(position));
}

void LayerKv::write_raw(Position first, std::int64_t count, const std::byte* k, const std::byte* v) {
  reserve(first + count);
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(k_.data() + offset(first + i), k + static_cast<std::size_t>(i) * row_bytes_, row_bytes_);
    std::memcpy(v_.data() + offset(first + i), v + static_cast<std::size_t>(i) * row_bytes_, row_bytes_);
  }
}

void LayerKv::read_raw(Position first, std::int64_t count, std::byte* k, std::byte* v) const {
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(k + static_cast<std::size_t>(i) * row_bytes_, k_.data() + offset(first + i), row_bytes_);
    std::memcpy(v + static_cast<std::size_t>(i) * row_bytes_, v_.data() + offset(first + i), row_bytes_);
  }
}

void LayerKv::copy_from(const LayerKv& other, Position length, Position written) {
  CHECK(row_bytes_ == other.row_bytes_ && ring_rows() == other.ring_rows(),
        "{} bytes a row, {} rows; the other has {} and {}", row_bytes_, ring_rows(), other.row_bytes_,
        other.ring_rows());
  reserve(length);
  // A ring that has wrapped has its rows in any order of slots.
  const std::int64_t rows = grows_ || written <= capacity_ ? length : capacity_;
  if (rows == 0) return;
  std::memcpy(k_.data(), other.k_.data(), static_cast<std::size_t>(rows) * row_bytes_);
  std::memcpy(v_.data(), other.v_.data(), static_cast<std::size_t>(rows) * row_bytes_);
}

std::size_t LayerKv::bytes_at(Position end) const {
  const std::int64_t rows = grows_ ? end : std::min<std::int64_t>(end, capacity_);
  return 2 * PageArray::resident_bytes(static_cast<std::size_t>(rows) * row_bytes_);
}

KvView LayerKv::view() const {
  return {.dtype = dtype_,
          .k = k_.data(),
          .v = v_.data(),
          .capacity = capacity_,
          .num_key_value_heads = num_key_value_heads_,
          .head_dim = head_dim_};
}

KvCache::KvCache(DType dtype, std::span<const LayerShape> layers, std::int64_t rows_max) : rows_max_(rows_max) {
  for (const LayerShape& shape : layers) {
    // W - 1 past rows for a query, two more for the drafter's W + 1, and the slack.
    const std::int64_t ring = shape.sliding_window == 0 ? 0 : drafter_window(shape.sliding_window) + rows_max;
    layers_.emplace_back(dtype, shape.num_key_value_heads, shape.head_dim, ring);
  }
}

void KvCache::extend(std::int64_t rows) {
  CHECK(0 < rows && rows <= rows_max_, "rows {}, limit {}", rows, rows_max_);
  length_ += rows;
  written_ = std::max(written_, length_);
  for (LayerKv& layer : layers_) layer.reserve(length_);
}

bool KvCache::holds(Position length) const {
  if (length < 0 || length > length_) return false;
  return length + rows_max_ >= written_ || std::all_of(layers_.begin(), layers_.end(), [&](const LayerKv& layer) {
           return layer.ring_rows() == 0 || written_ <= layer.ring_rows();
         });
}

void KvCache::truncate(Position length) {
  CHECK(holds(length), "from {} to {}, written {}, slack {}", length_, length, written_, rows_max_);
  length_ = length;
}

void KvCache::copy_from(const KvCache& other, Position length, const std::function<void()>* between_layers) {
  CHECK(written_ == 0 && layers_.size() == other.layers_.size() && rows_max_ == other.rows_max_ && other.holds(length),
        "{} rows of {}, {} written, into a cache of {} rows", length, other.length_, other.written_, written_);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].copy_from(other.layers_[i], length, other.written_);
    if (between_layers != nullptr) (*between_layers)();
  }
  length_ = length;
  written_ = other.written_;
}

}  // namespace outrider
