#include "coordinator-node/reputation.h"

#include <algorithm>
#include <tuple>

namespace outrider {
namespace {

constexpr Duration kPauseMin = std::chrono::seconds(8), kPauseMax = std::chrono::seconds(512);
constexpr double kWeight = 1.0 / 32;   ///< of a round in the yield
constexpr double kPausedBelow = 0.25;  ///< of the best other's yield

}  // namespace

double Reputation::burden(int sessions) const { return (sessions + 1) / std::max(yield_, kWeight); }

bool Reputation::is_better_than(const Reputation& other) const {
  return std::tuple(paused_, until_, pause_, -yield_) <
         std::tuple(other.paused_, other.until_, other.pause_, -other.yield_);
}

bool Reputation::count(bool accepted, double best_other, TimePoint now) {
  if (paused_) return false;  // a round that was in progress when it was paused
  yield_ += kWeight * ((accepted ? 1 : 0) - yield_);
  if (rounds_ < kTrial) ++rounds_;
  if (rounds_ < kTrial) return false;
  if (yield_ < kPausedBelow * best_other) {
    pause_ = std::clamp(2 * pause_, kPauseMin, kPauseMax);
    until_ = now + pause_;
    return paused_ = true;
  }
  if (pause_ > Duration::zero()) {
    pause_ = pause_ <= kPauseMin ? Duration::zero() : pause_ / 2;
    rounds_ = 0;
  }
  return false;
}

void Reputation::on_time(TimePoint now) {
  if (!paused_ || now < until_) return;
  Reputation again;
  again.pause_ = pause_;
  *this = again;
}

std::string key_name(const std::string& worker_name) { return worker_name.substr(0, worker_name.find('/')); }

}  // namespace outrider
