#include "server/content_parts.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "common/base/ascii.h"
#include "server/http_message.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

/// Value of each base64 character, or kNone.
constexpr std::uint8_t kNone = 64;
constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::array<std::uint8_t, 256> kSixBits = [] {
  std::array<std::uint8_t, 256> bits{};
  bits.fill(kNone);
  for (std::uint8_t i = 0; i < kNone; ++i) bits[static_cast<unsigned char>(kAlphabet[i])] = i;
  return bits;
}();

/// White space by HTML's definition.
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\f' || c == '\r'; }

/// Returns the head of a data: URL before its comma, in lower case, without spaces; empty if it is not base64.
std::string head_of_data_url(std::string_view url) {
  const std::size_t comma = url.substr(0, 256).find(',');
  std::string head = comma == url.npos ? "" : in_lower_case(url.substr(0, comma));
  std::erase(head, ' ');
  return head.starts_with("data:") && head.ends_with(";base64") ? head : "";
}

/// Returns the data after the comma. Some clients write + and / as %2B and %2F.
std::string_view data_of_url(std::string_view url, std::string& decoded) {
  const std::string_view data = url.substr(url.find(',') + 1);
  return data.find('%') == data.npos ? data : std::string_view(decoded = percent_decoded(data));
}

struct MediumType {
  std::string_view name;
  MediumFile::Kind file;
  ContentPart::Kind part;
  const char* wanted;  ///< description for errors
};
constexpr MediumType kMediumTypes[] = {
    {"image_url", MediumFile::Kind::kPicture, ContentPart::Kind::kImage, "an object with the URL of a picture"},
    {"video_url", MediumFile::Kind::kVideo, ContentPart::Kind::kVideo, "an object with the URL of a video"},
    {"audio_url", MediumFile::Kind::kSound, ContentPart::Kind::kAudio, "an object with the URL of a sound"},
    {"input_audio", MediumFile::Kind::kSound, ContentPart::Kind::kAudio,
     "an object with the data of a sound, in base64, and its format"}};

/// Reads a base64 file without a URL.
void read_data(const JsonFields& fields, MediumFile& file) {
  const Json* const data = fields.find("data");
  if (data == nullptr || !data->is_string()) return fields.wrong("data", "a file in base64");
  Result<std::string> bytes = decode_base64(data->get_ref<const std::string&>());
  if (!bytes) return fields.refuse("data", bytes.error().message, bytes.error().code);
  file.bytes = *std::move(bytes);
}

/// Maximum pictures of a video that is given as pictures, one per second. Even small pictures take memory.
constexpr std::size_t kVideoPicturesMax = 4096;

/// Reads a file, its location, or a video's pictures.
Result<void> read_url(std::string_view url, MediumFile& file) {
  const std::string scheme = in_lower_case(url.substr(0, 8));
  if (scheme.starts_with("http://") || scheme.starts_with("https://")) return file.url = url, Result<void>();
  if (file.kind != MediumFile::Kind::kVideo || head_of_data_url(url) != "data:video/jpeg;base64") {
    ASSIGN_OR_RETURN(file.bytes, bytes_of_data_url(url));
    return {};
  }
  std::string decoded;
  url = data_of_url(url, decoded);
  do {
    if (file.frames.size() == kVideoPicturesMax)
      return Error(Errc::kOutOfRange, "is a video of more than {} pictures", kVideoPicturesMax);
    const std::size_t end = std::min(url.find(','), url.size());
    ASSIGN_OR_RETURN(std::string picture, decode_base64(url.substr(0, end)));
    file.frames.push_back(std::move(picture));
    url.remove_prefix(std::min(end + 1, url.size()));
  } while (!url.empty());
  return {};
}

void read_url(const JsonFields& fields, const char* key, MediumFile& file) {
  const Json* const url = fields.find(key);
  if (url == nullptr || !url->is_string()) return fields.wrong(key, "a data: or http(s) URL");
  const Result<void> read = read_url(url->get_ref<const std::string&>(), file);
  if (!read) fields.refuse(key, read.error().message, read.error().code);
}

}  // namespace

Result<std::string> decode_base64(std::string_view text) {
  const std::size_t size = text.size() - static_cast<std::size_t>(std::ranges::count_if(text, is_space));
  if (size > (kMediumBytesMax + 2) / 3 * 4)
    return Error(Errc::kOutOfRange, "has a file of {} bytes, wanted at most {}", size / 4 * 3, kMediumBytesMax);
  std::string bytes;
  bytes.reserve(size / 4 * 3 + 3);
  std::uint32_t group = 0;
  std::size_t digits = 0, padding = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (is_space(text[at])) continue;
    const std::uint8_t bits = kSixBits[static_cast<unsigned char>(text[at])];
    const bool pads = text[at] == '=' && digits % 4 >= 2 && padding < 2;
    if (!pads && (bits == kNone || padding > 0))
      return Error(Errc::kMalformed, "is not base64 at its character {}", at);
    padding += pads ? 1 : 0;
    if (pads) continue;
    group = group << 6 | bits;
    if (++digits % 4 != 0) continue;
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(group >> shift & 0xff);
  }
  const std::size_t rest = digits % 4;
  if (rest == 1 || (padding > 0 && rest + padding != 4))
    return Error(Errc::kMalformed, "breaks off after {} characters of base64", size);
  if (rest == 3) bytes += static_cast<char>(group >> 10 & 0xff);
  if (rest != 0) bytes += static_cast<char>(group >> (rest == 3 ? 2 : 4) & 0xff);
  return bytes;
}

Result<std::string> bytes_of_data_url(std::string_view url) {
  if (head_of_data_url(url).empty()) return Error{Errc::kUnsupported, "is not a URL like data:image/png;base64,..."};
  std::string decoded;
  return decode_base64(data_of_url(url, decoded));
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
  if (type == "image_url") return read_picture(fields, "url", part.name(), message, media);
  MediumFile file{.name = part.name(), .bytes = {}, .kind = medium.file};
  if (type == "input_audio") {
    fields.choice("format", "wav", {"wav", "mp3", "flac", "ogg", "opus"});
    read_data(fields, file);
  } else {
    read_url(fields, "url", file);
  }
  message.parts.push_back({.kind = medium.part});
  media.push_back(std::move(file));
}

void read_picture(const JsonFields& fields, const char* url, const std::string& name, ChatMessage& message,
                  std::vector<MediumFile>& media) {
  MediumFile file{.name = name, .bytes = {}};
  const std::string detail = fields.choice("detail", "auto", {"auto", "low", "high"});
  file.detail = detail == "low" ? PictureDetail::kLow : detail == "high" ? PictureDetail::kHigh : PictureDetail::kAuto;
  if (url != nullptr)
    read_url(fields, url, file);
  else
    read_data(fields, file);
  message.parts.push_back({.kind = ContentPart::Kind::kImage});
  media.push_back(std::move(file));
}

}  // namespace outrider
