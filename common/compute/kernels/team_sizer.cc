#include "common/compute/kernels/team_sizer.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/base/check.h"

namespace outrider {
namespace {

constexpr std::int64_t kFewRows = 16;
constexpr int kFirstMost = 16;
/// Layers of a trial. The first does not count: its threads must be woken.
constexpr int kTrialLayers = 5;
/// Layers between two trials. With busy neighbours results may stay uncertain, and threads woken for a trial are late:
/// each undecided trial lengthens the pause, so that the search costs less and less.
constexpr int kPauseLeast = 8, kPauseLonger = 2, kPauseMost = 4096;
/// Weight of a new time in a layer's usual time.
constexpr double kWeight = 1.0 / 8;
/// Least share of time that another size must save, and the most layers to show it.
constexpr double kWorthIt = 0.03;
constexpr int kTriedMost = 128;
/// Layers, and factor of change, after which the machine counts as changed.
constexpr int kRecentLayers = 64;
constexpr double kOtherMachine = 1.2;

/// Returns 1, 2, 3, 4, 6, 8, 12, ..., and `most`, in descending order.
std::vector<int> ladder(int most) {
  std::vector<int> sizes;
  for (int power = 1; power < most; power *= 2) {
    sizes.push_back(power);
    if (power > 1 && power * 3 / 2 < most) sizes.push_back(power * 3 / 2);
  }
  sizes.push_back(most);
  std::ranges::reverse(sizes);
  return sizes;
}

}  // namespace

TeamSizer::TeamSizer(int most, std::size_t layers) : sizes_(ladder(most)), layers_(layers) {
  CHECK(most >= 1 && layers >= 1, "at most {} threads, {} layers", most, layers);
  const auto first = std::ranges::find_if(sizes_, [](int size) { return size <= kFirstMost; });
  for (Kind& kind : kinds_) {
    kind.size = static_cast<std::size_t>(first - sizes_.begin());
    kind.pause = kind.pauses = kPauseLeast;
  }
}

std::size_t TeamSizer::kind_of(std::int64_t rows) { return rows <= kFewRows ? 0 : 1; }

double& TeamSizer::usual(Kind& kind) const {
  const int key = static_cast<int>(
      now_.rows <= kFewRows ? now_.rows : kFewRows + std::bit_width(static_cast<std::uint64_t>(now_.rows)));
  std::vector<double>& layers = kind.usual[key];
  layers.resize(layers_);
  return layers[now_.layer];
}

std::optional<std::size_t> TeamSizer::size_after(const Kind& kind, std::size_t step) const {
  const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(kind.size) + kSteps[step];
  if (size < 0 || size >= std::ssize(sizes_)) return std::nullopt;
  return static_cast<std::size_t>(size);
}

int TeamSizer::next(std::int64_t rows, std::size_t layer) {
  now_ = {rows, layer};
  Kind& kind = kinds_[kind_of(rows)];
  if (kind.trial_layers == 0 && kind.pause <= 0) begin_trial(kind);
  if (kind.trial_layers == 0) return sizes_[kind.size];
  return sizes_[*size_after(kind, kind.step)];
}

void TeamSizer::begin_trial(Kind& kind) {
  for (std::size_t i = 0; i < kSteps.size(); ++i) {
    kind.step = (kind.step + 1) % kSteps.size();
    if (!kind.is_slower[kind.step] && size_after(kind, kind.step)) {
      kind.trial_layers = kTrialLayers;
      return;
    }
  }
  // All are slower: they are tried again, but after four times the pause.
  kind.is_slower = {};
  kind.pause = kind.pauses = std::min(4 * kind.pauses, kPauseMost);
}

void TeamSizer::took(Duration time) {
  const double seconds = to_seconds(time) / static_cast<double>(now_.rows > kFewRows ? now_.rows : 1);
  Kind& kind = kinds_[kind_of(now_.rows)];
  double& usual_seconds = usual(kind);
  if (kind.trial_layers > 0) {
    const bool counts = kind.trial_layers-- < kTrialLayers && usual_seconds > 0;
    if (counts) kind.tried[kind.step].add(seconds / usual_seconds);
    if (kind.trial_layers == 0) judge(kind);
    return;
  }
  --kind.pause;
  if (usual_seconds == 0) {
    usual_seconds = seconds;
    return;
  }
  kind.recent.add(seconds / usual_seconds);
  usual_seconds += kWeight * (seconds - usual_seconds);
  if (kind.recent.layers < kRecentLayers) return;
  if (kind.recent.mean() > kOtherMachine || kind.recent.mean() < 1 / kOtherMachine) {
    kind.pauses = kPauseLeast;
    kind.pause = std::min(kind.pause, kind.pauses);
    kind.is_slower = {};
  }
  kind.variance = kind.recent.variance();
  kind.recent = {};
}

void TeamSizer::Comparison::add(double ratio) {
  ++layers;
  sum += ratio;
  squares += ratio * ratio;
}

TeamSizer::Verdict TeamSizer::verdict(const Kind& kind) {
  const Comparison& tried = kind.tried[kind.step];
  // If a core is lost now and then, one such layer is no evidence. Both sides vary, even if a few layers agree.
  const double variance = std::max(tried.variance(), 0.0) + kind.variance;
  const double doubt = tried.layers < kTriedMost ? 2 * std::sqrt(variance / tried.layers) : 0;
  const double better = 1 - kWorthIt - tried.mean();
  if (better > doubt) return Verdict::kFaster;
  return better < -doubt ? Verdict::kSlower : Verdict::kOpen;
}

void TeamSizer::judge(Kind& kind) {
  kind.pause = kind.pauses;
  Comparison& tried = kind.tried[kind.step];
  if (tried.layers == 0) return;
  switch (verdict(kind)) {
    case Verdict::kOpen: kind.pauses = std::min(kind.pauses + kPauseLonger, kPauseMost); return;
    case Verdict::kSlower:
      kind.is_slower[kind.step] = true;
      tried = {};
      return;
    case Verdict::kFaster: return move(kind);
  }
}

void TeamSizer::move(Kind& kind) {
  const double ratio = kind.tried[kind.step].mean();
  for (auto& [rows, layers] : kind.usual)
    for (double& seconds : layers) seconds *= ratio;
  kind.size = *size_after(kind, kind.step);
  kind.tried = {};
  kind.is_slower = {};
  kind.recent = {};
  kind.pause = kind.pauses = kPauseLeast;
  kind.step = (kind.step + kSteps.size() - 1) % kSteps.size();  // begin_trial() continues in the successful direction
}

}  // namespace outrider
