#include "http-server/content_parts.h"

#include <array>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

namespace outrider {
namespace {
using Json = nlohmann::json;

/// Of each byte the six bits that it stands for in base64; kNone for others.
constexpr std::uint8_t kNone = 64;
constexpr std::array<std::uint8_t, 256> kSixBits = [] {
  std::array<std::uint8_t, 256> bits{};
  bits.fill(kNone);
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::uint8_t i = 0; i < kNone; ++i) bits[static_cast<unsigned char>(kAlphabet[i])] = i;
  return bits;
}();

Result<std::string> decode_base64(std::string_view text) {
  if (text.size() > (kMediumBytesMax + 2) / 3 * 4) {
    return Error{Errc::kOutOfRange,
                 fmt::format("has a file of {} bytes, wanted at most {}", text.size() / 4 * 3, kMediumBytesMax)};
  }
  const auto wrong = [](std::size_t at) {
    return Error{Errc::kMalformed, fmt::format("is not base64 at its character {}", at)};
  };
  if (text.size() % 4 != 0)
    return Error{Errc::kMalformed, fmt::format("has {} characters of base64, wanted a multiple of 4", text.size())};
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += 4) {
    std::uint32_t group = 0;
    for (std::size_t i = at; i < at + 4; ++i) {
      const std::uint8_t bits = i < text.size() - padding ? kSixBits[static_cast<unsigned char>(text[i])] : 0;
      if (bits == kNone) return wrong(i);
      group = group << 6 | bits;
    }
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(group >> shift & 0xff);
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

}  // namespace

Result<std::string> bytes_of_data_url(std::string_view url) {
  constexpr std::string_view kScheme = "data:", kBase64 = ";base64,";
  if (url.starts_with("http://") || url.starts_with("https://"))
    return Error{Errc::kUnsupported, "is an http(s) URL, of which nothing is fetched: send the file as a data: URL"};
  const std::size_t comma = url.substr(0, 256).find(',');
  if (!url.starts_with(kScheme) || comma == url.npos || !url.substr(0, comma + 1).ends_with(kBase64))
    return Error{Errc::kUnsupported, "is not a URL like data:image/png;base64,..."};
  return decode_base64(url.substr(comma + 1));
}

void read_image_url(const JsonFields& part, ChatMessage& message, std::vector<MediumFile>& media) {
  constexpr const char* kWanted = "an object with the data: URL of a picture";
  const Json* const given = part.find("image_url");
  if (given == nullptr || !given->is_object()) return part.wrong("image_url", kWanted);
  const JsonFields image = part.object("image_url");
  const std::string detail = image.choice("detail", "auto", {"auto", "low", "high"});
  const Json* const url = image.find("url");
  if (url == nullptr || !url->is_string()) return image.wrong("url", "a data: URL");
  Result<std::string> bytes = bytes_of_data_url(url->get_ref<const std::string&>());
  if (!bytes) return image.refuse("url", bytes.error().message, bytes.error().code);
  message.parts.push_back({.kind = ContentPart::Kind::kImage});
  media.push_back({.name = part.name(),
                   .bytes = std::move(*bytes),
                   .detail = detail == "low"    ? PictureDetail::kLow
                             : detail == "high" ? PictureDetail::kHigh
                                                : PictureDetail::kAuto});
}

void read_input_audio(const JsonFields& part, ChatMessage& message, std::vector<MediumFile>& media) {
  const Json* const given = part.find("input_audio");
  if (given == nullptr || !given->is_object())
    return part.wrong("input_audio", "an object with the data of a sound, in base64, and its format");
  const JsonFields audio = part.object("input_audio");
  audio.choice("format", "wav", {"wav", "mp3", "flac", "ogg", "opus"});
  const Json* const data = audio.find("data");
  if (data == nullptr || !data->is_string()) return audio.wrong("data", "a file in base64");
  Result<std::string> bytes = decode_base64(data->get_ref<const std::string&>());
  if (!bytes) return audio.refuse("data", bytes.error().message, bytes.error().code);
  message.parts.push_back({.kind = ContentPart::Kind::kAudio});
  media.push_back({.name = part.name(), .bytes = std::move(*bytes), .kind = MediumFile::Kind::kSound});
}

void read_video_url(const JsonFields& part, ChatMessage& message, std::vector<MediumFile>& media) {
  const Json* const given = part.find("video_url");
  if (given == nullptr || !given->is_object())
    return part.wrong("video_url", "an object with the data: URL of a video");
  const JsonFields video = part.object("video_url");
  const Json* const url = video.find("url");
  if (url == nullptr || !url->is_string()) return video.wrong("url", "a data: URL");
  MediumFile file{.name = part.name(), .bytes = {}, .kind = MediumFile::Kind::kVideo};
  std::string_view text = url->get_ref<const std::string&>();
  constexpr std::string_view kPictures = "data:video/jpeg;base64,";
  const bool pictures = text.starts_with(kPictures);
  if (pictures) text.remove_prefix(kPictures.size());
  do {
    const std::size_t end = pictures ? std::min(text.find(','), text.size()) : text.size();
    Result<std::string> bytes = pictures ? decode_base64(text.substr(0, end)) : bytes_of_data_url(text);
    if (!bytes) return video.refuse("url", bytes.error().message, bytes.error().code);
    if (pictures)
      file.frames.push_back(std::move(*bytes));
    else
      file.bytes = std::move(*bytes);
    text.remove_prefix(std::min(end + 1, text.size()));
  } while (!text.empty());
  message.parts.push_back({.kind = ContentPart::Kind::kVideo});
  media.push_back(std::move(file));
}

Json image_url_part(Json url, Json detail) {
  Json image = {{"url", std::move(url)}};
  if (!detail.is_null()) image["detail"] = std::move(detail);
  return {{"type", "image_url"}, {"image_url", std::move(image)}};
}

}  // namespace outrider
