#include "common/vision/picture_tokens.h"

#include <algorithm>

#include <fmt/format.h>

namespace outrider {

Result<PicturePrompt> make_room_for_pictures(std::span<const TokenId> prompt, const VisionConfig& config,
                                             std::span<const std::int64_t> soft_tokens) {
  const auto places = std::ranges::count(prompt, config.image_token_id);
  if (places != std::ssize(soft_tokens)) {
    return Error{Errc::kInvalidArgument,
                 fmt::format("{} places for pictures in the prompt, and {} pictures", places, soft_tokens.size())};
  }
  PicturePrompt room;
  for (const TokenId token : prompt) {
    if (token != config.image_token_id) {
      room.tokens.push_back(token);
      continue;
    }
    room.tokens.push_back(config.boi_token_id);
    const auto count = static_cast<std::size_t>(soft_tokens[room.firsts.size()]);
    room.firsts.push_back(std::ssize(room.tokens));
    room.tokens.insert(room.tokens.end(), count, config.image_token_id);
    room.tokens.push_back(config.eoi_token_id);
  }
  return room;
}

}  // namespace outrider
