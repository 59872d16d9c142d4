#include "common/media/towers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/model/gemma4/numeric_class.h"
#include "common/model/gemma4/tower.h"
#include "common/os/logging.h"

namespace outrider {
namespace {

Result<SoftTokens> of_picture(const VisionConfig& config, const WireTensor& pixels) {
  const bool is_picture = pixels.dtype == DType::kU8 && pixels.shape.size() == 3 && pixels.shape[2] == 3;
  const std::int64_t height = is_picture ? pixels.shape[0] : 0, width = is_picture ? pixels.shape[1] : 0;
  const std::int64_t side = config.soft_token_side();
  const std::int64_t longest =
      std::min(kSoftTokenBudgets.back() * side, config.position_embedding_size * config.patch_size);
  const bool fits = 0 < height && height <= longest && 0 < width && width <= longest && height % side == 0 &&
                    width % side == 0 && soft_token_count(height, width, config) <= kSoftTokenBudgets.back();
  if (fits) return SoftTokens{soft_token_count(height, width, config), config.both_ways};
  return Error(Errc::kInvalidArgument,
               "a picture of {} [{}], wanted U8 [height, width, 3], with sides that are multiples of {} up "
               "to {}, and at most {} soft tokens",
               to_string(pixels.dtype), fmt::join(pixels.shape, ", "), side, longest, kSoftTokenBudgets.back());
}

std::vector<float> samples_of(const WireTensor& content) {
  std::vector<float> samples(content.data.bytes().size() / sizeof(float));
  std::memcpy(samples.data(), content.data.bytes().data(), samples.size() * sizeof(float));
  return samples;
}

Result<SoftTokens> of_sound(const AudioConfig& config, const WireTensor& content) {
  const std::int64_t count = content.shape.size() == 1 ? content.shape[0] : 0;
  if (count < kSamplesMin || count > kSamplesMax) {
    return Error(Errc::kInvalidArgument, "a sound of F32 [{}], wanted one axis of {} to {} samples",
                 fmt::join(content.shape, ", "), kSamplesMin, kSamplesMax);
  }
  if (!std::ranges::all_of(samples_of(content), [](float sample) { return std::isfinite(sample); }))
    return Error{Errc::kInvalidArgument, "a sound with samples that are not finite numbers"};
  return SoftTokens{.count = config.soft_tokens(count)};
}

/// Two soft tokens high and wide, or half a second: enough to pass through every layer.
WireTensor probe_picture(const VisionConfig& config) {
  const std::int64_t side = 2 * config.soft_token_side();
  const auto pixels = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(3 * side * side));
  for (std::size_t i = 0; i < pixels->size(); ++i) (*pixels)[i] = static_cast<std::byte>(37 * i + 11);
  return {.dtype = DType::kU8, .shape = {side, side, 3}, .data = SharedBytes(pixels, *pixels)};
}

WireTensor probe_sound() {
  const auto samples = std::make_shared<std::vector<float>>();
  for (int i = 0; i < 8000; ++i) samples->push_back(static_cast<float>(i * 37 % 256 - 128) / 256);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(*samples));
  return {.dtype = DType::kF32, .shape = {std::ssize(*samples)}, .data = SharedBytes(samples, bytes)};
}

Tensor copy_of(Matrix<const float> rows) {
  Tensor copy(rows.size(0), rows.size(1));
  std::copy_n(rows.data(), rows.size(0) * rows.size(1), copy.view().data());
  return copy;
}

}  // namespace

std::string without_tower(Errc code, bool is_sound) {
  const auto [tower, senses] =
      is_sound ? std::pair("audio tower", "hear sounds") : std::pair("vision tower", "see pictures");
  if (code == Errc::kNotFound) return fmt::format("this model has no {}, and cannot {}", tower, senses);
  return fmt::format("this model's {} cannot be used, so the model cannot {}", tower, senses);
}

Towers Towers::load(const ModelFiles& files, WeightType type) {
  Towers towers{PictureEncoder::load(files, type), SoundEncoder::load(files, type)};
  if (!towers.vision) log_info("event=no_vision_tower reason=\"{}\"", towers.vision.error().message);
  if (!towers.audio) log_info("event=no_audio_tower reason=\"{}\"", towers.audio.error().message);
  return towers;
}

Result<SoftTokens> Towers::soft_tokens(const WireMedium& medium) const {
  // A broken tower is not the requester's fault.
  const bool is_sound = medium.is_sound();
  if (is_sound && !audio) return Error{Errc::kUnsupported, without_tower(audio.error().code, is_sound)};
  if (!is_sound && !vision) return Error{Errc::kUnsupported, without_tower(vision.error().code, is_sound)};
  return is_sound ? of_sound((*audio)->config(), medium.content) : of_picture((*vision)->config(), medium.content);
}

std::string Towers::encoding_class(WeightType type, std::uint64_t fingerprint) {
  if (!vision && !audio) return "";
  std::uint64_t probe = 0;
  const auto add = [&](WireTensor content) {
    const Tensor rows = encode({.content = std::move(content)}, [] {});
    for (std::int64_t i = 0; i < rows.rows(); ++i) probe = probe_hash(probe, rows.view()[i].span());
  };
  if (vision) add(probe_picture((*vision)->config()));
  if (audio) add(probe_sound());
  return numeric_class(tower_type(type), vision ? (*vision)->gemm_implementation() : "", fingerprint, probe);
}

Tensor Towers::encode(const WireMedium& medium, const std::function<void()>& between_steps) {
  if (medium.is_sound()) return copy_of((*audio)->encode(samples_of(medium.content), nullptr, &between_steps));
  const std::span<const std::byte> pixels = medium.content.data.bytes();
  const auto* const first = reinterpret_cast<const std::uint8_t*>(pixels.data());
  const Result<Patches> patches = cut_into_patches(
      {medium.content.shape[0], medium.content.shape[1], {first, first + pixels.size()}}, (*vision)->config());
  CHECK(patches.has_value(), "the core let a picture in: {}", patches.error().message);
  return copy_of((*vision)->encode(*patches, nullptr, &between_steps));
}

}  // namespace outrider
