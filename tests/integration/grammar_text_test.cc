// Answers under a grammar on the nano pair: the text is that of plain decoding, whatever drafts, and where a verifier
// dies; and over HTTP each way of asking for one is followed.
#include <csignal>
#include <functional>
#include <future>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/decoding/grammar/grammar_text.h"
#include "tests/support/cluster_fixtures.h"
#include "tests/support/http_client.h"

namespace outrider {
namespace {

/// A list of stories' words, as JSON: nano has its say in the texts, and must be told where they end.
std::string story_grammar() {
  return grammar_of_schema(nlohmann::ordered_json::parse(R"({"type":"object","required":["title","lines","stars"],
      "properties":{"title":{"type":"string","maxLength":20},
      "lines":{"type":"array","items":{"type":"string","minLength":5,"maxLength":30},"minItems":2,"maxItems":3},
      "stars":{"type":"integer","minimum":1,"maximum":5},"kind":{"enum":["sad","funny"]}}})"))
      .value();
}

Generate constrained(const NanoGolden& golden, std::int32_t draft_length) {
  Generate request = request_for(golden, draft_length);
  request.max_tokens = 100;
  request.sampling.grammar = story_grammar();
  return request;
}

using GrammarText = NanoCluster;

/// Whether an answer that ended is what the story's grammar lets in, as another parser reads it.
void expect_story(const Generation& generation) {
  if (generation.reason == FinishReason::kLength) return;
  const Json story = Json::parse(nano_text(generation.tokens), nullptr, false);
  ASSERT_TRUE(story.is_object()) << nano_text(generation.tokens);
  EXPECT_LE(story.at("title").get<std::string>().size(), 120u);
  EXPECT_GE(story.at("lines").size(), 2u);
  EXPECT_GE(story.at("stars"), 1);
  EXPECT_LE(story.at("stars"), 5);
}

TEST_F(GrammarText, IsThatOfPlainDecodingForEveryDraftLengthAndPolicy) {
  Client client = connect();
  std::int64_t accepted = 0, drafted = 0, ended = 0;
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    const NanoGolden& golden = goldens_[seed % goldens_.size()];
    const auto request = [&](std::int32_t draft_length) {
      Generate wanted = constrained(golden, draft_length);
      // Greedy, then with the noise of a seed.
      if (seed > 0) wanted.sampling.temperature = 0.8f, wanted.sampling.seed = seed;
      if (seed == 1) wanted.sampling.repetition_penalty = 1.1f;
      return wanted;
    };
    const Generation plain = answer(client, request(0));
    expect_story(plain);
    ended += plain.reason == FinishReason::kStop;
    for (const std::int32_t draft_length : {1, 5}) {
      const Generation speculative = answer(client, request(draft_length));
      EXPECT_EQ(speculative.tokens, plain.tokens) << "seed " << seed << ", draft length " << draft_length;
      accepted += speculative.metrics.accepted_tokens;
      drafted += speculative.metrics.drafted_tokens;
    }
    for (const DraftPolicy policy : {DraftPolicy::kAuto, DraftPolicy::kTree}) {
      Generate chosen = request(kChosenLengthMax);
      chosen.policy = policy;
      EXPECT_EQ(answer(client, chosen).tokens, plain.tokens) << "seed " << seed << ", " << to_string(policy);
    }
  }
  std::printf("%lld of %lld drafts accepted\n", static_cast<long long>(accepted), static_cast<long long>(drafted));
  EXPECT_GT(accepted, 10);
  EXPECT_GT(ended, 0) << "no answer was whole: nothing was tested of their ends";
}

TEST_F(GrammarText, IsFollowedUnderTheRulesWhoseTextDependsOnDrafts) {
  Client client = connect();
  for (const SamplingRule rule : {SamplingRule::kRejection, SamplingRule::kTypical}) {
    std::int64_t accepted = 0;
    for (const DraftPolicy policy : {DraftPolicy::kFixed, DraftPolicy::kTree}) {
      Generate request = constrained(goldens_[1], 4);
      request.policy = policy;
      request.sampling.temperature = 0.8f;
      request.sampling.seed = 1;
      request.sampling.rule = rule;
      const Generation generation = answer(client, request);
      expect_story(generation);
      accepted += generation.metrics.accepted_tokens;
    }
    EXPECT_GT(accepted, 3) << to_string(rule);
  }
}

TEST_F(GrammarText, WhatCannotBeIsRefused) {
  Client client = connect();
  Generate request = constrained(goldens_[0], 0);
  request.sampling.grammar = "root ::= nowhere";
  const auto broken = client.generate(request, [](std::span<const TokenId>) {});
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, Errc::kInvalidArgument);
  EXPECT_NE(broken.error().message.find("nowhere"), std::string::npos) << broken.error().message;
  request = constrained(goldens_[0], 0);
  request.stop_ids.clear();
  EXPECT_FALSE(client.generate(request, [](std::span<const TokenId>) {})) << "it could not end";
  EXPECT_FALSE(answer(client, request_for(goldens_[0], 4)).tokens.empty()) << "others are not disturbed";
}

/// A short grammar of which a mask takes seconds, at the first token or later.
std::string slow_grammar(int levels) {
  std::string nested = "[a-z]{0,50}";
  for (int i = 1; i < levels; ++i) nested = "(" + nested + "){0,50}";
  return "root ::= " + nested;
}

TEST(GrammarOverload, ARequestWhoseGrammarTakesTooLongEndsAloneAndVerifiersStay) {
  Trio trio(/*with_drafter=*/false);
  Program second({"verifier", "--join", trio.coordinator->address, "--threads", "1"});
  Client watcher = trio.client(1, 0);
  ASSERT_TRUE(eventually([&] { return trio.status().verifiers == 2; }));
  const Generate story = story_request(150, 0);
  const std::vector<TokenId> wanted = answer(watcher, story).tokens;
  std::vector<std::future<Result<Generation>>> innocent, slow;
  const auto start = [&](const Generate& request) {
    return std::async(std::launch::async, [&trio, request] {
      Client client = Client::connect(trio.context, trio.coordinator->address).value();
      return client.generate(request, [](std::span<const TokenId>) {});
    });
  };
  for (int i = 0; i < 2; ++i) innocent.push_back(start(story));
  for (const int levels : {3, 4, 5, 12}) {
    Generate request = constrained(nano_goldens()[0], 0);
    request.sampling.grammar = slow_grammar(levels);
    request.sampling.min_tokens = 100;
    slow.push_back(start(request));
  }
  for (auto& one : slow) {
    const Result<Generation> generation = one.get();
    ASSERT_FALSE(generation);
    EXPECT_EQ(generation.error().code, Errc::kUnsupported) << generation.error().message;
    EXPECT_NE(generation.error().message.find("processor time"), std::string::npos) << generation.error().message;
  }
  for (auto& one : innocent) {
    const Result<Generation> generation = one.get();
    ASSERT_TRUE(generation) << generation.error().message;
    EXPECT_EQ(generation->tokens, wanted);
    EXPECT_EQ(generation->metrics.failovers, 0);
  }
  EXPECT_EQ(trio.status().verifiers, 2);
  EXPECT_EQ(trio.warnings(), std::vector<std::string>());
}

TEST(GrammarFailover, TheAnswerGoesOnWhereItWas) {
  // Slow enough that the answer is not over before its verifier is.
  const std::vector<std::string> slowly = {"--added-verify-us", "30000"};
  Trio trio(true, {}, slowly);
  Program second({"verifier", "--join", trio.coordinator->address, "--threads", "1", slowly[0], slowly[1]});
  Client client = trio.client(1, 1);
  ASSERT_TRUE(eventually([&] { return trio.status().verifiers == 2; }));
  Generate request = constrained(nano_goldens()[1], 4);
  request.sampling.temperature = 0.8f;
  request.sampling.seed = 4;
  const std::vector<TokenId> wanted = answer(client, request).tokens;
  int rounds = 0;
  const auto generation = client.generate(request, [&](std::span<const TokenId>) {
    if (++rounds != 4) return;
    for (const WorkerStatus& worker : trio.status().workers) {
      if (worker.role != Role::kVerifier || worker.sessions == 0) continue;
      kill(std::stoi(worker.name.substr(worker.name.rfind('-') + 1)), SIGKILL);  // its name ends with its process id
    }
  });
  ASSERT_TRUE(generation) << generation.error().message;
  EXPECT_EQ(generation->tokens, wanted);
  EXPECT_EQ(generation->metrics.failovers, 1);
}

// ---- HTTP ----

Json ask(Json fields) {
  Json request = {{"messages", {{{"role", "user"}, {"content", "Write a short story about a fox."}}}},
                  {"temperature", 0},
                  {"max_tokens", 200}};
  request.update(fields);
  return request;
}

const Json kSchema = Json::parse(R"({"type":"object","required":["name","age"],"additionalProperties":false,
    "properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,"maximum":99}}})");
const Json kTools = Json::parse(R"([{"type":"function","function":{"name":"weather","parameters":{"type":"object",
    "required":["city"],"properties":{"city":{"enum":["Rome","Oslo"]},"days":{"type":"integer"}}}}},
    {"type":"function","function":{"name":"time"}}])");

TEST(GrammarHttp, EveryWayOfAskingIsFollowed) {
  Serve serve;
  const auto content = [&](Json fields) {
    const Json reply = serve.chat(ask(std::move(fields)));
    EXPECT_TRUE(reply.contains("choices")) << reply.dump();
    return reply.contains("choices") ? reply["choices"][0]["message"]["content"].get<std::string>() : std::string();
  };
  const auto expect_person = [&](const std::string& text) {
    const Json person = Json::parse(text, nullptr, false);
    ASSERT_TRUE(person.is_object()) << text;
    EXPECT_EQ(person.size(), 2u);
    EXPECT_TRUE(person["name"].is_string());
    EXPECT_LE(person["age"], 99);
  };
  const Json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "p"}, {"strict", true}, {"schema", kSchema}}}};
  expect_person(content({{"response_format", format}}));
  expect_person(content({{"response_format", {{"type", "json_object"}, {"schema", kSchema}}}}));
  expect_person(content({{"structured_outputs", {{"json", kSchema}}}}));
  expect_person(content({{"structured_outputs", {{"json", kSchema.dump()}}}}));
  expect_person(content({{"json_schema", kSchema}}));
  EXPECT_EQ(content({{"structured_outputs", {{"choice", {"fox", "dog"}}}}}).size(), 3u);
  EXPECT_EQ(content({{"structured_outputs", {{"regex", "[0-9]{5}"}}}}).find_first_not_of("0123456789"),
            std::string::npos);
  EXPECT_EQ(content({{"structured_outputs", {{"grammar", "root ::= \"a\" \"b\"{3}"}}}}), "abbb");
  EXPECT_EQ(content({{"grammar", "# GBNF\nroot ::= word \"!\"\nword ::= [A-C]{2,2}\n"}}).size(), 3u);
  EXPECT_EQ(content({{"response_format", {{"type", "json_object"}}}, {"max_tokens", 20}}).front(), '{');
  const Json asked = {{"prompt", "Once"}, {"temperature", 0}, {"max_tokens", 90}, {"json_schema", kSchema}};
  const Json completion = json_of(post(serve.port, "/v1/completions", asked.dump()));
  expect_person(completion["choices"][0]["text"]);
  // Streamed, and with a thought allowed before.
  EXPECT_FALSE(serve.stream(ask({{"response_format", format}})).empty());
  expect_person(content({{"response_format", format}, {"chat_template_kwargs", {{"enable_thinking", true}}}}));
}

TEST(GrammarHttp, CallsAreForced) {
  Serve serve;
  const auto choice = [&](Json fields) {
    fields["tools"] = kTools;
    const Json reply = serve.chat(ask(std::move(fields)));
    EXPECT_TRUE(reply.contains("choices")) << reply.dump();
    return reply.contains("choices") ? reply["choices"][0] : Json();
  };
  for (const Json& named : {Json("required"), Json{{"type", "function"}, {"function", {{"name", "weather"}}}}}) {
    const Json answer = choice({{"tool_choice", named}, {"parallel_tool_calls", false}, {"max_tokens", 60}});
    EXPECT_EQ(answer["finish_reason"], "tool_calls") << answer.dump();
    ASSERT_EQ(answer["message"]["tool_calls"].size(), 1u) << answer.dump();
    const Json call = answer["message"]["tool_calls"][0]["function"];
    const Json arguments = Json::parse(call["arguments"].get<std::string>());
    EXPECT_TRUE(call["name"] != "weather" || arguments["city"] == "Rome" || arguments["city"] == "Oslo");
    EXPECT_TRUE(named.is_string() || call["name"] == "weather");
  }
  EXPECT_TRUE(choice({{"parallel_tool_calls", false}, {"max_tokens", 5}}).contains("message"));
  const Json either = choice({{"response_format", {{"type", "json_object"}}}, {"max_tokens", 10}});
  EXPECT_TRUE(either["message"].contains("tool_calls") ||
              either["message"]["content"].get<std::string>().front() == '{');
  EXPECT_TRUE(serve.chat(ask({{"parallel_tool_calls", false}, {"max_tokens", 3}})).contains("choices")) << "no tools";
}

TEST(GrammarHttp, EveryRoadEscapesWhatAPatternNames) {
  Serve serve;
  const Json schema = Json::parse(
      R"({"type":"object","required":["a"],"properties":{"a":{"type":"string","pattern":"^C:\\\\\"\t$"}}})");
  const Json wanted = {{"a", "C:\\\"\t"}};
  const auto parsed = [](const Json& text) { return Json::parse(text.get<std::string>(), nullptr, false); };
  const Json format = {{"type", "json_schema"}, {"json_schema", {{"name", "p"}, {"schema", schema}}}};
  for (const Json& fields : {Json{{"response_format", format}}, Json{{"json_schema", schema}},
                             Json{{"response_format", {{"type", "json_object"}, {"schema", schema}}}},
                             Json{{"structured_outputs", {{"json", schema.dump()}}}}}) {
    const Json reply = serve.chat(ask(fields));
    ASSERT_TRUE(reply.contains("choices")) << reply.dump();
    EXPECT_EQ(parsed(reply["choices"][0]["message"]["content"]), wanted) << fields.dump() << reply.dump();
  }
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}, {"strict", true}, {"parameters", schema}}}}};
  const Json called = serve.chat(ask({{"tools", tools}, {"tool_choice", "required"}, {"parallel_tool_calls", false}}));
  ASSERT_TRUE(called.contains("choices")) << called.dump();
  EXPECT_EQ(parsed(called["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]), wanted) << called.dump();
  const Json response = json_of(
      post(serve.port, "/v1/responses",
           Json{{"input", "Hi"},
                {"temperature", 0},
                {"text", {{"format", {{"type", "json_schema"}, {"name", "p"}, {"schema", schema}}}}}}
               .dump()));
  EXPECT_EQ(parsed(response["output"][0]["content"][0]["text"]), wanted) << response.dump();
  const Json message = json_of(post(serve.port, "/v1/messages",
                                    Json{{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                                         {"temperature", 0},
                                         {"max_tokens", 60},
                                         {"output_config", {{"format", {{"type", "json_schema"}, {"schema", schema}}}}}}
                                        .dump()));
  EXPECT_EQ(parsed(message["content"][0]["text"]), wanted) << message.dump();
}

TEST(GrammarHttp, WhatCannotBeIsRefusedByName) {
  Serve serve;
  const auto refused = [&](Json fields, const char* word) {
    const Response response = post(serve.port, "/v1/chat/completions", ask(std::move(fields)).dump());
    EXPECT_EQ(response.status, 400) << response.body;
    EXPECT_NE(response.body.find(word), std::string::npos) << response.body;
  };
  refused({{"json_schema", {{"not", Json::object()}}}}, "'not'");
  refused({{"response_format", {{"type", "xml"}}}}, "response_format.type");
  refused({{"response_format", {{"type", "json_schema"}}}}, "json_schema");
  refused({{"grammar", "root ::="}}, "grammar");
  for (const bool stream : {false, true}) {
    refused({{"stream", stream}, {"json_schema", {{"$ref", "#"}}}}, "nothing is valid");
    refused({{"stream", stream}, {"grammar", "root ::= \"a\" root"}}, "no text is valid");
    refused({{"stream", stream}, {"structured_outputs", {{"regex", "[^\\s\\S]"}}}}, "no text matches");
  }
  refused({{"grammar", "root ::= \"a\""}, {"json_schema", kSchema}}, "cannot stand beside");
  refused({{"structured_outputs", {{"structural_tag", "x"}}}}, "structural_tag");
  refused({{"structured_outputs", {{"regex", "a"}, {"choice", {"a"}}}}}, "cannot stand beside");
  refused({{"structured_outputs", {{"choice", Json::array()}}}}, "choice");
  refused({{"tool_choice", "required"}}, "there are no tools");
  refused({{"tools", kTools}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "x"}}}}}},
          "none of the tools");
  refused({{"grammar", "root ::= \"a\""}, {"ignore_eos", true}}, "stop token");
}

}  // namespace
}  // namespace outrider
