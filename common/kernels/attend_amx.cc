// Attention over bfloat16 keys and values with AMX tiles, for any number of queries.
//
// Queries and weights are rounded to bfloat16, as the products of bfloat16 models are; sums are float32. Keys are taken
// in blocks of 32 that lie at multiples of 32 positions, whoever sees them. To a key that it does not see a query gives
// the weight zero, which adds nothing to a finite value: so a query gets the same bits alone and beside any others.
#include <immintrin.h>

#include <cstdlib>

#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

constexpr int kLanes = 16;
__m512 fma_lanes(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
#include "common/kernels/amx_tiles.inc"
#include "common/kernels/vector_lanes.inc"

constexpr std::int64_t kBlock = 32;    ///< keys or dimensions that one product adds up
constexpr std::int64_t kQueries = 64;  ///< that read the keys together; their scores stay in the L2 cache
constexpr std::int64_t kTiles = kQueries / kTile;
constexpr std::int64_t kChunk =
    4;  ///< blocks of keys whose packed values stay in the cache while every query meets them

/// An operand: 16 rows of 32 bfloat16. On the right, row i has elements 2i and 2i + 1 of 16 columns.
struct alignas(64) Operand {
  std::uint32_t pairs[16][16];
};
/// A tile of sums.
struct alignas(64) Sums {
  float rows[kTile][kTile];
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

/// 32 floats to bfloat16, the first half from `low`.
__m512i to_bf16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

/// Everything that the call needs besides its arguments; kept by the thread.
class Scratch {
 public:
  ~Scratch() { std::free(memory_); }
  /// Sets out for the next take()s, `bytes` of them in all.
  void begin(std::size_t bytes) {
    used_ = 0;
    if (bytes <= size_) return;
    std::free(memory_);
    size_ = bytes;
    memory_ = static_cast<std::byte*>(std::aligned_alloc(64, bytes));
    if (memory_ == nullptr) __builtin_trap();
  }
  template <typename T>
  T* take(std::int64_t count) {
    T* const at = reinterpret_cast<T*>(memory_ + used_);
    used_ += static_cast<std::size_t>(count) * sizeof(T);
    return at;
  }

 private:
  std::byte* memory_ = nullptr;
  std::size_t size_ = 0, used_ = 0;
};

/// Up to kQueries queries against all keys.
class Attention {
 public:
  Attention(const AttendArgs<Bf16>& a, std::int64_t first_query, Scratch& scratch)
      : a_(a),
        queries_(a.queries + first_query),
        count_(lesser(kQueries, a.query_count - first_query)),
        tiles_(divide_up(count_, kTile)),
        dim_blocks_(a.head_dim / kBlock),
        offset_(a.first % kBlock),
        key_blocks_(divide_up(offset_ + a.count, kBlock)) {
    scratch.begin(static_cast<std::size_t>(kTiles * dim_blocks_ + kTiles * key_blocks_ + 2 * dim_blocks_ * kChunk) *
                      sizeof(Operand) +
                  static_cast<std::size_t>(2 * kTiles * dim_blocks_) * sizeof(Sums) +
                  static_cast<std::size_t>(key_blocks_ * kBlock * kQueries) * sizeof(float) +
                  static_cast<std::size_t>(kBlock * a.head_dim) * sizeof(Bf16));
    q_ = scratch.take<Operand>(kTiles * dim_blocks_);
    weights_ = scratch.take<Operand>(kTiles * key_blocks_);
    values_ = scratch.take<Operand>(2 * dim_blocks_ * kChunk);
    out_ = scratch.take<Sums>(2 * kTiles * dim_blocks_);
    scores_ = scratch.take<float>(key_blocks_ * kBlock * kQueries);
    edge_ = scratch.take<Bf16>(kBlock * a.head_dim);
  }

  void run() {
    for (std::int64_t t = 0; t < tiles_; ++t) pack_queries(t);
    for (std::int64_t block = 0; block < key_blocks_; ++block) score_block(block);
    for (std::int64_t t = 0; t < tiles_; ++t) weigh(t);
    for (std::int64_t first = 0; first < key_blocks_; first += kChunk) {
      const std::int64_t blocks = lesser(kChunk, key_blocks_ - first);
      for (std::int64_t i = 0; i < blocks; ++i) pack_values(first, i);
      finish_stores(values_);
      for (std::int64_t b = 0; b < dim_blocks_; ++b) {
        std::int64_t t = 0;
        for (; t + 2 <= tiles_; t += 2) add_values<2>(t, b, first, blocks);
        if (t < tiles_) add_values<1>(t, b, first, blocks);
      }
    }
    for (std::int64_t i = 0; i < count_; ++i) write(i);
  }

 private:
  /// Key `block * kBlock + i` of the blocks, as a key of a_; it may lie outside of them at both ends.
  std::int64_t key(std::int64_t block, std::int64_t i) const { return block * kBlock + i - offset_; }
  bool exists(std::int64_t key) const { return key >= 0 && key < a_.count; }
  std::int64_t slot(std::int64_t key) const {
    const std::int64_t slot = first_slot_ + key;
    return slot >= a_.capacity ? slot - a_.capacity : slot;
  }

  void pack_queries(std::int64_t t) {
    for (std::int64_t b = 0; b < dim_blocks_; ++b) {
      __m512i rows[16];
      for (std::int64_t i = 0; i < kTile; ++i) {
        const bool in = t * kTile + i < count_;
        const float* q = in ? queries_[t * kTile + i].q + b * kBlock : nullptr;
        rows[i] = in ? to_bf16(_mm512_loadu_ps(q), _mm512_loadu_ps(q + kLanes)) : _mm512_setzero_si512();
      }
      transpose(rows);
      for (int i = 0; i < 16; ++i) _mm512_store_si512(q_[t * dim_blocks_ + b].pairs[i], rows[i]);
    }
    finish_stores(q_);
  }

  /// The rows of a block of keys, row_stride apart; copied, with zeros for those that do not exist, where the ring or
  /// the keys end within it.
  const Bf16* key_rows(std::int64_t block, std::int64_t* row_stride) {
    const std::int64_t first = key(block, 0), last = key(block, kBlock - 1);
    if (exists(first) && exists(last) && slot(first) < slot(last)) {
      *row_stride = a_.row_stride;
      return a_.k + slot(first) * a_.row_stride;
    }
    for (std::int64_t i = 0; i < kBlock; ++i) {
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

  /// Fetches the share i of a later block's rows; the dim_blocks_ shares together are all of them.
  void fetch(const Bf16* rows, std::int64_t block, std::int64_t i) const {
    for (std::int64_t r = i * kBlock / dim_blocks_; r < (i + 1) * kBlock / dim_blocks_; ++r) {
      if (!exists(key(block, r))) continue;
      const Bf16* const row = rows + slot(key(block, r)) * a_.row_stride;
      for (std::int64_t d = 0; d < a_.head_dim; d += kBlock)
        _mm_prefetch(reinterpret_cast<const char*>(row + d), _MM_HINT_T0);
    }
  }

  void score_block(std::int64_t block) {
    std::int64_t row_stride = 0;
    const Bf16* const k = key_rows(block, &row_stride);
    std::int64_t t = 0;
    for (; t + 2 <= tiles_; t += 2) score<2>(k, row_stride, t, block);
    if (t < tiles_) score<1>(k, row_stride, t, block);
  }

  /// Scores of a block's keys with kCount tiles of queries, to scores_[key, query].
  template <int kCount>
  void score(const Bf16* k, std::int64_t row_stride, std::int64_t t, std::int64_t block) {
    const std::int64_t bytes = row_stride * static_cast<std::int64_t>(sizeof(Bf16));
    _tile_zero(0);
    _tile_zero(2);
    if constexpr (kCount == 2) {
      _tile_zero(1);
      _tile_zero(3);
    }
    for (std::int64_t b = 0; b < dim_blocks_; ++b) {
      if (t == 0) fetch(a_.k, block + 1, b);
      _tile_loadd(4, k + b * kBlock, bytes);
      _tile_loadd(5, k + kTile * row_stride + b * kBlock, bytes);
      _tile_loadd(6, q_[t * dim_blocks_ + b].pairs, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kCount == 2) {
        _tile_loadd(7, q_[(t + 1) * dim_blocks_ + b].pairs, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    float* const to = scores_ + block * kBlock * kQueries + t * kTile;
    constexpr std::int64_t kBytes = kQueries * static_cast<std::int64_t>(sizeof(float));
    _tile_stored(0, to, kBytes);
    _tile_stored(2, to + kTile * kQueries, kBytes);
    if constexpr (kCount == 2) {
      _tile_stored(1, to + kTile, kBytes);
      _tile_stored(3, to + kTile * kQueries + kTile, kBytes);
    }
    finish_stores(scores_);
  }

  /// The softmax of a tile's queries, a lane each: weights_ := exp(score - the largest), zero where a query sees
  /// nothing.
  void weigh(std::int64_t t) {
    alignas(64) std::int32_t begin[kLanes] = {}, end[kLanes] = {};
    const std::int64_t queries = lesser(kTile, count_ - t * kTile);
    for (std::int64_t i = 0; i < queries; ++i) {
      begin[i] = static_cast<std::int32_t>(queries_[t * kTile + i].begin + offset_),
      end[i] = static_cast<std::int32_t>(queries_[t * kTile + i].end + offset_);
    }
    const I from = load_as<I>(begin), to = load_as<I>(end);
    const float* const scores = scores_ + t * kTile;
    const std::int64_t keys = key_blocks_ * kBlock;
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
    for (std::int64_t block = 0; block < key_blocks_; ++block) {
      __m512i pairs[16];
      for (std::int64_t i = 0; i < 16; ++i) {
        const __m512 even = weight(block * kBlock + 2 * i), odd = weight(block * kBlock + 2 * i + 1);
        pairs[i] = _mm512_permutexvar_epi16(interleave, to_bf16(even, odd));
      }
      transpose(pairs);
      for (int i = 0; i < 16; ++i) _mm512_store_si512(weights_[t * key_blocks_ + block].pairs[i], pairs[i]);
    }
    finish_stores(weights_);
    for (std::int64_t i = 0; i < queries; ++i)
      *queries_[t * kTile + i].largest = largest[i], *queries_[t * kTile + i].sum = sum[i];
  }

  /// The values of block `first` + `i` of the keys as right operands, two for 32 dimensions.
  void pack_values(std::int64_t first, std::int64_t i) {
    const __m512i low = (__m512i)(__v32hi){0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                           8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const Bf16* rows[kBlock];
    for (std::int64_t r = 0; r < kBlock; ++r)
      rows[r] = exists(key(first + i, r)) ? a_.v + slot(key(first + i, r)) * a_.row_stride : nullptr;
    for (std::int64_t b = 0; b < dim_blocks_; ++b) {
      fetch(a_.v, first + i + 1, b);
      const auto values = [&](std::int64_t r) {
        return rows[r] == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(rows[r] + b * kBlock);
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
  void add_values(std::int64_t t, std::int64_t b, std::int64_t first, std::int64_t blocks) {
    Sums* const sums = out_ + 2 * (t * dim_blocks_ + b);
    Sums* const next = sums + 2 * dim_blocks_;
    if (first == 0) {
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (kCount == 2) {
        _tile_zero(2);
        _tile_zero(3);
      }
    } else {
      _tile_loadd(0, sums[0].rows, 64);
      _tile_loadd(1, sums[1].rows, 64);
      if constexpr (kCount == 2) {
        _tile_loadd(2, next[0].rows, 64);
        _tile_loadd(3, next[1].rows, 64);
      }
    }
    for (std::int64_t i = 0; i < blocks; ++i) {
      const Operand* const values = values_ + (b * kChunk + i) * 2;
      _tile_loadd(4, weights_[t * key_blocks_ + first + i].pairs, 64);
      _tile_loadd(6, values[0].pairs, 64);
      _tile_loadd(7, values[1].pairs, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kCount == 2) {
        _tile_loadd(5, weights_[(t + 1) * key_blocks_ + first + i].pairs, 64);
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
    const Sums* const from = out_ + 2 * (i / kTile * dim_blocks_);
    for (std::int64_t d = 0; d < a_.head_dim; d += kTile)
      store(queries_[i].out + d, load(from[d / kTile].rows[i % kTile]));
  }

  const AttendArgs<Bf16>& a_;
  const AttendQuery* const queries_;
  const std::int64_t count_, tiles_, dim_blocks_;
  const std::int64_t offset_;  ///< of the first key in its block
  const std::int64_t key_blocks_;
  const std::int64_t first_slot_ = a_.first % a_.capacity;
  Operand* q_;        ///< [tiles, dim_blocks], right: 16 queries
  Operand* weights_;  ///< [tiles, key_blocks], left: 16 queries
  Operand* values_;   ///< [dim_blocks, kChunk, 2], right: 16 dimensions
  Sums* out_;         ///< [tiles, dim_blocks, 2]
  float* scores_;     ///< [key_blocks * kBlock, kQueries]
  Bf16* edge_;        ///< [kBlock, head_dim]
};

}  // namespace

void attend_amx(const AttendArgs<Bf16>& a) {
  if (a.head_dim % kBlock != 0) return kAvx512Kernels.attend_bf16(a);
  static thread_local Scratch scratch;
  configure_tiles();  // 0 to 3: sums [16, 16]. 4, 5: left operands. 6, 7: right ones
  for (std::int64_t first = 0; first < a.query_count; first += kQueries) Attention(a, first, scratch).run();
  _tile_release();
}

}  // namespace outrider
