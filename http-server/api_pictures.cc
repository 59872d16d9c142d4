// What ApiServer does with a request's pictures.
#include <utility>

#include "common/protocol/picture_bytes.h"
#include "http-server/api_server.h"

namespace outrider {

std::optional<ApiError> ApiServer::count_body(const HttpRequest& http, std::span<const PictureFile> files) const {
  if (!files.empty() && !text_.vision) {
    return ApiError{
        .status = 400, .message = files.front().name + ": " + text_.vision.error().message, .param = "messages"};
  }
  std::int64_t file_bytes = 0;
  for (const PictureFile& file : files) file_bytes += std::ssize(file.bytes);
  const std::int64_t characters = file_bytes / 3 * 4;  // of base64
  return http.hold((std::ssize(http.body) - characters) * kBytesPerBodyByte + characters * kBytesPerFileByte);
}

std::optional<ApiError> ApiServer::see(const HttpRequest& http, std::vector<PictureFile> files,
                                       std::vector<TokenId>& prompt, std::vector<WirePicture>& pictures) const {
  if (files.empty()) return std::nullopt;
  std::int64_t held = 2 * std::ssize(http.body) + std::ssize(prompt) * kBytesPerPromptToken;  // its text is read, too
  for (const PictureFile& file : files) held += std::ssize(file.bytes);
  for (PictureFile& file : files) {
    std::optional<ApiError> no_room;
    const auto admit = [&](const PictureHeader& header) -> Result<void> {
      no_room = http.hold(held + header.bytes);
      if (no_room) return Error{Errc::kUnavailable, no_room->message};
      return {};
    };
    Result<WirePicture> picture = see_picture(std::as_bytes(std::span(file.bytes)), file.name, *text_.vision,
                                              soft_tokens_for(file.detail, *text_.vision), admit);
    if (no_room) {
      no_room->message = file.name + ": " + no_room->message;
      return no_room;
    }
    if (!picture) return ApiError{.status = 400, .message = picture.error().message, .param = "messages"};
    pictures.push_back(*std::move(picture));
    held += picture_bytes(std::span(&pictures.back(), 1)) - std::ssize(file.bytes);
    file.bytes = {};
  }
  Result<std::vector<TokenId>> placed = place_pictures(prompt, *text_.vision, pictures);
  if (!placed) return api_error(placed.error());
  prompt = *std::move(placed);
  return std::nullopt;
}

}  // namespace outrider
