#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "common/base/time.h"
#include "common/compute/tensor/tensor.h"

namespace outrider {

/// Consecutive columns of a row: consecutive outputs of a matrix.
struct Columns {
  std::int64_t begin = 0, count = 0;
  std::int64_t end() const { return begin + count; }
};

/// Rank of a process among those that compute one model together, and its share of columns.
struct ShardPlace {
  int rank = 0, count = 1;
  /// Returns this shard's columns of `n`: whole blocks of packed weights if there is a block for every shard.
  Columns share(std::int64_t n) const;
};

/// The processes that compute one model together (ADR 17). Each has some outputs of every matrix and some heads of
/// every layer's K/V, computes these columns of a row, and gets the others from the other shards: an output is the same
/// sum in the same order on any shard, so that the bits are those of one process. All make the same calls in the same
/// order. Null stands for a process that computes everything itself.
class Shards {
 public:
  explicit Shards(ShardPlace place) : place_(place) {}
  virtual ~Shards() = default;

  const ShardPlace& place() const { return place_; }
  /// Exchanges columns: each shard has filled columns `own` of `rows`, and on return each has all. Throws if they
  /// cannot arrive any more.
  void gather(Matrix<float> rows, Columns own);
  /// @param watch  called ten times a second while waiting for others; throws to end the wait
  void set_watch(std::function<void()> watch) { watch_ = std::move(watch); }

  /// Most floats of a piece: a row of the largest vocabularies, or 16 rows of a prompt's layers.
  static constexpr std::int64_t kPieceFloats = 1 << 20;

 protected:
  /// Time of spinning before a waiting process sleeps: shards' times often differ by less.
  static constexpr Duration kSpin = std::chrono::microseconds(100);

  /// gather() of rows that fit one piece.
  virtual void gather_piece(Matrix<float> rows, Columns own) = 0;
  /// Completed pieces: the same number on all shards.
  std::uint32_t gathers() const { return gathers_; }
  void call_watch() const {
    if (watch_) watch_();
  }

 private:
  ShardPlace place_;
  std::uint32_t gathers_ = 0;
  std::function<void()> watch_;
};

inline ShardPlace place_of(const Shards* shards) { return shards == nullptr ? ShardPlace{} : shards->place(); }
inline void gather(Shards* shards, Matrix<float> rows, Columns own) {
  if (shards != nullptr) shards->gather(rows, own);
}

}  // namespace outrider
