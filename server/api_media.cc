// The part of ApiServer that reads a request's pictures, videos and sounds.
#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "common/base/time.h"
#include "common/media/towers.h"
#include "server/api_server.h"

namespace outrider {
namespace {

std::int64_t base64_bytes(std::int64_t bytes) { return bytes / 3 * 4; }

/// Time for all fetched files of a request: equal to that for its body.
constexpr Duration kFetchTimeout = std::chrono::seconds(20);

ApiError refused_medium(const MediumFile& file, const RequestSource& source, const std::string& why) {
  return {.status = 400, .message = file.name + ": " + why, .param = source.turns};
}

}  // namespace

std::optional<ApiError> ApiServer::count_body(const HttpRequest& http, const RequestSource& source,
                                              std::span<const MediumFile> files) const {
  std::int64_t file_bytes = 0;
  for (const MediumFile& file : files) {
    file_bytes += file.size();
    const bool is_sound = file.kind == MediumFile::Kind::kSound;
    if (is_sound && !text_.audio)
      return refused_medium(file, source, without_tower(text_.audio.error().code, is_sound));
    if (!is_sound && !text_.vision)
      return refused_medium(file, source, without_tower(text_.vision.error().code, is_sound));
  }
  return http.reserve((source.bytes - base64_bytes(file_bytes)) * kBytesPerBodyByte +
                      base64_bytes(file_bytes) * kBytesPerFileByte);
}

Result<LoadedMedia> ApiServer::watch(const MediumFile& file, const AdmitPicture& admit) const {
  if (file.frames.empty()) return load_video(std::as_bytes(std::span(file.bytes)), file.name, *text_.vision, admit);
  std::int64_t frame_bytes = 0;  // of the frames so far
  const auto admit_frame = [&](const PictureHeader& header) -> Result<void> {
    PictureHeader all = header;
    all.bytes += frame_bytes;
    return admit(all);
  };
  return load_video(std::ssize(file.frames), file.name, [&](std::int64_t i) -> Result<WireMedium> {
    const std::string& picture = file.frames[static_cast<std::size_t>(i)];
    ASSIGN_OR_RETURN(WireMedium frame, load_picture(std::as_bytes(std::span(picture)), file.name, *text_.vision,
                                                    kVideoSoftTokens, admit_frame));
    frame_bytes += media_bytes({&frame, 1});
    return frame;
  });
}

std::optional<ApiError> ApiServer::fetch(const HttpRequest& http, const RequestSource& source, MediumFile& file,
                                         const AdmitSound& admit, TimePoint deadline) const {
  if (!options_.fetch)
    return refused_medium(file, source,
                          "http(s) URLs are fetched by serve --allowed-media-domains HOST alone; send the file as a "
                          "data: URL");
  Result<std::string> bytes = options_.fetch(file.url, admit, deadline, http.gone);
  if (!bytes && http.gone()) return cut_off(http.server_ends());
  if (!bytes) return refused_medium(file, source, bytes.error().message);
  file.bytes = *std::move(bytes);
  file.url.clear();
  return std::nullopt;
}

ApiResult<std::vector<TokenId>> ApiServer::perceive(const HttpRequest& http, const RequestSource& source,
                                                    std::vector<MediumFile> files, Conversation& conversation,
                                                    std::vector<WireMedium>& media) const {
  if (files.empty()) return render(source, conversation);
  std::vector<ContentPart*> videos;  // in the order of their files
  for (ChatMessage& message : conversation.messages)
    for (ContentPart& part : message.parts)
      if (part.kind == ContentPart::Kind::kVideo) videos.push_back(&part);
  std::int64_t file_bytes = 0;
  for (const MediumFile& file : files) file_bytes += file.size();
  const std::int64_t text_bytes = source.bytes - base64_bytes(file_bytes);
  std::int64_t held = 2 * source.bytes + text_bytes * kBytesPerPromptToken + file_bytes;  // its text is read
  auto video = videos.begin();
  const TimePoint fetched_by = now() + kFetchTimeout;
  for (MediumFile& file : files) {
    std::optional<ApiError> no_room;
    const auto admit = [&](std::int64_t bytes) -> Result<void> {
      no_room = http.reserve(held + bytes);
      if (!no_room) return {};
      no_room->message = file.name + ": " + no_room->message;
      return Error{Errc::kUnavailable, no_room->message};
    };
    if (!file.url.empty()) {
      if (auto refused = fetch(http, source, file, admit, fetched_by)) return no_room ? *no_room : *refused;
      held += file.size();
    }
    const auto admit_picture = [&](const PictureHeader& header) { return admit(header.bytes); };
    const std::span<const std::byte> bytes = std::as_bytes(std::span(file.bytes));
    const auto one = [](Result<WireMedium> medium) -> Result<LoadedMedia> {
      if (!medium) return medium.error();
      return LoadedMedia{.frames = {*std::move(medium)}, .part = {}};
    };
    Result<LoadedMedia> loaded = file.kind == MediumFile::Kind::kSound ? one(load_sound(bytes, file.name, admit))
                                 : file.kind == MediumFile::Kind::kVideo
                                     ? watch(file, admit_picture)
                                     : one(load_picture(bytes, file.name, *text_.vision,
                                                        soft_tokens_for(file.detail, *text_.vision), admit_picture));
    if (no_room) return *no_room;
    if (!loaded) return ApiError{.status = 400, .message = loaded.error().message, .param = source.turns};
    if (file.kind == MediumFile::Kind::kVideo) **video++ = std::move(loaded->part);
    held += media_bytes(loaded->frames) - file.size();
    std::ranges::move(loaded->frames, std::back_inserter(media));
    file.bytes = {}, file.frames = {};
  }
  if (media.size() > kMediaMax) {
    return ApiError{.status = 400,
                    .message = fmt::format("{} has {} pictures, frames of videos and sounds, wanted at most {}",
                                           source.turns, media.size(), kMediaMax),
                    .param = source.turns};
  }
  ASSIGN_OR_RETURN(const std::vector<TokenId> rendered, render(source, conversation));
  Result<std::vector<TokenId>> placed = place_media(rendered, text_.vision, text_.audio, media);
  if (!placed) return api_error(placed.error());
  return *std::move(placed);
}

}  // namespace outrider
