// Pictures and sounds in requests before anything of them is decoded: data: URLs, parts, how other APIs say them, and
// what of a body counts as files.
#include "server/content_parts.h"

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "server/dialect.h"
#include "server/http_server.h"
#include "server/openai.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

std::string bytes_of(std::string_view url) {
  const Result<std::string> bytes = bytes_of_data_url(url);
  return bytes ? *bytes : "error: " + bytes.error().message;
}

// RFC 4648, section 10.
TEST(DataUrl, Base64IsThatOfItsSpecification) {
  for (const auto& [text, base64] : {std::pair("", ""),
                                     {"f", "Zg=="},
                                     {"fo", "Zm8="},
                                     {"foo", "Zm9v"},
                                     {"foob", "Zm9vYg=="},
                                     {"fooba", "Zm9vYmE="},
                                     {"foobar", "Zm9vYmFy"}})
    EXPECT_EQ(bytes_of(std::string("data:image/png;base64,") + base64), text);
  EXPECT_EQ(bytes_of("data:;base64,/+8="), "\xff\xef");
}

// Base64 as encoders of mails wrap it, without padding, and in a URL that was made to be one; schemes have no case.
TEST(DataUrl, IsForgivenWhatBrowsersForgive) {
  for (const char* head : {"data:image/png;base64,", "DATA:image/png;BASE64,", "data:image/png; Base64,"}) {
    for (const char* foobar : {"Zm9v\nYmFy", "Zm9v\r\nYmFy\r\n", " Z m\t9\fvYmFy", "Zm9v%0AYmFy"})
      EXPECT_EQ(bytes_of(std::string(head) + foobar), "foobar") << head << foobar;
    for (const char* foob : {"Zm9vYg", "Zm9vYg==", "Zm9vYg=\n=", "Zm9vYg%3D%3D", "Zm9vYh"})
      EXPECT_EQ(bytes_of(std::string(head) + foob), "foob") << head << foob;
    EXPECT_EQ(bytes_of(std::string(head) + "Zm9vYmE"), "fooba");
    EXPECT_EQ(bytes_of(std::string(head) + "%2f%2B8"), "\xff\xef");
  }
  std::string wrapped = "data:image/png;base64,";
  for (int i = 0; i < 1000; ++i) wrapped += "QUFB\n";
  EXPECT_EQ(bytes_of(wrapped), std::string(3000, 'A'));
}

TEST(DataUrl, AnythingElseIsRefused) {
  const std::string url = "data:image/png;base64,";
  EXPECT_EQ(bytes_of(url + "Zm9v!mFy"), "error: is not base64 at its character 4");
  EXPECT_EQ(bytes_of(url + "Zg==Zg=="), "error: is not base64 at its character 4");
  EXPECT_EQ(bytes_of(url + "===="), "error: is not base64 at its character 0");
  EXPECT_EQ(bytes_of(url + "Zm9v="), "error: is not base64 at its character 4");
  EXPECT_EQ(bytes_of(url + "Zg="), "error: breaks off after 3 characters of base64");
  EXPECT_EQ(bytes_of(url + "Zm9v\nZ"), "error: breaks off after 5 characters of base64");
  EXPECT_EQ(bytes_of(url + "Zm9%"), "error: is not base64 at its character 3");
  for (const char* other : {"", "data:", "data:image/png,Zm9v", "image/png;base64,Zm9v", "file:///etc/passwd", "Zm9v"})
    EXPECT_EQ(bytes_of(other), "error: is not a URL like data:image/png;base64,...") << other;
  EXPECT_NE(bytes_of(url + std::string(kPictureBytesMax / 3 * 4 + 64, 'A')).find("bytes, wanted at most"),
            std::string::npos);
}

Json user_message(Json content) { return {{"role", "user"}, {"content", std::move(content)}}; }
Json sound(Json data) {
  return {{"type", "input_audio"}, {"input_audio", {{"data", std::move(data)}, {"format", "wav"}}}};
}
Json image(const char* url = "data:image/png;base64,Zm9v") {
  return {{"type", "image_url"}, {"image_url", {{"url", url}}}};
}

Json video(const char* url) { return {{"type", "video_url"}, {"video_url", {{"url", url}}}}; }

/// What is wrong with a chat of these messages; empty for nothing.
std::string refusal_of(const Json& messages) {
  const ApiDefaults defaults{.model = "m", .vocab_size = 100};
  const auto parsed = parse_chat_completion(Json({{"messages", messages}}).dump(), defaults);
  return parsed ? "" : parsed.error().message;
}

/// The same of one message with these parts.
std::string refusal(const std::vector<Json>& parts) { return refusal_of(Json::array({user_message(parts)})); }

// A file, or pictures as vLLM takes them.
TEST(ContentParts, AVideoIsAFileOrPictures) {
  const Json body = {
      {"messages",
       {user_message({video("data:video/mp4;base64,Zm9v"), video("data:video/JPEG;base64,Zm9v,Zg==,Zm8=")})}}};
  const auto parsed = parse_chat_completion(body.dump(), {.model = "m", .vocab_size = 100});
  const auto& request = parsed.value();
  ASSERT_EQ(request.media.size(), 2u);
  EXPECT_EQ(request.media[0].kind, MediumFile::Kind::kVideo);
  EXPECT_EQ(request.media[0].bytes, "foo");
  EXPECT_EQ(request.media[1].frames, (std::vector<std::string>{"foo", "f", "fo"}));
  EXPECT_EQ(request.media[1].size(), 6);
  EXPECT_EQ(request.conversation.messages[0].parts[1].kind, ContentPart::Kind::kVideo);
}

TEST(ContentParts, AreReadInTheirOrder) {
  const Json text = {{"type", "text"}, {"text", "and"}};
  Json low = image("data:image/png;base64,Zm8=");
  low["image_url"]["detail"] = "low";
  const Json body = {{"messages", {user_message({image(), text, low, sound("Zm9v")}), user_message("go on")}}};
  const auto parsed = parse_chat_completion(body.dump(), {.model = "m", .vocab_size = 100});
  const auto& request = parsed.value();
  ASSERT_EQ(request.media.size(), 3u);
  EXPECT_EQ(request.media[0].bytes, "foo");
  EXPECT_EQ(request.media[0].name, "messages[0].content[0]");
  EXPECT_EQ(request.media[0].detail, PictureDetail::kAuto);
  EXPECT_EQ(request.media[1].bytes, "fo");
  EXPECT_EQ(request.media[1].name, "messages[0].content[2]");
  EXPECT_EQ(request.media[1].detail, PictureDetail::kLow);
  EXPECT_EQ(request.media[1].kind, MediumFile::Kind::kPicture);
  EXPECT_EQ(request.media[2].bytes, "foo");
  EXPECT_EQ(request.media[2].name, "messages[0].content[3]");
  EXPECT_EQ(request.media[2].kind, MediumFile::Kind::kSound);
  const std::vector<ContentPart>& parts = request.conversation.messages[0].parts;
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[0].kind, ContentPart::Kind::kImage);
  EXPECT_EQ(parts[1].text, "and");
  EXPECT_EQ(parts[2].kind, ContentPart::Kind::kImage);
  EXPECT_EQ(parts[3].kind, ContentPart::Kind::kAudio);
}

// Which are fetched later, by whoever may.
TEST(ContentParts, AUrlOfHttpIsKept) {
  Json heard = video("https://example.org/a.wav");
  heard = {{"type", "audio_url"}, {"audio_url", heard["video_url"]}};
  const Json body = {
      {"messages", {user_message({image("HTTPS://example.org/a.png"), video("http://example.org/a.mp4"), heard})}}};
  const auto parsed = parse_chat_completion(body.dump(), {.model = "m", .vocab_size = 100});
  const auto& media = parsed.value().media;
  ASSERT_EQ(media.size(), 3u);
  EXPECT_EQ(media[0].url, "HTTPS://example.org/a.png");
  EXPECT_EQ(media[1].url, "http://example.org/a.mp4");
  EXPECT_EQ(media[1].kind, MediumFile::Kind::kVideo);
  EXPECT_EQ(media[2].url, "https://example.org/a.wav");
  EXPECT_EQ(media[2].kind, MediumFile::Kind::kSound);
  for (const MediumFile& file : media) EXPECT_EQ(file.size(), 0);
}

TEST(ContentParts, WhatIsWrongIsSaidByItsName) {
  EXPECT_EQ(refusal({image("ftp://x/y.png")}),
            "messages[0].content[0].image_url.url is not a URL like data:image/png;base64,...");
  EXPECT_EQ(refusal({{{"type", "image_url"}, {"image_url", "data:;base64,"}}}),
            "messages[0].content[0].image_url is \"data:;base64,\", wanted an object with the URL of a picture");
  Json original = image();
  original["image_url"]["detail"] = "original";
  EXPECT_NE(refusal({original}).find("messages[0].content[0].image_url.detail is \"original\""), std::string::npos);
  EXPECT_EQ(refusal({Json::object({{"type", "file"}})}),
            "messages[0].content[0].type is \"file\", only text, image_url, input_audio, audio_url and video_url are "
            "supported");
  EXPECT_EQ(refusal({Json::object({{"type", "video_url"}})}),
            "messages[0].content[0].video_url is missing, wanted an object with the URL of a video");
  EXPECT_EQ(refusal({video("data:video/jpeg;base64,Zm9v,Zm8vY")}),
            "messages[0].content[0].video_url.url breaks off after 5 characters of base64");
  EXPECT_EQ(refusal({video(("data:video/jpeg;base64," + std::string(4097, ',')).c_str())}),
            "messages[0].content[0].video_url.url is a video of more than 4096 pictures");
  EXPECT_EQ(refusal({Json::object({{"type", "input_audio"}})}),
            "messages[0].content[0].input_audio is missing, wanted an object with the data of a sound, in base64, and "
            "its format");
  EXPECT_EQ(refusal({sound("Zm9vY")}),
            "messages[0].content[0].input_audio.data breaks off after 5 characters of base64");
  EXPECT_EQ(refusal({sound("Zm9v\r\nYmFy\r\n")}), "");
  EXPECT_EQ(refusal({sound(7)}), "messages[0].content[0].input_audio.data is 7, wanted a file in base64");
  Json raw = sound("Zm9v");
  raw["input_audio"]["format"] = "pcm16";
  EXPECT_NE(refusal({raw}).find("messages[0].content[0].input_audio.format is \"pcm16\""), std::string::npos);
  EXPECT_NE(refusal({sound(std::string(kMediumBytesMax / 3 * 4 + 64, 'A'))}).find("bytes, wanted at most"),
            std::string::npos);
  for (const char* role : {"system", "assistant"}) {
    for (const Json& part : {image(), sound("Zm9v"), video("data:;base64,Zm9v")}) {
      const std::string type = part["type"];
      Json message = {{"role", role}, {"content", Json::array({part})}};
      EXPECT_EQ(refusal_of(Json::array({user_message("hi"), message})),
                "messages[1].content[0].type is " + type + ", which only a user's or a tool's message may have")
          << role;
    }
  }
  std::vector<Json> many(40, image());
  many.push_back(sound("Zm9v"));
  EXPECT_EQ(refusal(many), "messages has 41 pictures, videos and sounds, wanted at most 40");
  const Json body = {{"messages", Json::array({user_message(Json::array({image()}))})}, {"truncate_prompt_tokens", 5}};
  const auto cut = parse_chat_completion(body.dump(), {.model = "m", .vocab_size = 100});
  EXPECT_EQ(cut.error().message, "truncate_prompt_tokens is not supported with pictures and sounds");
}

/// The only file of a request, or why it is refused.
Result<MediumFile> only_file(const ApiResult<CompletionRequest>& request) {
  if (!request) return Error{Errc::kMalformed, request.error().message};
  EXPECT_EQ(request->media.size(), 1u);
  return request->media.at(0);
}

TEST(ContentParts, ResponsesAndMessagesSayTheSame) {
  const ApiDefaults defaults{.model = "m", .vocab_size = 100};
  const auto of_responses = [&](const Json& part) {
    const Json text = {{"type", "input_text"}, {"text", "What?"}};
    const Json body = {{"input", Json::array({user_message(Json::array({part, text}))})}};
    return only_file(parse_responses({.json = body, .text = "", .before = {}}, defaults));
  };
  const MediumFile seen =
      of_responses({{"type", "input_image"}, {"image_url", "data:image/png;base64,Zm9v"}, {"detail", "high"}}).value();
  EXPECT_EQ(seen.bytes, "foo");
  EXPECT_EQ(seen.name, "input[0].content[0]");
  EXPECT_EQ(seen.detail, PictureDetail::kHigh);
  EXPECT_EQ(of_responses(sound("Zm9v")).value().kind, MediumFile::Kind::kSound);
  EXPECT_EQ(of_responses(video("data:;base64,Zm9v")).value().kind, MediumFile::Kind::kVideo);
  EXPECT_EQ(of_responses({{"type", "input_image"}, {"file_id", "file-1"}}).error().message,
            "input[0].content[0].type is \"input_image\", only text, image_url, input_audio, audio_url and "
            "video_url are supported");

  const auto of_messages = [&](const Json& part) {
    const Json text = {{"type", "text"}, {"text", "What?"}};
    const Json body = {{"messages", Json::array({user_message(Json::array({part, text}))})}};
    return only_file(parse_messages(body.dump(), defaults));
  };
  const auto of_source = [&](const Json& source) { return of_messages({{"type", "image"}, {"source", source}}); };
  EXPECT_EQ(of_source({{"type", "base64"}, {"media_type", "image/png"}, {"data", "Zm9v"}}).value().bytes, "foo");
  EXPECT_EQ(of_source({{"type", "url"}, {"url", "https://x/y.png"}}).value().url, "https://x/y.png");
  EXPECT_EQ(of_source({{"type", "file"}, {"file_id", "file_1"}}).error().message,
            "messages[0].content[0].source.url is missing, wanted a data: or http(s) URL");
  // Which Messages has no words for: those of chat completions are taken there, and no other.
  EXPECT_EQ(of_messages(sound("Zm9v")).value().kind, MediumFile::Kind::kSound);
  EXPECT_EQ(of_messages(video("data:;base64,Zm9v")).value().kind, MediumFile::Kind::kVideo);
  EXPECT_EQ(of_messages({{"type", "video"}, {"source", {{"type", "base64"}, {"data", "Zm9v"}}}}).error().message,
            "messages[0].content[0].type is \"video\", only text, image_url, input_audio, audio_url and video_url are "
            "supported");
}

TEST(FileCharacters, AreLongStringsThatOnlyBase64IsMadeOf) {
  const std::string base64(4000, 'A'), file = "data:image/png;base64," + base64;
  const auto count = [](const Json& json) { return file_characters(json.dump()); };
  EXPECT_EQ(count({{"url", file}}), file.size());
  EXPECT_EQ(count({{"source", {{"data", base64}}}, {"text", "x"}}), base64.size());
  EXPECT_EQ(count({file, file}), 2 * file.size());
  EXPECT_EQ(count({{"data", base64 + "\n" + base64 + "\r\n"}}), 2 * base64.size() + 6) << "as mails wrap it";
  EXPECT_EQ(count({{"url", file + "%3D"}}), file.size() + 3);
  EXPECT_EQ(count({{"text", base64 + " "}}), 0u) << "a text has spaces";
  EXPECT_EQ(count({{"text", std::string(1000, 'A')}}), 0u) << "short";
  EXPECT_EQ(count(Json(std::vector<int>(4000, 1))), 0u) << "numbers make a large tree";
  std::string numbers = R"(["a")";
  for (int i = 0; i < 4000; ++i) numbers += ",1";
  EXPECT_EQ(file_characters(numbers + R"(,"b"])"), 0u) << "between two strings";
  EXPECT_EQ(file_characters(R"({"x\"": ")" + base64 + R"("})"), base64.size()) << "an escaped quote ends no string";
  EXPECT_EQ(file_characters("\"" + base64), base64.size()) << "it breaks off";
  EXPECT_EQ(file_characters("\"" + base64 + "\\"), base64.size() + 1);
  EXPECT_EQ(file_characters(""), 0u);
}

// What the two read of a URL, and of a body that has it, never ends outside it.
TEST(FileCharacters, OfAnyBytesAreNoMoreThanThereAre) {
  CounterRng rng(9);
  for (int i = 0; i < 300; ++i) {
    std::string body(rng.below(6000), 'A');
    for (std::uint64_t changes = rng.below(4); changes > 0 && !body.empty(); --changes)
      body[rng.below(body.size())] = "\"\\ ,["[rng.below(5)];
    EXPECT_LE(file_characters(body), body.size());
  }
}

}  // namespace
}  // namespace outrider
