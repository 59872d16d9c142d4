// Anthropic's Messages and OpenAI's Responses as chat completions, and back.
#include "http-server/dialect.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "http-server/messages_api.h"
#include "http-server/response_store.h"
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
      {"tools", {{{"name", "weather"}, {"input_schema", {{"type", "object"}}}, {"strict", true}}}},
      {"tool_choice", {{"type", "any"}}},
      {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}};
  const Json chat = chat_of_messages(request.dump()).value();
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
  EXPECT_EQ(chat["tools"][0]["function"]["strict"], true);
  EXPECT_EQ(chat["thinking"]["type"], "enabled");
  EXPECT_FALSE(chat.contains("include_reasoning"));
  for (const char* wrong : {"", "[]", "{}", R"({"messages": 3})"})
    EXPECT_EQ(chat_of_messages(wrong).error().status, 400) << wrong;
}

TEST(Messages, EveryFieldComesToTheChatOrIsRefused) {
  const auto of = [](const Json& fields) {
    Json request = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 5}};
    request.update(fields);
    return chat_of_messages(request.dump());
  };
  const Json form = {{"type", "json_schema"}, {"schema", Json::object()}};
  for (const Json& asked : {Json{{"output_format", form}}, Json{{"output_config", {{"format", form}}}}})
    EXPECT_EQ(of(asked).value()["response_format"]["type"], "json_schema");
  EXPECT_EQ(of({{"thinking", {{"type", "adaptive"}, {"display", "omitted"}}}}).value()["include_reasoning"], false);
  for (const char* name : {"container", "mcp_servers", "compaction", "thread", "documents", "grammar", "suffix"})
    EXPECT_EQ(of({{name, "x"}}).value()[name], "x");
  const auto edited = [&](const char* type) { return of({{"context_management", {{"edits", {{{"type", type}}}}}}}); };
  EXPECT_TRUE(edited("clear_thinking_20251015"));
  EXPECT_EQ(edited("clear_tool_uses_20250919").error().param, "context_management");
  const Json begun = {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", "The"}}};
  EXPECT_EQ(of({{"messages", begun}}).value()["continue_final_message"], true);
  EXPECT_FALSE(of(Json::object()).value().contains("continue_final_message"));
  EXPECT_TRUE(of({{"n", 1}}));
  for (const char* name : {"n", "prompt_logprobs", "return_token_ids", "logprobs", "verbose"})
    EXPECT_EQ(of({{name, 2}}).error().param, name);
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

/// The routes of Responses over this chat.
std::vector<HttpRoute> routes_of(HttpHandler chat) {
  return responses_routes(
      std::move(chat), [](const HttpRequest&) { return HttpReply{.body = R"({"count":7})"}; },
      [](const HttpRequest&) { return HttpReply{.body = R"({"prompt":"x"})"}; }, "nano");
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
  const Json chat = chat_of_responses(request, Json::array()).value().chat;
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
  const auto effort = [](const Json& reasoning) {
    const Json asked = {{"input", "x"}, {"reasoning", reasoning}, {"return_progress", true}};
    return chat_of_responses(asked, Json::array()).value().chat;
  };
  EXPECT_EQ(effort({{"effort", "low"}})["reasoning"]["effort"], "low");
  EXPECT_EQ(effort(nullptr)["return_progress"], true) << "for the chat to refuse";
  const auto chosen = [](const Json& choice) {
    return chat_of_responses({{"input", "x"}, {"tool_choice", choice}}, Json::array()).value().chat["tool_choice"];
  };
  EXPECT_EQ(chosen({{"type", "allowed_tools"}, {"mode", "auto"}})["type"], "allowed_tools") << "likewise";
  EXPECT_EQ(chosen("required"), "required");
  const Json of_server = Json::array({{{"type", "web_search_call"}, {"id", "ws_1"}}});
  for (const auto& [fields, param] : std::vector<std::pair<Json, std::string>>{
           {Json::object(), "input"},
           {{{"input", 3}}, "input"},
           {{{"input", of_server}}, "input"},
           {{{"input", "x"}, {"prompt", {{"id", "p"}}}}, "prompt"},
           {{{"input", "x"}, {"truncation", "auto"}}, "truncation"},
           {{{"input", "x"}, {"image", {{"context_compression", "enabled"}}}}, "image"},
           {{{"input", "x"}, {"n", 2}}, "n"},
           {{{"input", "x"}, {"logprobs", true}}, "logprobs"},
           {{{"input", "x"}, {"background", true}, {"store", false}}, "background"},
           {{{"input", "x"}, {"background", true}, {"stream", true}}, "background"},
           {{{"input", "x"}, {"enable_response_messages", true}, {"stream", true}}, "enable_response_messages"}})
    EXPECT_EQ(chat_of_responses(fields, Json::array()).error().param, param);
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
  const std::vector<HttpRoute> routes = routes_of(chat);
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
  // Until it is deleted.
  EXPECT_EQ(Json::parse(of(routes.at(4), id).body), (Json{{"id", id}, {"object", "response"}, {"deleted", true}}));
  for (const std::size_t i : {1, 4}) EXPECT_EQ(of(routes.at(i), id).status, 404);
  EXPECT_EQ(ask({{"input", "And?"}, {"previous_response_id", id}}).status, 404);
}

TEST(Responses, TokensAreCountedAsTheirChatHasThem) {
  const std::vector<HttpRoute> routes = routes_of([](const HttpRequest&) { return HttpReply{}; });
  HttpRequest http;
  http.body = R"({"input": "Hi"})";
  EXPECT_EQ(Json::parse(routes.at(3).handler(http).body),
            (Json{{"object", "response.input_tokens"}, {"input_tokens", 7}}));
  http.body = "{}";
  EXPECT_EQ(routes.at(3).handler(http).status, 400);
}

// A call that is cut off is never seen, and clients look for an item.
TEST(Responses, AnAnswerThatSaysNothingIsAMessageWithoutText) {
  Json answer = completion();
  answer["choices"][0]["message"] = {{"role", "assistant"}, {"content", ""}};
  answer["choices"][0]["finish_reason"] = "length";
  const Json whole = response_of_chat({{"input", "Hi"}}, "resp_1", answer);
  ASSERT_EQ(whole["output"].size(), 1u);
  EXPECT_EQ(whole["output"][0]["type"], "message");
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "");
  EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");

  const std::vector<Json> all = chunks();
  Json last = all.back();
  last["choices"][0]["finish_reason"] = "length";
  const std::string pieces = "data: " + all.front().dump() + "\n\ndata: " + last.dump() + "\n\ndata: [DONE]\n\n";
  const auto left = std::make_shared<std::optional<std::string>>(pieces);
  const auto chat = [&](const HttpRequest&) {
    return HttpReply{.body = {}, .next = [left] { return std::exchange(*left, std::nullopt); }};
  };
  HttpRequest http;
  http.body = Json{{"input", "Hi"}, {"stream", true}}.dump();
  const HttpReply reply = routes_of(chat).front().handler(http);
  std::string text;
  while (const auto piece = reply.next()) text += *piece;
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
    Json answer = completion(), chunk = chunks()[1];
    answer["choices"][0]["message"] = {{"role", "assistant"}, {"reasoning", "H"}, {"content", ""}};
    chunk["choices"][0]["finish_reason"] = answer["choices"][0]["finish_reason"] = "length";
    const auto pieces = std::make_shared<std::optional<std::string>>("data: " + chunk.dump() + "\n\ndata: [DONE]\n\n");
    Json asked;
    const auto chat = [&](const HttpRequest& http) {
      asked = Json::parse(http.body);
      if (!stream || *pieces == std::nullopt) return HttpReply{.body = answer.dump()};
      return HttpReply{.body = {}, .next = [pieces] { return std::exchange(*pieces, std::nullopt); }};
    };
    const HttpRoute route = routes_of(chat).front();
    HttpRequest http;
    http.body = Json{{"input", "Hi"}, {"stream", stream}}.dump();
    HttpReply reply = route.handler(http);
    if (stream) reply.body = data_of(reply.next().value()).back()["response"].dump();
    http.body = Json{{"input", "And?"}, {"previous_response_id", Json::parse(reply.body)["id"]}}.dump();
    EXPECT_EQ(route.handler(http).status, 200);
    EXPECT_EQ(asked["messages"][1], (Json{{"role", "assistant"}, {"content", ""}, {"reasoning", "H"}}));
  }
}

// Found by fuzz_api: these ended as a 500 instead of a message that names what is wrong.
TEST(Responses, ItemsOfAnyTypesAreReadOrRefused) {
  for (const Json& input : {Json::array({{{"content", "x"}}, {{"type", "function_call"}, {"call_id", "c"}}}),
                            Json::array({{{"type", "reasoning"}, {"content", {{{"text", 5}}, "x", nullptr}}}}),
                            Json::array({{{"type", "reasoning"}, {"content", "x"}}}), Json::array({nullptr, 1, "x"})}) {
    EXPECT_NO_THROW(static_cast<void>(chat_of_responses({{"input", input}}, Json::array()))) << input;
  }
}

TEST(Responses, LogprobsAreThoseOfTheChat) {
  const Json asked = {{"input", "Hi"}, {"top_logprobs", 2}, {"include", {"message.output_text.logprobs"}}};
  const Json chat = chat_of_responses(asked, Json::array()).value().chat;
  EXPECT_EQ(chat["logprobs"], true);
  EXPECT_EQ(chat["top_logprobs"], 2);
  EXPECT_FALSE(chat_of_responses({{"input", "Hi"}}, Json::array()).value().chat.contains("logprobs"));
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
  for (std::size_t i = 0; i < 2 * ResponseStore::kCountMax; ++i) store.put(std::to_string(i), "", Json::array());
  EXPECT_FALSE(store.get("a", "alice").is_null()) << "another's many are no matter of hers";
  EXPECT_TRUE(store.get("1024", "").is_null()) << "his oldest went";
  EXPECT_FALSE(store.get("1025", "").is_null());
  store.put("large", "bob", std::string(ResponseStore::kBytesMax, 'x'));
  EXPECT_TRUE(store.get("large", "bob").is_null()) << "larger than all there is";
  EXPECT_FALSE(store.get("a", "alice").is_null());
  EXPECT_FALSE(store.forget("a", "bob")) << "it is not his";
  EXPECT_TRUE(store.forget("a", "alice"));
  EXPECT_TRUE(store.get("a", "alice").is_null());
  EXPECT_FALSE(store.forget("a", "alice"));
}

TEST(Responses, TheStoreForgetsAfterADay) {
  ResponseStore store;
  const TimePoint start{};
  store.put("old", "alice", Json::array({1}), start);
  store.put("new", "alice", Json::array({2}), start + ResponseStore::kAgeMax);
  EXPECT_FALSE(store.get("old", "alice", start + ResponseStore::kAgeMax).is_null());
  const TimePoint later = start + ResponseStore::kAgeMax + std::chrono::seconds(1);
  EXPECT_TRUE(store.get("old", "alice", later).is_null());
  store.put("newest", "bob", Json::array({3}), later);
  EXPECT_TRUE(store.get("old", "alice", start).is_null()) << "it is not kept either";
  EXPECT_FALSE(store.get("new", "alice", later).is_null());
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
      http.hold = [held = memory](std::int64_t) { return std::optional<ApiError>(); };
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
  std::function<HttpReply(const HttpRequest&)> wrong = {};  ///< instead, before anything is admitted
  HttpReply ending = {.body = completion().dump()};
  std::vector<HttpRoute> routes = routes_of([this](const HttpRequest& http) {
    if (wrong) return wrong(http);
    http.admitted();
    while (!may_end) {
      if (http.gone()) {
        ++cut_off;
        return HttpReply{.status = 503, .body = error_body({503, "gone"})};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return ending;
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
  background.wrong = [](const HttpRequest&) { return HttpReply{.status = 400, .body = error_body({400, "no such"})}; };
  const HttpReply refused = background.ask("POST responses", "c", {{"input", "Hi"}, {"background", true}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("no such"), std::string::npos);
  background.wrong = {};
  background.may_end = true;
  background.ending = {.status = 503, .body = error_body({503, "no verifier"})};
  const Json failed = background.over(background.begin());
  EXPECT_EQ(failed["status"], "failed");
  EXPECT_EQ(failed["error"]["message"], "no verifier");
}

TEST(BackgroundResponses, AreBoundedByClient) {
  Background background;
  for (int i = 0; i < BackgroundResponses::kCountMax / 2; ++i) EXPECT_EQ(background.begin()["status"], "queued") << i;
  EXPECT_EQ(background.ask("POST responses", "c", {{"input", "Hi"}, {"background", true}}).status, 429);
  EXPECT_EQ(background.begin("another")["status"], "queued") << "who finds room all the same";
  background.may_end = true;
  for (int i = 0; i < 3000 && background.begin()["status"] != "queued"; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(background.begin()["status"], "queued") << "when some are over";
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
