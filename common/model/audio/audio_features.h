#pragma once

#include <cstdint>
#include <span>

#include "common/compute/tensor/tensor.h"

namespace outrider {

/// What a sound is to the models: samples of one channel, this many a second, as a rule from -1 to 1.
inline constexpr std::int64_t kSampleRate = 16000;
/// The longest sound that a tower hears, 30 s, and the shortest of which a frame can be made.
inline constexpr std::int64_t kSamplesMax = 30 * kSampleRate, kSamplesMin = 161;
/// Numbers that describe a frame: loudness by pitch.
inline constexpr std::int64_t kMelBins = 128;

/// How many frames a sound has, one every 10 ms: those whose samples are all there. 0 of fewer than kSamplesMin.
std::int64_t frame_count(std::int64_t samples);
/// How many soft tokens they become: a fourth, rounded up; 750 of 30 s.
std::int64_t audio_soft_tokens(std::int64_t samples);

/// The logarithms of a sound's mel spectrum [frame_count, kMelBins], as Hugging Face's feature extractor computes them
/// (gemma4.md 9.1). Frames are independent, so the bits do not depend on the number of threads.
Tensor audio_features(std::span<const float> samples);

}  // namespace outrider
