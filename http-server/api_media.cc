// What ApiServer does with a request's pictures and sounds.
#include <utility>

#include "common/protocol/media_bytes.h"
#include "http-server/api_server.h"

namespace outrider {

std::optional<ApiError> ApiServer::count_body(const HttpRequest& http, std::span<const MediumFile> files) const {
  std::int64_t file_bytes = 0;
  for (const MediumFile& file : files) {
    file_bytes += std::ssize(file.bytes);
    const auto refused = [&](const Error& why) {
      return ApiError{.status = 400, .message = file.name + ": " + why.message, .param = "messages"};
    };
    if (file.is_sound && !text_.audio) return refused(text_.audio.error());
    if (!file.is_sound && !text_.vision) return refused(text_.vision.error());
  }
  const std::int64_t characters = file_bytes / 3 * 4;  // of base64
  return http.hold((std::ssize(http.body) - characters) * kBytesPerBodyByte + characters * kBytesPerFileByte);
}

std::optional<ApiError> ApiServer::perceive(const HttpRequest& http, std::vector<MediumFile> files,
                                            std::vector<TokenId>& prompt, std::vector<WireMedium>& media) const {
  if (files.empty()) return std::nullopt;
  std::int64_t held = 2 * std::ssize(http.body) + std::ssize(prompt) * kBytesPerPromptToken;  // its text is read, too
  for (const MediumFile& file : files) held += std::ssize(file.bytes);
  for (MediumFile& file : files) {
    std::optional<ApiError> no_room;
    const auto admit = [&](std::int64_t bytes) -> Result<void> {
      no_room = http.hold(held + bytes);
      if (no_room) return Error{Errc::kUnavailable, no_room->message};
      return {};
    };
    const std::span<const std::byte> bytes = std::as_bytes(std::span(file.bytes));
    Result<WireMedium> medium =
        file.is_sound ? hear_sound(bytes, file.name, admit)
                      : see_picture(bytes, file.name, *text_.vision, soft_tokens_for(file.detail, *text_.vision),
                                    [&](const PictureHeader& header) { return admit(header.bytes); });
    if (no_room) {
      no_room->message = file.name + ": " + no_room->message;
      return no_room;
    }
    if (!medium) return ApiError{.status = 400, .message = medium.error().message, .param = "messages"};
    media.push_back(*std::move(medium));
    held += media_bytes(std::span(&media.back(), 1)) - std::ssize(file.bytes);
    file.bytes = {};
  }
  Result<std::vector<TokenId>> placed = place_media(prompt, text_.vision, text_.audio, media);
  if (!placed) return api_error(placed.error());
  prompt = *std::move(placed);
  return std::nullopt;
}

}  // namespace outrider
