// Anthropic's Messages and OpenAI's Responses as chat completions, and back.
#include "http-server/dialect.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "http-server/messages_api.h"
#include "http-server/responses_api.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

const Json kCall = {
    {"id", "c1"}, {"type", "function"}, {"function", {{"name", "weather"}, {"arguments", R"({"city":"Rome"})"}}}};

/// A chat.completion with a thought, text and a call.
Json completion() {
  return {
      {"id", "chatcmpl-1"},
      {"created", 5},
      {"model", "nano"},
      {"choices",
       {{{"index", 0},
         {"finish_reason", "tool_calls"},
         {"message", {{"role", "assistant"}, {"reasoning", "Hm"}, {"content", "Look:"}, {"tool_calls", {kCall}}}}}}},
      {"usage",
       {{"prompt_tokens", 7},
        {"completion_tokens", 3},
        {"total_tokens", 10},
        {"prompt_tokens_details", {{"cached_tokens", 4}}}}}};
}

/// The same as the pieces of a stream.
std::vector<Json> chunks() {
  const auto chunk = [](Json delta, Json finish) {
    return Json{{"id", "chatcmpl-1"},
                {"created", 5},
                {"model", "nano"},
                {"usage", completion()["usage"]},
                {"choices", {{{"index", 0}, {"delta", std::move(delta)}, {"finish_reason", std::move(finish)}}}}};
  };
  Json call = kCall;
  call["index"] = 0;
  return {chunk({{"role", "assistant"}, {"content", ""}}, nullptr),
          chunk({{"reasoning", "H"}}, nullptr),
          chunk({{"reasoning", "m"}}, nullptr),
          chunk({{"content", "Lo"}}, nullptr),
          chunk({{"content", "ok:"}}, nullptr),
          chunk({{"tool_calls", {call}}}, nullptr),
          chunk(Json::object(), "tool_calls")};
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

/// What a reply that is this stream becomes.
std::vector<Json> streamed(const std::shared_ptr<StreamTranslator>& translator, const Json& error = {}) {
  std::string pieces;
  for (const Json& chunk : chunks()) pieces += "data: " + chunk.dump() + "\n\n";
  if (!error.is_null()) pieces += "data: " + Json{{"error", error}}.dump() + "\n\n";
  pieces += "data: [DONE]\n\n";
  const auto left = std::make_shared<std::optional<std::string>>(pieces);
  const HttpReply reply =
      translated({.body = {}, .next = [left] { return std::exchange(*left, std::nullopt); }}, translator);
  std::string all;
  while (const auto piece = reply.next()) all += *piece;
  return data_of(all);
}

std::vector<std::string> types(const std::vector<Json>& events) {
  std::vector<std::string> types;
  for (const Json& event : events) types.push_back(event["type"]);
  return types;
}

TEST(Messages, ARequestIsAChat) {
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
      {"tools", {{{"name", "weather"}, {"input_schema", {{"type", "object"}}}}}},
      {"tool_choice", {{"type", "any"}}},
      {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}};
  const Json chat = std::get<Json>(chat_of_messages(request.dump()));
  const Json& messages = chat["messages"];
  ASSERT_EQ(messages.size(), 5u) << messages;
  EXPECT_EQ(messages[0], Json({{"role", "system"}, {"content", {{{"type", "text"}, {"text", "S"}}}}}));
  EXPECT_EQ(messages[2]["reasoning"], "Hm");
  EXPECT_EQ(messages[2]["tool_calls"][0], kCall);
  EXPECT_EQ(messages[3], Json({{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "sunny"}}));
  EXPECT_EQ(messages[4]["content"][0]["text"], "And?");
  EXPECT_EQ(chat["tools"][0]["function"]["name"], "weather");
  EXPECT_EQ(chat["tool_choice"], "required");
  EXPECT_EQ(chat["stop"], Json({"x"}));
  EXPECT_EQ(chat["max_tokens"], 5);
  EXPECT_EQ(chat["chat_template_kwargs"]["enable_thinking"], true);
  for (const char* wrong : {"", "[]", "{}", R"({"messages": 3})"})
    EXPECT_EQ(std::get<ApiError>(chat_of_messages(wrong)).status, 400) << wrong;
}

TEST(Messages, AReplyIsTheSameStreamedAndNot) {
  const Json whole = message_of_chat(completion());
  EXPECT_EQ(whole["content"],
            Json({{{"type", "thinking"}, {"thinking", "Hm"}, {"signature", ""}},
                  {{"type", "text"}, {"text", "Look:"}},
                  {{"type", "tool_use"}, {"id", "c1"}, {"name", "weather"}, {"input", {{"city", "Rome"}}}}}));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_EQ(whole["usage"]["input_tokens"], 3) << "without those that were cached";
  const std::vector<Json> events = streamed(messages_stream());
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
  EXPECT_EQ(types(streamed(messages_stream(), {{"message", "gone"}})).back(), "error");
}

TEST(Responses, ARequestIsAChat) {
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
      {"text", {{"format", {{"type", "json_schema"}, {"name", "n"}, {"schema", Json::object()}}}}},
      {"repetition_penalty", 1.2},
      {"max_output_tokens", 5}};
  const Json chat = std::get<ResponsesRequest>(chat_of_responses(request, Json::array())).chat;
  const Json& messages = chat["messages"];
  ASSERT_EQ(messages.size(), 4u) << messages;
  EXPECT_EQ(messages[0], Json({{"role", "system"}, {"content", "S"}}));
  EXPECT_EQ(messages[2]["reasoning"], "Hm");
  EXPECT_EQ(messages[2]["content"][0]["text"], "Look:");
  EXPECT_EQ(messages[2]["tool_calls"], Json({kCall}));
  EXPECT_EQ(messages[3], Json({{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "sunny"}}));
  EXPECT_EQ(chat["tools"][0]["function"]["strict"], true);
  EXPECT_EQ(chat["tool_choice"]["function"]["name"], "weather");
  EXPECT_EQ(chat["response_format"]["json_schema"]["name"], "n");
  EXPECT_EQ(chat["repetition_penalty"], 1.2);
  EXPECT_EQ(chat["max_tokens"], 5);
  for (const auto& [fields, param] :
       std::vector<std::pair<Json, std::string>>{{Json::object(), "input"},
                                                 {{{"input", 3}}, "input"},
                                                 {{{"input", "x"}, {"background", true}}, "background"}})
    EXPECT_EQ(std::get<ApiError>(chat_of_responses(fields, Json::array())).param, param);
}

TEST(Responses, AReplyIsTheSameStreamedAndNot) {
  const Json request = {{"input", "Hi"}, {"metadata", {{"a", "b"}}}};
  const Json whole = response_of_chat(request, "resp_1", completion());
  ASSERT_EQ(whole["output"].size(), 3u);
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "Look:");
  EXPECT_EQ(whole["output"][2]["arguments"], R"({"city":"Rome"})");
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_EQ(whole["usage"]["input_tokens_details"]["cached_tokens"], 4);
  EXPECT_EQ(whole["metadata"]["a"], "b");
  int asked = 0;
  const auto chat = [&](const HttpRequest& http) {
    const Json body = Json::parse(http.body);
    EXPECT_EQ(body["messages"].size(), ++asked == 1 ? 1u : 3u) << body;
    if (!body.contains("stream")) return HttpReply{.body = completion().dump()};
    std::string pieces;
    for (const Json& chunk : chunks()) pieces += "data: " + chunk.dump() + "\n\n";
    const auto left = std::make_shared<std::optional<std::string>>(pieces + "data: [DONE]\n\n");
    return HttpReply{.body = {}, .next = [left] { return std::exchange(*left, std::nullopt); }};
  };
  const std::vector<HttpRoute> routes = responses_routes(chat);
  const HttpRoute& route = routes.front();
  const auto ask = [&](Json body) {
    HttpRequest http;
    http.body = body.dump();
    return route.handler(http);
  };
  const HttpReply reply = ask({{"input", "Hi"}, {"stream", true}});
  std::string all;
  while (const auto piece = reply.next()) all += *piece;
  const std::vector<Json> events = data_of(all);
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
  EXPECT_EQ(ask({{"input", "And?"}, {"previous_response_id", "resp_none"}}).status, 404);
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
}

// Found by fuzz_api: these ended as a 500 instead of a message that names what is wrong.
TEST(Responses, ItemsOfAnyTypesAreReadOrRefused) {
  for (const Json& input : {Json::array({{{"content", "x"}}, {{"type", "function_call"}, {"call_id", "c"}}}),
                            Json::array({{{"type", "reasoning"}, {"content", {{{"text", 5}}, "x", nullptr}}}}),
                            Json::array({{{"type", "reasoning"}, {"content", "x"}}}), Json::array({nullptr, 1, "x"})}) {
    EXPECT_NO_THROW(chat_of_responses({{"input", input}}, Json::array())) << input;
  }
}

TEST(Responses, LogprobsAreThoseOfTheChat) {
  const Json asked = {{"input", "Hi"}, {"top_logprobs", 2}, {"include", {"message.output_text.logprobs"}}};
  const Json chat = std::get<ResponsesRequest>(chat_of_responses(asked, Json::array())).chat;
  EXPECT_EQ(chat["logprobs"], true);
  EXPECT_EQ(chat["top_logprobs"], 2);
  EXPECT_FALSE(
      std::get<ResponsesRequest>(chat_of_responses({{"input", "Hi"}}, Json::array())).chat.contains("logprobs"));
  const Json scores = {{{"token", "Look:"}, {"logprob", -1.0}, {"bytes", {76}}, {"top_logprobs", Json::array()}}};
  Json answer = completion();
  answer["choices"][0]["logprobs"] = {{"content", scores}};
  EXPECT_EQ(response_of_chat(asked, "resp_1", answer)["output"][1]["content"][0]["logprobs"], scores);
}

TEST(Responses, TheStoreIsBoundedAndItsOwnersAreApart) {
  ResponseStore store;
  store.put("a", "alice", Json::array({1}));
  EXPECT_EQ(store.get("a", "alice"), Json::array({1}));
  EXPECT_TRUE(store.get("a", "bob").is_null());
  for (std::size_t i = 0; i < ResponseStore::kCountMax; ++i) store.put(std::to_string(i), "", Json::array());
  EXPECT_TRUE(store.get("a", "alice").is_null()) << "the oldest went";
  EXPECT_FALSE(store.get("0", "").is_null());
  store.put("large", "", std::string(ResponseStore::kBytesMax, 'x'));
  EXPECT_TRUE(store.get("large", "").is_null()) << "larger than all there is";
}

}  // namespace
}  // namespace outrider
