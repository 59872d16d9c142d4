// Attention over bfloat16 keys and values with AMX tiles, for any number of queries.
//
// Queries and weights are rounded to bfloat16, as in products of bfloat16 models; sums are float32. Keys are taken in
// slices of 32 at multiples of 32 positions, for every query. A query gives weight zero to a key that it does not see,
// which adds nothing to a finite value: so its bits do not depend on the other queries.
#include <immintrin.h>

#include <cstdlib>
#include <type_traits>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {
namespace {

constexpr int kLanes = 16;
__m512 fma_lanes(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
#include "common/compute/kernels/amx_common.inc"
#include "common/compute/kernels/vector_lanes.inc"

constexpr std::int64_t kSlice = 32;    ///< keys or dimensions summed by one product
constexpr std::int64_t kQueries = 64;  ///< queries that read the keys together; their scores stay in the L2 cache
constexpr std::int64_t kTiles = kQueries / kTileRows;
constexpr std::int64_t kChunk = 4;  ///< slices of keys whose packed values stay in the cache for all queries

/// An operand: 16 rows of 32 bfloat16. As right operand, row i has elements 2i and 2i + 1 of 16 columns.
struct alignas(64) Operand {
  std::uint32_t pairs[16][16];
};
/// A tile of sums.
struct alignas(64) Sums {
  float rows[kTileRows][kTileRows];
};

void transpose(__m512i (&rows)[16]) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2)
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]), a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]), b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]), b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  // b[4 g + c] has, in its 128-bit part p, column 4 p + c of the rows 4 g to 4 g + 3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88),
                  odd01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
    const __m512i even23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88),
                  odd23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
    rows[c] = _mm512_shuffle_i32x4(even01, even23, 0x88), rows[8 + c] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
    rows[4 + c] = _mm512_shuffle_i32x4(odd01, odd23, 0x88), rows[12 + c] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
  }
}

/// Converts 32 floats to bfloat16, the first half from `low`.
__m512i to_bf16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

/// A thread's reusable scratch memory.
struct Scratch {
  ~Scratch() { std::free(memory); }
  std::byte* reserve(std::size_t wanted) {
    if (wanted <= bytes) return memory;
    std::free(memory);
    bytes = wanted;
    memory = static_cast<std::byte*>(std::aligned_alloc(64, bytes));
    if (memory == nullptr) __builtin_trap();
    return memory;
  }
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
};

/// Up to kQueries queries against all keys.
class Attention {
 public:
  Attention(const AttendArgs<Bf16>& a, std::int64_t first_query, Scratch& scratch)
      : a_(a),
        queries_(a.queries + first_query),
        count_(lesser(kQueries, a.query_count - first_query)),
        tiles_(divide_up(count_, kTileRows)),
        dim_slices_(a.head_dim / kSlice),
        offset_(a.first % kSlice),
        key_slices_(divide_up(offset_ + a.count, kSlice)) {
    std::size_t bytes = 0;
    lay_out([&](auto*& piece, std::int64_t count) { bytes += static_cast<std::size_t>(count) * sizeof *piece; });
    std::byte* next = scratch.reserve(bytes);
    lay_out([&](auto*& piece, std::int64_t count) {
      piece = reinterpret_cast<std::remove_reference_t<decltype(piece)>>(next);
      next += static_cast<std::size_t>(count) * sizeof *piece;
    });
  }

  void run() {
    for (std::int64_t t = 0; t < tiles_; ++t) pack_queries(t);
    for (std::int64_t slice = 0; slice < key_slices_; ++slice) score_slice(slice);
    for (std::int64_t t = 0; t < tiles_; ++t) weigh(t);
    for (std::int64_t first = 0; first < key_slices_; first += kChunk) {
      const std::int64_t slices = lesser(kChunk, key_slices_ - first);
      for (std::int64_t i = 0; i < slices; ++i) pack_values(first, i);
      finish_stores(values_);
      for (std::int64_t b = 0; b < dim_slices_; ++b) {
        std::int64_t t = 0;
        for (; t + 2 <= tiles_; t += 2) add_values<2>(t, b, first, slices);
        if (t < tiles_) add_values<1>(t, b, first, slices);
      }
    }
    for (std::int64_t i = 0; i < count_; ++i) write(i);
  }

 private:
  /// Calls piece(p, count) for every piece of scratch, each of whole cache lines.
  template <typename Piece>
  void lay_out(Piece piece) {
    piece(q_, kTiles * dim_slices_);
    piece(weights_, kTiles * key_slices_);
    piece(values_, 2 * dim_slices_ * kChunk);
    piece(out_, 2 * kTiles * dim_slices_);
    piece(scores_, key_slices_ * kSlice * kQueries);
    piece(edge_, kSlice * a_.head_dim);
  }

  /// Returns the index in a_ of key `slice * kSlice + i`; it may be out of range at both ends.
  std::int64_t key(std::int64_t slice, std::int64_t i) const { return slice * kSlice + i - offset_; }
  bool exists(std::int64_t key) const { return key >= 0 && key < a_.count; }
  std::int64_t slot(std::int64_t key) const {
    const std::int64_t slot = first_slot_ + key;
    return slot >= a_.capacity ? slot - a_.capacity : slot;
  }

  void pack_queries(std::int64_t t) {
    for (std::int64_t b = 0; b < dim_slices_; ++b) {
      __m512i rows[16];
      for (std::int64_t i = 0; i < kTileRows; ++i) {
        const bool in = t * kTileRows + i < count_;
        const float* q = in ? queries_[t * kTileRows + i].q + b * kSlice : nullptr;
        rows[i] = in ? to_bf16(_mm512_loadu_ps(q), _mm512_loadu_ps(q + kLanes)) : _mm512_setzero_si512();
      }
      transpose(rows);
      for (int i = 0; i < 16; ++i) _mm512_store_si512(q_[t * dim_slices_ + b].pairs[i], rows[i]);
    }
    finish_stores(q_);
  }

  /// Returns the rows of a slice of keys, row_stride apart; a copy, padded with zeros, if the ring or the keys end
  /// within it.
  const Bf16* key_rows(std::int64_t slice, std::int64_t* row_stride) {
    const std::int64_t first = key(slice, 0), last = key(slice, kSlice - 1);
    if (exists(first) && exists(last) && slot(first) < slot(last)) {
      *row_stride = a_.row_stride;
      return a_.k + slot(first) * a_.row_stride;
    }
    for (std::int64_t i = 0; i < kSlice; ++i) {
      Bf16* const to = edge_ + i * a_.head_dim;
      const std::size_t bytes = static_cast<std::size_t>(a_.head_dim) * sizeof(Bf16);
      if (exists(first + i))
        __builtin_memcpy(to, a_.k + slot(first + i) * a_.row_stride, bytes);
      else
        __builtin_memset(to, 0, bytes);
    }
    finish_stores(edge_);
    *row_stride = a_.head_dim;
    return edge_;
  }

  /// Prefetches the i-th share of a later slice's rows; the dim_slices_ shares cover all of them.
  void fetch(const Bf16* rows, std::int64_t slice, std::int64_t i) const {
    for (std::int64_t r = i * kSlice / dim_slices_; r < (i + 1) * kSlice / dim_slices_; ++r) {
      if (!exists(key(slice, r))) continue;
      const Bf16* const row = rows + slot(key(slice, r)) * a_.row_stride;
      for (std::int64_t d = 0; d < a_.head_dim; d += kSlice)
        _mm_prefetch(reinterpret_cast<const char*>(row + d), _MM_HINT_T0);
    }
  }

  void score_slice(std::int64_t slice) {
    std::int64_t row_stride = 0;
    const Bf16* const k = key_rows(slice, &row_stride);
    std::int64_t t = 0;
    for (; t + 2 <= tiles_; t += 2) score<2>(k, row_stride, t, slice);
    if (t < tiles_) score<1>(k, row_stride, t, slice);
  }

  /// Computes scores of a slice's keys with kCount tiles of queries, into scores_[key, query].
  template <int kCount>
  void score(const Bf16* k, std::int64_t row_stride, std::int64_t t, std::int64_t slice) {
    const std::int64_t bytes = row_stride * static_cast<std::int64_t>(sizeof(Bf16));
    zero_sums();
    for (std::int64_t b = 0; b < dim_slices_; ++b) {
      if (t == 0) fetch(a_.k, slice + 1, b);
      _tile_loadd(4, k + b * kSlice, bytes);
      _tile_loadd(5, k + kTileRows * row_stride + b * kSlice, bytes);
      _tile_loadd(6, q_[t * dim_slices_ + b].pairs, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kCount == 2) {
        _tile_loadd(7, q_[(t + 1) * dim_slices_ + b].pairs, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    float* const to = scores_ + slice * kSlice * kQueries + t * kTileRows;
    constexpr std::int64_t kBytes = kQueries * static_cast<std::int64_t>(sizeof(float));
    _tile_stored(0, to, kBytes);
    _tile_stored(2, to + kTileRows * kQueries, kBytes);
    if constexpr (kCount == 2) {
      _tile_stored(1, to + kTileRows, kBytes);
      _tile_stored(3, to + kTileRows * kQueries + kTileRows, kBytes);
    }
    finish_stores(scores_);
  }

  /// Applies the softmax to a tile's queries, one per lane: weights_ := exp(score - the largest), zero for keys that a
  /// query does not see.
  void weigh(std::int64_t t) {
    alignas(64) std::int32_t begin[kLanes] = {}, end[kLanes] = {};
    const std::int64_t queries = lesser(kTileRows, count_ - t * kTileRows);
    for (std::int64_t i = 0; i < queries; ++i) {
      begin[i] = static_cast<std::int32_t>(queries_[t * kTileRows + i].begin + offset_),
      end[i] = static_cast<std::int32_t>(queries_[t * kTileRows + i].end + offset_);
    }
    const I from = load_as<I>(begin), to = load_as<I>(end);
    const float* const scores = scores_ + t * kTileRows;
    const std::int64_t keys = key_slices_ * kSlice;
    const auto sees = [&](std::int64_t j) {
      const I position = static_cast<std::int32_t>(j) - I{};
      return (position >= from) & (position < to);
    };
    F largest = splat(-__builtin_inff());
    for (std::int64_t j = 0; j < keys; ++j) {
      const F score = sees(j) ? load(scores + j * kQueries) : splat(-__builtin_inff());
      largest = score > largest ? score : largest;
    }
    F sum{};
    const auto weight = [&](std::int64_t j) {
      const F w = sees(j) ? exp_vector(load(scores + j * kQueries) - largest) : F{};
      sum += w;
      return (__m512)w;
    };
    // The lower halves of the pairs come from the even keys.
    const __m512i interleave = (__m512i)(__v32hi){0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    for (std::int64_t slice = 0; slice < key_slices_; ++slice) {
      __m512i pairs[16];
      for (std::int64_t i = 0; i < 16; ++i) {
        const __m512 even = weight(slice * kSlice + 2 * i), odd = weight(slice * kSlice + 2 * i + 1);
        pairs[i] = _mm512_permutexvar_epi16(interleave, to_bf16(even, odd));
      }
      transpose(pairs);
      for (int i = 0; i < 16; ++i) _mm512_store_si512(weights_[t * key_slices_ + slice].pairs[i], pairs[i]);
    }
    finish_stores(weights_);
    for (std::int64_t i = 0; i < queries; ++i)
      *queries_[t * kTileRows + i].largest = largest[i], *queries_[t * kTileRows + i].sum = sum[i];
  }

  /// Packs the values of key slice `first` + `i` as right operands, two for 32 dimensions.
  void pack_values(std::int64_t first, std::int64_t i) {
    const __m512i low = (__m512i)(__v32hi){0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                           8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const Bf16* rows[kSlice];
    for (std::int64_t r = 0; r < kSlice; ++r)
      rows[r] = exists(key(first + i, r)) ? a_.v + slot(key(first + i, r)) * a_.row_stride : nullptr;
    for (std::int64_t b = 0; b < dim_slices_; ++b) {
      fetch(a_.v, first + i + 1, b);
      const auto values = [&](std::int64_t r) {
        return rows[r] == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(rows[r] + b * kSlice);
      };
      Operand* const to = values_ + (b * kChunk + i) * 2;
      for (std::int64_t pair = 0; pair < 16; ++pair) {
        const __m512i even = values(2 * pair), odd = values(2 * pair + 1);
        _mm512_store_si512(to[0].pairs[pair], _mm512_permutex2var_epi16(even, low, odd));
        _mm512_store_si512(to[1].pairs[pair], _mm512_permutex2var_epi16(even, high, odd));
      }
    }
  }

  /// out_ += weights times values, for kCount tiles of queries, the b-th 32 dimensions and a chunk of keys.
  template <int kCount>
  void add_values(std::int64_t t, std::int64_t b, std::int64_t first, std::int64_t slices) {
    Sums* const sums = out_ + 2 * (t * dim_slices_ + b);
    Sums* const next = sums + 2 * dim_slices_;
    if (first == 0) {
      zero_sums();
    } else {
      _tile_loadd(0, sums[0].rows, 64);
      _tile_loadd(1, sums[1].rows, 64);
      if constexpr (kCount == 2) {
        _tile_loadd(2, next[0].rows, 64);
        _tile_loadd(3, next[1].rows, 64);
      }
    }
    for (std::int64_t i = 0; i < slices; ++i) {
      const Operand* const values = values_ + (b * kChunk + i) * 2;
      _tile_loadd(4, weights_[t * key_slices_ + first + i].pairs, 64);
      _tile_loadd(6, values[0].pairs, 64);
      _tile_loadd(7, values[1].pairs, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kCount == 2) {
        _tile_loadd(5, weights_[(t + 1) * key_slices_ + first + i].pairs, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, sums[0].rows, 64);
    _tile_stored(1, sums[1].rows, 64);
    if constexpr (kCount == 2) {
      _tile_stored(2, next[0].rows, 64);
      _tile_stored(3, next[1].rows, 64);
    }
    finish_stores(out_);
  }

  void write(std::int64_t i) const {
    const Sums* const from = out_ + 2 * (i / kTileRows * dim_slices_);
    for (std::int64_t d = 0; d < a_.head_dim; d += kTileRows)
      store(queries_[i].out + d, load(from[d / kTileRows].rows[i % kTileRows]));
  }

  const AttendArgs<Bf16>& a_;
  const AttendQuery* const queries_;
  const std::int64_t count_, tiles_, dim_slices_;
  const std::int64_t offset_;  ///< offset of the first key in its slice
  const std::int64_t key_slices_;
  const std::int64_t first_slot_ = a_.first % a_.capacity;
  Operand* q_;        ///< [tiles, dim_slices], right: 16 queries
  Operand* weights_;  ///< [tiles, key_slices], left: 16 queries
  Operand* values_;   ///< [dim_slices, kChunk, 2], right: 16 dimensions
  Sums* out_;         ///< [tiles, dim_slices, 2]
  float* scores_;     ///< [key_slices * kSlice, kQueries]
  Bf16* edge_;        ///< [kSlice, head_dim]
};

}  // namespace

void attend_amx(const AttendArgs<Bf16>& a) {
  if (a.head_dim % kSlice != 0) return kAvx512Kernels.attend_bf16(a);
  static thread_local Scratch scratch;
  configure_tiles();  // 0 to 3: sums [16, 16]. 4, 5: left operands. 6, 7: right ones
  for (std::int64_t first = 0; first < a.query_count; first += kQueries) Attention(a, first, scratch).run();
  _tile_release();
}

}  // namespace outrider
