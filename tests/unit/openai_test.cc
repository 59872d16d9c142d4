#include "server/openai.h"

#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "server/refused_fields.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

constexpr std::int32_t kVocab = 1000;

ApiDefaults defaults() {
  return {.model = "nano",
          .vocab_size = kVocab,
          .sampling = {.temperature = 1, .top_k = 64, .top_p = 0.95f, .suppress_tokens = {7}},
          .draft_length = {DraftPolicy::kFixed, 4}};
}

/// A chat request that is right, with these fields changed; a null takes one away.
std::string chat_with(const Json& fields) {
  Json body = {{"model", "nano"}, {"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  if (!fields.is_null()) body.merge_patch(fields);
  return body.dump();
}
std::string completion_with(const Json& fields) {
  Json body = {{"model", "nano"}, {"prompt", "Hi"}};
  if (!fields.is_null()) body.merge_patch(fields);
  return body.dump();
}

CompletionRequest parsed(const ApiResult<CompletionRequest>& result) {
  if (result) return *result;
  ADD_FAILURE() << result.error().message;
  return {};
}
CompletionRequest chat(const Json& fields) { return parsed(parse_chat_completion(chat_with(fields), defaults())); }
CompletionRequest completion(const Json& fields) {
  return parsed(parse_completion(completion_with(fields), defaults()));
}

/// The error of a request that must not be taken.
ApiError refused(const ApiResult<CompletionRequest>& result) {
  if (!result) return result.error();
  ADD_FAILURE() << "was taken";
  return {.status = 0, .message = ""};
}

/// As OpenAI's writer has them.
std::string chunk_of(const ReplyHead& head, const auto& what, const ChunkNotes& notes = {}) {
  return openai_writer()->event(head, {.what = what, .notes = notes});
}
std::string body_of(const ReplyHead& head, const std::vector<Choice>& choices, const Usage& usage) {
  return openai_writer()->whole(head, choices, usage);
}

TEST(ChatCompletion, WhatARequestDoesNotSayIsTheModelsAdvice) {
  const CompletionRequest request = chat({});
  EXPECT_EQ(request.sampling, defaults().sampling);
  EXPECT_EQ(request.draft_length.length, 4);
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.max_tokens);
  EXPECT_FALSE(request.stream);
  EXPECT_FALSE(request.has_seed);
  ASSERT_EQ(request.conversation.messages.size(), 1u);
  EXPECT_EQ(request.conversation.messages[0].content, "Hi");
}

TEST(ChatCompletion, EveryFieldArrives) {
  const CompletionRequest request = chat({{"temperature", 0.5},
                                          {"top_p", 0.9},
                                          {"top_k", 10},
                                          {"min_p", 0.1},
                                          {"repetition_penalty", 1.1},
                                          {"presence_penalty", -2},
                                          {"frequency_penalty", 2},
                                          {"seed", -2},
                                          {"min_tokens", 3},
                                          {"max_tokens", 9},
                                          {"stop", {"a", "b"}},
                                          {"n", 3},
                                          {"logit_bias", {{"5", -100}}},
                                          {"stop_token_ids", {8, 9}},
                                          {"ignore_eos", true},
                                          {"stream", true},
                                          {"stream_options", {{"include_usage", true}}},
                                          {"speculative", {{"draft_length", 2}}},
                                          {"chat_template_kwargs", {{"enable_thinking", true}}},
                                          {"a_field_of_tomorrow", 1}});
  EXPECT_EQ(request.sampling, (SamplingParams{.temperature = 0.5f,
                                              .top_k = 10,
                                              .top_p = 0.9f,
                                              .min_p = 0.1f,
                                              .repetition_penalty = 1.1f,
                                              .presence_penalty = -2,
                                              .frequency_penalty = 2,
                                              .logit_bias = {{5, -100}},
                                              .suppress_tokens = {7},
                                              .min_tokens = 3,
                                              .seed = ~1ull}));
  EXPECT_TRUE(request.has_seed && request.ignore_eos && request.stream && request.include_usage &&
              request.conversation.thinking);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.stop_ids, (std::vector<TokenId>{8, 9}));
  EXPECT_EQ(request.n, 3);
  EXPECT_EQ(request.draft_length.length, 2);
}

TEST(ChatCompletion, SpeculationCanBeSwitchedOff) {
  EXPECT_EQ(chat({{"speculative", {{"enabled", false}}}}).draft_length.length, 0);
  EXPECT_EQ(chat({{"speculative", {{"enabled", false}, {"draft_length", 8}}}}).draft_length.length, 0);
  EXPECT_EQ(chat({{"speculative", {{"enabled", true}}}}).draft_length.length, 4);
  EXPECT_EQ(chat({{"speculative", {{"draft_length", "auto"}}}}).draft_length.policy, DraftPolicy::kAuto);
  EXPECT_EQ(chat({{"speculative", {{"draft_length", "4+table"}}}}).draft_length.added, AddedSources{.table = true});
}

TEST(ChatCompletion, EffortSaysWhetherTheModelThinksUnlessTheTemplatesWordsDo) {
  const auto thinks = [](const Json& fields) { return chat(fields).conversation.thinking; };
  EXPECT_FALSE(thinks({}));
  EXPECT_FALSE(thinks({{"reasoning_effort", "none"}}));
  EXPECT_FALSE(thinks({{"reasoning_effort", nullptr}}));
  for (const char* effort : {"minimal", "low", "medium", "high", "xhigh", "max"})
    EXPECT_TRUE(thinks({{"reasoning_effort", effort}})) << effort;
  const auto both = [&](const char* effort, bool template_says) {
    return thinks({{"reasoning_effort", effort}, {"chat_template_kwargs", {{"enable_thinking", template_says}}}});
  };
  EXPECT_FALSE(both("high", false));
  EXPECT_TRUE(both("none", true));
  // As others say it.
  EXPECT_TRUE(thinks({{"reasoning", {{"effort", "low"}}}}));
  EXPECT_FALSE(thinks({{"reasoning", {{"effort", nullptr}, {"summary", "auto"}}}}));
  EXPECT_TRUE(thinks({{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}}));
  EXPECT_TRUE(thinks({{"thinking", {{"type", "adaptive"}}}}));
  EXPECT_FALSE(thinks({{"thinking", {{"type", "disabled"}}}, {"reasoning_effort", "high"}}));
  EXPECT_TRUE(thinks({{"enable_thinking", true}}));
  EXPECT_FALSE(thinks({{"enable_thinking", false}, {"reasoning_effort", "high"}}));
  EXPECT_FALSE(thinks({{"enable_thinking", true}, {"chat_template_kwargs", {{"enable_thinking", false}}}}));
}

TEST(ChatCompletion, NamesOfLlamaCppMeanTheSame) {
  EXPECT_EQ(chat({{"repeat_penalty", 1.5}}).sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(chat({{"repeat_penalty", 1.5}, {"repetition_penalty", 1.2}}).sampling.repetition_penalty, 1.2f);
  EXPECT_FALSE(chat({{"seed", -1}}).has_seed) << "any";
  EXPECT_EQ(chat({{"repeat_last_n", 64}}).sampling.repetition_penalty, 1) << "there are no penalties";
}

// Clients of LM Studio and llama.cpp send it.
TEST(ChatCompletion, AMinusOneIsNoLimit) {
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    EXPECT_EQ(chat({{name, -1}}).max_tokens, std::nullopt) << name;
    EXPECT_EQ(parse_completion(completion_with({{name, -1}}), defaults()).value().max_tokens, std::nullopt) << name;
    EXPECT_EQ(parse_chat_completion(chat_with({{name, -2}}), defaults()).error().param, name);
  }
  EXPECT_EQ(chat({{"n_predict", -1}, {"max_tokens", 5}}).max_tokens, 5);
}

TEST(ChatCompletion, WhatAsksForNothingOrIsSpeedAloneIsTaken) {
  for (const Json& fields : std::vector<Json>{{{"functions", Json::array()}},
                                              {{"documents", Json::array()}},
                                              {{"suffix", ""}},
                                              {{"best_of", 1}},
                                              {{"mirostat", 0}},
                                              {{"typical_p", 1.0}},
                                              {{"top_n_sigma", -1.0}},
                                              {{"t_max_predict_ms", 0}},
                                              {{"t_max_predict_ms", -1}},
                                              {{"min_keep", 0}},
                                              {{"lora", Json::array()}},
                                              {{"samplers", Json::array()}},
                                              {{"modalities", {"text"}}},
                                              {{"reasoning_format", "auto"}},
                                              {{"thinking_budget_tokens", -1}},
                                              {{"watermarking", false}},
                                              {{"user", "me"}},
                                              {{"metadata", {{"a", "b"}}}},
                                              {{"store", true}},
                                              {{"service_tier", "priority"}},
                                              {{"prediction", {{"type", "content"}, {"content", "x"}}}},
                                              {{"prompt_cache_key", "x"}},
                                              {{"safety_identifier", "x"}},
                                              {{"verbosity", "low"}},
                                              {{"priority", 3}},
                                              {{"cache_prompt", false}},
                                              {{"length_penalty", 2}}})
    EXPECT_EQ(chat(fields).sampling, defaults().sampling) << fields;
}

TEST(ChatCompletion, RoundsAreReportedInStreamsOnly) {
  EXPECT_FALSE(chat({{"stream", true}}).report_rounds);
  EXPECT_TRUE(chat({{"stream", true}, {"speculative", {{"report_rounds", true}}}}).report_rounds);
  EXPECT_EQ(refused(parse_chat_completion(chat_with({{"speculative", {{"report_rounds", true}}}}), defaults())).param,
            "speculative.report_rounds");
  EXPECT_EQ(
      refused(parse_chat_completion(chat_with({{"stream", true}, {"speculative", {{"report_rounds", 1}}}}), defaults()))
          .param,
      "speculative.report_rounds");
}

TEST(ChatCompletion, EveryRoleAndKindOfContentIsRead) {
  const Json messages = {
      {{"role", "system"}, {"content", "S"}},
      {{"role", "developer"}, {"content", {{{"type", "text"}, {"text", "D1"}}, {{"type", "text"}, {"text", "D2"}}}}},
      {{"role", "assistant"},
       {"content", nullptr},
       {"reasoning_content", "R"},
       {"tool_calls",
        {{{"id", "c1"},
          {"type", "function"},
          {"function", {{"name", "weather"}, {"arguments", R"({"city":"Rome"})"}}}}}}},
      {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "sunny"}},
      {{"role", "my-critic_2"}, {"content", "Hm"}}};
  const CompletionRequest request = chat({{"messages", messages}});
  const std::vector<ChatMessage>& m = request.conversation.messages;
  ASSERT_EQ(m.size(), 5u);
  EXPECT_EQ(m[4].role, ChatMessage::Role::kOther);
  EXPECT_EQ(m[4].other_role, "my-critic_2");
  EXPECT_EQ(m[0].role, ChatMessage::Role::kSystem);
  EXPECT_EQ(m[1].role, ChatMessage::Role::kDeveloper);
  ASSERT_EQ(m[1].parts.size(), 2u) << "the templates write each by itself";
  EXPECT_EQ(m[1].shown_text(), "D1D2");
  EXPECT_EQ(m[2].reasoning, "R");
  ASSERT_EQ(m[2].tool_calls.size(), 1u);
  EXPECT_EQ(m[2].tool_calls[0].name, "weather");
  EXPECT_EQ(m[2].tool_calls[0].arguments, Json({{"city", "Rome"}}));
  EXPECT_EQ(m[3].tool_call_id, "c1");
  EXPECT_EQ(m[3].response, "sunny");
}

// A client sends back what a model wrote.
TEST(ChatCompletion, AnyTextStandsForArguments) {
  const auto arguments = [](const std::string& text) -> Json {
    const Json call = {{"function", {{"name", "f"}, {"arguments", text}}}};
    const Json messages = Json::array({{{"role", "assistant"}, {"tool_calls", Json::array({call})}}});
    return chat({{"messages", messages}}).conversation.messages[0].tool_calls[0].arguments;
  };
  for (const std::string text : {"{\"value\": ", "[1]", "3", "so \"it\"", "{\"a\":1} "}) {
    const Json read = arguments(text);
    EXPECT_EQ(read, text.starts_with("{\"a") ? Json({{"a", 1}}) : Json(text)) << text;
  }
  const std::string deep = std::string(5000, '[') + std::string(5000, ']');
  EXPECT_EQ(arguments(deep), deep);
  for (const char* none : {"", "null"}) EXPECT_TRUE(arguments(none).is_null()) << none;
}

TEST(ChatCompletion, AnAssistantMayHaveSaidNothingOrHaveRefused) {
  const auto said = [](Json message) {
    message["role"] = "assistant";
    return chat({{"messages", Json::array({message})}}).conversation.messages[0];
  };
  EXPECT_EQ(said({{"content", nullptr}}).shown_text(), "");
  EXPECT_EQ(said({{"reasoning_content", "R"}}).reasoning, "R");
  EXPECT_EQ(said({{"content", nullptr}, {"refusal", "No."}}).shown_text(), "No.");
  EXPECT_EQ(said({{"content", "Yes."}, {"refusal", nullptr}}).shown_text(), "Yes.");
  EXPECT_EQ(said({{"content", {{{"type", "refusal"}, {"refusal", "No."}}}}}).shown_text(), "No.");
}

TEST(ChatCompletion, FieldsThatNobodyKnowsAreNamedWithTheirNearest) {
  const Json body = Json::parse(chat_with({{"temperatur", 1}, {"max_tokens", 3}, {"a\r\nb", 1}}));
  const auto warnings = [&](const Json& fields, const char* path) {
    Json request = body;
    request.update(fields);
    return parse_chat_completion(request.dump(), defaults(), path).value().warnings;
  };
  EXPECT_EQ(chat({{"temperature", 1}}).warnings, std::vector<std::string>());
  const std::vector<std::string> all = warnings(Json::object(), "/v1/chat/completions");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_TRUE(all[0].starts_with(R"("a\r\nb" is no known field)")) << "on one line: " << all[0];
  EXPECT_EQ(all[1], R"("temperatur" is no known field; the nearest is temperature)");
  // Words of another API, which have no effect here.
  EXPECT_EQ(warnings({{"max_output_tokens", 3}}, "/v1/chat/completions").size(), 3u);
  EXPECT_EQ(warnings({{"max_output_tokens", 3}}, "/v1/responses").size(), 2u);
  EXPECT_EQ(warnings({{std::string(1000, 'x'), 3}}, "").back(), '"' + std::string(79, 'x') + "... is no known field");
  Json many;
  for (int i = 0; i < 100; ++i) many["f" + std::to_string(i)] = i;
  EXPECT_EQ(warnings(many, "").size(), kUnknownFieldsMax);
  ApiDefaults strict = defaults();
  strict.strict_fields = true;
  EXPECT_EQ(refused(parse_chat_completion(chat_with({{"temperatur", 1}}), strict)).message,
            "temperatur is no known field; the nearest is temperature");
  EXPECT_TRUE(parse_chat_completion(chat_with({{"temperature", 1}, {"user", "me"}}), strict));
}

// The tables of docs/http.md are all that anybody's requests have.
TEST(ChatCompletion, EveryFieldOfTheManualIsKnown) {
  std::ifstream file(std::string(OUTRIDER_SOURCE_DIR) + "/docs/http.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  const std::size_t begin = page.find("\n## Fields"), end = page.find("\n## Media from URLs");
  ASSERT_LT(begin, end);
  Json request;
  std::istringstream lines(page.substr(begin, end - begin));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| ")) continue;
    const bool of_whom = line.find("'s |") < 20;  // the fields stand in the second cell
    const std::size_t cell = of_whom ? line.find(" | ") + 3 : 2;
    const std::string fields = line.substr(cell, line.find(" | ", cell) - cell);
    static const std::regex kName("`([a-z][a-z_]+)[`:]");
    for (std::sregex_iterator name(fields.begin(), fields.end(), kName); name != std::sregex_iterator(); ++name)
      request[(*name)[1].str()] = 1;
  }
  for (const char* value : {"auto", "clear_thinking", "deepseek"}) request.erase(value);  // of fields
  EXPECT_GT(request.size(), 120u);
  std::map<std::string, int> unknown;
  const auto paths = {"/v1/responses", "/v1/messages", "/completion"};
  for (const auto& [name, value] : request.items()) {
    const std::string body = Json{{"prompt", "x"}, {name, nullptr}}.dump();
    for (const char* path : paths) {
      const CompletionRequest read = parsed(parse_completion(body, defaults(), path));
      for (const std::string& warning : read.warnings) ++unknown[warning];
    }
  }
  for (const auto& [warning, apis] : unknown) EXPECT_LT(apis, static_cast<int>(paths.size())) << warning;
}

TEST(ChatCompletion, IntegersOfAnyLengthComeThrough) {
  const std::string long_integer = "123456789012345678901234567890";
  const auto read = parse_chat_completion(
      R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"function":{"name":"f",)"
      R"("arguments":"{\"a\":[)" +
          long_integer +
          R"(]}"}}]}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":)"
          R"({"a":{"type":"integer","enum":[)" +
          long_integer + "]}}}}}]}",
      defaults());
  ASSERT_TRUE(read) << refused(read).message;
  const Conversation& conversation = read.value().conversation;
  EXPECT_EQ(to_text(conversation.messages[1].tool_calls[0].arguments), "{\"a\":[" + long_integer + "]}");
  EXPECT_EQ(to_text(conversation.tools[0].parameters["properties"]["a"]["enum"]), "[" + long_integer + "]");
  const std::string bad = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":)" + long_integer + "}";
  EXPECT_TRUE(refused(parse_chat_completion(bad, defaults())).message.starts_with("max_tokens is " + long_integer));
}

TEST(Json, IsReadAsNlohmannDoesButForLongIntegers) {
  for (const char* text :
       {R"({"a":[1,-2,18446744073709551615,-9223372036854775808,1.5,1e3,true,false,null,"\u00e9\n"],"b":{"c":{}}})",
        R"({"a":1,"a":[]})", "[]", "\"x\"", "3", "[[[]],{}]", "", "{", "[1,]", "{\"a\"}", "1 2", "1e999", "\"\xff\""})
    EXPECT_EQ(to_text(parse_json(text)), to_text(Json::parse(text, nullptr, false))) << text;
  EXPECT_TRUE(parse_json("[1,]").is_discarded());
  const std::string exact = R"({"a":[-18446744073709551616,{"é\"":123456789012345678901}],"b":1.5,"c":{}})";
  EXPECT_EQ(to_text(parse_json(exact)), exact);
  EXPECT_EQ(show(parse_json("123456789012345678901")), "123456789012345678901");
}

TEST(ChatCompletion, WhatOthersCallOtherwiseIsReadToo) {
  const Json messages = {{{"role", "assistant"},
                          {"content", nullptr},
                          {"reasoning", "R"},
                          {"tool_calls", {{{"function", {{"name", "weather"}, {"arguments", "{}"}}}}}}},
                         {{"role", "tool"}, {"name", "weather"}, {"content", {{{"type", "text"}, {"text", "sunny"}}}}}};
  const Json tools = {
      {{"type", "function"},
       {"function",
        {{"name", "weather"}, {"parameters", {{"type", {"object", "null"}}}}, {"response", {{"type", "object"}}}}}}};
  const CompletionRequest request = chat({{"messages", messages},
                                          {"tools", tools},
                                          {"n_predict", 7},
                                          {"chat_template_kwargs", {{"preserve_thinking", true}}}});
  EXPECT_EQ(request.conversation.messages[0].reasoning, "R");
  EXPECT_EQ(request.conversation.messages[1].name, "weather");
  EXPECT_EQ(request.conversation.messages[1].response, "sunny");
  EXPECT_EQ(request.conversation.tools[0].response, Json({{"type", "object"}}));
  EXPECT_TRUE(request.conversation.preserve_thinking);
  EXPECT_EQ(request.max_tokens, 7);
}

TEST(ChatCompletion, ThePromptEndsWhereTheRequestSays) {
  using End = Conversation::End;
  EXPECT_EQ(chat({}).conversation.end, End::kModelTurn);
  EXPECT_EQ(chat({{"add_generation_prompt", false}}).conversation.end, End::kLastMessage);
  EXPECT_EQ(chat({{"continue_final_message", true}}).conversation.end, End::kWithinLastMessage);
  EXPECT_EQ(chat({{"continue_final_message", true}, {"add_generation_prompt", false}}).conversation.end,
            End::kWithinLastMessage);
  EXPECT_EQ(chat({{"truncate_prompt_tokens", 5}}).prompt_tail, 5);
  EXPECT_EQ(chat({{"truncate_prompt_tokens", -1}}).prompt_tail, 0);
}

const Json kWeather = {{{"type", "function"},
                        {"function",
                         {{"name", "weather"},
                          {"description", "d"},
                          {"parameters", {{"type", "object"}, {"properties", Json::object()}}}}}}};

TEST(ChatCompletion, ToolsAreOfferedUnlessTheChoiceIsNone) {
  EXPECT_EQ(chat({{"tools", kWeather}}).conversation.tools.size(), 1u);
  EXPECT_EQ(chat({{"tools", kWeather}, {"tool_choice", "auto"}}).conversation.tools.at(0).name, "weather");
  EXPECT_TRUE(chat({{"tools", kWeather}, {"tool_choice", "none"}}).conversation.tools.empty());
}

struct BadRequest {
  Json fields;
  std::string param;
  int status = 400;
};

Json with_message(const Json& one) { return {{"messages", Json::array({one})}}; }
Json with_tool(const Json& function) { return {{"tools", {{{"type", "function"}, {"function", function}}}}}; }

const std::vector<BadRequest> kBadRequests = {
    {{{"model", "gpt-4"}}, "model", 404},
    {{{"model", 3}}, "model"},
    {{{"messages", nullptr}}, "messages"},
    {{{"messages", Json::array()}}, "messages"},
    {{{"messages", "Hi"}}, "messages"},
    {with_message("Hi"), "messages[0]"},
    {with_message({{"role", "my wizard"}, {"content", "x"}}), "messages[0].role"},
    {with_message({{"role", "model"}, {"content", "x"}}), "messages[0].role"},
    {with_message({{"role", "<turn|>"}, {"content", "x"}}), "messages[0].role"},
    {with_message({{"role", ""}, {"content", "x"}}), "messages[0].role"},
    {with_message({{"content", "x"}}), "messages[0].role"},
    {with_message({{"role", "user"}}), "messages[0].content"},
    {with_message({{"role", "user"}, {"content", 3}}), "messages[0].content"},
    {with_message({{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", {{"url", "x"}}}}}}}),
     "messages[0].content[0].image_url.url"},
    {with_message({{"role", "user"}, {"content", {{{"type", "text"}}}}}), "messages[0].content[0].text"},
    {with_message({{"role", "tool"}, {"content", "x"}}), "messages[0].tool_call_id"},
    {with_message({{"role", "assistant"}, {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", {1}}}}}}}}),
     "messages[0].tool_calls[0].function.arguments"},
    {with_message({{"role", "assistant"}, {"content", {{{"type", "refusal"}}}}}), "messages[0].content[0].refusal"},
    {with_message({{"role", "user"}, {"content", {{{"type", "refusal"}, {"refusal", "x"}}}}}),
     "messages[0].content[0].type"},
    {with_message({{"role", "assistant"}, {"tool_calls", {{{"id", "x"}}}}}), "messages[0].tool_calls[0].function"},
    {{{"tools", "weather"}}, "tools"},
    {{{"tools", {"weather"}}}, "tools[0]"},
    {{{"tools", {{{"type", "magic"}}}}}, "tools[0].type"},
    {{{"tools", {{{"type", "function"}}}}}, "tools[0].function"},
    {with_tool({{"name", ""}}), "tools[0].function.name"},
    {with_tool({{"name", "a b"}}), "tools[0].function.name"},
    {with_tool({{"name", std::string(65, 'a')}}), "tools[0].function.name"},
    {with_tool({{"name", "f"}, {"parameters", "none"}}), "tools[0].function.parameters"},
    {with_tool({{"name", "f"}, {"parameters", {{"properties", 3}}}}), "tools[0].function.parameters"},
    {with_tool({{"name", "f"}, {"description", 3}}), "tools[0].function.description"},
    {{{"tool_choice", "required"}}, "tool_choice"},
    {{{"tool_choice", {{"type", "function"}}}}, "tool_choice.function.name"},
    {{{"tool_choice", 7}}, "tool_choice"},
    {{{"parallel_tool_calls", 3}}, "parallel_tool_calls"},
    {{{"temperature", "hot"}}, "temperature"},
    {{{"temperature", -0.1}}, "temperature"},
    {{{"temperature", 2.1}}, "temperature"},
    {{{"temperature", true}}, "temperature"},
    {{{"top_p", 1.5}}, "top_p"},
    {{{"top_k", 1.5}}, "top_k"},
    {{{"top_k", -2}}, "top_k"},
    {{{"top_k", 1e30}}, "top_k"},
    {{{"min_p", -1}}, "min_p"},
    {{{"presence_penalty", 3}}, "presence_penalty"},
    {{{"repetition_penalty", 0}}, "repetition_penalty"},
    {{{"max_tokens", 0}}, "max_tokens"},
    {{{"n_predict", 0}}, "n_predict"},
    {{{"max_tokens", -5}}, "max_tokens"},
    {{{"max_tokens", 18446744073709551615ull}}, "max_tokens"},
    {{{"max_completion_tokens", "many"}}, "max_completion_tokens"},
    {{{"min_tokens", 5}, {"max_tokens", 4}}, "min_tokens"},
    {{{"n", 0}}, "n"},
    {{{"n", 1000000}}, "n"},
    {{{"logprobs", 3}}, "logprobs"},
    {{{"top_logprobs", 3}}, "top_logprobs"},
    {{{"logprobs", true}, {"top_logprobs", 21}}, "top_logprobs"},
    {{{"seed", 1.5}}, "seed"},
    {{{"stop", 3}}, "stop"},
    {{{"stop", {""}}}, "stop"},
    {{{"stop", {"a", 3}}}, "stop"},
    {{{"stop", Json(std::vector<std::string>(1000, "a"))}}, "stop"},
    {{{"stop", std::string(100'000, 'a')}}, "stop"},
    {{{"stop_token_ids", {kVocab}}}, "stop_token_ids"},
    {{{"logit_bias", {{"x", 1}}}}, "logit_bias"},
    {{{"logit_bias", {{"99999999999999", 1}}}}, "logit_bias"},
    {{{"logit_bias", {{"1000", 1}}}}, "logit_bias"},
    {{{"logit_bias", {{"5", 101}}}}, "logit_bias"},
    {{{"logit_bias", {1}}}, "logit_bias"},
    {{{"stream", "yes"}}, "stream"},
    {{{"stream_options", {{"include_usage", true}}}}, "stream_options"},
    {{{"speculative", 3}}, "speculative"},
    {{{"speculative", {{"draft_length", 33}}}}, "speculative.draft_length"},
    {{{"speculative", {{"draft_length", "long"}}}}, "speculative.draft_length"},
    {{{"speculative", {{"draft_length", "auto+ngram"}}}}, "speculative.draft_length"},
    {{{"speculative", {{"enabled", 1}}}}, "speculative.enabled"},
    {{{"response_format", {{"type", "xml"}}}}, "response_format.type"},
    {{{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", {{"not", 1}}}}}}}},
     "response_format.json_schema.schema"},
    {{{"structured_outputs", {{"regex", "("}}}}, "structured_outputs.regex"},
    {{{"structured_outputs", {{"structural_tag", "x"}}}}, "structured_outputs.structural_tag"},
    {{{"grammar", "root ::= x"}}, "grammar"},
    {{{"grammar", "root ::= \"x\""}, {"json_schema", Json::object()}}, "json_schema"},
    {{{"functions", {{{"name", "f"}}}}}, "functions"},
    {{{"function_call", "auto"}}, "function_call"},
    {with_message({{"role", "assistant"}, {"content", "x"}, {"function_call", {{"name", "f"}}}}),
     "messages[0].function_call"},
    {with_message({{"role", "assistant"}, {"content", "x"}, {"audio", {{"id", "a"}}}}), "messages[0].audio"},
    {{{"audio", {{"voice", "a"}}}}, "audio"},
    {{{"modalities", {"text", "audio"}}}, "modalities"},
    {{{"moderation", {{"model", "m"}}}}, "moderation"},
    {{{"web_search_options", Json::object()}}, "web_search_options"},
    {{{"best_of", 2}}, "best_of"},
    {{{"use_beam_search", true}}, "use_beam_search"},
    {{{"logits_processors", {"x"}}}, "logits_processors"},
    {{{"mm_processor_kwargs", {{"num_crops", 2}}}}, "mm_processor_kwargs"},
    {{{"media_io_kwargs", {{"video", {{"num_frames", 2}}}}}}, "media_io_kwargs"},
    {{{"repetition_detection", {{"max_pattern_size", 3}}}}, "repetition_detection"},
    {{{"watermarking", true}}, "watermarking"},
    {{{"return_prompt_text", true}}, "return_prompt_text"},
    {{{"ec_transfer_params", {{"a", 1}}}}, "ec_transfer_params"},
    {{{"guided_json", {{"type", "object"}}}}, "guided_json"},
    {{{"add_special_tokens", true}}, "add_special_tokens"},
    {{{"mirostat", 2}}, "mirostat"},
    {{{"typical_p", 0.5}}, "typical_p"},
    {{{"dry_multiplier", 0.8}}, "dry_multiplier"},
    {{{"xtc_probability", 0.5}}, "xtc_probability"},
    {{{"dynatemp_range", 0.5}}, "dynatemp_range"},
    {{{"top_n_sigma", 1}}, "top_n_sigma"},
    {{{"min_keep", 2}}, "min_keep"},
    {{{"lora", {{{"id", 0}}}}}, "lora"},
    {{{"samplers", {"top_k"}}}, "samplers"},
    {{{"image_data", {{{"data", "x"}}}}}, "image_data"},
    {{{"n_probs", 3}}, "n_probs"},
    {{{"grammar_lazy", true}}, "grammar_lazy"},
    {{{"reasoning_format", "none"}}, "reasoning_format"},
    {{{"parse_tool_calls", false}}, "parse_tool_calls"},
    {{{"thinking_budget_tokens", 0}}, "thinking_budget_tokens"},
    {{{"reasoning_budget_tokens", 9}}, "reasoning_budget_tokens"},
    {{{"repeat_last_n", 64}, {"repeat_penalty", 1.1}}, "repeat_last_n"},
    {{{"reasoning", {{"effort", "some"}}}}, "reasoning.effort"},
    {{{"thinking", {{"type", "some"}}}}, "thinking.type"},
    {{{"enable_thinking", "yes"}}, "enable_thinking"},
    {{{"continue_final_message", true}, {"add_generation_prompt", true}}, "continue_final_message"},
    {{{"truncate_prompt_tokens", 0}}, "truncate_prompt_tokens"},
    {{{"chat_template", "x"}}, "chat_template"},
    {{{"documents", {{{"text", "x"}}}}}, "documents"},
    {{{"thinking_token_budget", 5}}, "thinking_token_budget"},
    {{{"reasoning_effort", "some"}}, "reasoning_effort"},
    {{{"reasoning_effort", 3}}, "reasoning_effort"},
    {{{"return_progress", true}}, "return_progress"},
    {{{"post_sampling_probs", true}}, "post_sampling_probs"},
    {{{"prompt_logprobs", 21}}, "prompt_logprobs"},
    {{{"prompt_logprobs", 1}, {"stream", true}}, "prompt_logprobs"},
    {{{"allowed_token_ids", {kVocab}}}, "allowed_token_ids"},
    {{{"allowed_token_ids", Json::array()}}, "allowed_token_ids"},
    {{{"bad_words", {" "}}}, "bad_words"},
    {{{"bad_words", "x"}}, "bad_words"},
    {{{"logprob_token_ids", {1}}}, "logprob_token_ids"},
    {{{"logprobs", true}, {"logprob_token_ids", {-1}}}, "logprob_token_ids"},
    {{{"skip_special_tokens", false}}, "skip_special_tokens"},
    {{{"kv_transfer_params", {{"prompt_token_ids", {1}}}}}, "kv_transfer_params"},
    {{{"truncate_prompt_tokens", 3}, {"truncation_side", "middle"}}, "truncation_side"},
};

TEST(ChatCompletion, WhatIsWrongIsNamed) {
  for (const BadRequest& bad : kBadRequests) {
    const ApiError error = refused(parse_chat_completion(chat_with(bad.fields), defaults()));
    EXPECT_EQ(error.param, bad.param) << bad.fields.dump().substr(0, 200) << ": " << error.message;
    EXPECT_EQ(error.status, bad.status) << error.message;
    EXPECT_LT(error.message.size(), 300u) << error.message;
  }
}

TEST(ChatCompletion, AllThatIsNoTokenIsNamedAtOnce) {
  const Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"logit_bias", {{"one", 1}, {"two", 1}}}};
  const std::string message = parse_chat_completion(body.dump(), defaults()).error().message;
  EXPECT_NE(message.find("one"), std::string::npos) << message;
  EXPECT_NE(message.find("two"), std::string::npos) << message;
}

TEST(ChatCompletion, WhatIsNoJsonIsRefused) {
  for (const std::string& body : {std::string(), std::string("{"), std::string("[]"), std::string("null"),
                                  std::string("{\"model\": \"nano\xff\"}"), std::string("{\"temperature\": 1e999}"),
                                  std::string("{\"model\": NaN}"), std::string(3'000'000, '['),
                                  "{\"messages\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
                                  std::string("\"") + std::string(1000, '[')}) {
    EXPECT_EQ(refused(parse_chat_completion(body, defaults())).status, 400) << body.substr(0, 40);
  }
}

TEST(ChatCompletion, BracketsInTextsDoNotCountAsNesting) {
  const std::string text = std::string(1000, '[') + "\\\"" + std::string(1000, '{');
  EXPECT_EQ(chat({{"messages", {{{"role", "user"}, {"content", text}}}}}).conversation.messages[0].content, text);
}

TEST(Completion, MasksAndScoresOfThePrompt) {
  const CompletionRequest masked = completion({{"allowed_token_ids", {5, 3, 5}}, {"bad_words", {"no", " never"}}});
  EXPECT_EQ(masked.sampling.allowed_tokens, (std::vector<TokenId>{3, 5}));
  EXPECT_EQ(masked.bad_words, (std::vector<std::string>{"no", " never"}));
  const CompletionRequest echoed = completion({{"echo", true}, {"logprobs", 2}});
  EXPECT_EQ(echoed.sampling.prompt_logprobs, 2);
  EXPECT_FALSE(echoed.return_prompt_logprobs);
  EXPECT_FALSE(completion({{"echo", true}}).sampling.prompt_logprobs);
  const CompletionRequest scored = chat({{"prompt_logprobs", 0}});
  EXPECT_EQ(scored.sampling.prompt_logprobs, 0);
  EXPECT_TRUE(scored.return_prompt_logprobs);
  EXPECT_EQ(completion({{"logprobs", 1}, {"logprob_token_ids", {9}}}).sampling.logprob_token_ids,
            (std::vector<TokenId>{9}));
  EXPECT_FALSE(completion({{"n_predict", -1}}).max_tokens) << "llama.cpp's: as many as there is room for";
}

TEST(Reply, AnEchoedPromptHasItsScoresBeforeTheAnswers) {
  const auto score = [](TokenId id, std::string text, bool scored) {
    return TokenScore{.token = {text, -1, id}, .top = {{"x", -0.5f, 9}}, .rank = 2, .scored = scored};
  };
  const ReplyHead head{.logprobs = true, .id = "i", .model = "nano", .prompt_logprobs = true};
  ChatMessage message;
  message.content = "ab";
  Choice choice{.message = message,
                .scores = {score(1, "a", false), score(2, "b", true)},
                .finish_reason = "stop",
                .stop_reason = TokenId{4}};
  choice.prompt_scores = choice.scores;
  const Json body = Json::parse(body_of(head, {choice}, {}));
  const Json& said = body["choices"][0];
  EXPECT_EQ(said["stop_reason"], 4);
  EXPECT_EQ(said["logprobs"]["token_logprobs"], (Json{nullptr, -1}));
  EXPECT_EQ(said["logprobs"]["top_logprobs"][0], nullptr);
  EXPECT_EQ(said["prompt_logprobs"][0], nullptr) << "nothing is before the first";
  EXPECT_EQ(said["prompt_logprobs"][1]["2"], (Json{{"logprob", -1}, {"rank", 2}, {"decoded_token", "b"}}));
  EXPECT_EQ(said["prompt_logprobs"][1]["9"]["rank"], 1);
  EXPECT_TRUE(body["timings"].is_object());
}

// JSON has neither parts of characters nor, for most who read it, two members of one name.
TEST(Reply, EveryAlternativeHasANameOfItsOwn) {
  const std::vector<TokenScore> scores = {
      {.token = {"\xe6", -2, 1},
       .top = {{"a", -0.5f, 2}, {"\xe6", -2, 1}, {"\xbd", -3, 3}, {"\xe2\x82", -4, 4}, {"a", -5, 5}, {"€", -6, 6}},
       .rank = 3}};
  Choice choice{.message = {}, .scores = scores, .finish_reason = "stop"};
  choice.prompt_scores = scores;
  ReplyHead head{.logprobs = true, .id = "i", .model = "nano", .prompt_logprobs = true};
  const Json said = Json::parse(body_of(head, {choice}, {}))["choices"][0];
  EXPECT_EQ(said["logprobs"]["tokens"], Json({R"(bytes:\xe6)"}));
  EXPECT_EQ(said["logprobs"]["top_logprobs"][0], Json({{R"(bytes:\xe6)", -2},
                                                       {"a", -0.5},
                                                       {R"(bytes:\xbd)", -3},
                                                       {R"(bytes:\xe2\x82)", -4},
                                                       {R"(bytes:\x61)", -5},
                                                       {"€", -6}}));
  EXPECT_EQ(said["prompt_logprobs"][0]["4"]["decoded_token"], R"(bytes:\xe2\x82)");
  head.chat = true;
  const Json chat = Json::parse(body_of(head, {choice}, {}))["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(chat["token"], R"(bytes:\xe6)");
  EXPECT_EQ(chat["bytes"], Json({0xe6}));
}

TEST(Reply, TheChosenTokenIsTheFirstOfItsAlternatives) {
  const ReplyHead head{.logprobs = true, .id = "i", .model = "nano"};
  const std::vector<TokenScore> scores = {
      {.token = {"z", -2, 1}, .top = {{"m", -0.5f, 2}, {"z", -2, 1}, {"a", -3, 3}}}};
  ChatMessage message;
  message.content = "z";
  const std::string ordered = R"("top_logprobs":[{"z":-2.0,"m":-0.5,"a":-3.0}])";
  EXPECT_NE(body_of(head, {{.message = message, .scores = scores, .finish_reason = "stop"}}, {}).find(ordered),
            std::string::npos);
  EXPECT_NE(chunk_of(head, ChatEvent{ChatEvent::Kind::kContent, "z", {}}, {.scores = scores}).find(ordered),
            std::string::npos);
}

TEST(Completion, PromptsAreTextsOrTokensOrListsOfEither) {
  using Tokens = std::vector<TokenId>;
  EXPECT_EQ(completion({}).prompts, (std::vector<Prompt>{{"Hi"}}));
  EXPECT_EQ(completion({{"prompt", {1, 2}}}).prompts, (std::vector<Prompt>{{Tokens{1, 2}}}));
  EXPECT_EQ(completion({{"prompt", {"a", "b"}}}).prompts, (std::vector<Prompt>{{"a"}, {"b"}}));
  EXPECT_EQ(completion({{"prompt", {{1}, {2, 3}}}}).prompts, (std::vector<Prompt>{{Tokens{1}}, {Tokens{2, 3}}}));
  EXPECT_EQ(completion({}).max_tokens, 16);
  EXPECT_EQ(completion({{"max_tokens", 5}}).max_tokens, 5);
  EXPECT_EQ(completion({{"max_tokens", 0}, {"echo", true}}).max_tokens, 0);
  EXPECT_EQ(completion({{"n_predict", 0}}).max_tokens, 0);
}

// Its texts are encoded with those of other prompts.
TEST(Completion, OfLlamaCppHasTextsAmongItsTokens) {
  using Tokens = std::vector<TokenId>;
  const auto prompts = [](const Json& prompt) {
    return completion_of({{"prompt", prompt}}, "", defaults(), "/completion").value().prompts;
  };
  const Prompt mixed = {"a", Tokens{1, 2}, "b", "c", Tokens{3}};
  EXPECT_EQ(prompts({"a", 1, 2, "b", "c", 3}), std::vector<Prompt>{mixed});
  EXPECT_EQ(prompts({{{"prompt_string", "a"}}, {1, 2}, {"a", 1, 2, "b", "c", 3}}),
            (std::vector<Prompt>{{"a"}, {Tokens{1, 2}}, mixed}));
  for (const Json& wrong : {Json{"a", kVocab}, Json{"a", 1, Json::array()}, Json{{"prompt_string", 1}}, Json::array()})
    EXPECT_EQ(completion_of({{"prompt", wrong}}, "", defaults(), "/completion").error().param, "prompt") << wrong;
}

TEST(Completion, WhatIsWrongIsNamed) {
  for (const BadRequest& bad :
       std::vector<BadRequest>{{{{"prompt", nullptr}}, "prompt"},
                               {{{"prompt", Json::array()}}, "prompt"},
                               {{{"prompt", 3}}, "prompt"},
                               {{{"prompt", {1, "a"}}}, "prompt"},
                               {{{"prompt", {"a", 1}}}, "prompt"},
                               {{{"prompt", {-1}}}, "prompt"},
                               {{{"prompt", {kVocab}}}, "prompt"},
                               {{{"prompt", {1.5}}}, "prompt"},
                               {{{"prompt", {Json::array()}}}, "prompt"},
                               {{{"prompt", Json(std::vector<std::string>(100, "a"))}}, "prompt"},
                               {{{"max_tokens", 0}}, "max_tokens"},
                               {{{"suffix", "x"}}, "suffix"},
                               {{{"best_of", 2}}, "best_of"}}) {
    EXPECT_EQ(refused(parse_completion(completion_with(bad.fields), defaults())).param, bad.param)
        << bad.fields.dump().substr(0, 100);
  }
}

TEST(Tokenize, TakesAPromptOrAConversation) {
  const auto of = [](const Json& json) { return parse_tokenize(json.dump(), defaults()).value(); };
  EXPECT_EQ(std::get<std::string>(of({{"prompt", "Hi"}}).text), "Hi");
  EXPECT_FALSE(of({{"prompt", "Hi"}, {"add_special_tokens", false}}).add_special_tokens);
  EXPECT_EQ(std::get<Conversation>(of({{"messages", {{{"role", "user"}, {"content", "Hi"}}}}}).text).messages.size(),
            1u);
  EXPECT_EQ(parse_tokenize("{}", defaults()).error().param, "prompt");
  EXPECT_EQ(parse_detokenize(R"({"tokens": [5000]})", defaults()).error().param, "tokens");
  const auto ids = [](const Json& json) { return parse_detokenize(json.dump(), defaults()).value(); };
  EXPECT_EQ(ids({{"tokens", {5, 6}}}).tokens, (std::vector<TokenId>{5, 6}));
  EXPECT_FALSE(ids({{"tokens", {5, 6}}}).of_vllm);
  EXPECT_TRUE(ids({{"tokens", {5, 6}}, {"model", "nano"}}).of_vllm);
}

const ReplyHead kChat{.chat = true, .id = "chatcmpl-1", .model = "nano", .created = 5};

TEST(Replies, AChatCompletionHasOpenAIsShape) {
  Choice choice;
  choice.message.content = "Hello";
  choice.message.reasoning = "Hm";
  choice.finish_reason = "stop";
  Usage usage{.prompt_tokens = 3, .cached_tokens = 1, .completion_tokens = 2, .reasoning_tokens = 1, .metrics = {}};
  usage.metrics.cached_prompt_tokens = 5;  // summed over choices
  usage.metrics.accepted_tokens = 1;
  usage.metrics.accepted_per_position = {1, 0, 0, 0};
  const Json body = Json::parse(body_of(kChat, {choice}, usage));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(body["choices"][0]["message"]["reasoning_content"], "Hm");
  EXPECT_EQ(body["choices"][0]["message"]["reasoning"], "Hm") << "vLLM's name of today";
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"], Json({{"prompt_tokens", 3},
                                 {"prompt_tokens_details", {{"cached_tokens", 1}}},
                                 {"completion_tokens", 2},
                                 {"completion_tokens_details", {{"reasoning_tokens", 1}}},
                                 {"total_tokens", 5}}));
  EXPECT_EQ(body["speculative"]["accepted_tokens"], 1);
  EXPECT_EQ(body["speculative"]["accepted_per_position"], Json({1, 0, 0, 0}));
}

/// As the tools that read vLLM's replies want it (AIPerf checks these sums and lengths).
TEST(Replies, AcceptanceIsReportedAsVllmDoes) {
  Usage usage{.completion_tokens = 11, .draft_length_max = 4};
  RequestMetrics& m = usage.metrics;
  m.drafting_rounds = 5;
  m.drafted_tokens = 14;
  m.accepted_tokens = 6;
  m.drafted_per_position = {5, 5, 4};
  m.accepted_per_position = {3, 2, 1};
  m.prefill_ns = 30'000'000;
  m.queue_ns = 10'000'000;
  m.decode_ns = 80'000'000;
  const Json metrics = Json::parse(body_of(kChat, {Choice{}}, usage))["metrics"];
  EXPECT_EQ(metrics, Json({{"time_to_first_token_ms", 20.0},
                           {"generation_time_ms", 80.0},
                           {"queue_time_ms", 10.0},
                           {"mean_itl_ms", 8.0},
                           {"tokens_per_second", 110.0},
                           {"speculative_decoding",
                            {{"mean_acceptance_length", 2.2},
                             {"draft_acceptance_rate", 6.0 / 14},
                             {"acceptance_histogram", {2, 1, 1, 1, 0}},
                             {"num_spec_steps", 5},
                             {"num_accepted_draft_tokens", 6},
                             {"num_draft_tokens", 14},
                             {"num_spec_tokens", 4}}}}));
  EXPECT_EQ(Json::parse(openai_writer()->usage(kChat, usage).substr(6))["metrics"], metrics);
  EXPECT_EQ(Json::parse(chunk_of(kChat, ChoiceEnds{"stop", {}, &usage}).substr(6))["metrics"], metrics);
  EXPECT_FALSE(Json::parse(chunk_of(kChat, ChoiceEnds{"stop"}).substr(6)).contains("metrics"));
}

TEST(Replies, WhatIsNotOneStreamsIsNotReportedAsOnes) {
  const auto metrics = [](const Usage& usage) {
    return Json::parse(openai_writer()->usage(kChat, usage).substr(6))["metrics"];
  };
  Usage usage{.completion_tokens = 1, .choices = 2, .draft_length_max = 4};
  usage.metrics.prefill_ns = 1000;
  EXPECT_TRUE(metrics(usage).is_null());
  usage.choices = 1;
  EXPECT_FALSE(metrics(usage).contains("mean_itl_ms")) << "one token has no gap";
  EXPECT_EQ(metrics(usage)["speculative_decoding"]["acceptance_histogram"], Json({0, 0, 0, 0, 0}));
  usage.draft_length_max = 0;
  EXPECT_TRUE(metrics(usage)["speculative_decoding"].is_null());
  usage.metrics.prefill_ns = 0;
  EXPECT_TRUE(metrics(usage)["time_to_first_token_ms"].is_null()) << "the coordinator died before it could tell";
}

TEST(Replies, TokenIdsStandWhereVllmHasThem) {
  ReplyHead chat_head = kChat, completion_head{.chat = false, .id = "cmpl-1", .model = "nano"};
  chat_head.token_ids = completion_head.token_ids = true;
  Choice choice;
  choice.prompt_ids = {2, 5};
  choice.token_ids = {7};
  const Json chat = Json::parse(body_of(chat_head, {choice}, {}));
  EXPECT_EQ(chat["prompt_token_ids"], Json({2, 5}));
  EXPECT_EQ(chat["choices"][0]["token_ids"], Json({7}));
  const Json completion = Json::parse(body_of(completion_head, {choice}, {}));
  EXPECT_EQ(completion["choices"][0]["prompt_token_ids"], Json({2, 5}));
  EXPECT_FALSE(completion.contains("prompt_token_ids"));
  const auto parsed = [](const std::string& chunk) { return Json::parse(chunk.substr(6)); };
  EXPECT_EQ(parsed(chunk_of(chat_head, ChoiceBegins{}, {.prompt_ids = {2, 5}}))["prompt_token_ids"], Json({2, 5}));
  EXPECT_EQ(parsed(chunk_of(completion_head, ChoiceBegins{}, {.prompt_ids = {2, 5}}))["choices"][0]["prompt_token_ids"],
            Json({2, 5}));
  const Usage so_far{.prompt_tokens = 3, .completion_tokens = 1};
  const ChatEvent event{ChatEvent::Kind::kContent, "a", {}};
  const Json chunk = parsed(chunk_of(chat_head, event, {.token_ids = {7}, .so_far = &so_far}));
  EXPECT_EQ(chunk["choices"][0]["token_ids"], Json({7}));
  EXPECT_EQ(chunk["usage"]["total_tokens"], 4) << "continuous_usage_stats";
  EXPECT_FALSE(parsed(chunk_of(kChat, event)).contains("usage"));
}

TEST(Replies, AToolCallIsTheSameStreamedAndNot) {
  const ChatEvent event{ChatEvent::Kind::kToolCall, R"({"city":"Rome"})", "weather"};
  Choice choice{.message = {}, .scores = {}, .finish_reason = "tool_calls"};
  append(event, choice.message);
  const Json whole = Json::parse(body_of(kChat, {choice}, {}))["choices"][0]["message"];
  EXPECT_TRUE(whole["content"].is_null());
  const std::string chunk = chunk_of(kChat, event);
  ASSERT_TRUE(chunk.starts_with("data: ") && chunk.ends_with("\n\n"));
  Json streamed = Json::parse(chunk.substr(6))["choices"][0]["delta"]["tool_calls"][0];
  EXPECT_EQ(streamed["index"], 0);
  streamed.erase("index");
  EXPECT_EQ(streamed, whole["tool_calls"][0]);
  const std::string long_integer = R"({"n":123456789012345678901234567890})";
  Choice precise{.message = {}, .scores = {}, .finish_reason = "tool_calls"};
  append(ChatEvent{ChatEvent::Kind::kToolCall, long_integer, "f"}, precise.message);
  EXPECT_EQ(
      Json::parse(body_of(kChat, {precise}, {}))["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"],
      long_integer);
}

TEST(Replies, ARoundSaysWhatBecameOfItsDrafts) {
  RoundReport report{
      .draft_length = 3,
      .drafts = {5, 6},
      .outcome = {
          .source = DraftSource::kNgram, .drafted = 2, .accepted = 1, .draft_s = 0.5, .verify_s = 0.25, .round_s = 1}};
  const auto told = [](const ReplyHead& head, const ReportedRound& reported) {
    return Json::parse(openai_writer()->event(head, {.index = 2, .what = reported}).substr(6));
  };
  const Json chunk = told(kChat, {.tokens = {"a", "c"}, .round = report, .drafts = {"a", "\xff"}});
  EXPECT_EQ(chunk["choices"][0]["index"], 2);
  EXPECT_EQ(chunk["choices"][0]["delta"], Json::object());
  EXPECT_EQ(chunk["outrider_round"], Json({{"source", "ngram"},
                                           {"draft_length", 3},
                                           {"drafts", {"a", "\ufffd"}},
                                           {"accepted", 1},
                                           {"tokens", {"a", "c"}},
                                           {"draft_ms", 500.0},
                                           {"verify_ms", 250.0},
                                           {"round_ms", 1000.0}}));
  const Json first =
      told({.chat = false, .id = "cmpl-1", .model = "nano"}, {.tokens = {"a"}, .round = {}, .drafts = {}});
  EXPECT_EQ(first["choices"][0]["text"], "");
  EXPECT_TRUE(first["outrider_round"]["source"].is_null());
  const Json with_ids = told({.chat = true, .id = "x", .model = "nano", .token_ids = true},
                             {.tokens = {"a", "c"}, .round = report, .drafts = {"a", "b"}, .token_ids = {5, 7}});
  EXPECT_EQ(with_ids["outrider_round"]["token_ids"], Json({5, 7}));
  EXPECT_EQ(with_ids["outrider_round"]["draft_ids"], Json({5, 6}));
}

TEST(Replies, LogprobsHaveTheShapeOfTheirEndpoint) {
  ReplyHead head = kChat;
  head.logprobs = true;
  Choice choice{.message = {}, .scores = {}, .finish_reason = "stop"};
  TokenScore& score = choice.scores.emplace_back();
  score.token.bytes = "a\xc3";
  score.token.logprob = -0.5f;
  score.top.resize(1);
  score.top[0].bytes = "b";
  score.top[0].id = 1;
  score.top[0].logprob = -0.25f;
  score.text_offset = 2;
  const auto logprobs = [&] { return Json::parse(body_of(head, {choice}, {}))["choices"][0]["logprobs"]; };
  const Json chat_logprobs = logprobs()["content"][0];
  EXPECT_EQ(chat_logprobs["bytes"], Json({0x61, 0xc3}));
  EXPECT_EQ(chat_logprobs["token"], R"(bytes:\x61\xc3)");
  EXPECT_EQ(chat_logprobs["logprob"], -0.5);
  EXPECT_EQ(chat_logprobs["top_logprobs"][0]["token"], "b");
  head.chat = false;
  EXPECT_EQ(logprobs(), Json({{"tokens", {R"(bytes:\x61\xc3)"}},
                              {"token_logprobs", {-0.5}},
                              {"top_logprobs", {{{R"(bytes:\x61\xc3)", -0.5}, {"b", -0.25}}}},
                              {"text_offset", {2}}}));
  choice.scores[0].top.clear();
  EXPECT_EQ(logprobs()["top_logprobs"], Json({{{R"(bytes:\x61\xc3)", -0.5}}})) << "logprobs: 0";
  choice.scores[0].token.id = 65;
  head.tokens_as_ids = true;
  EXPECT_EQ(logprobs()["tokens"], Json({"token_id:65"}));
  head.logprobs = false;
  EXPECT_TRUE(logprobs().is_null());
}

TEST(Replies, MetricsOfChoicesAddUp) {
  const auto metrics = [](std::vector<std::int64_t> drafted, std::vector<std::int64_t> accepted,
                          std::int64_t verify_ns) {
    RequestMetrics one;
    one.rounds = 2;
    one.drafted_per_position = std::move(drafted);
    one.accepted_per_position = std::move(accepted);
    one.verify_ns = verify_ns;
    one.cached_prompt_tokens = one.ngram.rounds = one.ngram.drafted_tokens = one.ngram.accepted_tokens = 3;
    return one;
  };
  RequestMetrics sum;
  add(sum, metrics({2, 1}, {1, 0}, 5));
  add(sum, metrics({1, 1, 1}, {1, 1, 0}, 6));
  EXPECT_EQ(sum.rounds, 4);
  EXPECT_EQ(sum.verify_ns, 11);
  for (const std::int64_t each :
       {sum.cached_prompt_tokens, sum.ngram.rounds, sum.ngram.drafted_tokens, sum.ngram.accepted_tokens})
    EXPECT_EQ(each, 6);
  EXPECT_EQ(sum.drafted_per_position, (std::vector<std::int64_t>{3, 2, 1}));
  EXPECT_EQ(sum.accepted_per_position, (std::vector<std::int64_t>{2, 1, 0}));
}

TEST(Replies, ErrorsHaveOpenAIsShapeWhateverTheyQuote) {
  const Json body =
      Json::parse(error_body({.status = 404, .message = "no \xff", .param = "model", .code = "model_not_found"}));
  EXPECT_EQ(body["error"]["type"], "invalid_request_error");
  EXPECT_EQ(body["error"]["param"], "model");
  EXPECT_TRUE(Json::parse(error_body({.status = 503, .message = "x"}))["error"]["code"].is_null());
}

}  // namespace
}  // namespace outrider
