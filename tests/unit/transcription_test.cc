// OpenAI's transcriptions and translations: the request that a form is, and what is told of its answer.
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/dialect.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

using Fields = std::vector<std::pair<std::string, std::string>>;

/// Of these fields; its parts point into them.
std::vector<FormPart> parts_of(const Fields& fields) {
  std::vector<FormPart> parts;
  for (const auto& [name, value] : fields) parts.push_back({.name = name, .filename = "", .content = value});
  return parts;
}
ApiDefaults defaults() { return {.model = "m", .vocab_size = 1000, .sampling = {}, .draft_length = {}}; }
CompletionRequest parsed(Fields fields, SpeechTask task = SpeechTask::kTranscribe) {
  fields.emplace_back("file", "RIFF\xff");
  auto request = parse_speech(parts_of(fields), task, defaults(), "/v1/audio/transcriptions");
  EXPECT_TRUE(request) << request.error().message;
  return request ? *std::move(request) : CompletionRequest();
}
std::string prompt_of(const Fields& fields, SpeechTask task = SpeechTask::kTranscribe) {
  return parsed(fields, task).conversation.messages.at(0).parts.at(1).text;
}

TEST(Speech, IsAChatOfTheSoundAndTheModelCardsPrompt) {
  const CompletionRequest request = parsed({{"language", "de"}});
  ASSERT_EQ(request.conversation.messages.size(), 1u);
  const std::vector<ContentPart>& parts = request.conversation.messages[0].parts;
  EXPECT_EQ(parts.at(0).kind, ContentPart::Kind::kAudio) << "before the text, as the card advises";
  ASSERT_EQ(request.media.size(), 1u);
  EXPECT_EQ(request.media[0].bytes, "RIFF\xff");
  EXPECT_EQ(parts.at(1).text,
            "Transcribe the following speech segment in German into German text.\n\n"
            "Follow these specific instructions for formatting the answer:\n"
            "* Only output the transcription, with no newlines.\n"
            "* When transcribing numbers, write the digits, i.e. write 1.7 and not one point seven, and write 3 "
            "instead of three.");
  EXPECT_EQ(request.sampling.temperature, 0) << "OpenAI's default";
  EXPECT_EQ(prompt_of({{"language", "en-GB"}}), prompt_of({{"language", "English"}}));
  EXPECT_NE(prompt_of({{"language", "Klingon"}}).find("in Klingon into Klingon text"), std::string::npos);
  EXPECT_TRUE(prompt_of({}).starts_with("Transcribe the following speech segment in its original language.\n"));
  EXPECT_EQ(prompt_of({{"language", ""}}), prompt_of({}));
  EXPECT_TRUE(prompt_of({{"prompt", "Dr. Grübl"}}).ends_with(": Dr. Grübl"));
  EXPECT_EQ(prompt_of({{"language", "fr"}}, SpeechTask::kTranslate),
            "Transcribe the following speech segment in French, then translate it into English. When formatting the "
            "answer, first output the transcription in French, then one newline, then output the string 'English: ', "
            "then the translation in English.");
}

TEST(Speech, OtherFieldsAreTheChats) {
  const CompletionRequest request = parsed({{"model", "m"},
                                            {"temperature", "0.25"},
                                            {"stream", "true"},
                                            {"seed", "3"},
                                            {"stop", R"(["a", "b"])"},
                                            {"temperatur", "1"},
                                            {"response_format", "text"},
                                            {"chunking_strategy", "auto"},
                                            {"n", "1"},
                                            {"messages", "[]"}});
  EXPECT_EQ(request.sampling.temperature, 0.25f);
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_EQ(request.sampling.seed, 3u);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.warnings.size(), 1u) << "temperatur";
  EXPECT_EQ(request.conversation.messages.size(), 1u);
}

TEST(Speech, WhatTheModelCannotDoIsRefusedByName) {
  const auto refusal = [](const Fields& fields) {
    const auto chat = parse_speech(parts_of(fields), SpeechTask::kTranscribe, defaults(), "");
    return chat ? std::pair<std::string, std::string>() : std::pair(chat.error().param, chat.error().message);
  };
  EXPECT_EQ(refusal({{"model", "m"}}), std::pair(std::string("file"), std::string("the form has no file")));
  for (const char* format : {"srt", "vtt", "verbose_json", "diarized_json"}) {
    EXPECT_EQ(refusal({{"file", "x"}, {"response_format", format}}).second,
              fmt::format("response_format is '{}', wanted json or text: the model says no times", format));
  }
  for (const auto& [name, value] : Fields{{"timestamp_granularities[]", "word"},
                                          {"include[]", "logprobs"},
                                          {"chunking_strategy", R"({"type": "server_vad"})"},
                                          {"known_speaker_names[]", "Anna"},
                                          {"n", "2"},
                                          {"language", "xx"}}) {
    const auto [param, message] = refusal({{"file", "x"}, {name, value}});
    EXPECT_EQ(param, name.substr(0, name.find('['))) << message;
    EXPECT_TRUE(message.starts_with(param)) << message;
  }
}

/// What is told of an answer that comes in pieces of `size` bytes.
std::string told(std::string_view answer, SpeechTask task, std::size_t size) {
  SpeechText text(task);
  std::string all;
  for (std::size_t at = 0; at < answer.size(); at += size) all += text.push(answer.substr(at, size));
  return all + text.finish();
}

TEST(Speech, OfATranslationOnlyTheTranslationIsTold) {
  for (const std::size_t size : {1, 2, 5, 100}) {
    EXPECT_EQ(told("Guten Tag.\nEnglish: Good day.", SpeechTask::kTranslate, size), "Good day.");
    EXPECT_EQ(told("English: Good day.\nEnglish: again", SpeechTask::kTranslate, size), "Good day.\nEnglish: again");
    EXPECT_EQ(told("Er sagt English: nein.\n\nEnglish:\nNo.", SpeechTask::kTranslate, size), "No.");
    EXPECT_EQ(told("Good day.", SpeechTask::kTranslate, size), "Good day.") << "all, where the model does otherwise";
    EXPECT_EQ(told("Text\nEnglish: ", SpeechTask::kTranslate, size), "Text\nEnglish: ") << "likewise";
    EXPECT_EQ(told("a\nEnglish: b", SpeechTask::kTranscribe, size), "a\nEnglish: b");
  }
}

const ReplyHead kHead{.chat = true, .id = "chatcmpl-1", .model = "nano", .warnings = {"w"}};
const Usage kUsage{.prompt_tokens = 5, .completion_tokens = 3};
const Json kCounted = {{"type", "tokens"}, {"input_tokens", 5}, {"output_tokens", 3}, {"total_tokens", 8}};
constexpr const char *kTranscribe = "/v1/audio/transcriptions", *kTranslate = "/v1/audio/translations";

/// A chat that answers as it is told to, and what it was asked.
struct Chat {
  std::vector<std::string> pieces = {"Ja.\nEng", "lish: Y", "es."};  ///< of the answer
  std::string finish_reason = "stop";
  std::optional<ApiError> error = {};  ///< that refuses the request, or breaks a stream off
  CompletionRequest asked = {};

  HttpReply answer(ReplyWriter& writer) const {
    if (asked.stream) {
      std::string all = writer.event(kHead, {.what = ChoiceBegins()});
      for (const std::string& piece : pieces)
        all += writer.event(kHead, {.what = ChatEvent{ChatEvent::Kind::kContent, piece, {}}});
      if (!error) all += writer.event(kHead, {.what = ChoiceEnds{.finish_reason = finish_reason}});
      if (!error) all += writer.usage(kHead, kUsage);
      all += writer.end(error ? &*error : nullptr);
      const auto left = std::make_shared<std::optional<std::string>>(std::move(all));
      return {.body = {}, .next = [left] { return std::exchange(*left, std::nullopt); }};
    }
    if (error) return error_reply(*error);
    Choice choice{.message = {}, .scores = {}, .finish_reason = finish_reason};
    for (const std::string& piece : pieces) choice.message.content += piece;
    return {.body = writer.whole(kHead, {choice}, kUsage)};
  }
  HttpReply ask(const std::string& path, const Fields& fields) {
    std::string body;
    for (const auto& [name, value] : fields)
      body += "--x\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n";
    HttpRequest http;
    http.path = path;
    http.body = body + "--x--\r\n";
    ChatBackend backend;
    backend.defaults = defaults();
    backend.chat = [this](const HttpRequest&, const ApiResult<CompletionRequest>& request, const auto& writer) {
      if (!request) return error_reply(request.error());
      asked = *request;
      return answer(*writer);
    };
    for (const HttpRoute& route : transcription_routes(backend))
      if (route.path == path) return route.handler(http);
    return {.status = 404, .body = ""};
  }
  std::vector<Json> streamed(const char* path) {
    const HttpReply reply = ask(path, {{"file", "x"}, {"stream", "true"}});
    std::string all;
    while (const auto piece = reply.next()) all += *piece;
    std::vector<Json> events;
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t end = all.find("\n\n", at);
      EXPECT_EQ(all.substr(at, 6), "data: ");
      events.push_back(Json::parse(all.substr(at + 6, end - at - 6)));
      at = end + 2;
    }
    return events;
  }
};

TEST(Speech, RepliesAreOpenAis) {
  Chat chat;
  const Json warnings = {"w"};
  EXPECT_EQ(Json::parse(chat.ask(kTranscribe, {{"file", "x"}}).body),
            (Json{{"text", "Ja.\nEnglish: Yes."}, {"usage", kCounted}, {"warnings", warnings}}));
  EXPECT_EQ(Json::parse(chat.ask(kTranslate, {{"file", "x"}}).body)["text"], "Yes.");
  const HttpReply text = chat.ask(kTranslate, {{"file", "x"}, {"response_format", "text"}});
  EXPECT_EQ(text.body, "Yes.\n");
  EXPECT_EQ(text.content_type, "text/plain; charset=utf-8");
  EXPECT_TRUE(text.headers.empty());
}

TEST(Speech, ATextThatWasCutOffSaysSo) {
  Chat chat{.finish_reason = "length"};
  const HttpReply reply = chat.ask(kTranscribe, {{"file", "x"}});
  EXPECT_EQ(Json::parse(reply.body)["warnings"], Json::array({"w", "the text ends at max_tokens"}));
  ASSERT_EQ(reply.headers.size(), 1u) << "those of the chat are the chat's";
  EXPECT_EQ(reply.headers[0], std::pair(std::string("X-Outrider-Warning"), std::string("the text ends at max_tokens")));
  EXPECT_EQ(chat.streamed(kTranscribe).back()["warnings"], Json::array({"w", "the text ends at max_tokens"}));
}

TEST(Speech, ErrorsNameTheFormsFile) {
  const CompletionRequest request = parsed({});
  EXPECT_STREQ(request.source.turns, "file");
  EXPECT_EQ(request.media[0].name, "file");
}

TEST(Speech, StreamsAreOpenAis) {
  const auto told = [](const char* text) { return Json{{"type", "transcript.text.delta"}, {"delta", text}}; };
  const auto done = [&](const char* text) {
    return Json{{"type", "transcript.text.done"}, {"text", text}, {"usage", kCounted}, {"warnings", {"w"}}};
  };
  Chat chat;
  EXPECT_EQ(chat.streamed(kTranscribe),
            (std::vector<Json>{told("Ja.\nEng"), told("lish: Y"), told("es."), done("Ja.\nEnglish: Yes.")}));
  EXPECT_EQ(chat.streamed(kTranslate), (std::vector<Json>{told("Y"), told("es."), done("Yes.")}));
  chat.pieces = {"a"};
  chat.error = ApiError{.status = 503, .message = "gone"};
  const std::vector<Json> broken = chat.streamed(kTranscribe);
  ASSERT_EQ(broken.size(), 2u) << "nothing is done";
  EXPECT_EQ(broken[0], told("a"));
  EXPECT_EQ(broken[1]["error"]["message"], "gone");
}

}  // namespace
}  // namespace outrider
