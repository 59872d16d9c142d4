#include "verifier-node/towers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace outrider {
namespace {

Result<SoftTokens> of_picture(const VisionConfig& config, const WireTensor& pixels) {
  const bool is_picture = pixels.dtype == DType::kU8 && pixels.shape.size() == 3 && pixels.shape[2] == 3;
  const std::int64_t height = is_picture ? pixels.shape[0] : 0, width = is_picture ? pixels.shape[1] : 0;
  const std::int64_t side = config.soft_token_side();
  const std::int64_t longest =
      std::min(kSoftTokenBudgets.back() * side, config.position_embedding_size * config.patch_size);
  const bool fits = 0 < height && height <= longest && 0 < width && width <= longest && height % side == 0 &&
                    width % side == 0 && (height / side) * (width / side) <= kSoftTokenBudgets.back();
  if (fits) return SoftTokens{(height / side) * (width / side), config.both_ways};
  return Error{
      Errc::kInvalidArgument,
      fmt::format("a picture of {} [{}], wanted U8 [height, width, 3], with sides that are multiples of {} up "
                  "to {}, and at most {} soft tokens",
                  to_string(pixels.dtype), fmt::join(pixels.shape, ", "), side, longest, kSoftTokenBudgets.back())};
}

std::vector<float> samples_of(const WireTensor& content) {
  std::vector<float> samples(content.data.bytes().size() / sizeof(float));
  std::memcpy(samples.data(), content.data.bytes().data(), samples.size() * sizeof(float));
  return samples;
}

Result<SoftTokens> of_sound(const AudioConfig& config, const WireTensor& content) {
  const std::int64_t count = content.shape.size() == 1 ? content.shape[0] : 0;
  if (count < kSamplesMin || count > kSamplesMax) {
    return Error{Errc::kInvalidArgument, fmt::format("a sound of F32 [{}], wanted one axis of {} to {} samples",
                                                     fmt::join(content.shape, ", "), kSamplesMin, kSamplesMax)};
  }
  if (!std::ranges::all_of(samples_of(content), [](float sample) { return std::isfinite(sample); }))
    return Error{Errc::kInvalidArgument, "a sound with samples that are not finite numbers"};
  return SoftTokens{.count = config.soft_tokens(count)};
}

Tensor copy_of(Matrix<const float> rows) {
  Tensor copy(rows.size(0), rows.size(1));
  std::copy_n(rows.data(), rows.size(0) * rows.size(1), copy.view().data());
  return copy;
}

}  // namespace

Result<SoftTokens> Towers::soft_tokens(const WireMedium& medium) const {
  // Whatever is wrong with a tower, it is not the asker's to mend.
  if (medium.is_sound()) {
    if (!audio) return Error{Errc::kUnsupported, audio.error().message};
    return of_sound((*audio)->config(), medium.content);
  }
  if (!vision) return Error{Errc::kUnsupported, vision.error().message};
  return of_picture((*vision)->config(), medium.content);
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
