#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/compute/kernels/ops.h"
#include "common/model/audio/sound_encoder.h"
#include "common/model/gemma4/clipped_linear.h"
#include "common/model/gemma4/tower.h"

namespace outrider {

/// The audio tower of Gemma 4 E2B and E4B with its projection to the text model's width (gemma4.md 9.2). It makes one
/// soft token of four frames.
class AudioTower : public SoundEncoder {
 public:
  /// A tensor that every model with this tower has.
  static constexpr const char* kMark = "model.audio_tower.output_proj.weight";

  static Result<std::unique_ptr<SoundEncoder>> load(const AudioConfig& config,
                                                    std::shared_ptr<const WeightSource> weights);

  Matrix<const float> encode(std::span<const float> samples, const Trace& trace = {},
                             const std::function<void()>* between_steps = nullptr) override {
    const Tensor features = audio_features(samples);
    return encode_features(features.view(), trace, between_steps);
  }
  /// Encodes a sound's features [frames, kMelBins] from audio_features(); at least one frame.
  /// @param between_steps  called several times in every layer
  Matrix<const float> encode_features(Matrix<const float> features, const Trace& trace = {},
                                      const std::function<void()>* between_steps = nullptr);

 private:
  struct FeedForward {
    std::vector<float> pre_norm, post_norm;
    ClippedLinear up, down;

    static Result<FeedForward> load(const WeightReader& weights, const AudioConfig& config);
  };
  struct Layer {
    FeedForward before, after;
    std::vector<float> pre_attention_norm, post_attention_norm, pre_convolution_norm, convolution_norm, out_norm;
    std::vector<float> query_factors;  ///< [head_dim], from per_dim_scale
    ClippedLinear q, k, v, post, start, end;
    Linear relative_k;
    std::vector<float> kernel;  ///< [conv_kernel_size, hidden_size]; the last tap is the present frame

    static Result<Layer> load(const WeightReader& weights, const AudioConfig& config);
  };
  /// A 3 x 3 convolution over time and pitch with stride 2, and its norm.
  struct Subsampling {
    Linear kernel;  ///< [channels out, channels in * 3 * 3]
    std::vector<float> norm;

    static Result<Subsampling> load(const WeightReader& weights, std::int64_t in, std::int64_t out);
  };
  /// Scratch memory of one encode, by purpose.
  struct Scratch {
    Buffer columns, halved, quartered, x, normed, clipped, q, k, v, distances, relative, attention, inner, gates;
    Buffer output, soft;
  };

  using SoundEncoder::SoundEncoder;

  /// y = rms_norm(x within gradient_clipping). y may be x.
  void bounded_norm(Matrix<const float> x, const std::vector<float>& weight, Matrix<float> y) const;
  /// Reduces the frames to a fourth. @return [rows, hidden_size]
  Matrix<float> subsample(Matrix<const float> features);
  /// x [frames, pitches, channels], as rows of all but the last axis. @return the same with half the frames and pitches
  Matrix<float> convolve(const Subsampling& block, Matrix<const float> x, std::int64_t pitches, Buffer& out);
  void forward(const Layer& layer, Matrix<float> x);
  void feed_forward(const FeedForward& part, Matrix<float> x);
  /// h := post(attention of h)
  void attention(const Layer& layer, Matrix<float> h);
  void attend_to_past(const Layer& layer, Matrix<const float> q, Matrix<const float> k, Matrix<const float> v,
                      Matrix<float> out);
  void convolution(const Layer& layer, Matrix<float> x);

  Subsampling subsampling_[2];
  Linear input_projection_, output_projection_, embedding_projection_;
  std::vector<float> output_bias_;
  std::vector<Layer> layers_;
  Scratch scratch_;
  Steps steps_;
};

}  // namespace outrider
