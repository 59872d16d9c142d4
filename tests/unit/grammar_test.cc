#include "common/decoding/grammar/grammar.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <new>
#include <regex>
#include <set>
#include <sstream>
#include <thread>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/random.h"
#include "common/decoding/grammar/call_grammar.h"
#include "common/decoding/grammar/grammar_text.h"
#include "common/decoding/grammar/limits.h"
#include "common/decoding/grammar/pattern.h"
#include "common/decoding/sampling/sampler.h"
#include "common/model/tokenizer/answer_controls.h"
#include "common/model/tokenizer/chat_parser.h"
#include "tests/support/compiled_grammar.h"

namespace {
/// Allocations until the one that fails, of this thread; -1: none does.
thread_local int allocations_left = -1;
}  // namespace

void* operator new(std::size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  if (void* const made = std::malloc(std::max<std::size_t>(bytes, 1))) return made;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* made) noexcept { std::free(made); }
[[gnu::noinline]] void operator delete(void* made, std::size_t) noexcept { std::free(made); }

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
GrammarState state_of(const std::string& grammar) { return {compiled(nano_grammars(), grammar).value(), {eos()}}; }
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

TEST(Grammar, DraftsThatWereRolledBackLeaveNoTrace) {
  GrammarState state = state_of(schema_grammar(kPerson));
  const auto mask = [&] {
    const auto span = state.allowed();
    return std::vector<std::uint32_t>(span.begin(), span.end());
  };
  int changes = 0;
  for (const TokenId token : nano_tokenizer().encode(R"({"name": "Ada", "age": 36})", false)) {
    const std::vector<std::uint32_t> before = mask();
    ASSERT_FALSE(state.accept(2)) << "a control token";
    ASSERT_TRUE(state.accept_draft(token));
    const std::vector<std::uint32_t> after = mask();
    changes += after != before;
    state.roll_back(1);
    ASSERT_EQ(mask(), before);
    ASSERT_TRUE(state.accept(token));
    ASSERT_EQ(mask(), after);
    ASSERT_EQ(mask(), after) << "asked again";
  }
  EXPECT_GT(changes, 3);
  ASSERT_TRUE(state.accept_draft(eos()));
  state.roll_back(1);
  EXPECT_TRUE(is_allowed(state.allowed(), eos()));
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
      {R"({"type":"string","pattern":"^[a-z]+( [a-z]+)*$","maxLength":300})", "in more than 256 ways"},
      {R"({"type":"string","format":"uri","maxLength":300})", "'format' at # beside 'minLength' and 'maxLength'"},
      {R"({"type":"string","pattern":"(?=a)b"})", ""},
      {R"({"type":"string","pattern":"^[a-z]{1,2000000000}$"})",
       "'pattern' at # has 2000000000 characters with its repeats written out, wanted at most 4096"},
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
  EXPECT_FALSE(grammar_of_ebnf("root ::= nowhere"));
  EXPECT_FALSE(grammar_of_ebnf("branch ::= \"a\""));
  EXPECT_FALSE(grammar_of_ebnf(std::string("root ::= \"a\0\"", 14)));
  EXPECT_FALSE(grammar_of_ebnf("root ::= " + std::string(kGrammarBytesMax, 'a')));
  EXPECT_FALSE(grammar_of_ebnf("root ::= " + std::string(30000, '(') + "\"a\"" + std::string(30000, ')')));
  EXPECT_FALSE(grammar_of_regex("(a"));
  EXPECT_FALSE(grammar_of_regex("(?=a)b"));
  EXPECT_FALSE(grammar_of_regex(std::string(100000, 'a')));
  EXPECT_TRUE(grammar_of_regex(std::string(60000, '^') + "a"));
  EXPECT_TRUE(grammar_of_regex("((a{0,99999}){0,99999}){0,99999}"));
  EXPECT_FALSE(grammar_of_regex(std::string(30000, '(') + "a" + std::string(30000, ')')));
  std::string deep = "{}";
  for (int i = 0; i < 100; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_EQ(grammar_of_schema(Json::parse(deep)).error().code, Errc::kOutOfRange);
  Json wide = {{"type", "object"}};
  for (int i = 0; i < 5000; ++i) wide["properties"][std::to_string(i)] = Json::object();
  EXPECT_EQ(grammar_of_schema(wide).error().code, Errc::kOutOfRange);
  // A token beyond the vocabulary, and one that text does not name.
  EXPECT_FALSE(compiled(nano_grammars(), "root ::= Token(99999999)"));
  for (const char* text :
       {"root ::= \"a\"{0,2000000000}", "root ::= ((\"a\"{1,999} \"b\"){1,999} \"c\"){1,999}",
        "root ::= a b\na ::= \"\" | b a\nb ::= \"\" | a b", "root ::= s\ns ::= \"a\" | s s | s s s"}) {
    EXPECT_TRUE(compiled(nano_grammars(), text)) << text;
  }
}

TEST(GrammarCompiler, MakesATextOnceAndRemembersWhatFailed) {
  int loads = 0;
  GrammarCompiler compiler([&]() -> Result<GrammarVocabulary> {
    ++loads;
    return GrammarVocabulary{{"", "a", "b", "ab"}};
  });
  const auto first = compiled(compiler, "root ::= \"a\"");
  ASSERT_TRUE(first);
  EXPECT_EQ(compiler.want("root ::= \"a\"")().value(), *first);
  EXPECT_FALSE(compiled(compiler, "root ::= x"));
  EXPECT_FALSE(compiler.want("root ::= x")()) << "at once";
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(compiled(compiler, "root ::= \"a\"{" + std::to_string(i + 1) + "}"));
  EXPECT_EQ(loads, 1);

  GrammarCompiler without([]() -> Result<GrammarVocabulary> { return Error{Errc::kNotFound, "no tokenizer.json"}; });
  const auto none = compiled(without, "root ::= \"a\"");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Errc::kUnsupported);
  EXPECT_NE(none.error().message.find("no tokenizer.json"), std::string::npos);
}

TEST(GrammarCompiler, AVocabularyThatCouldNotBeReadOnceIsReadAgain) {
  int loads = 0;
  GrammarCompiler compiler([&]() -> Result<GrammarVocabulary> {
    if (++loads == 1) return Error{Errc::kIo, "too many open files"};
    return GrammarVocabulary{{"", "a"}};
  });
  EXPECT_FALSE(compiled(compiler, "root ::= \"a\""));
  EXPECT_TRUE(compiled(compiler, "root ::= \"a\""));
}

TEST(GrammarCompiler, RefusesWhatWouldTakeTooLongAndNamesTheRule) {
  GrammarVocabulary vocabulary;
  for (int i = 0; i < 20000; ++i) vocabulary.tokens.push_back("w" + std::to_string(i));
  GrammarCompiler compiler([&]() -> Result<GrammarVocabulary> { return vocabulary; }, /*seconds_max=*/0);
  const auto made = compiled(compiler, "root ::= \"a\" many{1,3}\nmany ::= [0-9]{1,77}\nother ::= \"b\"{3}");
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Errc::kUnsupported);
  EXPECT_NE(made.error().message.find("for 20000 tokens, wanted at most 0"), std::string::npos) << made.error().message;
  EXPECT_TRUE(made.error().message.ends_with("its longest rule is many ::= [0-9]{1,77}")) << made.error().message;
  GrammarCompiler patient([&]() -> Result<GrammarVocabulary> { return vocabulary; });
  EXPECT_TRUE(compiled(patient, "root ::= [0-9]{1,77}"));
}

/// Short, and seconds of processor time for a mask: for the first one, or after a token or two.
std::string slow_to_follow(int levels) {
  std::string grammar = "[a-z]{0,50}";
  for (int i = 1; i < levels; ++i) grammar = "(" + grammar + "){0,50}";
  return grammar;
}
const std::string kSlowLater = "root ::= \"a\" " + slow_to_follow(5);

TEST(GrammarCompiler, RefusesWhatTakesTooLongToFollow) {
  const auto made = compiled(nano_grammars(), "root ::= " + slow_to_follow(12));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Errc::kUnsupported);
  EXPECT_NE(made.error().message.find("processor time"), std::string::npos) << made.error().message;
}

TEST(GrammarState, IsSpentWhereTheAnswerTakesTooLongLater) {
  GrammarState state = state_of(kSlowLater);
  const TokenId a = nano_tokenizer().encode("a").back();
  EXPECT_FALSE(state.failure());
  for (int i = 0; i < 20 && !state.failure(); ++i) {
    ASSERT_TRUE(is_allowed(state.allowed(), a));
    ASSERT_TRUE(state.accept(a));
    state.allowed();
  }
  for (const std::uint32_t word : state.allowed()) EXPECT_EQ(word, 0u);
  ASSERT_TRUE(state.failure());
  EXPECT_EQ(state.failure()->code, Errc::kUnsupported);
  EXPECT_FALSE(state.accept(a)) << "it stays so";
  state.roll_back(1);
  for (const std::uint32_t word : state.allowed()) EXPECT_EQ(word, 0u);
}

double processor_seconds() {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

TEST(GrammarState, DraftsEarnNoTime) {
  const TokenId a = nano_tokenizer().encode("a").back();
  const auto grammar = compiled(nano_grammars(), "root ::= (([a-z]{0,4}){0,4}){0,4} [a-z]*");  // milliseconds a mask
  ASSERT_TRUE(grammar);
  const std::pair<GrammarState::User, double> users[] = {{GrammarState::User::kVerifier, 1},
                                                         {GrammarState::User::kDrafter, 0.1}};
  for (const auto& [user, share] : users) {
    GrammarState state(*grammar, {eos()}, user);
    const double start = processor_seconds();
    int committed = 0;
    for (; committed < 40 && !state.failure(); ++committed) {
      int drafts = 0;
      for (; drafts < 8 && state.accept_draft(a); ++drafts) state.allowed();
      state.roll_back(drafts);
      state.accept(a);
    }
    EXPECT_LE(processor_seconds() - start, share * (0.2 + 0.002 * committed + 0.1)) << committed << " tokens";
  }
}

TEST(GrammarState, AnExceptionOfXGrammarIsAnErrorThatSaysSo) {
  SamplingParams params;
  params.grammar = "root ::= (\"a\" | \"b\" root){1,9}";
  Sampler sampler(params, {eos()}, 0, compiled(nano_grammars(), params.grammar).value());
  const std::vector<float> row(static_cast<std::size_t>(nano_tokenizer().vocab_size()), 0.0f);
  SamplingScratch scratch;
  ASSERT_TRUE(sampler.choose(row, scratch));
  sampler.add_text(std::vector<TokenId>{nano_tokenizer().encode("b").back()}, 1);
  allocations_left = 0;  // the next one fails, and it is XGrammar's
  const auto chosen = sampler.choose(row, scratch);
  EXPECT_EQ(allocations_left, -1) << "nothing was allocated";
  ASSERT_FALSE(chosen);
  EXPECT_EQ(chosen.error().code, Errc::kUnsupported);
  EXPECT_EQ(chosen.error().message, "at output 1: the grammar can be followed no further: std::bad_alloc");
  EXPECT_FALSE(sampler.choose(row, scratch)) << "it stays so";
}

TEST(Sampler, SaysThatItsGrammarIsSpent) {
  SamplingParams params;
  params.grammar = kSlowLater;
  Sampler sampler(params, {eos()}, 0, compiled(nano_grammars(), params.grammar).value());
  const TokenId a = nano_tokenizer().encode("a").back();
  const std::vector<float> row(static_cast<std::size_t>(nano_tokenizer().vocab_size()), 0.0f);
  SamplingScratch scratch;
  EXPECT_TRUE(sampler.choose(row, scratch));
  const std::vector<TokenId> tokens(8, a);
  std::vector<float> rows;
  for (std::size_t i = 0; i < tokens.size(); ++i) rows.insert(rows.end(), row.begin(), row.end());
  for (std::size_t i = 0; i < tokens.size(); ++i) rows[i * row.size() + static_cast<std::size_t>(a)] = 1;
  const Matrix<const float> logits(rows.data(), {std::ssize(tokens), std::ssize(row)});
  std::int64_t length = 1;  // of the answer: the first token is chosen
  for (;;) {
    sampler.look_ahead(a);
    const auto outcome = sampler.verify(logits, tokens, scratch);
    if (!outcome) {
      EXPECT_EQ(outcome.error().code, Errc::kUnsupported);
      EXPECT_TRUE(outcome.error().message.starts_with(fmt::format("at output {}: ", length)))
          << outcome.error().message << " after " << length << " tokens";
      break;
    }
    EXPECT_EQ(outcome->next_token, a);
    length += outcome->accepted + 1;
    ASSERT_LT(length, 100);
  }
}

TEST(Sampler, ARejectedDraftTakesNothingOfTheAnswersTime) {
  SamplingParams params;
  params.grammar = "root ::= \"x\" root | \"a\" body | \"\"\nbody ::= " + slow_to_follow(5);
  Sampler sampler(params, {eos()}, 0, compiled(nano_grammars(), params.grammar).value());
  const TokenId a = nano_tokenizer().encode("a").back(), x = nano_tokenizer().encode("x").back();
  const auto vocab = static_cast<std::size_t>(nano_tokenizer().vocab_size());
  std::vector<float> rows(2 * vocab, 0.0f);
  rows[static_cast<std::size_t>(x)] = rows[vocab + static_cast<std::size_t>(x)] = 1;
  SamplingScratch scratch;
  ASSERT_EQ(sampler.choose({rows.data(), vocab}, scratch).value(), x);
  for (int round = 0; round < 20; ++round) {
    sampler.look_ahead(x);
    const auto outcome =
        sampler.verify({rows.data(), {2, static_cast<std::int64_t>(vocab)}}, std::vector<TokenId>{x, a}, scratch);
    ASSERT_TRUE(outcome) << outcome.error().message;
    EXPECT_EQ(outcome->next_token, x);
  }
}

TEST(GrammarCompiler, WhatNobodyWaitsForIsNotMade) {
  std::promise<void> may_begin;
  std::atomic<int> tried = 0;  // without a vocabulary each of them asks for it again
  GrammarCompiler compiler([&, begin = may_begin.get_future().share()]() -> Result<GrammarVocabulary> {
    ++tried;
    begin.wait();
    return Error{Errc::kNotFound, "no tokenizer.json"};
  });
  const GrammarWait first = compiler.want("root ::= \"a\"", "one");
  while (tried == 0) std::this_thread::yield();
  GrammarWait dropped = compiler.want("root ::= \"b\"", "one"), shared = compiler.want("root ::= \"c\"", "one");
  const GrammarWait also = compiler.want("root ::= \"c\"", "other");
  dropped = shared = nullptr;
  may_begin.set_value();
  EXPECT_FALSE(compiled(compiler, "root ::= \"d\""));
  EXPECT_FALSE(also()) << "somebody else waits for it";
  EXPECT_EQ(tried, 3);
}

// Beside others a grammar of many seconds is interrupted, and goes on later.
TEST(GrammarCompiler, AGrammarThatTakesLongHoldsUpNobody) {
  GrammarCompiler compiler([]() -> Result<GrammarVocabulary> {
    return grammar_vocabulary(nano_tokenizer(), nano_tokenizer().vocab_size());
  });
  std::string slow = "root ::= ";
  for (int i = 0; i < 400; ++i) slow += "[a-z]? ";
  std::vector<GrammarWait> slow_waits;
  for (int i = 0; i < 8; ++i) slow_waits.push_back(compiler.want(slow + "\"" + std::to_string(i) + "\"", "slow"));
  const auto quick = compiled(compiler, "root ::= [0-9]");
  EXPECT_TRUE(quick);
  const auto is_ready = [](const GrammarWait& wait) {
    const auto grammar = wait();
    return !grammar || *grammar != nullptr;
  };
  EXPECT_LT(std::ranges::count_if(slow_waits, is_ready), 8) << "they were not slow: nothing was tested";
}  // and the end waits for none of them

TEST(GrammarOfSchema, APatternThatEndsOrBreaksAnywhereIsRefused) {
  // Each construct cut after each byte and with each byte replaced, alone, in a class, in a range and in a group.
  for (const std::string_view whole : {"\\u{1F600}", "\\u0041", "\\ud83d\\ude00", "\\x41", "\\cA", "(?<n>a)",
                                       "(?P<n>a)", "a{2,4}", "[a-\\u{62}]", "[^\\]]", "\xF0\x9F\x98\x80"}) {
    for (std::size_t at = 0; at <= whole.size(); ++at) {
      for (const std::string_view put : {"", ",", "}", "]", "-", "\\"}) {
        const std::string head = std::string(whole.substr(0, at)) += put;
        const std::string rest(whole.substr(std::min(at + put.size(), whole.size())));
        for (const std::string& broken : {head, head + rest}) {
          for (const std::string& pattern : {broken, "[" + broken, "[" + broken + "]", "[a-" + broken, "(" + broken})
            static_cast<void>(grammar_of_regex(pattern));  // an error or a grammar: no exception
        }
      }
    }
  }
  const Result<std::string> refused = grammar_of_regex("[\\u{2,4}]");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("hexadecimal"), std::string::npos) << refused.error().message;
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

// ---- the characters that JSON escapes ----

std::size_t depth_of(const Pattern& pattern) {
  std::size_t deepest = 0;
  for (const Pattern& part : pattern.parts) deepest = std::max(deepest, depth_of(part));
  return deepest + 1;
}

TEST(Grammar, APatternBesideALengthIsNoDeeperForItsPartsOfOneLength) {
  const Pattern pattern = read_pattern(std::string(4000, 'a') + "b?(c|dd)").value();
  const std::optional<Pattern> bounded = of_length(pattern, 4002, 4002);
  ASSERT_TRUE(bounded);
  // Each level holds a copy of all that follows.
  EXPECT_LE(depth_of(*bounded), depth_of(pattern) + 4);
  EXPECT_EQ(as_ebnf(*bounded, true).substr(4000 * 4), R"(("d" "d" | "b"{1} "c"))");
}

std::string json_text(const std::string& text) { return nlohmann::json(text).dump(); }
TEST(Grammar, APatternBesideALengthIsFollowedWithIt) {
  const struct {
    const char* pattern;
    int least, most;
  } cases[] = {{"^[ab]+$", 2, 3},      {"^[ab]*$", 0, 2},    {"^a[ab]*b+$", 3, 4},  {"^(ab|b)*$", 2, 3},
               {"^(a?b?){2}$", 0, 1},  {"^(a?b?)*a$", 2, 3}, {"^(ab){1,3}$", 3, 5}, {"^a{2}b?$", 0, 9},
               {"^(a|bb|aab)$", 2, 2}, {"^a+b+a+$", 4, -1},  {"^(aa|b)+$", 3, -1},  {"^(a*b)?a$", 2, 3}};
  std::vector<std::string> texts = {""};
  for (std::size_t i = 0; texts[i].size() < 5; ++i)
    for (const char c : {'a', 'b'}) texts.push_back(texts[i] + c);
  for (const auto& [pattern, least, most] : cases) {
    Json schema = {{"pattern", pattern}, {"minLength", least}};
    if (most >= 0) schema["maxLength"] = most;
    const std::string grammar = schema_grammar(schema.dump().c_str());
    const std::regex expression(pattern);
    for (const std::string& text : texts) {
      const int length = static_cast<int>(text.size());
      const bool wanted = least <= length && (most < 0 || length <= most) && std::regex_match(text, expression);
      EXPECT_EQ(accepts(grammar, '"' + text + '"'), wanted) << schema << " " << text;
    }
  }
  // A character counts once, however it is escaped; so does a format's.
  const std::string quotes = schema_grammar(R"({"pattern":"^[\\s\\S]*$","minLength":2,"maxLength":2})");
  EXPECT_TRUE(accepts(quotes, R"("\"\\")"));
  EXPECT_FALSE(accepts(quotes, R"("\"")"));
  const std::string loopback = schema_grammar(R"({"format":"ipv4","maxLength":9})");
  EXPECT_TRUE(accepts(loopback, R"("127.0.0.1")"));
  EXPECT_FALSE(accepts(loopback, R"("127.0.0.10")"));
}

std::string pattern_grammar(const std::string& pattern) {
  return schema_grammar(Json{{"type", "string"}, {"pattern", pattern}}.dump().c_str());
}

TEST(GrammarOfSchema, APatternsCharactersAreEscapedAsJsonWantsThem) {
  std::string escaped = "\"\\";
  for (char c = 1; c < 0x20; ++c) escaped += c;
  for (const char c : escaped) {
    const auto code = static_cast<unsigned>(c);
    const std::string raw = c == '\\' ? "\\\\" : std::string(1, c);
    std::vector<std::string> spellings = {raw, fmt::format("\\x{:02X}", code), fmt::format("\\u{:04x}", code),
                                          fmt::format("\\u{{{:x}}}", code)};
    if (code < 27) spellings.push_back(fmt::format("\\c{}", static_cast<char>(code + '@')));
    if (c == '\n') spellings.emplace_back("\\n");
    const std::string grammar = pattern_grammar(
        fmt::format("^({})[{}][a{}-{}](?:{}b)+$", fmt::join(spellings, "|"), raw, spellings[1], spellings[2], raw));
    const std::string one(1, c);
    EXPECT_TRUE(accepts(grammar, json_text(one + one + one + one + "b" + one + "b"))) << code;
    EXPECT_TRUE(accepts(grammar, json_text(one + one + "a" + one + "b"))) << code;
    EXPECT_FALSE(accepts(grammar, '"' + one + one + one + one + "b\"")) << code << ": raw";
    EXPECT_FALSE(accepts(grammar, json_text(one + one + "b" + one + "b"))) << code;
    for (const char* other : {"[^a]", "\\W", "[^\\w]", "[\\s\\S]"})
      EXPECT_TRUE(accepts(pattern_grammar(other), json_text(one))) << code << " " << other;
    EXPECT_EQ(accepts(pattern_grammar("."), json_text(one)), c != '\n' && c != '\r') << code;
    EXPECT_EQ(accepts(pattern_grammar("\\s"), json_text(one)), code >= 9 && code <= 13) << code;
    EXPECT_EQ(accepts(pattern_grammar("\\S"), json_text(one)), code < 9 || code > 13) << code;
    EXPECT_EQ(accepts(pattern_grammar("[^\\x0a-\\x1f]"), json_text(one)), code < 10 || code > 0x1f) << code;
  }
  EXPECT_FALSE(accepts(pattern_grammar("[^a]"), "\"\"\"")) << "a raw quote";
  EXPECT_FALSE(accepts(pattern_grammar("."), R"("\")")) << "a raw backslash";
  EXPECT_TRUE(accepts(pattern_grammar("^C:\\\\temp$"), R"("C:\\temp")"));
  EXPECT_TRUE(accepts(pattern_grammar(R"(^\ud83d\ude42é[à-ü]$)"), json_text("🙂éö")));
  EXPECT_TRUE(accepts(pattern_grammar("(?i)^a[B-c]$"), json_text("AC")));
  EXPECT_TRUE(accepts(pattern_grammar("^$"), "\"\""));
  EXPECT_FALSE(accepts(pattern_grammar("^a(bc{1,3})?$"), R"("ac")")) << "XGrammar's Regex() lets it through";
  EXPECT_TRUE(accepts(pattern_grammar("^{a}[\\^_][\\]-]$"), json_text("{a}^-")));
}

TEST(GrammarOfSchema, NamesAndFormatsAreJsonToo) {
  const std::string names = schema_grammar(
      R"({"patternProperties":{"^a\"b$":{"const":"é9"}},"minProperties":1,"additionalProperties":false})");
  EXPECT_TRUE(accepts(names, R"({"a\"b": "é9"})"));
  EXPECT_FALSE(accepts(names, R"({"a"b": "é9"})"));
  EXPECT_TRUE(accepts(schema_grammar(R"({"propertyNames":{"pattern":"^\\\\$"}})"), R"({"\\": 1})"));
  EXPECT_TRUE(accepts(schema_grammar(R"({"propertyNames":{"enum":["a","b"]}})"), R"({"b": 1})"));
  EXPECT_FALSE(accepts(schema_grammar(R"({"propertyNames":{"enum":["a","b"]}})"), R"({"c": 1})"));
  const std::tuple<const char*, std::vector<const char*>, std::vector<const char*>> formats[] = {
      {"date", {"2024-02-29", "1999-12-31"}, {"2023-02-29", "1900-02-29", "2024-04-31", "2024-1-01"}},
      {"time", {"23:59:59Z", "00:00:00.5+01:30"}, {"24:00:00Z", "12:00:00", "12:00"}},
      {"date-time", {"2024-02-29T12:00:00Z"}, {"2024-02-29 12:00:00Z"}},
      {"duration", {"P1Y2M3DT4H5M6S", "PT5M", "P2W"}, {"P", "PT", "1Y"}},
      {"ipv4", {"127.0.0.1", "255.10.0.9"}, {"256.0.0.1", "01.0.0.1", "1.1.1"}},
      {"ipv6", {"::", "::1", "1:2:3:4:5:6:7:8", "fe80::1:2", "::ffff:1.2.3.4"}, {":", "1:2", "1::2::3", "12345::"}},
      {"uuid", {"123e4567-e89b-12d3-a456-426614174000"}, {"123e4567e89b12d3a456426614174000"}},
      {"hostname", {"a.b-c.example"}, {"-a", "a..b", "a_"}},
      {"email", {"a.b+c@example.org"}, {"a@", "a b@c", "@c"}},
      {"uri", {"https://u@h:80/p/a?q=%20#f", "mailto:a@b", "h2:"}, {"//a", "a b:c", "x:\"", "x:%2"}},
      {"uri-reference", {"", "../a?b", "//h/p", "#x"}, {"a b", "<"}},
      {"uri-template", {"/a{?b,c*}", "{+x:3}"}, {"{", "{}", "\"", "\\"}},
      {"json-pointer", {"", "/a\"b\\c\n/~0~1", "/é"}, {"a", "/~2"}},
      {"relative-json-pointer", {"0", "1/a\"", "2#"}, {"01", "/a"}}};
  for (const auto& [format, right, wrong] : formats) {
    const std::string grammar = schema_grammar(Json{{"type", "string"}, {"format", format}}.dump().c_str());
    for (const char* text : right) EXPECT_TRUE(accepts(grammar, json_text(text))) << format << " " << text;
    for (const char* text : wrong) EXPECT_FALSE(accepts(grammar, json_text(text))) << format << " " << text;
  }
  const std::string any = schema_grammar("{}");
  EXPECT_TRUE(accepts(any, R"("\ud83d\ude42 \u00e9 \uFFFD")"));
  EXPECT_FALSE(accepts(any, R"("\ud83d")")) << "half a character";
}

TEST(Grammar, NoTextIsBrokenUtf8) {
  std::map<int, TokenId> bytes;
  for (TokenId id = 0; id < nano_tokenizer().vocab_size(); ++id) {
    if (const auto byte = nano_tokenizer().byte_value(id)) bytes[*byte] = id;
  }
  const auto begins = [&](const std::string& grammar, const std::string& text) {
    GrammarState state = state_of(grammar);
    return std::ranges::all_of(text, [&](char c) { return state.accept(bytes.at(static_cast<unsigned char>(c))); });
  };
  const std::string grammars[] = {pattern_grammar("."),
                                  pattern_grammar("[^a]{1,200}"),
                                  pattern_grammar("[\\s\\S]*"),
                                  schema_grammar(R"({"type":"string"})"),
                                  schema_grammar(R"({"minLength":1})"),
                                  schema_grammar(R"({"maxLength":200})")};
  for (const std::string& grammar : grammars) {
    for (const char* text : {"\xC3\xA9", "\xE0\xA0\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
      EXPECT_TRUE(begins(grammar, '"' + std::string(text) + '"')) << grammar;
    for (const char* text : {"\x80", "\xC0\xA2", "\xC1\xBF", "\xE0\x80\xA2", "\xE0\x9F\xBF", "\xED\xA0\x80",
                             "\xF0\x80\x80\xA2", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"})
      EXPECT_FALSE(begins(grammar, '"' + std::string(text) + '"'))
          << grammar << fmt::format("{:02x}", fmt::join(std::string(text), " "));
  }
}

TEST(Grammar, AnEscapeHasTwoHexadecimalDigits) {
  EXPECT_TRUE(accepts(grammar_of_regex(R"(a\x22b[\x41-\x42c]\u00e9d)").value(), "a\"bAéd"));
  for (const std::string text :
       {R"(root ::= "\x41B" [\x43D] "\\x41")", R"(root ::= "A\x42" [C-D] "\\x41" | "\xe9a")"}) {
    const std::string grammar = grammar_of_ebnf(text).value();
    EXPECT_TRUE(accepts(grammar, R"(ABD\x41)")) << grammar;
    EXPECT_FALSE(accepts(grammar, R"(Л)")) << grammar;
    EXPECT_TRUE(accepts(text, R"(ABD\x41)")) << "whoever sends it";
    EXPECT_TRUE(accepts(either_grammar(grammar, "root ::= \"\\xe9a\"").value(), "éa"));
  }
  EXPECT_TRUE(accepts(schema_grammar(R"({"enum":["éa","\u007f0"]})"), "\"éa\""));
  EXPECT_TRUE(accepts(schema_grammar(R"({"properties":{"éa":{}}})"), "{\"éa\": 1}"));
}

TEST(Grammar, WhatHasNoEndIsRefusedWhenItIsRead) {
  for (const char* schema :
       {R"({"$ref":"#"})", R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})",
        R"({"required":["b"],"properties":{"b":{"$ref":"#/$defs/A"}},"$defs":{"A":{"$ref":"#/$defs/A"}}})",
        R"({"type":"object","required":["n"],"properties":{"n":{"$ref":"#"}}})",
        R"({"type":"array","minItems":1,"items":{"$ref":"#"}})", R"({"anyOf":[{"$ref":"#"},false]})",
        R"({"pattern":"[^\\s\\S]"})", R"({"required":["a"],"properties":{"a":{"pattern":"a[^\\d\\D]"}}})",
        R"({"$ref":"#/$defs/a","$defs":{"a":false}})"}) {
    const Result<std::string> grammar = grammar_of_schema(Json::parse(schema));
    ASSERT_FALSE(grammar) << schema;
    EXPECT_EQ(grammar.error().code, Errc::kInvalidArgument) << schema << grammar.error().message;
  }
  for (const char* text :
       {"root ::= root", "root ::= a\na ::= b\nb ::= a", "root ::= \"a\" root", "root ::= \"(\" root \")\"",
        "root ::= [^\\x00-\\U0010ffff]", "root ::= a{2}\na ::= \"x\" a", "root ::= Regex(\"a[^\\\\s\\\\S]\")"}) {
    EXPECT_FALSE(grammar_of_ebnf(text)) << text;
    EXPECT_FALSE(compiled(nano_grammars(), text)) << text;
  }
  EXPECT_FALSE(grammar_of_regex("[^\\s\\S]"));
  EXPECT_FALSE(grammar_of_regex("a[^\\w\\W]+|[^\\s\\S]b"));
}

TEST(Grammar, DeadEndsAreNotBegun) {
  const std::string list = schema_grammar(R"({"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}],"$defs":{
      "a":{"type":"object","required":["x","n"],"properties":{"x":{"const":1},"n":{"$ref":"#/$defs/a"}}}}})");
  EXPECT_TRUE(accepts(list, "null"));
  const auto begins = [](const std::string& grammar, const char* text) {
    GrammarState state = state_of(grammar);
    return std::ranges::all_of(nano_tokenizer().encode(text, false),
                               [&](TokenId token) { return state.accept(token); });
  };
  EXPECT_FALSE(begins(list, "{"));
  EXPECT_TRUE(begins(schema_grammar(R"({"properties":{"a":{"$ref":"#"},"b":{}}})"), R"({"a": {"a": {)"));
  EXPECT_FALSE(begins(schema_grammar(R"({"properties":{"a":{"pattern":"x[^\\s\\S]"},"b":{}}})"), R"({"a")"));
  const std::string choice = grammar_of_regex("ab|ac[^\\w\\W]").value();
  EXPECT_TRUE(accepts(choice, "ab"));
  EXPECT_FALSE(begins(choice, "ac"));
  for (const char* text :
       {"root ::= \"a\" | \"b\" x\nx ::= \"c\" x", "root ::= \"a\" (\"b\" x)?\nx ::= \"c\" x",
        "root ::= \"a\" y{0,3}\ny ::= \"b\" x\nx ::= \"c\" x", "root ::= \"a\" y*\ny ::= \"b\" [^\\x00-\\U0010ffff]"}) {
    const std::string grammar = grammar_of_ebnf(text).value();
    EXPECT_TRUE(accepts(grammar, "a")) << text;
    EXPECT_FALSE(begins(grammar, "b") || begins(grammar, "ab")) << text << "\n" << grammar;
  }
}

// ---- oneOf ----

TEST(GrammarOfSchema, OneOfIsFollowedWhereBranchesExcludeEachOther) {
  const std::string pets = R"("$defs":{
      "cat":{"type":"object","required":["kind"],"properties":{"kind":{"const":"cat"},"lives":{"type":"integer"}}},
      "dog":{"type":"object","required":["kind"],"properties":{"kind":{"enum":["dog","wolf"]}}},
      "hen":{"type":"object","properties":{"kind":{"const":"hen"}}},
      "pet":{"oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"}]},
      "tree":{"type":"object","required":["kind","left"],"properties":{"kind":{"const":"tree"},"left":{"oneOf":[
          {"$ref":"#/$defs/tree"},{"$ref":"#/$defs/cat"},{"type":"null"}]}}}})";
  const auto grammar = [&](const std::string& branches) {
    return schema_grammar(("{\"oneOf\":[" + branches + "]," + pets + "}").c_str());
  };
  const std::string cat = R"({"$ref":"#/$defs/cat"})", dog = R"({"$ref":"#/$defs/dog"})",
                    hen = R"({"$ref":"#/$defs/hen"})";
  const std::string both = grammar(cat + "," + dog);
  EXPECT_TRUE(accepts(both, R"({"kind": "cat", "lives": 9})"));
  EXPECT_TRUE(accepts(both, R"({"kind": "wolf"})"));
  EXPECT_FALSE(accepts(both, R"({"kind": "wolf", "lives": 9})"));
  EXPECT_TRUE(accepts(grammar(R"({"$ref":"#/$defs/pet"},{"$ref":"#/$defs/tree"},{"type":"null"})"),
                      R"({"kind": "tree", "left": {"kind": "tree", "left": null}})"));
  // A tag with a default is not required, as pydantic writes it: it is written nonetheless.
  const std::string tagged = schema_grammar(
      ("{\"oneOf\":[" + cat + "," + hen + "],\"discriminator\":{\"propertyName\":\"kind\"}," + pets + "}").c_str());
  EXPECT_TRUE(accepts(tagged, R"({"kind": "hen"})"));
  EXPECT_FALSE(accepts(tagged, "{}"));
  const std::string tree = schema_grammar(R"({"$ref":"#/$defs/node","$defs":{
      "leaf":{"type":"object","properties":{"k":{"const":"l"}}},
      "node":{"type":"object","required":["a"],"properties":{
          "k":{"const":"n"},"a":{"$ref":"#/$defs/any"},"b":{"$ref":"#/$defs/any"}}},
      "any":{"oneOf":[{"$ref":"#/$defs/leaf"},{"$ref":"#/$defs/node"},{"type":"null"}],
             "discriminator":{"propertyName":"k"}}}})");
  EXPECT_TRUE(accepts(tree, R"({"a": {"k": "n", "a": {"k": "l"}, "b": null}})"));
  EXPECT_FALSE(accepts(tree, R"({"a": {"a": {"k": "l"}}})"));
  for (const char* schema :
       {R"({"oneOf":[{"type":"integer","minimum":1},{"type":"string","const":"a"}]})",
        R"({"oneOf":[{"type":"integer","maximum":3},{"type":"number","exclusiveMinimum":3}]})",
        R"({"oneOf":[{"const":{"a":1,"b":2}},{"type":"object","required":["c"],"properties":{"c":{}}}]})",
        R"({"oneOf":[{"enum":["a","b"]},{"allOf":[{"enum":["c",1]}]},{"type":["null","boolean"]}]})",
        R"({"oneOf":[{"type":"object","required":["a"],"properties":{"a":{}}},
            {"type":"object","properties":{"b":{}},"additionalProperties":false}]})",
        R"({"oneOf":[{"type":"object","required":["a"],"properties":{"a":{"type":"object","required":["t"],
            "properties":{"t":{"const":1}}}}},{"type":"object","required":["a"],"properties":{"a":{"type":"object",
            "required":["t"],"properties":{"t":{"const":2}}}}}]})"}) {
    EXPECT_EQ(refusal(schema), "") << schema;
  }
  for (const char* schema :
       {R"({"oneOf":[{"type":"integer"},{"minLength":2}]})", R"({"oneOf":[{"const":1},{"const":1.0}]})",
        R"({"oneOf":[{"type":"integer","maximum":3},{"type":"number","minimum":3}]})",
        R"({"oneOf":[{"const":{"a":1,"b":2}},{"const":{"b":2,"a":1}}]})",
        R"({"oneOf":[{"type":"object","properties":{"k":{"const":1}}},{"properties":{"k":{"const":2}}}]})",
        R"({"oneOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"}],"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{}]}}})"}) {
    EXPECT_TRUE(refusal(schema).starts_with("JSON schema: 'oneOf' at # is not supported, since branches 0 and 1"))
        << schema << refusal(schema);
  }
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
  const std::string one = grammar_of_calls({&tool, 1}, false, controls).value();
  const std::string many = grammar_of_calls({&tool, 1}, true, controls).value();
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

TEST(CallGrammar, OneGrammarsTokensAreNotTakenForAnothers) {
  const AnswerControls controls = answer_controls(nano_tokenizer());
  if (!controls.call_begin) GTEST_SKIP() << "nano has no tokens for calls";
  const TokenId tokens[] = {*controls.call_begin, *controls.call_end, *controls.quote};
  for (const TokenId first : tokens) {
    for (const TokenId second : tokens) {
      const std::string grammar =
          fmt::format("root ::= part \"x\"\npart ::= \"a\" Token({}) | \"b\" Token({})", first, second);
      for (const auto& [letter, token] : {std::pair("a", first), std::pair("b", second)}) {
        GrammarState state = state_of(grammar);
        ASSERT_TRUE(state.accept(nano_tokenizer().encode(letter, false)[0]));
        for (const TokenId other : tokens) EXPECT_EQ(is_allowed(state.allowed(), other), other == token) << grammar;
      }
    }
  }
}

TEST(CallGrammar, WhatsoeverItLetsThroughIsACall) {
  const AnswerControls controls = answer_controls(nano_tokenizer());
  if (!controls.call_begin) GTEST_SKIP() << "nano has no tokens for calls";
  const ToolDeclaration tool = weather();
  const std::string grammar = grammar_of_calls({&tool, 1}, false, controls).value();
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
    ASSERT_EQ(events.back().kind, ChatEvent::Kind::kToolCall);
    const auto arguments = nlohmann::json::parse(events.back().text, nullptr, false);
    ASSERT_TRUE(arguments.is_object()) << events.back().text;
    EXPECT_TRUE(arguments["city"].is_string()) << events.back().text;
    EXPECT_TRUE(!arguments.contains("days") || arguments["days"].is_number_integer()) << events.back().text;
  }
}

TEST(CallGrammar, AStrictSchemaIsFollowedOrRefused) {
  const AnswerControls controls{.channel_begin = 1, .channel_end = 2, .call_begin = 3, .call_end = 4, .quote = 5};
  ToolDeclaration tool = weather();
  tool.strict = true;
  tool.parameters["properties"]["days"]["minimum"] = 1;
  EXPECT_TRUE(grammar_of_calls({&tool, 1}, true, controls));
  tool.parameters["properties"]["days"]["not"] = nlohmann::json::object();
  const auto refused = grammar_of_calls({&tool, 1}, true, controls);
  tool.strict = false;
  EXPECT_TRUE(grammar_of_calls({&tool, 1}, true, controls));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("tool get_weather: JSON schema: 'not' at #/properties/days"),
            std::string::npos)
      << refused.error().message;
  tool.parameters = nlohmann::json::parse(R"({"$ref":"#"})");
  EXPECT_FALSE(grammar_of_calls({&tool, 1}, true, controls)) << "it has no arguments";
  EXPECT_FALSE(grammar_of_calls({&tool, 1}, true, {}));
}

TEST(CallGrammar, ArgumentsFollowWhatAnAnswerFollows) {
  const AnswerControls controls = answer_controls(nano_tokenizer());
  if (!controls.call_begin) GTEST_SKIP() << "nano has no tokens for calls";
  const auto follows = [&](const char* property, const std::string& value) {
    ToolDeclaration tool{.name = "f", .description = "", .parameters = {}, .response = {}, .strict = true};
    tool.parameters = {{"type", "object"},
                       {"required", {"a"}},
                       {"properties", {{"a", nlohmann::json::parse(property)}}},
                       {"$defs", {{"n", {{"type", "integer"}, {"maximum", 3}}}}}};
    return accepts(grammar_of_calls({&tool, 1}, false, controls).value(),
                   controlled("<|tool_call>call:f{a:" + value + "}<tool_call|>"));
  };
  const auto quoted = [](const std::string& text) { return "<|\"|>" + text + "<|\"|>"; };
  struct Case {
    const char* schema;
    std::vector<std::string> right, wrong;
  };
  const std::string long_text(200, 'a');
  const Case cases[] = {
      {R"({"maxLength":12})", {quoted("a\"\\\n{é"), quoted("")}, {quoted("0123456789abc"), "a"}},
      {R"({"minLength":2,"maxLength":200})", {quoted("ab"), quoted(long_text)}, {quoted("a"), quoted(long_text + "a")}},
      {R"({"pattern":"^[A-Z]\"\\\\?\t$"})", {quoted("B\"\t"), quoted("C\"\\\t")}, {quoted("B\\\"\t"), quoted("b\"\t")}},
      {R"({"format":"date"})", {quoted("2024-02-29")}, {quoted("2023-02-29"), "2024-02-29"}},
      {R"({"type":"integer","minimum":1,"maximum":12})", {"1", "12"}, {"0", "13", quoted("1")}},
      {R"({"type":"number","exclusiveMinimum":0,"maximum":1})", {"0.5", "1"}, {"0", "1.5"}},
      {R"({"type":"integer","multipleOf":3})", {"-9"}, {"10"}},
      {R"({"prefixItems":[{"type":"boolean"},{"$ref":"#/$defs/n"}]})", {"[true,3]", "[]"}, {"[true,4]", "[3]"}},
      {R"({"enum":[[1,{"b c":"d"}],{"x":"y","z":null},"\"",2.5]})",
       {"[1,{" + quoted("b c") + ":" + quoted("d") + "}]", "{x:" + quoted("y") + ",z:null}", quoted("\""), "2.5"},
       {"[1]", "{}", quoted("d")}},
      {R"({"patternProperties":{"^k[0-9]$":{"type":"null"}},"maxProperties":1})",
       {"{" + quoted("k1") + ":null}", "{}"},
       {"{" + quoted("x") + ":null}", "{" + quoted("k1") + ":null," + quoted("k2") + ":null}"}},
      {R"({"properties":{"b":{"minLength":1}},"minProperties":1})", {"{b:" + quoted("x") + "}"}, {"{}", "{c:1}"}},
      {R"({"type":"object","propertyNames":{"enum":["u","v w"]},"additionalProperties":true})",
       {"{u:1," + quoted("v w") + ":[null]}"},
       {"{x:1}"}}};
  for (const auto& [schema, right, wrong] : cases) {
    for (const std::string& value : right) EXPECT_TRUE(follows(schema, value)) << schema << " " << value;
    for (const std::string& value : wrong) EXPECT_FALSE(follows(schema, value)) << schema << " " << value;
  }
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
    grammar_ = compiled(*compiler_, params_.grammar).value();
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
      if (text.size() % 2 == 0) one.look_ahead(tokens[0]);
      if (!with_q) q.clear();
      const VerifyOutcome outcome = one.verify(logits, tokens, scratch_, {}, q).value();
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
  grammar_ = compiled(*compiler_, params_.grammar).value();
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
