#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/base/time.h"

namespace outrider {

/// Finds the fastest number of threads for a forward pass while it is used: more are not always faster. A few threads
/// can saturate the memory, and if another program takes a core, all wait for the thread on it.
///
/// Now and then a few layers are computed with another number, and their times are compared with the same layers'
/// earlier times. Passes of few rows, which read weights, and of many, which multiply, have a number each. After a
/// choice has been stable for long, trials become rare; when layer times change, they resume. Reads no clock: the
/// caller reports times.
class TeamSizer {
 public:
  /// @param most  threads; it starts with at most 16, since on some machines using all cores is extremely slow
  TeamSizer(int most, std::size_t layers);

  /// Returns the threads for a layer of a pass of `rows` rows.
  int next(std::int64_t rows, std::size_t layer);
  /// Reports the time of the last next()'s layer.
  void took(Duration time);

  /// Number for passes of `rows` rows outside trials.
  int chosen(std::int64_t rows) const { return sizes_[kinds_[kind_of(rows)].size]; }

 private:
  /// Times of layers, relative to their usual times with the chosen size.
  struct Comparison {
    int layers = 0;
    double sum = 0, squares = 0;

    void add(double ratio);
    double mean() const { return sum / layers; }
    double variance() const { return squares / layers - mean() * mean(); }
  };
  enum class Verdict { kOpen, kFaster, kSlower };

  /// Steps along sizes_ to candidates; the longer ones cross a local maximum.
  static constexpr std::array<int, 4> kSteps = {1, -1, 2, -2};
  struct Kind {
    std::size_t size = 0;  ///< index into sizes_
    std::array<Comparison, kSteps.size()> tried;
    std::array<bool, kSteps.size()> is_slower{};
    std::size_t step = 0;                      ///< index into kSteps of the current or last trial
    int trial_layers = 0;                      ///< remaining layers of the current trial
    int pause = 0, pauses = 0;                 ///< layers until the next trial; length of a pause
    Comparison recent;                         ///< of the chosen size itself
    double variance = 0;                       ///< of earlier times around the usual ones
    std::map<int, std::vector<double>> usual;  ///< seconds by rows (or their logarithm) and layer; 0: unknown
  };

  static std::size_t kind_of(std::int64_t rows);
  std::optional<std::size_t> size_after(const Kind& kind, std::size_t step) const;
  void begin_trial(Kind& kind);
  static Verdict verdict(const Kind& kind);
  void judge(Kind& kind);
  void move(Kind& kind);
  /// Usual time of the last next()'s layer with the chosen size.
  double& usual(Kind& kind) const;

  std::vector<int> sizes_;  ///< descending
  std::size_t layers_;
  std::array<Kind, 2> kinds_;
  struct {
    std::int64_t rows = 1;
    std::size_t layer = 0;
  } now_;
};

}  // namespace outrider
