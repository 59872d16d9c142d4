#include "common/model/audio/audio_features.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <numbers>
#include <vector>

#include "common/compute/kernels/team.h"

namespace outrider {
namespace {

constexpr std::int64_t kHop = 160, kFrame = 320, kSilenceBefore = 160;
constexpr double kFloor = 1e-3;

/// In-place Fourier transform of 512 numbers: radix 2, in double, so that its rounding is far below a float's.
constexpr std::size_t kPoints = 512, kBins = kPoints / 2 + 1;
using Spectrum = std::array<std::complex<double>, kPoints>;

class Fourier {
 public:
  Fourier() {
    for (std::size_t i = 0; i < kPoints / 2; ++i)
      turns_[i] = std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(kPoints));
    for (std::size_t i = 0; i < kPoints; ++i) {
      for (std::size_t bit = 1; bit < kPoints; bit *= 2) reversed_[i] = 2 * reversed_[i] + ((i & bit) != 0 ? 1 : 0);
    }
  }
  void transform(Spectrum& x) const {
    for (std::size_t i = 0; i < kPoints; ++i)
      if (i < reversed_[i]) std::swap(x[i], x[reversed_[i]]);
    for (std::size_t half = 1; half < kPoints; half *= 2) {
      for (std::size_t first = 0; first < kPoints; first += 2 * half) {
        for (std::size_t i = 0; i < half; ++i) {
          const std::complex<double> turn = turns_[i * (kPoints / 2 / half)], odd = x[first + half + i];
          // operator* would handle infinities, which finite samples do not have.
          const std::complex<double> turned(odd.real() * turn.real() - odd.imag() * turn.imag(),
                                            odd.real() * turn.imag() + odd.imag() * turn.real());
          x[first + half + i] = x[first + i] - turned;
          x[first + i] += turned;
        }
      }
    }
  }

 private:
  std::array<std::complex<double>, kPoints / 2> turns_;
  std::array<std::size_t, kPoints> reversed_ = {};
};

/// Triangular filters over frequency in Hz, with corners evenly spaced on HTK's mel scale, not normalised by area.
struct MelFilter {
  std::size_t first = 0;  ///< first bin; the others follow
  std::vector<double> weights;
};

std::vector<MelFilter> mel_filters() {
  constexpr double kTop = static_cast<double>(kSampleRate) / 2;
  const double top_mel = 2595 * std::log10(1 + kTop / 700);
  const auto corner = [&](std::int64_t i) {
    return 700 * (std::pow(10, top_mel * static_cast<double>(i) / (kMelBins + 1) / 2595) - 1);
  };
  std::vector<MelFilter> filters(static_cast<std::size_t>(kMelBins));
  for (std::int64_t i = 0; i < kMelBins; ++i) {
    MelFilter& filter = filters[static_cast<std::size_t>(i)];
    const double low = corner(i), middle = corner(i + 1), high = corner(i + 2);
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      const double f = kTop * static_cast<double>(bin) / static_cast<double>(kBins - 1);
      const double weight = std::min((f - low) / (middle - low), (high - f) / (high - middle));
      if (weight <= 0) continue;
      if (filter.weights.empty()) filter.first = bin;
      filter.weights.push_back(weight);
    }
  }
  return filters;
}

std::array<double, kFrame> hann_window() {
  std::array<double, kFrame> window;
  for (std::size_t i = 0; i < window.size(); ++i)
    window[i] = 0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(kFrame));
  return window;
}

}  // namespace

std::int64_t frame_count(std::int64_t samples) {
  // A frame spans one sample more than it uses.
  return samples < kSamplesMin ? 0 : (kSilenceBefore + samples - (kFrame + 1)) / kHop + 1;
}

std::int64_t audio_soft_tokens(std::int64_t samples) { return (frame_count(samples) + 3) / 4; }

Tensor audio_features(std::span<const float> samples) {
  static const Fourier fourier;
  static const std::vector<MelFilter> filters = mel_filters();
  static const std::array<double, kFrame> window = hann_window();
  Tensor features(frame_count(std::ssize(samples)), kMelBins);
  team_for(features.rows(), 1, [&](std::int64_t frame) {
    Spectrum spectrum = {};
    const std::int64_t start = frame * kHop - kSilenceBefore;
    for (std::int64_t i = std::max<std::int64_t>(0, -start); i < kFrame; ++i)
      spectrum[static_cast<std::size_t>(i)] =
          window[static_cast<std::size_t>(i)] * static_cast<double>(samples[static_cast<std::size_t>(start + i)]);
    fourier.transform(spectrum);
    for (std::int64_t m = 0; m < kMelBins; ++m) {
      const MelFilter& filter = filters[static_cast<std::size_t>(m)];
      double sum = 0;
      for (std::size_t i = 0; i < filter.weights.size(); ++i)
        sum += filter.weights[i] * std::abs(spectrum[filter.first + i]);
      features.view()[frame][m] = static_cast<float>(std::log(sum + kFloor));
    }
  });
  return features;
}

}  // namespace outrider
