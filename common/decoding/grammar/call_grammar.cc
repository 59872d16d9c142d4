#include "common/decoding/grammar/call_grammar.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xgrammar/xgrammar.h>

#include "common/decoding/grammar/engine.h"
#include "common/decoding/grammar/grammar_text.h"
#include "common/decoding/grammar/limits.h"
#include "common/decoding/grammar/schema_shape.h"
#include "common/decoding/grammar/value_text.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

/// Keywords that determine the type of a value without `type`.
constexpr std::array<const char*, 6> kWithoutType = {"$ref", "allOf", "anyOf", "oneOf", "const", "enum"};

std::string token(TokenId id) { return fmt::format("Token({})", id); }

/// Returns the grammar of a call's braces. A call has an object, even if the schema admits other types.
Result<std::string> grammar_of_arguments(const ToolDeclaration& tool, TokenId quote) {
  Json schema = Json(tool.parameters);
  if (schema.is_null()) schema = {{"type", "object"}, {"additionalProperties", false}};
  if (schema.is_object() && std::ranges::none_of(kWithoutType, [&](auto word) { return schema.contains(word); })) {
    const Json types = schema.value("type", Json::array({"object"}));
    if (types.is_array() && std::ranges::find(types, "object") != types.end()) schema["type"] = "object";
  }
  const bool objects = SchemaShape(schema).types(schema) == SchemaShape::kObject;
  const Result<std::string> exact = grammar_of_schema(schema, quote);
  if (exact && objects) return exact;
  const bool refused = !exact && (tool.strict || exact.error().code == Errc::kInvalidArgument);
  if (refused) return Error(exact.error().code, "tool {}: {}", tool.name, exact.error().message);
  return grammar_of_schema({{"type", "object"}}, quote);
}

}  // namespace

Result<std::string> grammar_of_calls(std::span<const ToolDeclaration> tools, bool many,
                                     const AnswerControls& controls) {
  if (!controls.call_begin || !controls.call_end || !controls.quote)
    return Error{Errc::kUnsupported, "the model's vocabulary has no tokens for tool calls"};
  const std::string end = "root ::= " + token(*controls.call_end);
  std::vector<std::pair<std::string, std::string>> calls;  // beginning of each call, and its arguments
  for (const ToolDeclaration& tool : tools) {
    ASSIGN_OR_RETURN(std::string arguments, grammar_of_arguments(tool, *controls.quote));
    calls.emplace_back(fmt::format("root ::= {} {}", token(*controls.call_begin), literal("call:" + tool.name)),
                       std::move(arguments));
  }
  using xgrammar::Grammar;
  ASSIGN_OR_RETURN(std::string text, engine_call("the tools' calls", [&] {
                     std::vector<Grammar> all;
                     for (const auto& [begin, arguments] : calls)
                       all.push_back(Grammar::Concat({read_ebnf(begin), read_ebnf(arguments), read_ebnf(end)}));
                     return '\n' + write_ebnf(Grammar::Union(all));
                   }));
  if (many) text.replace(text.find("\nroot ::="), 5, "\nroot ::= calls+\ncalls");
  RETURN_IF_ERROR(check_size("the grammar of the tools' calls", text.size()));
  return text;
}

Result<std::string> grammar_of_one_call_at_most(const AnswerControls& controls) {
  if (!controls.call_begin || !controls.call_end) return std::string(R"(root ::= [^\x00]*)");
  return fmt::format(
      "root ::= TokenTagDispatch(({0}, call), loop_after_dispatch=false)\n"
      "call ::= ExcludeToken({0}, {1})* Token({1})\n",
      *controls.call_begin, *controls.call_end);
}

Result<std::string> grammar_after_thought(const std::string& grammar, bool open, const AnswerControls& controls) {
  if (!controls.channel_begin || !controls.channel_end) return grammar;
  std::vector<TokenId> ids;
  for (const std::optional<TokenId>& id : controls.all()) {
    if (id) ids.push_back(*id);
  }
  const std::string rest = fmt::format("ExcludeToken({})* {}", fmt::join(ids, ", "), token(*controls.channel_end));
  const std::string thought =
      open ? "root ::= " + rest : fmt::format("root ::= (Token({}) \"thought\\n\" {})?", *controls.channel_begin, rest);
  using xgrammar::Grammar;
  ASSIGN_OR_RETURN(std::string text, engine_call("the answer", [&] {
                     return write_ebnf(Grammar::Concat({read_ebnf(thought), read_ebnf(grammar)}));
                   }));
  RETURN_IF_ERROR(check_size("the grammar", text.size()));
  return text;
}

}  // namespace outrider
