#include "server/answer_grammar.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/decoding/grammar/call_grammar.h"
#include "common/decoding/grammar/grammar_text.h"
#include "server/request.h"

namespace outrider {
namespace {
using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::array kForms = {"response_format", "structured_outputs", "grammar", "json_schema"};

/// The grammar, or the error of the field.
std::string checked(const JsonFields& fields, const char* key, Result<std::string> grammar) {
  if (grammar) return std::move(*grammar);
  fields.refuse(key, "cannot be followed: " + grammar.error().message, grammar.error().code);
  return {};
}

std::string of_schema(const JsonFields& fields, const char* key, const OrderedJson& schema) {
  // vLLM accepts a string too.
  if (!schema.is_string()) return checked(fields, key, grammar_of_schema(schema));
  const auto& text = schema.get_ref<const std::string&>();
  const OrderedJson parsed = json_nesting(text) > kChatJsonDepthMax ? OrderedJson(OrderedJson::value_t::discarded)
                                                                    : OrderedJson::parse(text, nullptr, false);
  if (parsed.is_discarded()) return fields.wrong(key, "a JSON schema"), "";
  return checked(fields, key, grammar_of_schema(parsed));
}

std::string of_ebnf(const JsonFields& fields, const char* key) {
  return checked(fields, key, grammar_of_ebnf(fields.text(key, {}, "a grammar")));
}

/// @param nested  the schema is inside the format's object, else beside its type
std::string of_format(const JsonFields& format, const OrderedJson& ordered, bool nested) {
  const std::string type = format.text("type", {}, "text, json_object or json_schema");
  if (type == "text") return {};
  if (type == "json_object") {
    if (format.find("schema") == nullptr) return checked(format, "type", grammar_of_json_object());
    return of_schema(format, "schema", ordered["schema"]);  // llama.cpp's form
  }
  if (type != "json_schema") return format.wrong("type", "text, json_object or json_schema"), "";
  if (!nested && format.find("schema") == nullptr) return format.wrong("schema", "a JSON schema"), "";
  if (!nested) return of_schema(format, "schema", ordered["schema"]);
  if (format.find("json_schema") == nullptr) return format.wrong("json_schema", "an object with a schema"), "";
  const JsonFields named = format.object("json_schema");
  if (named.find("schema") == nullptr) return named.wrong("schema", "a JSON schema"), "";
  return of_schema(named, "schema", ordered["json_schema"]["schema"]);
}

std::string of_choice(const JsonFields& outputs) {
  std::vector<std::string> choices;
  for (const Json& choice : outputs.array("choice")) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
      return outputs.wrong("choice", "a list of texts that are not empty"), "";
    choices.push_back(choice.get<std::string>());
  }
  if (choices.empty()) return outputs.wrong("choice", "a list of texts that are not empty"), "";
  return checked(outputs, "choice", grammar_of_choices(choices));
}

std::string of_structured_outputs(const JsonFields& outputs, const OrderedJson& ordered) {
  std::string grammar;
  const char* given = nullptr;
  for (const auto& [name, value] : outputs.raw().items()) {
    if (value.is_null() || value == false) continue;
    const std::array known = {"json", "regex", "choice", "grammar", "json_object"};
    const auto* const key = std::ranges::find(known, name);
    if (key == known.end()) return outputs.refuse(name.c_str(), "is not supported"), "";
    if (given != nullptr) return outputs.refuse(*key, fmt::format("cannot stand beside '{}'", given)), "";
    given = *key;
    grammar = name == "json"      ? of_schema(outputs, "json", ordered["json"])
              : name == "regex"   ? checked(outputs, "regex", grammar_of_regex(outputs.text("regex")))
              : name == "choice"  ? of_choice(outputs)
              : name == "grammar" ? of_ebnf(outputs, "grammar")
                                  : checked(outputs, "json_object", grammar_of_json_object());
  }
  return grammar;
}

}  // namespace

std::string read_answer_grammar(const JsonFields& fields, std::string_view body, FormatField own) {
  const JsonFields outer = own.object == nullptr ? fields : fields.object(own.object);
  const char* given = own.key != nullptr && outer.find(own.key) != nullptr ? own.key : nullptr;
  const bool is_own = given != nullptr;
  for (const char* key : kForms) {
    const Json* value = fields.find(key);
    if (value == nullptr || *value == "") continue;
    if (given != nullptr) return fields.refuse(key, fmt::format("cannot stand beside '{}'", given)), "";
    given = key;
  }
  if (given == nullptr) return {};
  const std::string_view form = given;
  if (!is_own && form == "grammar") return of_ebnf(fields, given);
  // Parses the text again in key order, which only now is worth the memory.
  const OrderedJson whole = OrderedJson::parse(body);
  const OrderedJson& ordered = is_own && own.object != nullptr ? whole[own.object][given] : whole[given];
  if (form == "json_schema") return of_schema(fields, given, ordered);
  if (!ordered.is_object()) return outer.wrong(given, "an object"), "";
  if (is_own) return of_format(outer.object(given), ordered, /*nested=*/false);
  return form == "response_format" ? of_format(fields.object(given), ordered, /*nested=*/true)
                                   : of_structured_outputs(fields.object(given), ordered);
}

ToolChoice read_tool_choice(const JsonFields& fields, bool of_chat) {
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr || *choice == "auto") return {};
  if (*choice == "none") return {.kind = ToolChoice::Kind::kNone};
  ToolChoice forced{.kind = ToolChoice::Kind::kForced};
  if (choice->is_object()) {
    const JsonFields chosen = fields.object("tool_choice");
    const auto by_default = of_chat ? std::optional<std::string>("function") : std::nullopt;
    const std::string type = chosen.text("type", by_default, "\"function\"");
    if (type != "function" && (of_chat || type != "custom"))
      chosen.wrong("type", of_chat ? "\"function\"" : "\"function\" or \"custom\"");
    forced.name = (of_chat ? chosen.object("function") : chosen).text("name", {}, "the name of a tool");
  } else if (*choice != "required") {
    fields.wrong("tool_choice",
                 "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\"}}");
  }
  return forced;
}

std::string read_call_grammar(const JsonFields& fields, const Conversation& conversation, const ToolChoice& choice,
                              std::string grammar, const AnswerControls& controls, bool parallel) {
  parallel = fields.boolean("parallel_tool_calls", parallel);
  const bool forced = choice.kind == ToolChoice::Kind::kForced;
  if (conversation.tools.empty() && !forced) return grammar;
  if (!forced && parallel && grammar.empty()) return grammar;
  if (!forced && grammar.empty()) return checked(fields, "parallel_tool_calls", grammar_of_one_call_at_most(controls));
  std::vector<ToolDeclaration> tools = conversation.tools;
  if (!choice.name.empty()) std::erase_if(tools, [&](const ToolDeclaration& tool) { return tool.name != choice.name; });
  if (tools.empty()) {
    fields.refuse("tool_choice", choice.name.empty()
                                     ? "is \"required\", and there are no tools"
                                     : fmt::format("names {}, which is none of the tools", choice.name));
    return {};
  }
  std::string calls = checked(fields, "tools", grammar_of_calls(tools, parallel && choice.name.empty(), controls));
  if (forced || calls.empty()) return calls;
  return checked(fields, "response_format", either_grammar(calls, grammar));
}

}  // namespace outrider
