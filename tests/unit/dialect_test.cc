// Requests and replies of Anthropic's Messages and OpenAI's Responses.
#include "server/dialect.h"

#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/fields.h"
#include "common/base/json_fields.h"
#include "server/response_store.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

ApiDefaults plain_defaults() {
  return {.model = "nano",
          .vocab_size = 1000,
          .sampling = {},
          .controls = {.channel_begin = 1, .channel_end = 2, .call_begin = 3, .call_end = 4, .quote = 5},
          .draft_length = {}};
}

const ReplyHead kHead{.chat = true, .id = "chatcmpl-1", .model = "nano", .created = 5};
const Usage kUsage{.prompt_tokens = 7, .cached_tokens = 4, .completion_tokens = 3};

/// A chat's reply: whole, and as the events of a stream.
struct Answer {
  Choice choice;
  std::vector<ChoiceEvent> events;
  std::optional<ApiError> error = {};  ///< that the stream breaks off with

  HttpReply whole(ReplyWriter& writer) const {
    for (const ChoiceEvent& event : events) writer.event(kHead, event);
    return {.body = writer.whole(kHead, {choice}, kUsage)};
  }
  HttpReply streamed(ReplyWriter& writer) const {
    std::string all;
    for (const ChoiceEvent& event : events) all += writer.event(kHead, event);
    if (!error) all += writer.usage(kHead, kUsage);
    all += writer.end(error ? &*error : nullptr);
    const auto left = std::make_shared<std::optional<std::string>>(std::move(all));
    return {.body = {}, .next = [left] { return std::exchange(*left, std::nullopt); }};
  }
  /// As a request wants it.
  HttpReply to(const CompletionRequest& request, ReplyWriter& writer) const {
    return request.stream ? streamed(writer) : whole(writer);
  }
};

/// With a thought, text and a call.
Answer answer() {
  using Kind = ChatEvent::Kind;
  Answer answer{.choice = {.message = {}, .scores = {}, .finish_reason = "tool_calls"}, .events = {}};
  answer.choice.message.reasoning = "Hm";
  answer.choice.message.content = "Look:";
  answer.choice.message.tool_calls = {{.id = "", .name = "weather", .arguments = {{"city", "Rome"}}}};
  answer.events.push_back({.what = ChoiceBegins{}, .notes = {.so_far = &kUsage}});
  for (const ChatEvent& more :
       {ChatEvent{Kind::kReasoning, "H", ""}, ChatEvent{Kind::kReasoning, "m", ""}, ChatEvent{Kind::kContent, "Lo", ""},
        ChatEvent{Kind::kContent, "ok:", ""}, ChatEvent{Kind::kToolCall, R"({"city":"Rome"})", "weather"}})
    answer.events.push_back({.what = more});
  answer.events.push_back({.what = ChoiceEnds{"tool_calls"}});
  return answer;
}
/// Answers a request that is right.
using Chat =
    std::function<HttpReply(const HttpRequest&, const CompletionRequest&, const std::shared_ptr<ReplyWriter>&)>;
ChatBackend backend_of(Chat chat) {
  return {.chat =
              [chat = std::move(chat)](const HttpRequest& http, const ApiResult<CompletionRequest>& request,
                                       const std::shared_ptr<ReplyWriter>& writer) {
                return request ? chat(http, *request, writer) : error_reply(request.error());
              },
          .count =
              [](const HttpRequest&, const ApiResult<TokenizeRequest>& request) {
                return request ? ApiResult<std::int64_t>(7) : request.error();
              },
          .defaults = plain_defaults()};
}
/// All pieces of a reply.
std::string all_of(const HttpReply& reply) {
  std::string all;
  while (const auto piece = reply.next()) all += *piece;
  return all;
}

/// The data of events, and that each is called what its type says.
std::vector<Json> data_of(const std::string& events) {
  std::vector<Json> list;
  for (std::size_t at = 0; at < events.size();) {
    const std::size_t data = events.find("\ndata: ", at), end = events.find("\n\n", at);
    list.push_back(Json::parse(events.substr(data + 7, end - data - 7)));
    EXPECT_EQ("event: " + list.back()["type"].get<std::string>(), events.substr(at, data - at));
    at = end + 2;
  }
  return list;
}

std::vector<std::string> types(const std::vector<Json>& events) {
  std::vector<std::string> types;
  for (const Json& event : events) types.push_back(event["type"]);
  return types;
}

/// What a message says, a part behind the other.
std::string text_of(const ChatMessage& message) {
  std::string text = message.content;
  for (const ContentPart& part : message.parts) text += part.text;
  return text;
}
/// A call of the weather in Rome.
void expect_call(const ChatMessage& message, const std::string& id) {
  using Role = ChatMessage::Role;
  EXPECT_EQ(message.role, Role::kAssistant);
  ASSERT_EQ(message.tool_calls.size(), 1u);
  EXPECT_EQ(message.tool_calls[0].id, id);
  EXPECT_EQ(message.tool_calls[0].name, "weather");
  EXPECT_EQ(message.tool_calls[0].arguments, (Json{{"city", "Rome"}}));
}
/// The assistant's turn that thinks, speaks and makes that call, and the call's answer behind it.
void expect_called_turn(std::span<const ChatMessage, 2> messages) {
  EXPECT_EQ(messages[0].reasoning, "Hm");
  EXPECT_EQ(text_of(messages[0]), "Look:");
  expect_call(messages[0], "c1");
  EXPECT_EQ(messages[1].role, ChatMessage::Role::kTool);
  EXPECT_EQ(messages[1].tool_call_id, "c1");
  EXPECT_EQ(messages[1].response, "sunny");
}

TEST(JsonFields, ATextIsNoNumberHoweverWideTheRange) {
  FirstError wrong;
  const Json object = {{"x", "no"}};
  JsonFields(object, "", wrong).number("x", 1, kFinite.min, kFinite.max);
  EXPECT_TRUE(wrong.error) << "the lowest double less 1 is the lowest double";
}

TEST(Messages, ARequestIsRead) {
  using Role = ChatMessage::Role;
  const Json request = {
      {"model", "nano"},
      {"max_tokens", 5},
      {"system", {{{"type", "text"}, {"text", "S"}, {"cache_control", {{"type", "ephemeral"}}}}}},
      {"stop_sequences", {"x"}},
      {"messages",
       {{{"role", "user"}, {"content", "Hi"}},
        {{"role", "assistant"},
         {"content",
          {{{"type", "thinking"}, {"thinking", "Hm"}, {"signature", ""}},
           {{"type", "text"}, {"text", "Look:"}},
           {{"type", "tool_use"}, {"id", "c1"}, {"name", "weather"}, {"input", {{"city", "Rome"}}}}}}},
        {{"role", "user"},
         {"content",
          {{{"type", "tool_result"}, {"tool_use_id", "c1"}, {"content", "sunny"}},
           {{"type", "text"}, {"text", "And?"}}}}}}},
      {"tools", {{{"name", "weather"}, {"input_schema", {{"type", "object"}}}, {"strict", true}}}},
      {"tool_choice", {{"type", "any"}}},
      {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}};
  const CompletionRequest read = parse_messages(request.dump(), plain_defaults()).value();
  const std::vector<ChatMessage>& messages = read.conversation.messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0].role, Role::kSystem);
  EXPECT_EQ(text_of(messages[0]), "S");
  expect_called_turn(std::span(messages).subspan<2, 2>());
  EXPECT_EQ(text_of(messages[4]), "And?");
  ASSERT_EQ(read.conversation.tools.size(), 1u);
  EXPECT_EQ(read.conversation.tools[0].name, "weather");
  EXPECT_TRUE(read.conversation.tools[0].strict);
  EXPECT_EQ(read.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(read.max_tokens, 5);
  EXPECT_TRUE(read.conversation.thinking);
  EXPECT_TRUE(read.include_reasoning);
  for (const char* wrong : {"", "[]", "{}", R"({"messages": 3})", R"({"messages": []})"})
    EXPECT_EQ(parse_messages(wrong, plain_defaults()).error().status, 400) << wrong;
}

TEST(Messages, EveryFieldIsReadOrRefused) {
  const auto of = [](const Json& fields) {
    Json request = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 5}};
    request.update(fields);
    return parse_messages(request.dump(), plain_defaults());
  };
  const Json form = {{"type", "json_schema"}, {"schema", {{"type", "object"}}}};
  for (const Json& asked : {Json{{"output_format", form}}, Json{{"output_config", {{"format", form}}}}})
    EXPECT_FALSE(of(asked).value().sampling.grammar.empty());
  EXPECT_FALSE(of({{"thinking", {{"type", "adaptive"}, {"display", "omitted"}}}}).value().include_reasoning);
  for (const char* name : {"container", "mcp_servers", "compaction", "thread", "documents", "suffix"})
    EXPECT_EQ(of({{name, "x"}}).error().param, name);
  EXPECT_EQ(of({{"grammar", "x"}}).error().param, "grammar");
  const auto edited = [&](const char* type) { return of({{"context_management", {{"edits", {{{"type", type}}}}}}}); };
  EXPECT_TRUE(edited("clear_thinking_20251015"));
  EXPECT_EQ(edited("clear_tool_uses_20250919").error().param, "context_management");
  const Json begun = {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", "The"}}};
  EXPECT_EQ(of({{"messages", begun}}).value().conversation.end, Conversation::End::kWithinLastMessage);
  EXPECT_EQ(of(Json::object()).value().conversation.end, Conversation::End::kModelTurn);
  EXPECT_TRUE(of({{"n", 1}}));
  for (const char* name : {"n", "prompt_logprobs", "return_token_ids", "logprobs", "verbose"})
    EXPECT_EQ(of({{name, 2}}).error().param, name);
}

// As in the body, though JSON's objects have no order.
TEST(Dialects, PropertiesOfASchemaComeInItsOrder) {
  const std::string schema = R"({"type":"object","properties":{"b":{"type":"null"},"a":{"type":"null"}},)"
                             R"("required":["b","a"],"additionalProperties":false})";
  const auto completion = parse_chat_completion(R"({"messages":[{"role":"user","content":"x"}],)"
                                                R"("response_format":{"type":"json_schema","json_schema":{"schema":)" +
                                                    schema + "}}}",
                                                plain_defaults());
  const std::string& grammar = completion.value().sampling.grammar;
  EXPECT_EQ(parse_messages(R"({"messages":[{"role":"user","content":"x"}],"output_config":{"format":)"
                           R"({"type":"json_schema","schema":)" +
                               schema + "}}}",
                           plain_defaults())
                .value()
                .sampling.grammar,
            grammar);
  const std::string response =
      R"({"input":"x","text":{"format":{"type":"json_schema","name":"n","schema":)" + schema + "}}}";
  EXPECT_EQ(parse_responses({.json = Json::parse(response), .text = response, .before = {}}, plain_defaults())
                .value()
                .sampling.grammar,
            grammar);
}

TEST(Messages, TheLineOfClaudeCodeThatDiffersInEachRequestIsLeftOut) {
  const auto texts = [](const char* hash, const char* role) {
    const Json line = {{"type", "text"},
                       {"text", fmt::format("x-anthropic-billing-header: cc_version=2; cch={};", hash)}};
    const Json system = {line, {{"type", "text"}, {"text", "S"}}};
    Json request = {{"messages", {{{"role", "user"}, {"content", {line}}}}}, {"system", system}};
    if (role != nullptr) request["messages"].push_back({{"role", role}, {"content", system}});
    std::vector<std::string> said;
    const CompletionRequest read = parse_messages(request.dump(), plain_defaults()).value();
    for (const ChatMessage& message : read.conversation.messages) said.push_back(text_of(message));
    const auto counted = parse_messages_prompt(request.dump(), plain_defaults()).value();
    EXPECT_EQ(std::get<Conversation>(counted.text).messages.size(), said.size());
    return said;
  };
  EXPECT_EQ(texts("a1b2c", nullptr),
            (std::vector<std::string>{"S", "x-anthropic-billing-header: cc_version=2; cch=a1b2c;"}))
      << "a user may say anything";
  EXPECT_EQ(texts("a1b2c", "system")[2], "S");
}

// The templates have no place for them within an answer.
TEST(Dialects, PicturesOfToolsAnswersAreShownBehindThem) {
  const std::string url = "data:image/png;base64,Zm9v";
  const auto check = [](const ApiResult<CompletionRequest>& read, const char* detail) {
    ASSERT_TRUE(read) << read.error().message;
    std::string said;
    for (const ChatMessage& message : read->conversation.messages) {
      using Role = ChatMessage::Role;
      const bool tool = message.role == Role::kTool;
      said += message.role == Role::kAssistant ? "A" : tool ? "T" + message.response.get<std::string>() : "U";
      EXPECT_TRUE(!tool || message.parts.empty());
      for (const ContentPart& part : message.parts) said += part.kind == ContentPart::Kind::kImage ? "*" : part.text;
      said += message.content + " ";
    }
    EXPECT_EQ(said, "A Tone Ttwo U** Uthen A Tthree U* ") << detail;
    EXPECT_EQ(read->media.size(), 3u);
  };
  const auto call_chat = [](const char* id) {
    return Json{{"id", id}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
  };
  const auto text = [](const char* type, const char* said) { return Json{{"type", type}, {"text", said}}; };
  const Json of_chat = {{"type", "image_url"}, {"image_url", {{"url", url}}}};
  const Json chat = {{{"role", "assistant"}, {"tool_calls", {call_chat("1"), call_chat("2")}}},
                     {{"role", "tool"}, {"tool_call_id", "1"}, {"content", {text("text", "one"), of_chat}}},
                     {{"role", "tool"}, {"tool_call_id", "2"}, {"content", {of_chat, text("text", "two")}}},
                     {{"role", "user"}, {"content", "then"}},
                     {{"role", "assistant"}, {"tool_calls", {call_chat("3")}}},
                     {{"role", "tool"}, {"tool_call_id", "3"}, {"content", {text("text", "three"), of_chat}}}};
  check(parse_chat_completion(Json{{"messages", chat}}.dump(), plain_defaults()), "chat completions");

  const auto call_item = [](const char* id) {
    return Json{{"type", "function_call"}, {"call_id", id}, {"name", "f"}, {"arguments", "{}"}};
  };
  const auto output = [](const char* id, const Json& content) {
    return Json{{"type", "function_call_output"}, {"call_id", id}, {"output", content}};
  };
  const Json of_item = {{"type", "input_image"}, {"image_url", url}};
  const Json items = {call_item("1"),
                      call_item("2"),
                      output("1", {text("input_text", "one"), of_item}),
                      output("2", {of_item, text("input_text", "two")}),
                      {{"role", "user"}, {"content", "then"}},
                      call_item("3"),
                      output("3", {text("input_text", "three"), of_item})};
  check(parse_responses({.json = {{"input", items}}, .text = "", .before = {}}, plain_defaults()), "Responses");

  const auto use = [](const char* id) {
    return Json{{"type", "tool_use"}, {"id", id}, {"name", "f"}, {"input", Json::object()}};
  };
  const auto result = [](const char* id, const Json& content) {
    return Json{{"type", "tool_result"}, {"tool_use_id", id}, {"content", content}};
  };
  const Json of_block = {{"type", "image"},
                         {"source", {{"type", "base64"}, {"media_type", "image/png"}, {"data", "Zm9v"}}}};
  const Json turns = {{{"role", "assistant"}, {"content", {use("1"), use("2")}}},
                      {{"role", "user"},
                       {"content",
                        {result("1", {text("text", "one"), of_block}), result("2", {of_block, text("text", "two")}),
                         text("text", "then")}}},
                      {{"role", "assistant"}, {"content", {use("3")}}},
                      {{"role", "user"}, {"content", {result("3", {text("text", "three"), of_block})}}}};
  check(parse_messages(Json{{"messages", turns}}.dump(), plain_defaults()), "Messages");
}

TEST(Messages, APictureBeforeAResultComesBehindTheResultsPicture) {
  const auto image = [](const char* data) {
    return Json{{"type", "image"}, {"source", {{"type", "base64"}, {"media_type", "image/png"}, {"data", data}}}};
  };
  const Json result = {{"type", "tool_result"}, {"tool_use_id", "1"}, {"content", {image("Zm9v")}}};
  const Json turns = {
      {{"role", "assistant"},
       {"content", {{{"type", "tool_use"}, {"id", "1"}, {"name", "f"}, {"input", Json::object()}}}}},
      {{"role", "user"}, {"content", {image("YmFy"), result}}}};
  const ApiResult<CompletionRequest> read = parse_messages(Json{{"messages", turns}}.dump(), plain_defaults());
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->media.size(), 2u);
  EXPECT_EQ(read->media[0].bytes, "foo") << "as in the conversation: the result, and then the message";
  EXPECT_EQ(read->media[1].bytes, "bar");
}

TEST(Messages, AResultMayHaveFailedOrNameATool) {
  const auto response = [](Json block) {
    block.update({{"type", "tool_result"}, {"tool_use_id", "1"}});
    const Json request = {{"messages", {{{"role", "user"}, {"content", Json::array({block})}}}}};
    return parse_messages(request.dump(), plain_defaults()).value().conversation.messages.at(0).response;
  };
  EXPECT_EQ(response({{"content", "x"}, {"is_error", true}}), (Json{{"error", "x"}}));
  EXPECT_EQ(response({{"is_error", true}}), (Json{{"error", ""}}));
  EXPECT_EQ(response({{"content", "x"}, {"is_error", false}}), "x");
  EXPECT_EQ(response({{"content", {{{"type", "tool_reference"}, {"tool_name", "weather"}}}}}), "weather");
}

TEST(Dialects, ToolsThatAServerWouldRunAreLeftOutBesideOthers) {
  const Json function = {{"type", "function"}, {"name", "f"}}, custom = {{"name", "f"}};
  const auto check = [](const auto& read, const Json& of_client, const char* type) {
    const Json of_server = {{"type", type}, {"name", "x"}};
    const CompletionRequest request = read({of_server, of_client}, plain_defaults()).value();
    ASSERT_EQ(request.conversation.tools.size(), 1u);
    EXPECT_EQ(request.conversation.tools[0].name, "f");
    EXPECT_EQ(request.warnings,
              std::vector<std::string>{
                  fmt::format("tools[0].type is \"{}\", which this server does not run: the tool is left out", type)});
    EXPECT_EQ(read(Json::array({of_server}), plain_defaults()).error().param, "tools[0].type")
        << "nothing else to call";
    ApiDefaults strict = plain_defaults();
    strict.strict_fields = true;
    EXPECT_EQ(read({of_client, of_server}, strict).error().param, "tools[1].type");
    EXPECT_EQ(read(Json(std::vector<Json>(100, of_server)), plain_defaults()).error().param, "tools[0].type");
    Json many = std::vector<Json>(100, of_server);
    many.push_back(of_client);
    EXPECT_EQ(read(many, plain_defaults()).value().warnings.size(), 8u) << "they are a header too";
  };
  check(
      [](const Json& tools, const ApiDefaults& defaults) {
        return parse_responses({.json = {{"input", "x"}, {"tools", tools}}, .text = "", .before = {}}, defaults);
      },
      function, "web_search");
  check(
      [](const Json& tools, const ApiDefaults& defaults) {
        const Json messages = {{{"role", "user"}, {"content", "x"}}};
        return parse_messages(Json{{"messages", messages}, {"tools", tools}}.dump(), defaults);
      },
      custom, "web_search_20250305");
}

// By the client's own word for it.
TEST(Dialects, WhatIsWrongIsNamed) {
  const auto message = [](const Json& fields) {
    Json request = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
    request.update(fields);
    return parse_messages(request.dump(), plain_defaults()).error().param;
  };
  const auto with = [](const Json& block, const char* role = "user") {
    return Json{{"messages", {{{"role", role}, {"content", {block}}}}}};
  };
  EXPECT_EQ(message({{"stop_sequences", 3}}), "stop_sequences");
  EXPECT_EQ(message({{"max_tokens", 0}}), "max_tokens");
  EXPECT_EQ(message({{"system", 3}}), "system");
  EXPECT_EQ(message({{"tools", {{{"name", "f"}, {"input_schema", 3}}}}}), "tools[0].input_schema");
  EXPECT_EQ(message({{"tools", {{{"type", "bash_20250124"}, {"name", "bash"}}}}}), "tools[0].type");
  EXPECT_EQ(message({{"tool_choice", {{"type", "some"}}}}), "tool_choice.type");
  EXPECT_EQ(message({{"tool_choice", {{"type", "tool"}}}}), "tool_choice.name");
  EXPECT_EQ(message({{"output_config", {{"format", {{"type", "xml"}}}}}}), "output_config.format.type");
  EXPECT_EQ(message({{"output_format", {{"type", "json_schema"}}}}), "output_format.schema");
  EXPECT_EQ(message(with({{"type", "tool_result"}})), "messages[0].content[0].tool_use_id");
  EXPECT_EQ(message(with({{"type", "tool_use"}, {"name", "a b"}}, "assistant")), "messages[0].content[0].name");
  EXPECT_EQ(message(with({{"type", "image"}, {"source", {{"type", "base64"}, {"media_type", "image/png"}}}})),
            "messages[0].content[0].source.data");
  EXPECT_EQ(message(with({{"type", "image"}, {"source", {{"type", "url"}, {"url", "x"}}}})),
            "messages[0].content[0].source.url");
  const auto response = [](const Json& fields) {
    Json request = {{"input", "Hi"}};
    request.update(fields);
    return parse_responses({.json = request, .text = "", .before = {}}, plain_defaults()).error().param;
  };
  EXPECT_EQ(response({{"max_output_tokens", 0}}), "max_output_tokens");
  EXPECT_EQ(response({{"instructions", 3}}), "instructions");
  EXPECT_EQ(response({{"input", Json::array()}}), "input");
  EXPECT_EQ(response({{"input", {3}}}), "input[0]");
  EXPECT_EQ(response({{"input", {{{"type", "function_call"}, {"call_id", "c"}}}}}), "input[0].name");
  const Json picture = {{"type", "input_image"}, {"image_url", "x"}};
  EXPECT_EQ(response({{"input", {{{"role", "user"}, {"content", {picture}}}}}}), "input[0].content[0].image_url");
  EXPECT_EQ(response({{"input", {{{"role", "system"}, {"content", {picture}}}}}}), "input[0].content[0].type");
  EXPECT_EQ(response({{"tools", {{{"type", "function"}, {"name", "f"}, {"parameters", 3}}}}}), "tools[0].parameters");
  EXPECT_EQ(response({{"tool_choice", {{"type", "allowed_tools"}}}}), "tool_choice.type");
  EXPECT_EQ(response({{"tool_choice", "some"}}), "tool_choice");
}

TEST(Messages, AReplyIsTheSameStreamedAndNot) {
  const auto ask = [](const Answer& told, bool stream) {
    const std::vector<HttpRoute> routes = messages_routes(
        backend_of([&](const auto&, const auto& request, const auto& writer) { return told.to(request, *writer); }));
    HttpRequest http;
    http.body =
        Json{{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 5}, {"stream", stream}}.dump();
    return routes.front().handler(http);
  };
  const Json whole = Json::parse(ask(answer(), false).body);
  EXPECT_EQ(
      whole["content"],
      Json(
          {{{"type", "thinking"}, {"thinking", "Hm"}, {"signature", ""}},
           {{"type", "text"}, {"text", "Look:"}},
           {{"type", "tool_use"}, {"id", "call_chatcmpl-1_0_0"}, {"name", "weather"}, {"input", {{"city", "Rome"}}}}}));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_EQ(whole["usage"]["input_tokens"], 3) << "without those that were cached";
  const std::vector<Json> events = data_of(all_of(ask(answer(), true)));
  EXPECT_EQ(types(events), (std::vector<std::string>{"message_start", "content_block_start", "content_block_delta",
                                                     "content_block_delta", "content_block_stop", "content_block_start",
                                                     "content_block_delta", "content_block_delta", "content_block_stop",
                                                     "content_block_start", "content_block_delta", "content_block_stop",
                                                     "message_delta", "message_stop"}));
  EXPECT_EQ(events[0]["message"]["id"], whole["id"]);
  EXPECT_EQ(events[2]["delta"], Json({{"type", "thinking_delta"}, {"thinking", "H"}}));
  EXPECT_EQ(events[10]["delta"]["partial_json"], R"({"city":"Rome"})");
  EXPECT_EQ(events[12]["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(events[12]["usage"], whole["usage"]);
  EXPECT_EQ(events[9]["content_block"]["id"], whole["content"][2]["id"]);
  Answer broken = answer();
  for (const auto& [status, type] : {std::pair(503, "api_error"), std::pair(429, "rate_limit_error")}) {
    broken.error = ApiError{status, "gone"};
    EXPECT_EQ(data_of(all_of(ask(broken, true))).back(),
              (Json{{"type", "error"}, {"error", {{"type", type}, {"message", "gone"}}}}));
  }
}

TEST(Messages, AnErrorIsWordedAsAnthropicsAre) {
  const HttpRoute route = messages_routes(backend_of([](const auto&, const auto&, const auto&) {
                            return error_reply({503, "no verifier"});
                          })).front();
  HttpRequest http;
  for (const auto& [body, status, type, message] :
       {std::tuple(R"({"messages": [{"role": "user", "content": "Hi"}]})", 503, "api_error", "no verifier"),
        std::tuple("{}", 400, "invalid_request_error", "messages is missing, wanted an array of messages")}) {
    http.body = body;
    const HttpReply reply = route.handler(http);
    EXPECT_EQ(reply.status, status);
    EXPECT_EQ(Json::parse(route.error_form(*reply.error)),
              (Json{{"type", "error"}, {"error", {{"type", type}, {"message", message}}}}));
  }
}

/// The routes of Responses over this chat.
std::vector<HttpRoute> routes_of(Chat chat) { return responses_routes(backend_of(std::move(chat))); }
/// The response to a request that gets this answer, not streamed.
Json response_of(const Json& request, const Answer& told) {
  const std::vector<HttpRoute> routes =
      routes_of([&](const auto&, const auto&, const auto& writer) { return told.whole(*writer); });
  HttpRequest http;
  http.body = request.dump();
  return Json::parse(routes.front().handler(http).body);
}

/// A request of Responses that goes on with nothing.
ApiResult<CompletionRequest> read_response(const Json& request) {
  return parse_responses({.json = request, .text = request.dump(), .before = {}}, plain_defaults());
}

TEST(Responses, ARequestIsRead) {
  using Role = ChatMessage::Role;
  const Json request = {
      {"instructions", "S"},
      {"input",
       {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "Hi"}}}}},
        {{"type", "reasoning"}, {"content", {{{"type", "reasoning_text"}, {"text", "Hm"}}}}},
        {{"type", "message"}, {"role", "assistant"}, {"content", {{{"type", "output_text"}, {"text", "Look:"}}}}},
        {{"type", "function_call"}, {"call_id", "c1"}, {"name", "weather"}, {"arguments", R"({"city":"Rome"})"}},
        {{"type", "function_call_output"}, {"call_id", "c1"}, {"output", "sunny"}}}},
      {"tools", {{{"type", "function"}, {"name", "weather"}, {"parameters", {{"type", "object"}}}, {"strict", true}}}},
      {"tool_choice", {{"type", "function"}, {"name", "weather"}}},
      {"text", {{"format", {{"type", "json_schema"}, {"name", "n"}, {"schema", {{"type", "object"}}}}}}},
      {"repetition_penalty", 1.2},
      {"max_output_tokens", 5}};
  const CompletionRequest read = read_response(request).value();
  const std::vector<ChatMessage>& messages = read.conversation.messages;
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[0].role, Role::kSystem);
  EXPECT_EQ(messages[0].content, "S");
  EXPECT_EQ(text_of(messages[1]), "Hi");
  expect_called_turn(std::span(messages).subspan<2, 2>());
  EXPECT_TRUE(read.conversation.tools.at(0).strict);
  EXPECT_FALSE(read.sampling.grammar.empty());
  EXPECT_EQ(read.sampling.repetition_penalty, 1.2f);
  EXPECT_EQ(read.max_tokens, 5);
  EXPECT_TRUE(read_response({{"input", "x"}, {"reasoning", {{"effort", "low"}}}}).value().conversation.thinking);
  EXPECT_FALSE(read_response({{"input", "x"}, {"reasoning", nullptr}}).value().conversation.thinking);
  const Json of_server = Json::array({{{"type", "web_search_call"}, {"id", "ws_1"}}});
  for (const auto& [fields, param] : std::vector<std::pair<Json, std::string>>{
           {Json::object(), "input"},
           {{{"input", 3}}, "input"},
           {{{"input", of_server}}, "input[0].type"},
           {{{"input", "x"}, {"return_progress", true}}, "return_progress"},
           {{{"input", "x"}, {"prompt", {{"id", "p"}}}}, "prompt"},
           {{{"input", "x"}, {"truncation", "auto"}}, "truncation"},
           {{{"input", "x"}, {"image", {{"context_compression", "enabled"}}}}, "image"},
           {{{"input", "x"}, {"n", 2}}, "n"},
           {{{"input", "x"}, {"logprobs", true}}, "logprobs"},
           {{{"input", "x"}, {"background", true}, {"store", false}}, "background"},
           {{{"input", "x"}, {"background", true}, {"stream", true}}, "background"},
           {{{"input", "x"}, {"enable_response_messages", true}}, "enable_response_messages"}})
    EXPECT_EQ(read_response(fields).error().param, param);
}

/// What Codex sends: MCP servers as namespaces, and a tool whose input is text.
Json tools_of_codex() {
  const Json schema = {{"type", "object"}};
  const Json search = {{"type", "function"}, {"name", "search"}, {"parameters", schema}};
  const Json patch = {{"type", "custom"},
                      {"name", "patch"},
                      {"description", "Edits files."},
                      {"format", {{"type", "grammar"}, {"syntax", "lark"}, {"definition", "start: /a/"}}}};
  return {{{"type", "function"}, {"name", "a.b"}},
          {{"type", "namespace"}, {"name", "docs"}, {"description", "D"}, {"tools", {search, patch}}},
          {{"type", "namespace"}, {"name", "web.of"}, {"description", "W"}, {"tools", {search}}},
          patch};
}

TEST(Responses, ToolsMayBeInNamespacesOrTakeText) {
  const auto read = [](const Json& tools, const Json& input) {
    return read_response({{"input", input}, {"tools", tools}});
  };
  const std::vector<ToolDeclaration> tools = read(tools_of_codex(), "x").value().conversation.tools;
  std::vector<std::string> names;
  for (const ToolDeclaration& tool : tools) names.push_back(tool.name);
  EXPECT_EQ(names, (std::vector<std::string>{"a.b", "docs.search", "docs.patch", "web.of.search", "patch"}));
  EXPECT_EQ(tools[4].description, "Edits files.\nThe input follows this grammar:\nstart: /a/");
  EXPECT_EQ(tools[4].parameters["properties"]["input"]["type"], "string");
  const Json forced = {{"type", "custom"}, {"name", "patch"}};
  EXPECT_TRUE(read_response({{"input", "x"}, {"tools", tools_of_codex()}, {"tool_choice", forced}}));
  const Json nested = {{{"type", "namespace"}, {"name", "a"}, {"tools", tools_of_codex()}}};
  EXPECT_EQ(read(nested, "x").error().param, "tools[0].tools[1].type");
  const Json space = {{"type", "function_call"}, {"call_id", "1"}, {"name", "f"}, {"namespace", "a b"}};
  EXPECT_EQ(read(Json::array(), Json::array({space})).error().param, "input[0].namespace");

  // Each call has the form of its tool, is the same streamed and not, and is read as the model made it.
  const auto call = [](const char* name, const char* arguments) {
    Answer answer{.choice = {.message = {}, .scores = {}, .finish_reason = "tool_calls"}, .events = {}};
    answer.events = {{.what = ChoiceBegins{}, .notes = {.so_far = &kUsage}},
                     {.what = ChatEvent{ChatEvent::Kind::kToolCall, arguments, name}},
                     {.what = ChoiceEnds{"tool_calls"}}};
    return answer;
  };
  const std::string patched = R"({"input":"+ x"})";
  for (const auto& [name, arguments, wanted] : std::vector<std::tuple<const char*, std::string, Json>>{
           {"a.b", "{}", {{"type", "function_call"}, {"name", "a.b"}, {"arguments", "{}"}}},
           {"web.of.search",
            "{}",
            {{"type", "function_call"}, {"namespace", "web.of"}, {"name", "search"}, {"arguments", "{}"}}},
           {"docs.patch",
            patched,
            {{"type", "custom_tool_call"}, {"namespace", "docs"}, {"name", "patch"}, {"input", "+ x"}}},
           {"patch", patched, {{"type", "custom_tool_call"}, {"name", "patch"}, {"input", "+ x"}}},
           {"patch", "x", {{"type", "custom_tool_call"}, {"name", "patch"}, {"input", "x"}}},
           {"none", "{}", {{"type", "function_call"}, {"name", "none"}, {"arguments", "{}"}}}}) {
    Json request = {{"input", "x"}, {"tools", tools_of_codex()}};
    const Json item = response_of(request, call(name, arguments.c_str()))["output"][0];
    for (const char* key : {"type", "namespace", "name", "arguments", "input"})
      EXPECT_EQ(member(item, key), member(wanted, key)) << name << " " << key;
    request["stream"] = true;
    HttpRequest http;
    http.body = request.dump();
    const Answer told = call(name, arguments.c_str());
    const HttpRoute route =
        routes_of([&](const auto&, const auto&, const auto& writer) { return told.streamed(*writer); }).front();
    const std::vector<Json> events = data_of(route.handler(http).next().value());
    const bool custom = item["type"] == "custom_tool_call";
    const std::string what = custom ? "response.custom_tool_call_input" : "response.function_call_arguments";
    EXPECT_EQ(types(events), (std::vector<std::string>{"response.created", "response.in_progress",
                                                       "response.output_item.added", what + ".delta", what + ".done",
                                                       "response.output_item.done", "response.completed"}));
    EXPECT_EQ(events[3]["delta"], item[custom ? "input" : "arguments"]);
    EXPECT_EQ(events[4][custom ? "input" : "arguments"], events[3]["delta"]);
    const Json result = {{"type", custom ? "custom_tool_call_output" : "function_call_output"},
                         {"call_id", item["call_id"]},
                         {"output", "done"}};
    const auto again = read(tools_of_codex(), {events[5]["item"], result}).value().conversation.messages;
    ASSERT_EQ(again.size(), 2u);
    EXPECT_EQ(again[0].tool_calls.at(0).name, name);
    EXPECT_EQ(again[1].response, "done");
  }
}

TEST(Responses, AReplyIsTheSameStreamedAndNot) {
  const Json request = {{"input", "Hi"}, {"metadata", {{"a", "b"}}}};
  const Json whole = response_of(request, answer());
  ASSERT_EQ(whole["output"].size(), 3u);
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "Look:");
  EXPECT_EQ(whole["output"][2]["arguments"], R"({"city":"Rome"})");
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_EQ(whole["usage"]["input_tokens_details"]["cached_tokens"], 4);
  EXPECT_EQ(whole["metadata"]["a"], "b");
  int asked = 0;
  const auto chat = [&](const auto&, const CompletionRequest& read, const auto& writer) {
    EXPECT_EQ(read.conversation.messages.size(), ++asked == 1 ? 1u : 3u);
    return answer().to(read, *writer);
  };
  const std::vector<HttpRoute> routes = routes_of(chat);
  const HttpRoute& route = routes.front();
  const auto ask = [&](Json body) {
    HttpRequest http;
    http.body = body.dump();
    return route.handler(http);
  };
  const HttpReply reply = ask({{"input", "Hi"}, {"stream", true}});
  const std::vector<Json> events = data_of(all_of(reply));
  for (std::size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
  const Json& last = events.back();
  EXPECT_EQ(last["type"], "response.completed");
  Json output = last["response"]["output"];
  ASSERT_EQ(output.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    Json item = whole["output"][i];
    item.erase("id");
    EXPECT_NE(output[i]["id"], Json());
    output[i].erase("id");
    EXPECT_EQ(output[i], item);
  }
  std::string text;
  for (const Json& event : events) {
    if (event["type"] == "response.output_text.delta") text += event["delta"].get<std::string>();
  }
  EXPECT_EQ(text, "Look:");
  // Its conversation is remembered.
  const HttpReply next = ask({{"input", "And?"}, {"previous_response_id", last["response"]["id"]}});
  EXPECT_EQ(next.status, 200);
  EXPECT_EQ(Json::parse(next.body)["previous_response_id"], last["response"]["id"]);
  const HttpReply unknown = ask({{"input", "And?"}, {"previous_response_id", "resp_none"}});
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(Json::parse(unknown.body)["error"]["code"], "previous_response_not_found");
  EXPECT_EQ(asked, 2);
  // And so is the response itself, which is over.
  const auto of = [&](const HttpRoute& named, const std::string& id) {
    HttpRequest http;
    http.id = id;
    return named.handler(http);
  };
  const std::string id = last["response"]["id"];
  EXPECT_EQ(Json::parse(of(routes.at(1), id).body), last["response"]);
  EXPECT_EQ(of(routes.at(1), "resp_none").status, 404);
  EXPECT_EQ(of(routes.at(2), id).status, 400);
  EXPECT_EQ(of(routes.at(2), "resp_none").status, 404);
  // Until it is deleted.
  EXPECT_EQ(Json::parse(of(routes.at(4), id).body), (Json{{"id", id}, {"object", "response"}, {"deleted", true}}));
  for (const std::size_t i : {1, 4}) EXPECT_EQ(of(routes.at(i), id).status, 404);
  EXPECT_EQ(ask({{"input", "And?"}, {"previous_response_id", id}}).status, 404);
}

TEST(Responses, TokensAreCountedAsTheirChatHasThem) {
  const std::vector<HttpRoute> routes = routes_of([](const auto&, const auto&, const auto&) { return HttpReply{}; });
  HttpRequest http;
  http.body = R"({"input": "Hi"})";
  EXPECT_EQ(Json::parse(routes.at(3).handler(http).body),
            (Json{{"object", "response.input_tokens"}, {"input_tokens", 7}}));
  http.body = "{}";
  EXPECT_EQ(routes.at(3).handler(http).status, 400);
}

// A call that is cut off is never seen, and clients look for an item.
TEST(Responses, AnAnswerThatSaysNothingIsAMessageWithoutText) {
  Answer silent{.choice = {.message = {}, .scores = {}, .finish_reason = "length"},
                .events = {{.what = ChoiceBegins{}}, {.what = ChoiceEnds{"length"}}}};
  const Json whole = response_of({{"input", "Hi"}}, silent);
  ASSERT_EQ(whole["output"].size(), 1u);
  EXPECT_EQ(whole["output"][0]["type"], "message");
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "");
  EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");

  const auto chat = [&](const auto&, const auto&, const auto& writer) { return silent.streamed(*writer); };
  HttpRequest http;
  http.body = Json{{"input", "Hi"}, {"stream", true}}.dump();
  const std::string text = all_of(routes_of(chat).front().handler(http));
  const std::vector<Json> events = data_of(text);
  EXPECT_EQ(types(events), (std::vector<std::string>{"response.created", "response.in_progress",
                                                     "response.output_item.added", "response.content_part.added",
                                                     "response.output_text.done", "response.content_part.done",
                                                     "response.output_item.done", "response.incomplete"}));
  EXPECT_EQ(events.back()["response"]["output"].size(), 1u);
}

// A chat takes no message of an assistant's that has neither text nor calls.
TEST(Responses, AThoughtThatIsCutOffCanBeGoneOnWith) {
  for (const bool stream : {false, true}) {
    Answer cut{.choice = {.message = {}, .scores = {}, .finish_reason = "length"},
               .events = {{.what = ChoiceBegins{}},
                          {.what = ChatEvent{ChatEvent::Kind::kReasoning, "H", ""}},
                          {.what = ChoiceEnds{"length"}}}};
    cut.choice.message.reasoning = "H";
    CompletionRequest asked;
    const auto chat = [&](const auto&, const CompletionRequest& request, const auto& writer) {
      asked = request;
      return cut.to(request, *writer);
    };
    const HttpRoute route = routes_of(chat).front();
    HttpRequest http;
    http.body = Json{{"input", "Hi"}, {"stream", stream}}.dump();
    HttpReply reply = route.handler(http);
    if (stream) reply.body = data_of(reply.next().value()).back()["response"].dump();
    http.body = Json{{"input", "And?"}, {"previous_response_id", Json::parse(reply.body)["id"]}}.dump();
    EXPECT_EQ(route.handler(http).status, 200);
    ASSERT_EQ(asked.conversation.messages.size(), 3u);
    EXPECT_EQ(asked.conversation.messages[1].reasoning, "H");
    EXPECT_EQ(text_of(asked.conversation.messages[1]), "");
  }
}

TEST(Responses, TextOnBothSidesOfACallIsRemembered) {
  Answer told = answer();
  told.events.insert(told.events.end() - 1, {.what = ChatEvent{ChatEvent::Kind::kContent, "And", ""}});
  CompletionRequest asked;
  const HttpRoute route = routes_of([&](const auto&, const CompletionRequest& request, const auto& writer) {
                            asked = request;
                            return told.to(request, *writer);
                          }).front();
  HttpRequest http;
  http.body = Json{{"input", "Hi"}, {"stream", true}}.dump();
  const Json response = data_of(route.handler(http).next().value()).back()["response"];
  EXPECT_EQ(response["output"].size(), 4u) << "thought, text, call, text";
  http.body = Json{{"input", "And?"}, {"stream", true}, {"previous_response_id", response["id"]}}.dump();
  route.handler(http);
  ASSERT_EQ(asked.conversation.messages.size(), 3u);
  EXPECT_EQ(asked.conversation.messages[1].content, "Look:And");
  EXPECT_EQ(asked.conversation.messages[1].reasoning, "Hm");
  expect_call(asked.conversation.messages[1], "call_chatcmpl-1_0_0");
}

TEST(Responses, AStoredOneIsParsedOnceItsMemoryIsThere) {
  const Answer told = answer();
  const std::vector<HttpRoute> routes =
      routes_of([&](const auto&, const auto&, const auto& writer) { return told.whole(*writer); });
  HttpRequest http;
  http.body = R"({"input": "Hi"})";
  const Json id = Json::parse(routes.at(0).handler(http).body)["id"];
  HttpRequest next;
  next.body = Json{{"input", "And?"}, {"previous_response_id", id}}.dump();
  HttpRequest again;
  again.id = id.get<std::string>();
  for (const auto& [route, asked] : {std::pair(0, &next), {1, &again}, {2, &again}, {3, &next}}) {
    std::int64_t wanted = 0;
    asked->reserve = [&](std::int64_t bytes) {
      wanted = bytes;
      return std::optional(ApiError{413, "too much"});
    };
    EXPECT_EQ(routes.at(static_cast<std::size_t>(route)).handler(*asked).status, 413) << route;
    EXPECT_GT(wanted, std::ssize(asked->body) * kBytesPerBodyByte) << route;
  }
}

// The Vercel AI SDK names what the server has said by its id.
TEST(Responses, AnItemIsFoundByItsReference) {
  const Answer told = answer();
  CompletionRequest asked;
  const std::vector<HttpRoute> routes =
      routes_of([&](const auto&, const CompletionRequest& request, const auto& writer) {
        asked = request;
        return told.whole(*writer);
      });
  const auto ask = [&](const Json& input, const Json& more = Json::object()) {
    HttpRequest http;
    Json body = {{"input", input}};
    body.update(more);
    http.body = body.dump();
    return routes.front().handler(http);
  };
  const auto user = [](const char* text) { return Json{{"role", "user"}, {"content", text}}; };
  const auto reference = [](const Json& id) { return Json{{"type", "item_reference"}, {"id", id}}; };
  const auto seen = [&] {
    std::string all;
    for (const ChatMessage& message : asked.conversation.messages)
      all +=
          message.reasoning + text_of(message) + (message.tool_calls.empty() ? "|" : message.tool_calls[0].name + "|");
    return all;
  };
  Json input = Json::array({user("Hi")});
  Json last;
  for (int turn = 0; turn < 3; ++turn) {
    last = Json::parse(ask(input).body);
    for (const Json& item : last["output"]) input.push_back(reference(item["id"]));
    input.push_back({{"type", "function_call_output"}, {"call_id", "call_chatcmpl-1_0_0"}, {"output", "sunny"}});
    input.push_back(user("And?"));
  }
  EXPECT_EQ(ask(input).status, 200);
  EXPECT_EQ(seen(), "Hi|HmLook:weather||And?|HmLook:weather||And?|HmLook:weather||And?|");
  const Json first = last["output"][0]["id"], text = last["output"][1]["id"];
  EXPECT_EQ(ask({reference(text), user("And?")}, {{"previous_response_id", last["id"]}}).status, 200);
  EXPECT_TRUE(seen().ends_with("HmLook:Look:weather|And?|")) << seen();

  for (const Json& id : {Json("msg_resp_none_0"), Json(text.get<std::string>() + "9"), Json("msg"), Json("_"), Json(""),
                         Json(), Json(3), last["id"]}) {
    const HttpReply refused = ask({user("Hi"), reference(id)});
    EXPECT_EQ(refused.status, 404) << id;
    ASSERT_TRUE(refused.error) << id;
    EXPECT_EQ(refused.error->param, "input") << id;
  }
  EXPECT_EQ(ask(Json::array({reference(text)}), {{"store", false}}).status, 200);

  // However often an item is named, there is memory for each time before it is copied.
  HttpRequest many;
  many.body = Json{{"input", std::vector<Json>(1000, reference(text))}}.dump();
  std::int64_t reserved = 0;
  many.reserve = [&](std::int64_t bytes) {
    EXPECT_GT(bytes, reserved);
    reserved = bytes;
    return std::optional<ApiError>();
  };
  EXPECT_EQ(routes.front().handler(many).status, 200);
  EXPECT_GT(reserved, 1000 * std::ssize(last["output"][1].dump()) * kBytesPerBodyByte);
  many.reserve = [&](std::int64_t bytes) {
    return bytes > reserved / 2 ? std::optional(ApiError{413, "too much"}) : std::nullopt;
  };
  EXPECT_EQ(routes.front().handler(many).status, 413);
}

// Found by fuzz_api: these ended as a 500 instead of a message that names what is wrong.
TEST(Responses, ItemsOfAnyTypesAreReadOrRefused) {
  for (const Json& input : {Json::array({{{"content", "x"}}, {{"type", "function_call"}, {"call_id", "c"}}}),
                            Json::array({{{"type", "reasoning"}, {"content", {{{"text", 5}}, "x", nullptr}}}}),
                            Json::array({{{"type", "reasoning"}, {"content", "x"}}}), Json::array({nullptr, 1, "x"})}) {
    EXPECT_NO_THROW(static_cast<void>(read_response({{"input", input}}))) << input;
  }
}

TEST(Responses, LogprobsAreThoseOfTheChat) {
  const Json asked = {{"input", "Hi"}, {"top_logprobs", 2}, {"include", {"message.output_text.logprobs"}}};
  EXPECT_EQ(read_response(asked).value().sampling.logprobs, 2);
  EXPECT_EQ(read_response({{"input", "Hi"}, {"include", asked["include"]}}).value().sampling.logprobs, 0);
  EXPECT_FALSE(read_response({{"input", "Hi"}}).value().sampling.logprobs);
  const auto entry = [](const char* token) {
    return Json{{"token", token}, {"logprob", -1.0}, {"bytes", {token[0]}}, {"top_logprobs", Json::array()}};
  };
  // Of the thought, of its end, of the text, of a text that is held back and follows, of the call, and the stop token.
  Answer told = answer();
  const auto score = [](const char* token) { return TokenScore{.token = {.bytes = token, .logprob = -1}, .top = {}}; };
  const auto alone = [&](const char* token, bool end_thought) {
    return ChoiceEvent{.what = TokensAlone{end_thought}, .notes = {.scores = {score(token)}}};
  };
  told.events[1].notes.scores = {score("H")};
  told.events[3].notes.scores = {score("L")};
  told.events[5].notes.scores = {score("c")};
  told.events[6].notes.scores = {score("s")};
  told.events.insert(told.events.begin() + 5, alone("d", false));
  told.events.insert(told.events.begin() + 4, alone("k", false));
  told.events.insert(told.events.begin() + 3, alone("e", true));
  const Json wanted = {entry("L"), entry("k")};
  EXPECT_EQ(response_of(asked, told)["output"][1]["content"][0]["logprobs"], wanted);
  const auto chat_of_told = [&](const auto&, const auto&, const auto& writer) { return told.streamed(*writer); };
  HttpRequest http;
  http.body = Json{{"input", "Hi"}, {"stream", true}}.dump();
  const std::vector<Json> events = data_of(all_of(routes_of(chat_of_told).front().handler(http)));
  Json deltas = Json::array();
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (type.ends_with("text.done") || type == "response.content_part.done") {
      EXPECT_EQ(event.value("part", event).value("logprobs", wanted), wanted) << type;
    } else if (type == "response.output_text.delta") {
      deltas.insert(deltas.end(), event["logprobs"].begin(), event["logprobs"].end());
    }
  }
  EXPECT_EQ(deltas, wanted);
  EXPECT_EQ(events.back()["response"]["output"][1]["content"][0]["logprobs"], wanted);
  EXPECT_EQ(events.back()["response"]["output"].size(), 3u);
}

TEST(Responses, TheStoreIsBoundedAndItsOwnersAreApart) {
  ResponseStore store;
  store.put("a", "alice", "[1]");
  EXPECT_EQ(store.text("a", "alice"), "[1]");
  EXPECT_TRUE(store.text("a", "bob").empty());
  for (std::size_t i = 0; i < 2 * ResponseStore::kCountMax; ++i) store.put(std::to_string(i), "", "[]");
  EXPECT_FALSE(store.text("a", "alice").empty()) << "another's many are no matter of hers";
  EXPECT_TRUE(store.text("1024", "").empty()) << "his oldest went";
  EXPECT_FALSE(store.text("1025", "").empty());
  store.put("large", "bob", std::string(ResponseStore::kBytesMax, 'x'));
  EXPECT_TRUE(store.text("large", "bob").empty()) << "larger than all there is";
  EXPECT_FALSE(store.text("a", "alice").empty());
  EXPECT_FALSE(store.forget("a", "bob")) << "it is not his";
  EXPECT_TRUE(store.forget("a", "alice"));
  EXPECT_TRUE(store.text("a", "alice").empty());
  EXPECT_FALSE(store.forget("a", "alice"));
}

TEST(Responses, TheStoreForgetsAfterADay) {
  ResponseStore store;
  const TimePoint start{};
  store.put("old", "alice", "[1]", start);
  store.put("new", "alice", "[2]", start + ResponseStore::kAgeMax);
  EXPECT_FALSE(store.text("old", "alice", start + ResponseStore::kAgeMax).empty());
  const TimePoint later = start + ResponseStore::kAgeMax + std::chrono::seconds(1);
  EXPECT_TRUE(store.text("old", "alice", later).empty());
  store.put("newest", "bob", "[3]", later);
  EXPECT_TRUE(store.text("old", "alice", start).empty()) << "it is not kept either";
  EXPECT_FALSE(store.text("new", "alice", later).empty());
}

/// Responses in the background over a chat that ends when it is told to.
struct Background {
  HttpReply ask(const std::string& method, const std::string& client = "c", const Json& body = nullptr,
                const std::string& id = "") {
    for (const HttpRoute& route : routes) {
      if (route.method != method.substr(0, method.find(' ')) ||
          !route.path.ends_with(method.substr(method.find(' ') + 1)))
        continue;
      HttpRequest http;
      http.client = client;
      http.id = id;
      http.body = body.dump();
      http.reserve = [held = memory](std::int64_t) { return std::optional<ApiError>(); };
      http.gone = [this] { return client_gone.load(); };
      return route.handler(http);
    }
    return {};
  }
  Json begin(const std::string& client = "c") {
    const HttpReply reply = ask("POST responses", client, {{"input", "Hi"}, {"background", true}});
    return Json::parse(reply.body);
  }
  Json get(const Json& response) { return Json::parse(ask("GET {id}", "c", nullptr, response["id"]).body); }
  HttpReply cancel(const Json& response) { return ask("POST /cancel", "c", nullptr, response["id"]); }
  /// Until it is over. @return it.
  Json over(const Json& response) {
    Json now = get(response);
    for (int i = 0; i < 3000 && now["status"] == "in_progress"; ++i, now = get(response))
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return now;
  }

  std::shared_ptr<int> memory = std::make_shared<int>(0);
  std::atomic<bool> may_end = false, client_gone = false;
  std::atomic<int> cut_off = 0;
  std::optional<ApiError> wrong = {};   ///< instead, before anything is admitted
  std::optional<ApiError> ending = {};  ///< instead of an answer
  bool breaks = false;                  ///< likewise: it throws
  std::vector<HttpRoute> routes = routes_of([this](const HttpRequest& http, const auto&, const auto& writer) {
    if (wrong) return error_reply(*wrong);
    http.admitted();
    while (!may_end) {
      if (http.gone()) {
        ++cut_off;
        return error_reply({503, "gone"});
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (breaks) throw std::runtime_error("/srv/secret cannot be read");
    return ending ? error_reply(*ending) : answer().whole(*writer);
  });
};

TEST(BackgroundResponses, AreMadeAfterTheirRequestAndFound) {
  Background background;
  const Json queued = background.begin();
  EXPECT_EQ(queued["status"], "queued");
  EXPECT_EQ(queued["background"], true);
  EXPECT_EQ(queued["model"], "nano");
  EXPECT_EQ(background.get(queued)["status"], "in_progress");
  EXPECT_GT(background.memory.use_count(), 1) << "its memory is still its own";
  EXPECT_EQ(background.ask("POST responses", "c", {{"input", "x"}, {"previous_response_id", queued["id"]}}).status, 404)
      << "nothing to go on with yet";
  background.client_gone = true;  // which matters no more
  background.may_end = true;
  const Json done = background.over(queued);
  EXPECT_EQ(done["status"], "completed");
  EXPECT_EQ(done["id"], queued["id"]);
  EXPECT_EQ(done["output"][1]["content"][0]["text"], "Look:");
  EXPECT_EQ(Json::parse(background.cancel(queued).body), done) << "what is over stays as it is";
  EXPECT_EQ(background.ask("POST responses", "c", {{"input", "x"}, {"previous_response_id", queued["id"]}}).status,
            200);
}

TEST(BackgroundResponses, AreCancelledAndNothingElseComesOfThem) {
  Background background;
  const Json queued = background.begin();
  const HttpReply cancelled = background.cancel(queued);
  EXPECT_EQ(cancelled.status, 200);
  EXPECT_EQ(Json::parse(cancelled.body)["status"], "cancelled");
  while (background.cut_off == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  background.may_end = true;
  background.begin();  // clears it away
  EXPECT_EQ(background.get(queued)["status"], "cancelled");
  EXPECT_EQ(background.cancel(queued).status, 200) << "again";
}

TEST(BackgroundResponses, WhatIsWrongWithARequestIsSaidAtOnceAndLaterFailureIsKept) {
  Background background;
  background.wrong = ApiError{400, "no such"};
  const HttpReply refused = background.ask("POST responses", "c", {{"input", "Hi"}, {"background", true}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("no such"), std::string::npos);
  background.wrong = {};
  background.may_end = true;
  background.ending = ApiError{503, "no verifier"};
  const Json failed = background.over(background.begin());
  EXPECT_EQ(failed["status"], "failed");
  EXPECT_EQ(failed["error"]["message"], "no verifier");
}

TEST(BackgroundResponses, OfOneThatBreaksTheClientHearsNothingOfTheServersInside) {
  Background background;
  background.breaks = background.may_end = true;
  EXPECT_EQ(background.over(background.begin())["error"]["message"], "internal error");
}

TEST(Replies, WithoutAThreadTheClientMayTryAgain) {
  const auto no_thread = [](const HttpRequest&) -> HttpReply {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  };
  const HttpReply reply = answer_with(no_thread, {});
  EXPECT_EQ(reply.status, 503);
  ASSERT_EQ(reply.headers.size(), 1u);
  EXPECT_EQ(reply.headers[0].first, "Retry-After");
}

TEST(BackgroundResponses, AreBoundedByClient) {
  Background background;
  for (int i = 0; i < BackgroundResponses::kCountMax / 2; ++i) EXPECT_EQ(background.begin()["status"], "queued") << i;
  EXPECT_EQ(background.ask("POST responses", "c", {{"input", "Hi"}, {"background", true}}).status, 429);
  EXPECT_EQ(background.begin("another")["status"], "queued") << "who finds room all the same";
  background.may_end = true;
  bool begun = false;
  for (int i = 0; i < 3000 && !begun; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(10)))
    begun = background.begin()["status"] == "queued";
  EXPECT_TRUE(begun) << "when some are over";
}

TEST(BackgroundResponses, EndWithTheirServer) {
  Background background;
  background.begin();
  background.routes.clear();  // which waits for it
  EXPECT_EQ(background.cut_off, 1);
  EXPECT_EQ(background.memory.use_count(), 1);
}

}  // namespace
}  // namespace outrider
