// Pictures and sounds through every interface: HTTP's three kinds of chats, run and chat, with the tiny model of
// tests/goldens/multimodal-e4b, nano's tokenizer cut down to it, and the random assistant of e4b. And what nano sees.
#include <csignal>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/os/files.h"
#include "server/api_server.h"
#include "server/dialect.h"
#include "server/http_server.h"
#include "tests/support/cluster_fixtures.h"
#include "tests/support/http_client.h"
#include "tests/support/model_at.h"
#include "tests/support/png_file.h"
#include "tests/support/wav_file.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

fs::path goldens() { return source_dir() / "tests/goldens"; }

/// A pair that sees and hears: its tokens are nano's first 512, among them those for pictures and sounds.
struct SeeingPair {
  SeeingPair() {
    const fs::path seeing = goldens() / "multimodal-e4b/backbone", nano = nano_pair().backbone;
    Json config = Json::parse(read_text(seeing / "config.json").value());
    const Json of_nano = Json::parse(read_text(nano / "config.json").value());
    for (const char* token : {"boi_token_id", "image_token_id", "eoi_token_id", "boa_token_id", "audio_token_id"})
      config[token] = of_nano[token];
    dir.write("backbone/config.json", config.dump());
    Json tokenizer = Json::parse(read_text(nano / "tokenizer.json").value());
    std::erase_if(tokenizer["model"]["vocab"].get_ref<Json::object_t&>(),
                  [](const auto& token) { return token.second >= 511; });
    std::erase_if(tokenizer["added_tokens"].get_ref<Json::array_t&>(),
                  [](const Json& token) { return token["id"] >= 512; });
    tokenizer["model"]["vocab"]["ab"] = 511;
    tokenizer["model"]["merges"] = Json::array({Json::array({"a", "b"})});  // there has to be one
    dir.write("backbone/tokenizer.json", tokenizer.dump());
    fs::copy(nano / "tokenizer_config.json", dir / "backbone");
    for (const char* name : {"model.safetensors", "generation_config.json"})
      fs::create_symlink(seeing / name, dir / "backbone" / name);
    fs::create_directory_symlink(goldens() / "e4b/assistant", dir / "assistant");
  }
  std::string path() const { return dir.path().string(); }
  TemporaryDir dir;
};

std::string base64(std::string_view bytes) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 3; ++i)
      group = group << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (std::size_t i = 0; i < 4; ++i)
      text += at + i > bytes.size() ? '=' : kAlphabet[group >> (18 - 6 * static_cast<int>(i)) & 63];
  }
  return text;
}
std::string bytes_of(const std::string& name) { return read_text(goldens() / "pictures" / name).value(); }

Json image_part(const std::string& bytes, const char* detail = "low") {
  return {{"type", "image_url"},
          {"image_url", {{"url", "data:image/png;base64," + base64(bytes)}, {"detail", detail}}}};
}
Json audio_part(const std::string& bytes, const char* format = "wav") {
  return {{"type", "input_audio"}, {"input_audio", {{"data", base64(bytes)}, {"format", format}}}};
}
std::string sound_of(const std::string& name) { return read_text(goldens() / "sounds" / name).value(); }
Json text_part(const std::string& text) { return {{"type", "text"}, {"text", text}}; }
Json ask(Json content) {
  return {{"messages", {{{"role", "user"}, {"content", std::move(content)}}}}, {"temperature", 0}, {"max_tokens", 16}};
}

/// A file that breaks off behind what it says of its size.
std::string png_of_size(std::uint32_t width, std::uint32_t height) { return png(width, height, ""); }

/// Files of the goldens by HTTP, as from another host: /pictures/rgb.png.
std::unique_ptr<HttpServer> host_of_files() {
  const auto route = [](const std::string& path) {
    return HttpRoute{"GET", path, [path](const HttpRequest&) {
                       return HttpReply{.body = read_text(goldens() / path.substr(1)).value(), .content_type = ""};
                     }};
  };
  std::vector<HttpRoute> routes = {route("/pictures/rgb.png"), route("/sounds/stereo48k.flac"),
                                   route("/videos/short.mp4")};
  return HttpServer::start({}, std::move(routes)).value();
}

/// One `outrider serve` for all tests of it.
struct PictureServer : testing::Test {
  static void SetUpTestSuite() {
    pair = std::make_unique<SeeingPair>();
    files = host_of_files();
    here = fmt::format("127.0.0.1:{}", files->port());
    serve = std::make_unique<Serve>(std::vector<std::string>{"--model", pair->path(), "--draft-length", "4@0",
                                                             "--allowed-media-domains", here + ",*.example.org"});
  }
  static void TearDownTestSuite() {
    serve.reset();
    files.reset();
    pair.reset();
  }
  /// What is wrong with a chat of this content; it is one line.
  static std::string refusal(const std::vector<Json>& parts, int status = 400) {
    const Json content = parts;
    const Response response = post(serve->port, "/v1/chat/completions", ask(content).dump());
    EXPECT_EQ(response.status, status) << response.body.substr(0, 300);
    const Json body = json_of(response);
    const std::string message = response.status == 200 ? "answered" : body["error"]["message"].get<std::string>();
    EXPECT_EQ(message.find('\n'), message.npos);
    EXPECT_LT(message.size(), 300u);
    return message;
  }
  static std::unique_ptr<SeeingPair> pair;
  static std::unique_ptr<HttpServer> files;
  static std::string here;  ///< HOST:PORT of them
  static std::unique_ptr<Serve> serve;
};
std::unique_ptr<HttpServer> PictureServer::files;
std::string PictureServer::here;
std::unique_ptr<SeeingPair> PictureServer::pair;
std::unique_ptr<Serve> PictureServer::serve;

TEST_F(PictureServer, EveryInterfaceGivesTheSameText) {
  const fs::path file = goldens() / "pictures/rgb.png";
  Program run({"run", "What?", "--image", file.string(), "--soft-tokens", "70", "--model", pair->path(), "--dtype",
               "f32", "--max-tokens", "16", "--draft-length", "4@0", "--json"});
  ASSERT_EQ(describe(run.wait()), "exit 0") << run.err();
  const Json expected = Json::parse(run.out());
  Json request = ask(Json::array({image_part(bytes_of("rgb.png")), text_part("What?")}));
  request["return_token_ids"] = true;
  const Json chat = serve->chat(request);
  EXPECT_EQ(chat["prompt_token_ids"], expected["prompt_ids"]) << chat.dump().substr(0, 300);
  EXPECT_EQ(chat["choices"][0]["token_ids"], expected["token_ids"]);
  const std::string text = chat["choices"][0]["message"]["content"];
  EXPECT_EQ(expected["text"], text);

  std::string streamed;
  for (const Json& event : serve->stream(ask(Json::array({image_part(bytes_of("rgb.png")), text_part("What?")}))))
    streamed += event["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(streamed, text);

  Json part = image_part(bytes_of("rgb.png"));
  const Json responses = {{"input",
                           {{{"role", "user"},
                             {"content",
                              {{{"type", "input_image"}, {"image_url", part["image_url"]["url"]}, {"detail", "low"}},
                               {{"type", "input_text"}, {"text", "What?"}}}}}}},
                          {"temperature", 0},
                          {"max_output_tokens", 16}};
  const Json response = json_of(post(serve->port, "/v1/responses", responses.dump()));
  EXPECT_EQ(response["output"][0]["content"][0]["text"], text) << response.dump().substr(0, 300);

  // Messages have no word for how closely a picture is looked at.
  const Json any = serve->chat(ask(Json::array({image_part(bytes_of("rgb.png"), "auto"), text_part("What?")})));
  const Json source = {{"type", "base64"}, {"media_type", "image/png"}, {"data", base64(bytes_of("rgb.png"))}};
  Json message = ask({{{"type", "image"}, {"source", source}}, text_part("What?")});
  const Json said = json_of(post(serve->port, "/v1/messages", message.dump()));
  EXPECT_EQ(said["content"][0]["text"], any["choices"][0]["message"]["content"]) << said.dump().substr(0, 300);
  const Json counted = json_of(post(serve->port, "/v1/messages/count_tokens", message.dump()));
  EXPECT_EQ(counted["input_tokens"], any["usage"]["prompt_tokens"]);
}

// The same bytes from elsewhere are the same text, in each of the three APIs.
TEST_F(PictureServer, AUrlThatMayBeFetchedIsAsGoodAsItsFile) {
  const auto url_part = [&](const std::string& kind, const std::string& path) {
    return Json{{"type", kind}, {kind, {{"url", "http://" + here + path}}}};
  };
  const Json fetched = url_part("image_url", "/pictures/rgb.png");
  const auto said = [](const Json& reply) { return reply["choices"][0]["message"]["content"]; };
  const Json sent = serve->chat(ask({image_part(bytes_of("rgb.png"), "auto"), text_part("What?")}));
  const Json expected = said(sent);
  const Json chat = serve->chat(ask({fetched, text_part("What?")}));
  EXPECT_EQ(said(chat), expected) << chat.dump().substr(0, 300);
  EXPECT_EQ(chat["usage"]["prompt_tokens"], sent["usage"]["prompt_tokens"]);
  const Json responses = {{"input",
                           {{{"role", "user"},
                             {"content",
                              {{{"type", "input_image"}, {"image_url", fetched["image_url"]["url"]}},
                               {{"type", "input_text"}, {"text", "What?"}}}}}}},
                          {"temperature", 0},
                          {"max_output_tokens", 16}};
  const Json response = json_of(post(serve->port, "/v1/responses", responses.dump()));
  EXPECT_EQ(response["output"][0]["content"][0]["text"], expected) << response.dump().substr(0, 300);
  const Json source = {{"type", "url"}, {"url", fetched["image_url"]["url"]}};
  const Json message = ask({{{"type", "image"}, {"source", source}}, text_part("What?")});
  const Json answered = json_of(post(serve->port, "/v1/messages", message.dump()));
  EXPECT_EQ(answered["content"][0]["text"], expected) << answered.dump().substr(0, 300);
  const Json counted = json_of(post(serve->port, "/v1/messages/count_tokens", message.dump()));
  EXPECT_EQ(counted["input_tokens"], sent["usage"]["prompt_tokens"]);
  EXPECT_EQ(said(serve->chat(ask({url_part("audio_url", "/sounds/stereo48k.flac"), text_part("What?")}))),
            said(serve->chat(ask({audio_part(sound_of("stereo48k.flac"), "flac"), text_part("What?")}))));
  EXPECT_EQ(refusal({text_part("What?"), url_part("image_url", "/pictures/lost.png")}),
            "messages[0].content[1]: " + here + ": answers with status 404");
  EXPECT_EQ(
      refusal({{{"type", "image_url"}, {"image_url", {{"url", "http://169.254.169.254/latest/meta-data"}}}}}),
      "messages[0].content[0]: 169.254.169.254: not allowed here: serve --allowed-media-domains would have to name "
      "169.254.169.254");
}

TEST_F(PictureServer, EveryInterfaceHearsTheSame) {
  const std::string file = goldens() / "sounds/stereo48k.flac";
  Program run({"run", "What?", "--audio", file, "--model", pair->path(), "--dtype", "f32", "--max-tokens", "16",
               "--draft-length", "4@0", "--json"});
  ASSERT_EQ(describe(run.wait()), "exit 0") << run.err();
  const Json expected = Json::parse(run.out());
  const Json part = audio_part(sound_of("stereo48k.flac"), "flac");
  Json request = ask(Json::array({part, text_part("What?")}));
  request["return_token_ids"] = true;
  const Json chat = serve->chat(request);
  EXPECT_EQ(chat["prompt_token_ids"], expected["prompt_ids"]) << chat.dump().substr(0, 300);
  EXPECT_EQ(std::ranges::count(expected["prompt_ids"], Json(10)), 13) << "a soft token for 40 ms";
  EXPECT_EQ(chat["choices"][0]["token_ids"], expected["token_ids"]);
  const std::string text = chat["choices"][0]["message"]["content"];
  const Json responses = {
      {"input", {{{"role", "user"}, {"content", {part, {{"type", "input_text"}, {"text", "What?"}}}}}}},
      {"temperature", 0},
      {"max_output_tokens", 16}};
  const Json response = json_of(post(serve->port, "/v1/responses", responses.dump()));
  EXPECT_EQ(response["output"][0]["content"][0]["text"], text) << response.dump().substr(0, 300);
  // Beside a picture, in either order.
  const Json picture = image_part(bytes_of("rgb.png"));
  const Json both = serve->chat(ask({picture, part, text_part("?")})),
             turned = serve->chat(ask({part, picture, text_part("?")}));
  EXPECT_EQ(both["usage"]["prompt_tokens"], turned["usage"]["prompt_tokens"]);
  EXPECT_NE(both["choices"][0]["message"]["content"], turned["choices"][0]["message"]["content"]);
}

/// A form with a file.
std::string form_of(const std::string& file, const std::string& language) {
  const auto part = [](const std::string& head, const std::string& content) {
    return "--x\r\nContent-Disposition: form-data; " + head + "\r\n\r\n" + content + "\r\n";
  };
  return part("name=\"language\"", language) + part("name=\"file\"; filename=\"a.flac\"", file) +
         part("name=\"max_tokens\"", "16") + "--x--\r\n";
}

Response post_form(int port, const std::string& path, const std::string& form) {
  Connection connection(port);
  connection.send(
      fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
                  "Content-Length: {}\r\n\r\n{}",
                  path, form.size(), form));
  return connection.response();
}

TEST_F(PictureServer, ATranscriptionIsAChat) {
  const std::string sound = sound_of("stereo48k.flac");
  const Response response = post_form(serve->port, "/v1/audio/transcriptions", form_of(sound, "fr"));
  ASSERT_EQ(response.status, 200) << response.body;
  const ApiDefaults defaults{.model = "m", .vocab_size = 1000, .sampling = {}, .draft_length = {}};
  const auto asked = parse_speech(parse_form(form_of(sound, "fr")).value(), SpeechTask::kTranscribe, defaults, "");
  ASSERT_TRUE(asked) << asked.error().message;
  const std::string& prompt = asked->conversation.messages.at(0).parts.at(1).text;
  const Json chat = ask({audio_part(sound, "flac"), text_part(prompt)});
  EXPECT_EQ(json_of(response)["text"], serve->chat(chat)["choices"][0]["message"]["content"]);
  // A file counts as one: this form is larger than a body of text may be.
  const Response large = post_form(serve->port, "/v1/audio/transcriptions",
                                   form_of(wav(192000, 8, std::vector<float>(std::size_t{192000} * 8)), "fr"));
  EXPECT_EQ(large.status, 200) << large.body;
}

/// A folder of pictures, one for every second, and the part of a message that has the same.
struct Slides {
  Slides() {
    std::string url = "data:video/jpeg;base64,";
    for (const char* name : {"rgb.png", "portrait.png", "rgb.jpeg"}) {
      fs::copy(goldens() / "pictures" / name, dir / std::to_string(count++));
      url += (count == 1 ? "" : ",") + base64(bytes_of(name));
    }
    part = {{"type", "video_url"}, {"video_url", {{"url", url}}}};
  }
  TemporaryDir dir;
  int count = 0;
  Json part;
};
Json video_part(const std::string& bytes) {
  return {{"type", "video_url"}, {"video_url", {{"url", "data:video/mp4;base64," + base64(bytes)}}}};
}
std::string video_of(const std::string& name) { return read_text(goldens() / "videos" / name).value(); }

TEST_F(PictureServer, EveryInterfaceWatchesTheSame) {
  const Slides slides;
  const std::string film = goldens() / "videos/short.mp4";
  for (const auto& [part, path, frames] :
       {std::tuple(slides.part, slides.dir.path().string(), 3), {video_part(video_of("short.mp4")), film, 5}}) {
    SCOPED_TRACE(path);
    Json request = ask(Json::array({part, text_part("What?")}));
    request["return_token_ids"] = true;
    const Response response = post(serve->port, "/v1/chat/completions", request.dump());
    const std::vector<std::string> model = {"--model",      pair->path(), "--dtype",        "f32",
                                            "--max-tokens", "16",         "--draft-length", "4@0"};
    std::vector<std::string> to_run = {"run", "What?", "--video", path, "--json"}, to_chat = {"chat"};
    for (std::vector<std::string>* words : {&to_run, &to_chat}) words->insert(words->end(), model.begin(), model.end());
    Program run(to_run);
    run.wait();
    Program chat(to_chat, Program::Input::kWritten);
    chat.write("/video " + path + "\nWhat?\n/exit\n");
    chat.wait();
    if (response.status == 400) {  // without FFmpeg everyone says that it is missing
      const std::string why = "built without FFmpeg's libraries";
      EXPECT_NE(response.body.find(why), std::string::npos) << response.body;
      EXPECT_NE(run.err().find(why), std::string::npos) << run.err();
      EXPECT_NE(chat.err().find(why), std::string::npos) << chat.err();
      EXPECT_EQ(frames, 5) << "pictures need no FFmpeg";
      continue;
    }
    const Json body = json_of(response), expected = Json::parse(run.out());
    EXPECT_EQ(body["prompt_token_ids"], expected["prompt_ids"]) << response.body.substr(0, 300);
    EXPECT_EQ(body["choices"][0]["token_ids"], expected["token_ids"]);
    EXPECT_EQ(chat.out(), expected["text"].get<std::string>() + "\n");
    const Json config = Json::parse(read_text(pair->dir / "backbone/config.json").value());
    EXPECT_EQ(std::ranges::count(expected["prompt_ids"], config["boi_token_id"]), frames);
    EXPECT_GT(body["usage"]["prompt_tokens"], frames * 40);
  }
}

TEST_F(PictureServer, WhatIsNoVideoIsRefusedInALine) {
  const std::string film = video_of("short.mp4");
  if (refusal({video_part(film)}, post(serve->port, "/v1/chat/completions", ask({video_part(film)}).dump()).status) !=
      "answered") {
    GTEST_SKIP() << "built without FFmpeg";
  }
  EXPECT_EQ(refusal({video_part("GIF89a............")}),
            "messages[0].content[0]: not a video that can be read, wanted MP4, Matroska (WebM) or AVI");
  EXPECT_TRUE(refusal({video_part(film.substr(0, 300))}).starts_with("messages[0].content[0]: a broken video: "));
  EXPECT_NE(refusal({video_part(video_of("h264.mp4"))}).find("maximum context length is 512 tokens"),
            std::string::npos);
  EXPECT_NE(refusal({video_part(video_of("h264.mp4")), video_part(video_of("h264.mp4"))})
                .find("64 pictures, frames of videos and sounds, wanted at most 40"),
            std::string::npos);
}

TEST_F(PictureServer, WhatIsNoSoundIsRefusedInALine) {
  const std::string flac = sound_of("stereo48k.flac");
  EXPECT_EQ(refusal({audio_part("GIF89a............")}),
            "messages[0].content[0]: not a sound that can be read, wanted WAV, FLAC, Ogg or MP3");
  EXPECT_TRUE(refusal({audio_part(flac.substr(0, flac.size() / 2))}).starts_with("messages[0].content[0]: "));
  EXPECT_EQ(refusal({audio_part(wav(16000, 1, std::vector<float>(32 * 16000)))}),
            "messages[0].content[0]: a sound of 32.0 s, wanted at most 30: cut it into pieces");
  EXPECT_EQ(refusal({audio_part(wav(16000, 1, {}))}),
            "messages[0].content[0]: a sound of 0 samples at 16000 Hz, wanted at least 161");
  EXPECT_NE(
      refusal({audio_part(wav(16000, 1, std::vector<float>(30 * 16000)))}).find("maximum context length is 512 tokens"),
      std::string::npos);
  EXPECT_EQ(refusal({audio_part(wav(16000, 1, std::vector<float>(16000)))}, 200), "answered") << "silence";
}

TEST_F(PictureServer, PicturesCountInTheirOrderAndAmongTheTokens) {
  const Json first = image_part(bytes_of("rgb.png")), second = image_part(bytes_of("portrait.png"));
  const Json one = serve->chat(ask({first, text_part("What?")})),
             two = serve->chat(ask({first, second, text_part("?")})),
             turned = serve->chat(ask({second, first, text_part("?")}));
  EXPECT_NE(two["choices"][0]["message"]["content"], turned["choices"][0]["message"]["content"]);
  EXPECT_GT(one["usage"]["prompt_tokens"], 50);
  EXPECT_GT(two["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"].get<int>() + 40);
  EXPECT_EQ(two["usage"]["prompt_tokens"], turned["usage"]["prompt_tokens"]);
}

TEST_F(PictureServer, WhatIsNoPictureIsRefusedInALine) {
  const std::string rgb = bytes_of("rgb.png"), jpeg = bytes_of("rgb.jpeg");
  const Json text = text_part("What?");
  EXPECT_EQ(refusal({text, image_part(rgb.substr(0, rgb.size() / 2))}),
            "messages[0].content[1]: PNG: the file breaks off");
  EXPECT_NE(refusal({image_part(jpeg.substr(0, jpeg.size() / 2))}).find("messages[0].content[0]: JPEG: "),
            std::string::npos);
  EXPECT_EQ(refusal({image_part("GIF89a............")}),
            "messages[0].content[0]: not a picture that can be read, wanted PNG, JPEG or WebP");
  EXPECT_EQ(refusal({image_part("")}),
            "messages[0].content[0]: not a picture that can be read, wanted PNG, JPEG or WebP");
  EXPECT_NE(refusal({image_part(bytes_of("cmyk.jpeg"))}).find("a JPEG in CMYK"), std::string::npos);
  // Bombs: sizes that a file of 80 bytes says. Nothing is decoded.
  EXPECT_NE(refusal({image_part(png_of_size(8193, 8192))}).find("a picture of 8193 x 8192 pixels, wanted 1 to"),
            std::string::npos);
  EXPECT_NE(refusal({image_part(png_of_size(100000, 100000))}).find("messages[0].content[0]: "), std::string::npos);
  const std::string large = refusal({image_part(png_of_size(8000, 8000))}, 413);
  EXPECT_TRUE(large.starts_with("messages[0].content[0]: this would take ")) << large;
  EXPECT_TRUE(large.ends_with(" MB of memory, wanted at most 256")) << large;
  // As wide as few models see: this one's table has 64 positions.
  EXPECT_NE(refusal({image_part(png(1120, 1, std::string(3361, '\0')))}).find("a picture of U8 [12, 840, 3], wanted"),
            std::string::npos);
  EXPECT_EQ(refusal({image_part(png(1, 1, std::string("\0\1\2\3", 4)))}, 200), "answered");
  EXPECT_NE(refusal(std::vector<Json>(41, image_part(rgb))).find("41 pictures, videos and sounds, wanted at most 40"),
            std::string::npos);
  EXPECT_NE(refusal({image_part(rgb), image_part(rgb), image_part(rgb, "high"), image_part(rgb), image_part(rgb),
                     image_part(rgb), image_part(rgb), image_part(rgb)})
                .find("maximum context length is 512 tokens"),
            std::string::npos);
  EXPECT_EQ(refusal({text}, 200), "answered") << "after all that";
}

// What a batch's line says is read as a request is.
TEST_F(PictureServer, ALineOfABatchHasThemToo) {
  const TemporaryDir dir;
  const Json body = ask(Json::array({image_part(bytes_of("rgb.png")), text_part("What?")}));
  Json bad = ask(Json::array({image_part("GIF89a............")}));
  const Json part = {{"type", "image_url"}, {"image_url", {{"url", "http://" + here + "/pictures/rgb.png"}}}};
  std::string lines;
  for (const auto& [id, line] : {std::pair("good", body), {"bad", bad}, {"elsewhere", ask({part})}})
    lines += Json({{"custom_id", id}, {"url", "/v1/chat/completions"}, {"body", line}}).dump() + "\n";
  const fs::path input = dir.write("in.jsonl", lines);
  Program check({"batch", input.string(), "--check", "--model", pair->path()});
  check.wait();
  EXPECT_NE(check.out().find("line 2: messages[0].content[0]: not a picture"), std::string::npos) << check.err();
  EXPECT_EQ(check.out().find("line 1"), std::string::npos) << check.out();
  EXPECT_NE(check.out().find("line 3: messages[0].content[0]: http(s) URLs are fetched by serve "
                             "--allowed-media-domains HOST alone"),
            std::string::npos)
      << check.out();
  Program batch(
      {"batch", input.string(), "--output", (dir / "out.jsonl").string(), "--model", pair->path(), "--dtype", "f32"});
  batch.wait();
  const Json done = Json::parse(read_text(dir / "out.jsonl").value());
  EXPECT_EQ(done["response"]["body"]["choices"][0]["message"]["content"],
            serve->chat(body)["choices"][0]["message"]["content"]);
  EXPECT_NE(read_text(dir / "out.errors.jsonl").value().find("not a picture that can be read"), std::string::npos);
}

TEST(PictureChat, ShowsThemWithTheNextQuestion) {
  const SeeingPair pair;
  Program chat({"chat", "--model", pair.path(), "--dtype", "f32", "--max-tokens", "16", "--draft-length", "4@0"},
               Program::Input::kWritten);
  const fs::path file = goldens() / "pictures/rgb.png";
  chat.write("/image " + (pair.dir / "lost.png").string() + "\n/image " + file.string() + "\nWhat?\n/exit\n");
  EXPECT_EQ(describe(chat.wait()), "exit 0");
  EXPECT_NE(chat.err().find("lost.png: cannot open: No such file"), std::string::npos) << chat.err();
  Program run(
      {"run", "What?", "--image", file.string(), "--model", pair.path(), "--dtype", "f32", "--max-tokens", "16"});
  EXPECT_EQ(describe(run.wait()), "exit 0") << run.err();
  EXPECT_EQ(chat.out(), run.out());
}

// Told before any is read: the last of them is not there.
TEST(PictureChat, MoreThanATextMayHaveAreRefusedUnread) {
  const SeeingPair pair;
  const std::string picture = goldens() / "pictures/rgb.png", lost = pair.dir / "lost.png";
  std::vector<std::string> to_run = {"run", "What?", "--model", pair.path(), "--audio", lost};
  std::string shown;
  for (int i = 0; i < 40; ++i) {
    to_run.insert(to_run.end(), {"--image", lost});
    shown += "/image " + picture + "\n";
  }
  Program run(to_run);
  run.wait();
  EXPECT_NE(run.err().find("run: 41 pictures, frames of videos and sounds, wanted at most 40"), std::string::npos)
      << run.err();
  Program chat({"chat", "--model", pair.path()}, Program::Input::kWritten);
  chat.write(shown + "/audio " + lost + "\n/exit\n");
  EXPECT_EQ(describe(chat.wait()), "exit 0");
  EXPECT_NE(chat.err().find("lost.png: this conversation would have 41 pictures, frames of videos and sounds, "
                            "wanted at most 40"),
            std::string::npos)
      << chat.err();
}

TEST(PictureChat, PlaysSoundsWithTheNextQuestion) {
  const SeeingPair pair;
  Program chat({"chat", "--model", pair.path(), "--dtype", "f32", "--max-tokens", "16", "--draft-length", "4@0"},
               Program::Input::kWritten);
  const std::string picture = goldens() / "pictures/rgb.png", sound = goldens() / "sounds/mono16k.wav";
  chat.write("/audio " + picture + "\n/image " + picture + "\n/audio " + sound + "\nWhat?\n/exit\n");
  EXPECT_EQ(describe(chat.wait()), "exit 0");
  EXPECT_NE(chat.err().find("rgb.png: not a sound that can be read"), std::string::npos) << chat.err();
  Program run({"run", "What?", "--audio", sound, "--image", picture, "--model", pair.path(), "--dtype", "f32",
               "--max-tokens", "16"});
  EXPECT_EQ(describe(run.wait()), "exit 0") << run.err();
  EXPECT_EQ(chat.out(), run.out()) << "run has pictures before sounds";
}

/// That serve says what Hugging Face said of a file, with drafts and without.
void expect_golden(Serve& serve, const Json& golden, const std::string& file, const Json& part,
                   const std::string& question) {
  SCOPED_TRACE(file + ": " + question);
  Json request = ask(Json::array({part, text_part(question)}));
  request.update({{"max_tokens", 24}, {"return_token_ids", true}});
  for (const int draft_length : {0, 4}) {
    request["speculative"] = {{"draft_length", draft_length}};
    const Json chat = serve.chat(request);
    EXPECT_EQ(chat["prompt_token_ids"].size(), golden["prompt_tokens"]) << chat.dump().substr(0, 300);
    EXPECT_EQ(chat["choices"][0]["token_ids"], golden["tokens"]) << chat["choices"][0]["message"].dump();
  }
}

TEST(NanoSees, WhatHuggingFaceSays) {
  Serve serve;
  for (const Json& golden : Json::parse(read_text(goldens() / "nano-pictures/answers.json").value())) {
    const std::string picture = golden["picture"];
    expect_golden(serve, golden, picture, image_part(bytes_of("../nano-pictures/" + picture), "auto"),
                  golden["question"]);
  }
}

TEST(NanoHears, WhatHuggingFaceSays) {
  Serve serve;
  for (const Json& golden : Json::parse(read_text(goldens() / "nano-sounds/answers.json").value())) {
    const std::string sound = golden["sound"];
    expect_golden(serve, golden, sound, audio_part(sound_of("../nano-sounds/" + sound)), golden["question"]);
  }
}

/// That `why` is the answer to a part of a chat, over HTTP and on the command line.
/// @param option  of run, and chat's command, that takes `file`
void expect_refusal(const Serve& serve, const Json& part, const std::string& option, const std::string& file,
                    const std::vector<std::string>& model, const std::string& why) {
  const Json body = ask(Json::array({part, text_part("What?")}));
  const Response refused = post(serve.port, "/v1/chat/completions", body.dump());
  EXPECT_EQ(refused.status, 400);
  const std::string message = json_of(refused)["error"]["message"];
  EXPECT_TRUE(message.starts_with("messages[0].content[0]: ")) << message;
  EXPECT_TRUE(message.ends_with(why)) << message;
  EXPECT_EQ(post(serve.port, "/tokenize", body.dump()).status, 400);

  std::vector<std::string> to_run = {"run", "What?", "--" + option, file}, to_chat = {"chat"};
  for (std::vector<std::string>* words : {&to_run, &to_chat}) words->insert(words->end(), model.begin(), model.end());
  Program run(to_run);
  run.wait();
  EXPECT_NE(run.err().find(why), std::string::npos) << run.err();
  Program chat(to_chat, Program::Input::kWritten);
  chat.write("/" + option + " " + file + "\n/exit\n");
  EXPECT_EQ(describe(chat.wait()), "exit 0");
  EXPECT_NE(chat.err().find(why), std::string::npos) << chat.err();
}

/// nano without what it sees or hears with: `sense` is vision_config or audio_config.
class NanoWithout : public PairCopy {
 public:
  explicit NanoWithout(const std::string& sense) : PairCopy(nano_pair().backbone.parent_path()) {
    Json config = Json::parse(read("backbone/config.json"));
    config[sense] = nullptr;
    write("backbone/config.json", config.dump());
  }
};

// A model without a tower says so wherever it is asked.
TEST(NoTower, SaysSo) {
  constexpr const char* kWhy = "this model has no vision tower, and cannot see pictures";
  const NanoWithout blind("vision_config");
  const std::string model = blind.dir().string(), file = goldens() / "pictures/rgb.png";
  Serve serve({"--model", model});
  expect_refusal(serve, image_part(bytes_of("rgb.png")), "image", file, {"--model", model}, kWhy);
  Json block =
      ask({{{"type", "image"},
            {"source", {{"type", "base64"}, {"media_type", "image/png"}, {"data", base64(bytes_of("rgb.png"))}}}}});
  const Response anthropic = post(serve.port, "/v1/messages", block.dump());
  EXPECT_EQ(anthropic.status, 400);
  EXPECT_NE(anthropic.body.find(kWhy), std::string::npos);
}

TEST(NoTower, OfSoundsSaysSo) {
  constexpr const char* kWhy = "this model has no audio tower, and cannot hear sounds";
  const NanoWithout deaf("audio_config");
  const std::string model = deaf.dir().string(), file = goldens() / "sounds/mono16k.wav";
  Serve serve({"--model", model});
  expect_refusal(serve, audio_part(sound_of("mono16k.wav")), "audio", file, {"--model", model}, kWhy);
  for (const char* path : {"/v1/audio/transcriptions", "/v1/audio/translations"}) {
    const Response refused = post_form(serve.port, path, form_of(sound_of("mono16k.wav"), "en"));
    EXPECT_EQ(refused.status, 400);
    const std::string message = json_of(refused)["error"]["message"];
    EXPECT_TRUE(message.starts_with("file: ") && message.ends_with(kWhy)) << message;
    EXPECT_EQ(message.find(model), std::string::npos) << "no path of this machine: " << message;
  }
}

// ---- memory

/// What a request was told to hold, one after the other, up to `most`.
struct Held {
  explicit Held(std::int64_t bytes) : most(bytes) {}
  std::optional<ApiError> hold(std::int64_t bytes) {
    all.push_back(bytes);
    return bytes > most ? std::optional(ApiError{413, "too much"}) : std::nullopt;
  }
  const std::int64_t most;
  std::vector<std::int64_t> all;
};

TEST(PictureMemory, IsCountedBeforePixelsAreDecoded) {
  const SeeingPair pair;
  TransportContext context;
  ApiServer api(context, TextSide::load(model_at(pair.dir / "backbone")).value(),
                {.coordinator = "tcp://127.0.0.1:1", .version = "", .model = "m"});
  const auto tokenize = [&](const std::string& file, Held& held) {
    return api.tokenize({.method = "POST",
                         .path = "/tokenize",
                         .body = ask(Json::array({image_part(file)})).dump(),
                         .client = "",
                         .key = nullptr,
                         .reserve = [&](std::int64_t bytes) { return held.hold(bytes); }});
  };
  Held enough(1 << 30);
  EXPECT_EQ(tokenize(bytes_of("rgb.png"), enough).status, 200);
  ASSERT_EQ(enough.all.size(), 2u) << "the body, then the pixels";
  EXPECT_LT(enough.all[0], 48 * 1024) << "a file in base64 is no text";

  Held some(100 << 20);
  const HttpReply refused = tokenize(png_of_size(7000, 7000), some);
  EXPECT_EQ(refused.status, 413) << refused.body;
  EXPECT_NE(refused.body.find("messages[0].content[0]: too much"), std::string::npos) << refused.body;
  ASSERT_EQ(some.all.size(), 2u);
  EXPECT_GE(some.all[1], std::int64_t{7000} * 7000 * 3);
}

}  // namespace
}  // namespace outrider
