#include "common/grammar/grammar.h"

#include <array>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/random.h"
#include "common/grammar/call_grammar.h"
#include "common/grammar/grammar_text.h"
#include "common/grammar/limits.h"
#include "common/sampling/sampler.h"
#include "common/tokenizer/answer_controls.h"
#include "common/tokenizer/chat_parser.h"

namespace outrider {
namespace {
using Json = nlohmann::ordered_json;

const Tokenizer& nano_tokenizer() {
  static const Tokenizer tokenizer = [] {
    std::ifstream file(std::string(OUTRIDER_SOURCE_DIR) + "/models/nano/backbone/tokenizer.json");
    std::stringstream text;
    text << file.rdbuf();
    return Tokenizer::parse(text.str(), "nano").value();
  }();
  return tokenizer;
}
TokenId eos() { return nano_tokenizer().find("<eos>").value(); }

GrammarCompiler& nano_grammars() {
  static GrammarCompiler compiler([]() -> Result<GrammarVocabulary> {
    return grammar_vocabulary(nano_tokenizer(), nano_tokenizer().vocab_size());
  });
  return compiler;
}
GrammarState state_of(const std::string& grammar) { return {nano_grammars().wait_for(grammar).value(), {eos()}}; }
bool is_allowed(std::span<const std::uint32_t> allowed, TokenId token) {
  return allowed.empty() || (allowed[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1U) != 0;
}
bool accepts(const std::string& grammar, std::span<const TokenId> answer) {
  GrammarState state = state_of(grammar);
  return std::ranges::all_of(answer, [&](TokenId token) { return state.accept(token); }) && state.accept(eos());
}
bool accepts(const std::string& grammar, const std::string& answer) {
  return accepts(grammar, nano_tokenizer().encode(answer, /*parse_special=*/false));
}
std::string schema_grammar(const char* schema) {
  const Result<std::string> grammar = grammar_of_schema(Json::parse(schema));
  EXPECT_TRUE(grammar) << schema << ": " << (grammar ? "" : grammar.error().message);
  return grammar ? *grammar : "root ::= \"\"";
}
std::string refusal(const char* schema) {
  const Result<std::string> grammar = grammar_of_schema(Json::parse(schema));
  return grammar ? "" : grammar.error().message;
}

const char* const kPerson = R"({"type":"object","required":["name","age"],"properties":{
    "name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
    "tags":{"type":"array","items":{"enum":["a","b"]}}}})";

TEST(Grammar, AllowsExactlyTheTokensThatItAccepts) {
  const std::string grammars[] = {grammar_of_json_object().value(), grammar_of_regex("[a-z]+ [0-9]{2,4}(é|ü)?").value(),
                                  schema_grammar(kPerson), "root ::= [^x]* \"x\" root | \"\""};
  CounterRng rng(5);
  for (const std::string& grammar : grammars) {
    GrammarState state = state_of(grammar);
    for (int step = 0; step < 12; ++step) {
      const auto span = state.allowed();
      const std::vector<std::uint32_t> allowed(span.begin(), span.end());
      std::vector<TokenId> next;
      for (TokenId token = 0; token < nano_tokenizer().vocab_size(); ++token) {
        const bool accepted = state.accept(token);
        if (accepted) state.roll_back(1);
        ASSERT_EQ(accepted, is_allowed(allowed, token)) << grammar << "\nstep " << step << " token " << token;
        if (accepted && token != eos()) next.push_back(token);
      }
      const auto again = state.allowed();
      ASSERT_EQ(std::vector<std::uint32_t>(again.begin(), again.end()), allowed) << "rolled back";
      if (next.empty()) break;
      ASSERT_TRUE(state.accept(next[static_cast<std::size_t>(rng.uniform() * static_cast<double>(next.size()))]));
    }
  }
}

TEST(Grammar, EndsWhereItMayAndNowhereElse) {
  GrammarState state = state_of("root ::= \"yes\" | \"yes yes\"");
  EXPECT_FALSE(is_allowed(state.allowed(), eos()));
  for (const TokenId token : nano_tokenizer().encode("yes", false)) ASSERT_TRUE(state.accept(token));
  EXPECT_TRUE(is_allowed(state.allowed(), eos()));
  for (const TokenId token : nano_tokenizer().encode(" yes", false)) ASSERT_TRUE(state.accept(token));
  ASSERT_TRUE(state.accept(eos()));
  EXPECT_FALSE(state.accept(nano_tokenizer().encode("a", false)[0]));
  state.roll_back(1);
  EXPECT_TRUE(is_allowed(state.allowed(), eos()));
}

TEST(Grammar, TextIsNeverAControlToken) {
  GrammarState state = state_of("root ::= [^\\x00]*");
  const auto allowed = state.allowed();
  for (TokenId token = 0; token < nano_tokenizer().vocab_size(); ++token) {
    if (!nano_tokenizer().is_special(token) || token == eos()) continue;
    EXPECT_FALSE(is_allowed(allowed, token)) << token;
  }
}

TEST(Grammar, JsonIsWhatTheSchemaSays) {
  const std::string grammar = schema_grammar(kPerson);
  EXPECT_TRUE(accepts(grammar, R"({"name": "Ada", "age": 36})"));
  EXPECT_TRUE(accepts(grammar, "{\n  \"name\": \"\\u00e9\",\n  \"age\": 0,\n  \"tags\": [\"a\", \"b\"]\n}"));
  EXPECT_FALSE(accepts(grammar, R"({"name": "Ada", "age": 151})"));
  EXPECT_FALSE(accepts(grammar, R"({"name": "Ada"})"));
  EXPECT_FALSE(accepts(grammar, R"({"name": "Ada", "age": 1, "tags": ["c"]})"));
  EXPECT_FALSE(accepts(grammar, R"({"name": "Ada", "age": 1, "more": 1})"));
  EXPECT_FALSE(accepts(grammar, R"({"name": "Ada", "age": 1} )")) << "nothing follows";
  EXPECT_TRUE(accepts(schema_grammar(R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"object","required":["l"],
      "properties":{"l":{"anyOf":[{"$ref":"#/$defs/t"},{"type":"null"}]}}}}})"),
                      R"({"l": {"l": {"l": null}}})"));
  EXPECT_TRUE(accepts(schema_grammar(R"({"minLength":2})"), R"("ab")"));
  EXPECT_FALSE(accepts(schema_grammar(R"({"minLength":2})"), "1")) << "a schema that bounds texts is one of texts";
  const std::string bounded = schema_grammar(R"({"type":"string","minLength":2,"maxLength":3})");
  EXPECT_TRUE(accepts(bounded, R"("a\n\"")"));
  EXPECT_FALSE(accepts(bounded, "\"a\x02\"")) << "a control character is no JSON";
  EXPECT_FALSE(accepts(bounded, R"("\ud83d\ude42")")) << "one character";
  EXPECT_FALSE(accepts(schema_grammar(R"({"prefixItems":[{},{}],"minItems":1})"), "[]"));
  EXPECT_FALSE(accepts(schema_grammar(R"({"required":["a"]})"), "{}"));
  EXPECT_TRUE(accepts(schema_grammar(R"({"type":["integer","null"],"minimum":3})"), "null"));
  EXPECT_FALSE(accepts(schema_grammar(R"({"type":["integer","null"],"minimum":3})"), "2"));
  EXPECT_FALSE(accepts(schema_grammar(R"({"type":"integer","minimum":1.5})"), "1"));
  EXPECT_TRUE(accepts(grammar_of_json_object().value(), R"({"a": [1, {"b": null}]})"));
  EXPECT_FALSE(accepts(grammar_of_json_object().value(), "[]"));
}

TEST(Grammar, TextsOfBoundedLengthAreCounted) {
  constexpr int kAny = -1;
  for (const int least : {0, 1, 128, 130}) {
    for (const int most : {0, 17, 129, 140, kAny}) {
      if (most != kAny && most < least) continue;
      Json schema = {{"type", "string"}, {"minLength", least}};
      if (most != kAny) schema["maxLength"] = most;
      const std::string grammar = schema_grammar(schema.dump().c_str());
      for (const int length : {0, 1, 2, 3, 16, 17, 18, 127, 128, 129, 130, 139, 140, 141, 300}) {
        std::string text;
        for (int i = 0; i < length; ++i) text += i % 3 == 0 ? "\u00e9" : "a";
        EXPECT_EQ(accepts(grammar, '"' + text + '"'), least <= length && (most == kAny || length <= most))
            << schema << " " << length;
      }
    }
  }
  const std::string two = schema_grammar(R"({"type":"object","required":["a","b"],"properties":{
      "a":{"type":"string","minLength":1},
      "b":{"type":"array","items":{"type":"string","minLength":1,"maxLength":20}}}})");
  EXPECT_TRUE(accepts(two, R"({"a": "\\ \"", "b": ["\n", "x"]})"));
  EXPECT_FALSE(accepts(two, R"({"a": "", "b": ["x"]})"));
  EXPECT_FALSE(accepts(two, R"({"a": "x", "b": ["x", ""]})"));
}

TEST(Grammar, WhatIsLookedUpAheadIsWhatIsFoundInTurn) {
  const std::string grammar = schema_grammar(kPerson);
  const auto mask = [](GrammarState& state) {
    const auto span = state.allowed();
    return std::vector<std::uint32_t>(span.begin(), span.end());
  };
  const auto ids = [](const char* text) { return nano_tokenizer().encode(text, false); };
  const std::vector<TokenId> text = ids(R"({"name": "Ada", "age": 36})");
  GrammarState ahead = state_of(grammar);
  std::size_t done = 0;
  for (const std::size_t round : {std::size_t{2}, std::size_t{3}, std::size_t{4}, text.size()}) {
    // A tree: what the text goes on with, and beside each token one that may not follow, with one behind it.
    std::vector<TokenId> tokens = {text[done]};
    std::vector<std::int32_t> depths;
    for (std::size_t i = done + 1; i < std::min(done + round, text.size()); ++i) {
      const auto depth = static_cast<std::int32_t>(i - done);
      tokens.insert(tokens.end(), {2, text[i], text[i]});
      depths.insert(depths.end(), {depth, depth + 1, depth});
    }
    ahead.look_ahead(tokens, depths);
    for (std::size_t i = done; i < std::min(done + round, text.size()); ++i) {
      GrammarState now = state_of(grammar);
      for (std::size_t j = 0; j <= i; ++j) ASSERT_TRUE(now.accept(text[j]));
      ASSERT_FALSE(ahead.accept(2)) << "a control token";
      ASSERT_TRUE(ahead.accept(text[i]));
      ASSERT_EQ(mask(ahead), mask(now)) << i;
      ASSERT_EQ(mask(ahead), mask(now)) << i << ", asked again";
    }
    done = std::min(done + round, text.size());
    ahead.look_ahead({});
    GrammarState now = state_of(grammar);
    for (std::size_t j = 0; j < done; ++j) ASSERT_TRUE(now.accept(text[j]));
    EXPECT_EQ(mask(ahead), mask(now));
  }
  ASSERT_TRUE(ahead.accept(eos()));
  ahead.roll_back(1);
  EXPECT_TRUE(is_allowed(ahead.allowed(), eos()));
}

TEST(Grammar, PropertiesComeInTheSchemasOrder) {
  const std::string grammar = schema_grammar(R"({"properties":{"z":{},"a":{}}})");
  EXPECT_TRUE(accepts(grammar, R"({"z": 1, "a": 2})"));
  EXPECT_FALSE(accepts(grammar, R"({"a": 2, "z": 1})"));
}

TEST(Grammar, WhatASchemaCannotHaveIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"not":{}})", "'not' at # is not supported"},
      {R"({"type":"object","properties":{"a":{"if":{}}}})", "'if' at #/properties/a"},
      {R"({"nullable":true})", "'nullable'"},
      {R"({"type":"array","uniqueItems":true})", "'uniqueItems'"},
      {R"({"contains":{}})", "'contains'"},
      {R"({"type":"array","items":{"type":"object","dependentRequired":{}}})", "'dependentRequired' at #/items"},
      {R"({"allOf":[{"type":"string"},{"minLength":1}]})", "'allOf'"},
      {R"({"$ref":"#/$defs/a","minimum":1,"$defs":{"a":{}}})", "'minimum' at # is not supported beside '$ref'"},
      {R"({"$ref":"https://example.com/a"})", "'$ref'"},
      {R"({"$ref":"#/$defs/none"})", "'$ref'"},
      {R"({"enum":[1],"minimum":1})", "'minimum' at # is not supported beside 'enum'"},
      {R"({"anyOf":[{}],"type":"object"})", "'type' at # is not supported beside 'anyOf'"},
      {R"({"oneOf":[{"type":"string"},{"minLength":2}]})", "oneOf"},
      {R"({"type":"string","format":"password"})", "'format'"},
      {R"({"type":"string","pattern":"a","minLength":3})", "'pattern'"},
      {R"({"type":"string","pattern":"(?=a)b"})", ""},
      {R"({"type":"string","pattern":"^[a-z]{1,2000000000}$"})",
       "'pattern' at # has 2000000001 characters with its repeats written out, wanted at most 4096"},
      {R"({"type":"string","pattern":"(){1,2000000000}"})", "'pattern' at # has 2000000000 characters"},
      {R"({"prefixItems":[{"pattern":"(a{40}b){99}"},{"pattern":"((.{0,30},){0,30}"}]})",
       "'pattern' at #/prefixItems/1"},
      {R"({"type":"number","multipleOf":0.1})", "'multipleOf'"},
      {R"({"type":"object","patternProperties":{"a":{},"b":{}}})", "'patternProperties'"},
      {R"({"type":"text"})", "'type'"},
      {R"({"type":[]})", "'type'"},
      {R"({"enum":[]})", "'enum'"},
      {R"({"const":12345678901234567890})", "'const'"},
      {R"({"enum":[123456789012345678901234567890]})", "'enum'"},
      {R"({"type":"integer","maximum":18446744073709551616})", "'maximum'"},
      {R"({"minLength":-1})", "'minLength'"},
      {R"({"minimum":3,"maximum":2,"type":"integer"})", ""},
      {"false", "nothing is valid"},
      {R"({"enum":["a"],"type":"integer"})", "nothing is valid"},
      {"[]", "wanted an object"}};
  for (const auto& [schema, word] : cases) {
    const std::string why = refusal(schema);
    EXPECT_NE(why, "") << schema;
    EXPECT_NE(why.find(word), why.npos) << schema << ": " << why;
  }
}

TEST(Grammar, TextsOfAnybodyAreErrorsOrBounded) {
  EXPECT_FALSE(check_grammar("root ::= nowhere"));
  EXPECT_FALSE(check_grammar("branch ::= \"a\""));
  EXPECT_FALSE(check_grammar(std::string("root ::= \"a\0\"", 14)));
  EXPECT_FALSE(check_grammar("root ::= " + std::string(kGrammarBytesMax, 'a')));
  EXPECT_FALSE(check_grammar("root ::= " + std::string(30000, '(') + "\"a\"" + std::string(30000, ')')));
  EXPECT_FALSE(grammar_of_regex("(a"));
  EXPECT_FALSE(grammar_of_regex("(?=a)b"));
  EXPECT_FALSE(grammar_of_regex(std::string(100000, 'a')));
  std::string deep = "{}";
  for (int i = 0; i < 100; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_EQ(grammar_of_schema(Json::parse(deep)).error().code, Errc::kOutOfRange);
  Json wide = {{"type", "object"}};
  for (int i = 0; i < 5000; ++i) wide["properties"][std::to_string(i)] = Json::object();
  EXPECT_EQ(grammar_of_schema(wide).error().code, Errc::kOutOfRange);
  // A token beyond the vocabulary, and one that text does not name.
  EXPECT_FALSE(nano_grammars().wait_for("root ::= Token(99999999)"));
  // Nothing may ever follow: the state says so, and nothing hangs.
  for (const char* text : {"root ::= root", "root ::= a\na ::= b\nb ::= a"}) {
    const auto made = nano_grammars().wait_for(text);
    if (!made) continue;
    GrammarState state(*made, {eos()});
    for (const std::uint32_t word : state.allowed()) EXPECT_EQ(word, 0u);
  }
  for (const char* text :
       {"root ::= \"a\"{0,2000000000}", "root ::= ((\"a\"{1,999} \"b\"){1,999} \"c\"){1,999}",
        "root ::= a b\na ::= \"\" | b a\nb ::= \"\" | a b", "root ::= s\ns ::= \"a\" | s s | s s s"}) {
    EXPECT_TRUE(nano_grammars().wait_for(text)) << text;
  }
}

TEST(GrammarCompiler, MakesATextOnceAndRemembersWhatFailed) {
  int loads = 0;
  GrammarCompiler compiler([&]() -> Result<GrammarVocabulary> {
    ++loads;
    return GrammarVocabulary{{"", "a", "b", "ab"}};
  });
  const auto first = compiler.wait_for("root ::= \"a\"");
  ASSERT_TRUE(first);
  EXPECT_EQ(compiler.find("root ::= \"a\"").value(), *first);
  EXPECT_FALSE(compiler.wait_for("root ::= x"));
  EXPECT_FALSE(compiler.find("root ::= x")) << "at once";
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(compiler.wait_for("root ::= \"a\"{" + std::to_string(i + 1) + "}"));
  EXPECT_EQ(loads, 1);

  GrammarCompiler without([]() -> Result<GrammarVocabulary> { return Error{Errc::kNotFound, "no tokenizer.json"}; });
  const auto none = without.wait_for("root ::= \"a\"");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Errc::kUnsupported);
  EXPECT_NE(none.error().message.find("no tokenizer.json"), std::string::npos);
}

TEST(GrammarCompiler, RefusesWhatWouldTakeTooLongAndNamesTheRule) {
  GrammarVocabulary vocabulary;
  for (int i = 0; i < 20000; ++i) vocabulary.tokens.push_back("w" + std::to_string(i));
  GrammarCompiler compiler([&]() -> Result<GrammarVocabulary> { return vocabulary; }, /*seconds_max=*/0);
  const auto made = compiler.wait_for("root ::= \"a\" many{1,3}\nmany ::= [0-9]{1,77}\nother ::= \"b\"{3}");
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Errc::kUnsupported);
  EXPECT_NE(made.error().message.find("for 20000 tokens, wanted at most 0"), std::string::npos) << made.error().message;
  EXPECT_TRUE(made.error().message.ends_with("its longest rule is many ::= [0-9]{1,77}")) << made.error().message;
  GrammarCompiler patient([&]() -> Result<GrammarVocabulary> { return vocabulary; });
  EXPECT_TRUE(patient.wait_for("root ::= [0-9]{1,77}"));
}

TEST(GrammarOfSchema, PatternsRepeatAsOftenAsTheySay) {
  const auto text = [](std::size_t count, const char* piece, const char* end = "") {
    std::string result = "\"";
    for (std::size_t i = 0; i < count; ++i) result += piece;
    return result + end + "\"";
  };
  const std::string bounded = schema_grammar(R"({"type":"string","pattern":"^[0-9_.-]{2,259}$"})");
  for (const std::size_t count : {2, 127, 128, 129, 256, 257, 259})
    EXPECT_TRUE(accepts(bounded, text(count, "7"))) << count;
  for (const std::size_t count : {0, 1, 260, 400}) EXPECT_FALSE(accepts(bounded, text(count, "7"))) << count;
  const std::string exact = schema_grammar(R"({"type":"string","pattern":"^(\\.|1[}\\]]){130}$"})");
  EXPECT_TRUE(accepts(exact, text(130, "1}")));
  EXPECT_FALSE(accepts(exact, text(129, "1}")) || accepts(exact, text(131, "1}")));
  const std::string open = schema_grammar(R"({"type":"string","pattern":"^(12|3){130,}4$"})");
  EXPECT_TRUE(accepts(open, text(130, "12", "4")) && accepts(open, text(500, "3", "4")));
  EXPECT_FALSE(accepts(open, text(129, "3", "4")));
  const std::string literal = schema_grammar(R"({"type":"string","pattern":"^a\\{200}$"})");
  EXPECT_TRUE(accepts(literal, "\"a{200}\"")) << "no repeat";
  const std::string names =
      schema_grammar(R"({"type":"object","patternProperties":{"^[0-9]{1,130}$":{"type":"null"}}})");
  EXPECT_TRUE(accepts(names, "{" + text(130, "7") + ": null}"));
  EXPECT_FALSE(accepts(names, "{" + text(131, "7") + ": null}"));
}

// ---- calls ----

std::vector<TokenId> controlled(const std::string& text) {
  return nano_tokenizer().encode(text, /*parse_special=*/true);
}

ToolDeclaration weather() {
  return {.name = "get_weather",
          .description = "",
          .parameters = nlohmann::json::parse(R"({"type":"object","required":["city"],"properties":{
              "city":{"type":"string"},"days":{"type":"integer"},"unit":{"enum":["C","F"]},
              "at":{"type":"array","items":{"type":"number"},"minItems":1},
              "more":{"type":"object","properties":{"x":{"type":"boolean"}}}}})"),
          .response = {}};
}

TEST(CallGrammar, CallsFollowTheToolsAndTheParserReadsThem) {
  const AnswerControls controls = answer_controls(nano_tokenizer());
  if (!controls.call_begin) GTEST_SKIP() << "nano has no tokens for calls";
  const ToolDeclaration tool = weather();
  const CallableTool callable{&tool};
  const std::string one = grammar_of_calls({&callable, 1}, false, controls).value();
  const std::string many = grammar_of_calls({&callable, 1}, true, controls).value();
  const std::string call = R"(<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>)";
  EXPECT_TRUE(accepts(one, controlled(call)));
  EXPECT_FALSE(accepts(one, controlled(call + call)));
  EXPECT_TRUE(accepts(many, controlled(call + call)));
  EXPECT_TRUE(accepts(one, controlled(R"(<|tool_call>call:get_weather{at:[1,2.5],city:<|"|>Rome, "{}<|"|>,)"
                                      R"(days:3,more:{x:true},unit:<|"|>C<|"|>}<tool_call|>)")));
  for (const char* wrong :
       {R"(<|tool_call>call:get_weather{}<tool_call|>)", R"(<|tool_call>call:other{city:<|"|>Rome<|"|>}<tool_call|>)",
        R"(<|tool_call>call:get_weather{city:Rome}<tool_call|>)",
        R"(<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,unit:<|"|>K<|"|>}<tool_call|>)",
        R"(<|tool_call>call:get_weather{at:[],city:<|"|>Rome<|"|>}<tool_call|>)", "Rome", ""}) {
    EXPECT_FALSE(accepts(many, controlled(wrong))) << wrong;
  }
}

TEST(CallGrammar, WhatsoeverItLetsThroughIsACall) {
  const AnswerControls controls = answer_controls(nano_tokenizer());
  if (!controls.call_begin) GTEST_SKIP() << "nano has no tokens for calls";
  const ToolDeclaration tool = weather();
  const CallableTool callable{&tool};
  const std::string grammar = grammar_of_calls({&callable, 1}, false, controls).value();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CounterRng rng(seed);
    GrammarState state = state_of(grammar);
    ChatParser parser(nano_tokenizer());
    std::vector<ChatEvent> events;
    bool ended = false;
    for (int i = 0; i < 2000 && !ended; ++i) {
      const auto allowed = state.allowed();
      std::vector<TokenId> next;
      for (TokenId token = 0; token < nano_tokenizer().vocab_size(); ++token) {
        if (is_allowed(allowed, token)) next.push_back(token);
      }
      ASSERT_FALSE(next.empty());
      // Texts would never end by themselves.
      TokenId token = next[static_cast<std::size_t>(rng.uniform() * static_cast<double>(next.size()))];
      if (is_allowed(allowed, *controls.quote) && rng.uniform() < 0.3) token = *controls.quote;
      if (is_allowed(allowed, eos())) token = eos();
      ASSERT_TRUE(state.accept(token));
      ended = token == eos();
      for (ChatEvent& event : parser.push(token)) events.push_back(std::move(event));
    }
    ASSERT_TRUE(ended) << seed;
    EXPECT_EQ(parser.finish(false, events), ChatFinish::kToolCalls) << seed;
    ASSERT_EQ(events.back().kind, ChatEvent::Kind::kToolCallEnd);
    const auto arguments = nlohmann::json::parse(events.back().text, nullptr, false);
    ASSERT_TRUE(arguments.is_object()) << events.back().text;
    EXPECT_TRUE(arguments["city"].is_string()) << events.back().text;
    EXPECT_TRUE(!arguments.contains("days") || arguments["days"].is_number_integer()) << events.back().text;
  }
}

TEST(CallGrammar, AStrictSchemaIsFollowedOrRefused) {
  const AnswerControls controls{.channel_begin = 1, .channel_end = 2, .call_begin = 3, .call_end = 4, .quote = 5};
  ToolDeclaration tool = weather();
  tool.parameters["properties"]["days"]["minimum"] = 1;
  const CallableTool loose{&tool, false}, strict{&tool, true};
  EXPECT_TRUE(grammar_of_calls({&loose, 1}, true, controls));
  const auto refused = grammar_of_calls({&strict, 1}, true, controls);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("'minimum'"), std::string::npos) << refused.error().message;
  EXPECT_FALSE(grammar_of_calls({&loose, 1}, true, {}));
}

TEST(CallGrammar, AThoughtMayComeFirstAndOneCallEnds) {
  const AnswerControls controls = answer_controls(nano_tokenizer());
  if (!controls.call_begin || !controls.channel_begin) GTEST_SKIP() << "nano has no such tokens";
  const std::string choice = grammar_of_choices(std::vector<std::string>{"yes", "no \"!\"\n"}).value();
  EXPECT_TRUE(accepts(choice, "no \"!\"\n"));
  const std::string after = grammar_after_thought(choice, false, controls).value();
  EXPECT_TRUE(accepts(after, controlled("yes")));
  EXPECT_TRUE(accepts(after, controlled("<|channel>thought\nHm. no? {<channel|>yes")));
  EXPECT_FALSE(accepts(after, controlled("<|channel>thought\nHm.<channel|>maybe")));
  EXPECT_FALSE(accepts(after, controlled("<|channel>thought\nHm.")));
  const std::string open = grammar_after_thought(choice, true, controls).value();
  EXPECT_TRUE(accepts(open, controlled("Hm.<channel|>yes")));
  EXPECT_FALSE(accepts(open, controlled("yes")));
  const std::string call = "<|tool_call>call:f{a:1}<tool_call|>";
  const std::string one = grammar_of_one_call_at_most(controls).value();
  EXPECT_TRUE(accepts(one, controlled("Well.")));
  EXPECT_TRUE(accepts(one, controlled("Well." + call)));
  EXPECT_FALSE(accepts(one, controlled("Well." + call + call)));
  EXPECT_FALSE(accepts(one, controlled("Well." + call + "x")));
  const std::string either = either_grammar(choice, one).value();
  EXPECT_TRUE(accepts(either, controlled("yes")));
  EXPECT_TRUE(accepts(either, controlled(call)));
}

// ---- sampling ----

/// Rows that are a function of the text, as a model's are.
std::vector<float> row_after(std::span<const TokenId> text, std::size_t vocab) {
  std::uint64_t hash = 7;
  for (const TokenId token : text) hash = mix64(hash * 31 + static_cast<std::uint64_t>(token));
  CounterRng rng(hash);
  std::vector<float> row(vocab);
  for (float& x : row) x = static_cast<float>(6 * rng.uniform());
  return row;
}

class GrammarSampling : public testing::Test {
 protected:
  static constexpr TokenId kStop = 0;
  GrammarSampling() {
    vocabulary_.tokens = {"", "a", "b", "ab", "ba", "1", "2", "{", "}", ",", "c", "abc"};
    compiler_ = std::make_unique<GrammarCompiler>([this]() -> Result<GrammarVocabulary> { return vocabulary_; });
    params_.grammar = "root ::= \"{\" item (\",\" item){0,9} \"}\"\nitem ::= [ab]{1,4} [12]";
    grammar_ = compiler_->wait_for(params_.grammar).value();
  }
  Sampler sampler() const { return Sampler(params_, {kStop}, 0, grammar_); }
  std::vector<TokenId> plain() {
    Sampler one = sampler();
    std::vector<TokenId> text;
    while (text.empty() || text.back() != kStop) {
      if (!text.empty()) one.add_text({&text.back(), 1}, 1);
      text.push_back(one.choose(row_after(text, vocabulary_.tokens.size()), scratch_).value());
    }
    return text;
  }
  /// @param draft  the drafts after a text; q of each, for rejection
  std::vector<TokenId> speculative(const std::function<TokenId(std::span<const TokenId>)>& draft, int length,
                                   bool with_q, int* accepted) {
    Sampler one = sampler();
    const std::size_t vocab = vocabulary_.tokens.size();
    std::vector<TokenId> text = {one.choose(row_after({}, vocab), scratch_).value()};
    while (text.back() != kStop) {
      std::vector<TokenId> tokens = {text.back()}, ahead = text;
      std::vector<float> rows = row_after(text, vocab);
      std::vector<Distribution> q;
      for (int i = 0; i < length; ++i) {
        ahead.push_back(draft(ahead));
        tokens.push_back(ahead.back());
        q.emplace_back().add(ahead.back(), 1);
        const std::vector<float> more = row_after(ahead, vocab);
        rows.insert(rows.end(), more.begin(), more.end());
      }
      const Matrix<const float> logits(rows.data(), {std::ssize(tokens), static_cast<std::int64_t>(vocab)});
      if (text.size() % 2 == 0) one.look_ahead(tokens, {});
      const VerifyOutcome outcome = with_q ? one.verify_rejection(logits, tokens, q, scratch_).value()
                                           : one.verify(logits, tokens, scratch_).value();
      *accepted += outcome.accepted;
      text.insert(text.end(), tokens.begin() + 1, tokens.begin() + 1 + outcome.accepted);
      if (text.back() == kStop) break;
      text.push_back(outcome.next_token);
    }
    // As the coordinator does with drafts after the end.
    text.erase(std::ranges::find(text, kStop) + 1, text.end());
    return text;
  }
  void expect_in_grammar(std::span<const TokenId> text) const {
    GrammarState state(grammar_, {kStop});
    for (const TokenId token : text) ASSERT_TRUE(state.accept(token));
    EXPECT_EQ(text.back(), kStop);
  }

  GrammarVocabulary vocabulary_;
  SamplingParams params_;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::shared_ptr<const Grammar> grammar_;
  SamplingScratch scratch_;
};

TEST_F(GrammarSampling, SpeculationGivesTheTextOfPlainDecodingWhateverIsDrafted) {
  int accepted = 0;
  for (const float temperature : {0.0f, 0.7f, 1.5f}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      params_.temperature = temperature;
      params_.seed = seed;
      const std::vector<TokenId> wanted = plain();
      expect_in_grammar(wanted);
      CounterRng rng(seed);
      const auto any = [&](std::span<const TokenId>) { return static_cast<TokenId>(rng.uniform() * 12); };
      const auto right = [&](std::span<const TokenId> text) {
        return text.size() < wanted.size() ? wanted[text.size()] : kStop;
      };
      const auto often = [&](std::span<const TokenId> text) { return rng.uniform() < 0.7 ? right(text) : any(text); };
      for (const int length : {1, 3, 8}) {
        EXPECT_EQ(speculative(any, length, false, &accepted), wanted);
        EXPECT_EQ(speculative(often, length, false, &accepted), wanted);
        EXPECT_EQ(speculative(right, length, false, &accepted), wanted);
      }
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST_F(GrammarSampling, ADraftThatTheGrammarForbidsSurvivesUnderNoRule) {
  int accepted = 0;
  for (const SamplingRule rule : {SamplingRule::kRejection, SamplingRule::kTypical}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      params_.temperature = 1;
      params_.seed = seed;
      params_.rule = rule;
      CounterRng rng(seed);
      const auto any = [&](std::span<const TokenId>) { return static_cast<TokenId>(rng.uniform() * 12); };
      expect_in_grammar(speculative(any, 4, rule == SamplingRule::kRejection, &accepted));
    }
  }
  EXPECT_GT(accepted, 5) << "and those that it allows do";
}

TEST_F(GrammarSampling, AnAnswerGoesOnElsewhereWhereItWas) {
  const std::vector<TokenId> text = plain();
  ASSERT_GT(text.size(), 3u);
  for (std::size_t i = 1; i < text.size(); ++i) {
    Sampler other = sampler();
    other.add_text(std::span(text).first(i), static_cast<std::int64_t>(i));
    EXPECT_EQ(other.choose(row_after(std::span(text).first(i), 12), scratch_).value(), text[i]);
  }
  Sampler astray = sampler();
  const TokenId wrong[] = {1};
  astray.add_text(wrong, 1);
  EXPECT_FALSE(astray.choose(row_after(wrong, 12), scratch_));
  EXPECT_FALSE(Sampler(params_, {kStop}, 0, nullptr).choose(row_after({}, 12), scratch_)) << "the grammar is missing";
}

TEST_F(GrammarSampling, AGrammarThatIsThroughEndsTheAnswerBeforeMinTokens) {
  params_.grammar = "root ::= \"ab\"";
  params_.min_tokens = 9;
  grammar_ = compiler_->wait_for(params_.grammar).value();
  const std::vector<TokenId> text = plain();
  EXPECT_LE(text.size(), 3u);
  expect_in_grammar(text);
}

TEST(MaskScores, TakesOutWhatIsNotAllowed) {
  std::vector<float> scores(70, 1);
  mask_scores({}, scores);
  EXPECT_EQ(std::ranges::count(scores, 1.0f), 70);
  const std::array<std::uint32_t, 3> allowed = {~0U, 1U << 3, 1U};
  mask_scores(allowed, scores);
  for (std::size_t i = 0; i < scores.size(); ++i)
    EXPECT_EQ(std::isfinite(scores[i]), i < 32 || i == 35 || i == 64) << i;
}

}  // namespace
}  // namespace outrider
