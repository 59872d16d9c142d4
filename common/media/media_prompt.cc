#include "common/media/media_prompt.h"

#include <memory>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "common/os/files.h"

namespace outrider {
namespace {

/// Serialises decoding, so that only one large picture is in memory at a time.
std::mutex& one_at_a_time() {
  static std::mutex mutex;
  return mutex;
}

/// Returns the memory for resizing a picture that may be turned.
std::int64_t either_way(const PictureHeader& header, const VisionConfig& config, std::int64_t soft_tokens) {
  return std::max(resizing_bytes(header.height, header.width, config, soft_tokens),
                  resizing_bytes(header.width, header.height, config, soft_tokens));
}

/// Makes a medium of a picture in the tower's input size.
WireMedium medium_of(Picture picture) {
  const auto seen = std::make_shared<const Picture>(std::move(picture));
  return {.content = {.dtype = DType::kU8,
                      .shape = {seen->height, seen->width, 3},
                      .data = SharedBytes(seen, std::as_bytes(std::span(seen->rgb)))}};
}

}  // namespace

std::int64_t soft_tokens_for(PictureDetail detail, const VisionConfig& config) {
  constexpr std::int64_t kBothWays = 140;
  if (detail == PictureDetail::kLow) return kSoftTokenBudgets.front();
  if (config.both_ways) return kBothWays;
  return detail == PictureDetail::kHigh ? kSoftTokenBudgets.back() : kSoftTokensDefault;
}

Result<WireMedium> load_picture(std::span<const std::byte> file, const std::string& name, const VisionConfig& config,
                                std::int64_t soft_tokens, const AdmitPicture& admit) {
  const std::lock_guard lock(one_at_a_time());
  const auto with_resizing = [&](const PictureHeader& header) -> Result<void> {
    if (!admit) return {};
    PictureHeader all = header;
    all.bytes = std::max(header.bytes, 3 * header.height * header.width + either_way(header, config, soft_tokens));
    return admit(all);
  };
  ASSIGN_OR_RETURN(const Picture picture, decode_picture(file, name, with_resizing));
  return medium_of(resize_for_tower(picture, config, soft_tokens));
}

Result<WireMedium> load_sound(std::span<const std::byte> file, const std::string& name, const AdmitSound& admit) {
  const std::lock_guard lock(one_at_a_time());
  ASSIGN_OR_RETURN(std::vector<float> decoded, decode_sound(file, name, admit));
  const auto samples = std::make_shared<const std::vector<float>>(std::move(decoded));
  return WireMedium{.content = {.dtype = DType::kF32,
                                .shape = {std::ssize(*samples)},
                                .data = SharedBytes(samples, std::as_bytes(std::span(*samples)))}};
}

std::int64_t MediumFile::size() const {
  std::int64_t sum = std::ssize(bytes);
  for (const std::string& frame : frames) sum += std::ssize(frame);
  return sum;
}

Result<LoadedMedia> load_video(std::span<const std::byte> file, const std::string& name, const VisionConfig& config,
                               const AdmitPicture& admit) {
  const std::lock_guard lock(one_at_a_time());
  LoadedMedia video{.frames = {}, .part = {.kind = ContentPart::Kind::kVideo}};
  const auto look = [&](double seconds, const Picture& frame) -> Result<void> {
    video.part.frame_seconds.push_back(static_cast<std::int64_t>(seconds));
    video.frames.push_back(medium_of(resize_for_tower(frame, config, kVideoSoftTokens)));
    return {};
  };
  const auto with_frames = [&](const PictureHeader& header) -> Result<void> {
    if (!admit) return {};
    const std::int64_t side = config.soft_token_side(), frame = 3 * kVideoSoftTokens * side * side;
    PictureHeader all = header;
    all.bytes += either_way(header, config, kVideoSoftTokens) + kVideoFramesMax * frame;
    return admit(all);
  };
  RETURN_IF_ERROR(decode_video(file, name, with_frames, look));
  return video;
}

Result<LoadedMedia> load_video(std::int64_t count, const std::string& name,
                               const std::function<Result<WireMedium>(std::int64_t)>& frame) {
  if (count == 0) return file_error(Errc::kOutOfRange, name, "a video of no pictures");
  LoadedMedia video{.frames = {}, .part = {.kind = ContentPart::Kind::kVideo}};
  for (const std::int64_t second : sampled_frames(count)) {
    ASSIGN_OR_RETURN(WireMedium loaded, frame(second));
    video.part.frame_seconds.push_back(second);
    video.frames.push_back(std::move(loaded));
  }
  return video;
}

namespace {

Result<WireMedium> load_picture_file(const std::filesystem::path& path, const VisionConfig& config,
                                     std::int64_t soft_tokens) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return load_picture(file.bytes(), path.string(), config, soft_tokens);
}

Result<LoadedMedia> load_video_file(const std::filesystem::path& path, const VisionConfig& config) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (!fs::is_directory(path, failed)) {
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    return load_video(file.bytes(), path.string(), config);
  }
  std::vector<fs::path> pictures;
  for (fs::directory_iterator entry(path, failed), end; !failed && entry != end; entry.increment(failed))
    pictures.push_back(entry->path());
  if (failed) return file_error(Errc::kIo, path, "{}", failed.message());
  std::ranges::sort(pictures);
  return load_video(std::ssize(pictures), path.string(), [&](std::int64_t i) {
    return load_picture_file(pictures[static_cast<std::size_t>(i)], config, kVideoSoftTokens);
  });
}

}  // namespace

Result<LoadedMedia> load_medium_file(const std::filesystem::path& path, ContentPart::Kind kind,
                                     const Result<VisionConfig>& vision, const Result<AudioConfig>& audio,
                                     std::optional<std::int64_t> soft_tokens) {
  LoadedMedia loaded{.frames = {}, .part = {.kind = kind}};
  if (kind == ContentPart::Kind::kAudio) {
    if (!audio) return audio.error();
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    ASSIGN_OR_RETURN(loaded.frames.emplace_back(), load_sound(file.bytes(), path.string()));
    return loaded;
  }
  if (!vision) return vision.error();
  if (kind == ContentPart::Kind::kVideo) return load_video_file(path, *vision);
  ASSIGN_OR_RETURN(
      loaded.frames.emplace_back(),
      load_picture_file(path, *vision, soft_tokens.value_or(soft_tokens_for(PictureDetail::kAuto, *vision))));
  return loaded;
}

Result<std::vector<TokenId>> place_media(std::span<const TokenId> rendered, const Result<VisionConfig>& vision,
                                         const Result<AudioConfig>& audio, std::vector<WireMedium>& media) {
  std::vector<TokenId> tokens;
  std::size_t places = 0, filled = 0;
  for (const TokenId token : rendered) {
    const bool picture = vision && (token == vision->image_token_id || token == vision->video_token_id),
               sound = audio && token == audio->audio_token_id;
    if (!picture && !sound) {
      tokens.push_back(token);
      continue;
    }
    if (places++ >= media.size() || media[filled].is_sound() != sound) continue;  // an error, below
    WireMedium& medium = media[filled++];
    const std::vector<std::int64_t>& shape = medium.content.shape;
    const std::int64_t count =
        sound ? audio->soft_tokens(shape[0]) : soft_token_count(shape[0], shape[1], *vision);
    tokens.push_back(sound ? audio->boa_token_id : vision->boi_token_id);
    medium.first = std::ssize(tokens);
    tokens.insert(tokens.end(), static_cast<std::size_t>(count), token);
    tokens.push_back(sound ? audio->eoa_token_id : vision->eoi_token_id);
  }
  if (places == media.size() && filled == places) return tokens;
  return Error(Errc::kInvalidArgument,
               "{} places for pictures and sounds in the prompt, and {} of "
               "these, the first {} where they belong",
               places, media.size(), filled);
}

}  // namespace outrider
