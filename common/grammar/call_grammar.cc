#include "common/grammar/call_grammar.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xgrammar/xgrammar.h>

#include "common/base/json_fields.h"
#include "common/grammar/engine.h"
#include "common/grammar/grammar_text.h"
#include "common/grammar/json_schema.h"
#include "common/grammar/limits.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

/// What every grammar of calls has, but for the quote. Numbers are such as a double and an int64 hold.
constexpr const char* kValues = R"(
text ::= quote [^\x00]* quote
integer ::= "-"? ("0" | [1-9] [0-9]{0,17})
number ::= integer ("." [0-9]{1,17})? ([eE] [+-]? [0-9]{1,2})?
boolean ::= "true" | "false"
null ::= "null"
key ::= [A-Za-z0-9_] [A-Za-z0-9_.-]{0,63}
any ::= text | number | boolean | null | list | map
list ::= "[" (any ("," any)*)? "]"
map ::= "{" (key ":" any ("," key ":" any)*)? "}"
)";

std::string literal(std::string_view text) { return to_text(nlohmann::json(text)); }
std::string token(TokenId id) { return fmt::format("Token({})", id); }

bool is_plain_key(std::string_view key) {
  return !key.empty() && std::ranges::all_of(key, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
  });
}

/// The rules of one grammar of calls.
class Rules {
 public:
  /// @return the name of the rule that matches the arguments of `tool`, braces included
  std::string arguments(const ToolDeclaration& tool, const Json& schema, bool strict) {
    tool_ = tool.name;
    strict_ = strict;
    definitions_.clear();
    root_ = &schema;
    const std::string rule = value(schema);
    // A call has an object, whatever else the schema would let in.
    return schema.value("type", "") == "object" ? rule : "map";
  }

  std::string text;  ///< one rule a line
  std::optional<Error> error = {};

 private:
  /// Adds a rule. @return its name
  std::string add(const std::string& body) {
    std::string name = fmt::format("r{}", count_++);
    text += fmt::format("{} ::= {}\n", name, body);
    return name;
  }
  /// `schema` says what no rule here does.
  void beyond(const Json& schema, std::initializer_list<std::string_view> followed) {
    for (const auto& [key, value] : schema.items()) {
      if (strict_ && !error && std::ranges::find(followed, key) == followed.end())
        error = Error(Errc::kUnsupported, "tool {}: '{}' is not supported in a strict schema of arguments", tool_, key);
    }
  }

  /// @return what matches a value that the schema, as exact_schema() leaves it, is content with
  std::string value(const Json& schema) {
    if (!schema.is_object() || schema.empty()) return "any";
    if (schema.contains("$ref")) return reference(schema["$ref"].get<std::string>());
    for (const char* branches : {"anyOf", "oneOf"}) {
      if (schema.contains(branches)) return either(schema[branches]);
    }
    if (schema.contains("enum")) return listed(schema["enum"]);
    const std::string type = schema.value("type", "");
    if (type == "object") return object(schema);
    if (type == "array") return array(schema);
    beyond(schema, {"type", "$defs", "definitions"});
    return type == "string" ? "text" : type.empty() ? "any" : type;
  }

  std::string reference(const std::string& target) {
    const auto known = definitions_.find(target);
    if (known != definitions_.end()) return known->second;
    // Named before it is made: it may refer to itself.
    const std::string name = definitions_[target] = fmt::format("r{}", count_++);
    const Json* schema = root_;
    for (const char* list : {"$defs", "definitions"}) {
      const std::string start = fmt::format("#/{}/", list);
      if (target.starts_with(start)) schema = &(*root_)[list][target.substr(start.size())];
    }
    const std::string rule = value(*schema);
    text += fmt::format("{} ::= {}\n", name, rule);
    return name;
  }

  std::string either(const Json& branches) {
    std::vector<std::string> rules;
    for (const Json& branch : branches) rules.push_back(value(branch));
    return add(fmt::format("{}", fmt::join(rules, " | ")));
  }

  std::string listed(const Json& values) {
    std::vector<std::string> rules;
    for (const Json& one : values) {
      if (one.is_structured()) return one.is_array() ? "list" : "map";
      rules.push_back(one.is_string() ? fmt::format("quote {} quote", literal(one.get<std::string>()))
                                      : literal(one.dump()));
    }
    return add(fmt::format("{}", fmt::join(rules, " | ")));
  }

  std::string array(const Json& schema) {
    beyond(schema, {"type", "items", "minItems", "maxItems", "$defs", "definitions"});
    if (schema.contains("prefixItems")) return "list";
    const std::string item = value(schema.value("items", Json::object()));
    const std::int64_t least = schema.value("minItems", std::int64_t{0});
    const std::int64_t most = schema.value("maxItems", std::int64_t{-1});
    if (most == 0) return add(R"("[]")");
    const std::string rest = fmt::format(R"(("," {}){{{},{}}})", item, std::max<std::int64_t>(least - 1, 0),
                                         most < 0 ? "" : std::to_string(most - 1));
    return add(fmt::format(R"("[" ({} {}){} "]")", item, rest, least == 0 ? "?" : ""));
  }

  std::string object(const Json& schema) {
    beyond(schema, {"type", "properties", "required", "additionalProperties", "$defs", "definitions"});
    const Json properties = schema.value("properties", Json::object());
    if (properties.empty()) {
      const Json others = schema.value("additionalProperties", Json(true));
      if (others == Json(false)) return add(R"("{}")");
      const std::string other = value(others);
      return add(fmt::format(R"("{{" (key ":" {0} ("," key ":" {0})*)? "}}")", other));
    }
    std::vector<std::string> required = schema.value("required", std::vector<std::string>());
    std::vector<std::pair<std::string, bool>> members;  // what matches one, and whether it must be there
    for (const auto& [key, property] : properties.items()) {
      const std::string name = is_plain_key(key) ? literal(key) : fmt::format("quote {} quote", literal(key));
      members.emplace_back(fmt::format(R"({} ":" {})", name, value(property)),
                           std::ranges::find(required, key) != required.end());
    }
    // From the last: what may follow a member, and what may stand where none has been.
    std::string rest = R"("")", first = R"("")";
    for (auto member = members.rbegin(); member != members.rend(); ++member) {
      const auto& [rule, needed] = *member;
      first = add(needed ? fmt::format("{} {}", rule, rest) : fmt::format("{} {} | {}", rule, rest, first));
      rest = add(needed ? fmt::format(R"("," {} {})", rule, rest) : fmt::format(R"("," {} {} | {})", rule, rest, rest));
    }
    return add(fmt::format(R"("{{" {} "}}")", first));
  }

  int count_ = 0;
  std::string tool_;
  bool strict_ = false;
  const Json* root_ = nullptr;
  std::map<std::string, std::string> definitions_;  ///< the rules of those that were referred to
};

/// Of a schema that cannot be followed exactly, where that need not be: any object.
Result<Json> schema_of(const CallableTool& callable) {
  const nlohmann::json& parameters = callable.tool->parameters;
  if (parameters.is_null()) return Json{{"type", "object"}, {"additionalProperties", false}};
  Result<Json> exact = exact_schema(Json(parameters));
  if (exact || exact.error().code == Errc::kInvalidArgument) return exact;
  if (callable.strict) return Error(exact.error().code, "tool {}: {}", callable.tool->name, exact.error().message);
  return Json{{"type", "object"}};
}

}  // namespace

Result<std::string> grammar_of_calls(std::span<const CallableTool> tools, bool many, const AnswerControls& controls) {
  if (!controls.call_begin || !controls.call_end || !controls.quote)
    return Error{Errc::kUnsupported, "the model's vocabulary has no tokens for tool calls"};
  Rules rules;
  std::vector<std::string> calls;
  for (const CallableTool& callable : tools) {
    ASSIGN_OR_RETURN(const Json schema, schema_of(callable));
    calls.push_back(fmt::format("{} {}", literal("call:" + callable.tool->name),
                                rules.arguments(*callable.tool, schema, callable.strict)));
    if (rules.error) return *rules.error;
  }
  std::string text = fmt::format("root ::= call{}\ncall ::= {} ({}) {}\nquote ::= {}\n{}{}", many ? "+" : "",
                                 token(*controls.call_begin), fmt::join(calls, " | "), token(*controls.call_end),
                                 token(*controls.quote), kValues + 1, rules.text);
  if (text.size() > kGrammarBytesMax)
    return Error(Errc::kOutOfRange, "the grammar of the tools' calls has {} bytes, wanted at most {}", text.size(),
                 kGrammarBytesMax);
  RETURN_IF_ERROR(check_grammar(text));
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
                     return Grammar::Concat({Grammar::FromEBNF(thought), Grammar::FromEBNF(grammar)}).ToString();
                   }));
  if (text.size() > kGrammarBytesMax)
    return Error(Errc::kOutOfRange, "the grammar has {} bytes, wanted at most {}", text.size(), kGrammarBytesMax);
  return text;
}

}  // namespace outrider
