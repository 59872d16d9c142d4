#include "common/picture_prompt/picture_prompt.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "common/base/files.h"
#include "common/vision/picture_tokens.h"

namespace outrider {

std::int64_t soft_tokens_for(PictureDetail detail, const VisionConfig& config) {
  constexpr std::int64_t kBothWays = 140;
  if (detail == PictureDetail::kLow) return kSoftTokenBudgets.front();
  if (config.both_ways) return kBothWays;
  return detail == PictureDetail::kHigh ? kSoftTokenBudgets.back() : kSoftTokensDefault;
}

Result<WirePicture> see_picture(std::span<const std::byte> file, const std::string& name, const VisionConfig& config,
                                std::int64_t soft_tokens, const AdmitPicture& admit) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  AdmitPicture with_resizing;
  if (admit) {
    with_resizing = [&](const PictureHeader& header) {
      const std::int64_t resizing = std::max(resizing_bytes(header.height, header.width, config, soft_tokens),
                                             resizing_bytes(header.width, header.height, config, soft_tokens));
      PictureHeader all = header;
      all.bytes = std::max(header.bytes, 3 * header.height * header.width + resizing);
      return admit(all);
    };
  }
  ASSIGN_OR_RETURN(const Picture picture, decode_picture(file, name, with_resizing));
  const auto seen = std::make_shared<const Picture>(resize_for_tower(picture, config, soft_tokens));
  return WirePicture{.pixels = {.dtype = DType::kU8,
                                .shape = {seen->height, seen->width, 3},
                                .data = SharedBytes(seen, std::as_bytes(std::span(seen->rgb)))}};
}

Result<WirePicture> see_picture_file(const std::filesystem::path& path, const VisionConfig& config,
                                     std::int64_t soft_tokens) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return see_picture(file.bytes(), path.string(), config, soft_tokens);
}

Result<std::vector<TokenId>> place_pictures(std::span<const TokenId> rendered, const VisionConfig& config,
                                            std::vector<WirePicture>& pictures) {
  std::vector<std::int64_t> soft_tokens;
  for (const WirePicture& picture : pictures) {
    const std::int64_t side = config.soft_token_side();
    soft_tokens.push_back((picture.pixels.shape[0] / side) * (picture.pixels.shape[1] / side));
  }
  ASSIGN_OR_RETURN(PicturePrompt prompt, make_room_for_pictures(rendered, config, soft_tokens));
  for (std::size_t i = 0; i < pictures.size(); ++i) pictures[i].first = prompt.firsts[i];
  return std::move(prompt.tokens);
}

}  // namespace outrider
