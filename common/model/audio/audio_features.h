#pragma once

#include <cstdint>
#include <span>

#include "common/compute/tensor/tensor.h"

namespace outrider {

/// Sample rate of the models' input: samples of one channel, as a rule from -1 to 1.
inline constexpr std::int64_t kSampleRate = 16000;
/// Longest input of a tower, 30 s, and the shortest that makes a frame.
inline constexpr std::int64_t kSamplesMax = 30 * kSampleRate, kSamplesMin = 161;
/// Mel bins per frame.
inline constexpr std::int64_t kMelBins = 128;

/// Returns the number of complete frames, one every 10 ms; 0 below kSamplesMin.
std::int64_t frame_count(std::int64_t samples);
/// Returns the number of soft tokens: a fourth of the frames, rounded up; 750 for 30 s.
std::int64_t audio_soft_tokens(std::int64_t samples);

/// Returns the log-mel spectrum [frame_count, kMelBins] as Hugging Face's feature extractor computes it (gemma4.md
/// 9.1). Frames are independent, so that the bits do not depend on the number of threads.
Tensor audio_features(std::span<const float> samples);

}  // namespace outrider
