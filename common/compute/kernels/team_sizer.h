#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/base/time.h"

namespace outrider {

/// How many threads a forward pass is fastest with, found out while it is used: more are not always faster. Memory
/// gives its all to some, and where another program has a core, all wait for the thread that was on it.
///
/// Now and then a few layers are computed with another number, and what they take is compared with what the same
/// layers took before. Passes of few rows, which read weights, and of many, which multiply, have a number each. Beside
/// a choice that has held for long, hardly anything is tried; when layers begin to take another time, it is again.
/// Reads no clock: it is told what layers took.
class TeamSizer {
 public:
  /// @param most  threads; it begins with at most 16, since there are machines where all cores are a disaster
  TeamSizer(int most, std::size_t layers);

  /// @return threads for a layer of a pass of `rows` rows
  int next(std::int64_t rows, std::size_t layer);
  /// What the layer of the last next() took.
  void took(Duration time);

  /// The number that passes of `rows` rows have when nothing is tried.
  int chosen(std::int64_t rows) const { return sizes_[kinds_[kind_of(rows)].size]; }

 private:
  /// What layers took, in what they usually take with the size that is chosen.
  struct Comparison {
    int layers = 0;
    double sum = 0, squares = 0;

    void add(double ratio);
    double mean() const { return sum / layers; }
    double variance() const { return squares / layers - mean() * mean(); }
  };
  enum class Verdict { kOpen, kFaster, kSlower };

  /// Steps along sizes_, to where a better one is looked for; the far ones lead over a ridge.
  static constexpr std::array<int, 4> kSteps = {1, -1, 2, -2};
  struct Kind {
    std::size_t size = 0;  ///< of sizes_
    std::array<Comparison, kSteps.size()> tried;
    std::array<bool, kSteps.size()> is_slower{};
    std::size_t step = 0;                      ///< of kSteps: what is tried, or was last
    int trial_layers = 0;                      ///< that are still to come of the trial under way
    int pause = 0, pauses = 0;                 ///< layers until the next trial; how long a pause is
    Comparison recent;                         ///< with the chosen size itself
    double variance = 0;                       ///< of those before, around what is usual
    std::map<int, std::vector<double>> usual;  ///< seconds by rows (or their logarithm) and layer; 0: unknown
  };

  static std::size_t kind_of(std::int64_t rows);
  std::optional<std::size_t> size_after(const Kind& kind, std::size_t step) const;
  void begin_trial(Kind& kind);
  static Verdict verdict(const Kind& kind);
  void judge(Kind& kind);
  void move(Kind& kind);
  /// What the layer of the last next() takes with the chosen size.
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
