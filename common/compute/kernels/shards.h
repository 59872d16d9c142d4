#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "common/base/time.h"
#include "common/compute/tensor/tensor.h"

namespace outrider {

/// Consecutive columns of a row, which are consecutive outputs of a matrix.
struct Columns {
  std::int64_t begin = 0, count = 0;
  std::int64_t end() const { return begin + count; }
};

/// Which of the processes that compute one model together a process is, and what is its own of so many columns.
struct ShardPlace {
  int rank = 0, count = 1;
  /// This one's columns of `n`: in whole blocks of packed weights where there is a block for everybody.
  Columns share(std::int64_t n) const;
};

/// The processes that compute one model together (ADR 17). Each holds some outputs of every matrix and some heads of
/// every layer's K/V, computes these columns of a row, and gets the others from whoever computed them: an output is the
/// same sum in the same order whoever computes it, so the bits are those of one process. All of them make the same
/// calls in the same order. Null stands for a process that computes all by itself.
class Shards {
 public:
  explicit Shards(ShardPlace place) : place_(place) {}
  virtual ~Shards() = default;

  const ShardPlace& place() const { return place_; }
  /// Each shard has filled columns `own` of `rows`; together these are all. On return each has all of them. Throws
  /// where they cannot come any more.
  void gather(Matrix<float> rows, Columns own);
  /// @param watch  called ten times a second where others are waited for; it throws to end the waiting
  void set_watch(std::function<void()> watch) { watch_ = std::move(watch); }

  /// Most floats of a piece: a row of the largest vocabularies, or 16 of what a prompt's layers gather.
  static constexpr std::int64_t kPieceFloats = 1 << 20;

 protected:
  /// How long who waits spins before it sleeps: others are often as fast to within that.
  static constexpr Duration kSpin = std::chrono::microseconds(100);

  /// gather() of rows that are one piece.
  virtual void gather_piece(Matrix<float> rows, Columns own) = 0;
  /// Pieces that are over: all shards have the same number.
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
