#include "http-server/content_parts.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "common/base/ascii.h"

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

struct MediumType {
  std::string_view name;
  MediumFile::Kind file;
  ContentPart::Kind part;
  const char* wanted;  ///< under its name
};
constexpr MediumType kMediumTypes[] = {
    {"image_url", MediumFile::Kind::kPicture, ContentPart::Kind::kImage, "an object with the URL of a picture"},
    {"video_url", MediumFile::Kind::kVideo, ContentPart::Kind::kVideo, "an object with the URL of a video"},
    {"audio_url", MediumFile::Kind::kSound, ContentPart::Kind::kAudio, "an object with the URL of a sound"},
    {"input_audio", MediumFile::Kind::kSound, ContentPart::Kind::kAudio,
     "an object with the data of a sound, in base64, and its format"}};

/// A file in base64, without a URL around it.
void read_data(const JsonFields& audio, MediumFile& file) {
  audio.choice("format", "wav", {"wav", "mp3", "flac", "ogg", "opus"});
  const Json* const data = audio.find("data");
  if (data == nullptr || !data->is_string()) return audio.wrong("data", "a file in base64");
  Result<std::string> bytes = decode_base64(data->get_ref<const std::string&>());
  if (!bytes) return audio.refuse("data", bytes.error().message, bytes.error().code);
  file.bytes = *std::move(bytes);
}

/// A file, where it is, or a video's pictures.
Result<void> read_url(std::string_view url, MediumFile& file) {
  const std::string scheme = in_lower_case(url.substr(0, 8));
  if (scheme.starts_with("http://") || scheme.starts_with("https://")) return file.url = url, Result<void>();
  constexpr std::string_view kPictures = "data:video/jpeg;base64,";
  if (file.kind != MediumFile::Kind::kVideo || !url.starts_with(kPictures)) {
    ASSIGN_OR_RETURN(file.bytes, bytes_of_data_url(url));
    return {};
  }
  url.remove_prefix(kPictures.size());
  do {
    const std::size_t end = std::min(url.find(','), url.size());
    ASSIGN_OR_RETURN(std::string picture, decode_base64(url.substr(0, end)));
    file.frames.push_back(std::move(picture));
    url.remove_prefix(std::min(end + 1, url.size()));
  } while (!url.empty());
  return {};
}

}  // namespace

Result<std::string> decode_base64(std::string_view text) {
  if (text.size() > (kMediumBytesMax + 2) / 3 * 4) {
    return Error(Errc::kOutOfRange, "has a file of {} bytes, wanted at most {}", text.size() / 4 * 3, kMediumBytesMax);
  }
  const auto wrong = [](std::size_t at) { return Error(Errc::kMalformed, "is not base64 at its character {}", at); };
  if (text.size() % 4 != 0)
    return Error(Errc::kMalformed, "has {} characters of base64, wanted a multiple of 4", text.size());
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

Result<std::string> bytes_of_data_url(std::string_view url) {
  constexpr std::string_view kScheme = "data:", kBase64 = ";base64,";
  const std::size_t comma = url.substr(0, 256).find(',');
  if (!url.starts_with(kScheme) || comma == url.npos || !url.substr(0, comma + 1).ends_with(kBase64))
    return Error{Errc::kUnsupported, "is not a URL like data:image/png;base64,..."};
  return decode_base64(url.substr(comma + 1));
}

bool is_medium(std::string_view type) {
  return std::ranges::find(kMediumTypes, type, &MediumType::name) != std::end(kMediumTypes);
}

void read_medium(const std::string& type, const JsonFields& part, ChatMessage& message,
                 std::vector<MediumFile>& media) {
  const MediumType& medium = *std::ranges::find(kMediumTypes, type, &MediumType::name);
  const Json* const given = part.find(type.c_str());
  if (given == nullptr || !given->is_object()) return part.wrong(type.c_str(), medium.wanted);
  const JsonFields fields = part.object(type.c_str());
  MediumFile file{.name = part.name(), .bytes = {}, .kind = medium.file};
  if (type == "image_url") {
    const std::string detail = fields.choice("detail", "auto", {"auto", "low", "high"});
    file.detail = detail == "low"    ? PictureDetail::kLow
                  : detail == "high" ? PictureDetail::kHigh
                                     : PictureDetail::kAuto;
  }
  if (type == "input_audio") {
    read_data(fields, file);
  } else {
    const Json* const url = fields.find("url");
    if (url == nullptr || !url->is_string()) return fields.wrong("url", "a data: or http(s) URL");
    const Result<void> read = read_url(url->get_ref<const std::string&>(), file);
    if (!read) return fields.refuse("url", read.error().message, read.error().code);
  }
  message.parts.push_back({.kind = medium.part});
  media.push_back(std::move(file));
}

Json image_url_part(Json url, Json detail) {
  Json image = {{"url", std::move(url)}};
  if (!detail.is_null()) image["detail"] = std::move(detail);
  return {{"type", "image_url"}, {"image_url", std::move(image)}};
}

}  // namespace outrider
