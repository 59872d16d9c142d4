#include "common/grammar/grammar_text.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include "common/base/files.h"
#include "common/base/json_fields.h"
#include "common/grammar/engine.h"
#include "common/grammar/json_schema.h"
#include "common/grammar/limits.h"

namespace outrider {
namespace {

/// Of a form that a client sends, before it is turned into a grammar.
constexpr std::size_t kSourceBytesMax = 64 << 10;
/// White space between two parts of a JSON text: enough to indent, not enough to be all of an answer.
constexpr int kSpacesMax = 20;

Result<void> check_size(const char* what, std::size_t bytes, std::size_t bytes_max) {
  if (bytes <= bytes_max) return {};
  return Error{Errc::kOutOfRange, fmt::format("{} has {} bytes, wanted at most {}", what, bytes, bytes_max)};
}

/// In JSON texts of bounded length XGrammar lets control characters and broken UTF-8 through, and no escapes.
std::string repaired(std::string grammar) {
  const std::string_view wrong = R"((([^\"\\\r\n])))";
  const std::string_view right = R"((([\x20-\x21\x23-\x5b\x5d-\ud7ff\ue000-\U0010ffff]) | ("\\" [\"\\/bfnrt])))";
  for (std::size_t at = grammar.find(wrong); at != grammar.npos; at = grammar.find(wrong, at + right.size()))
    grammar.replace(at, wrong.size(), right);
  return grammar;
}

/// The grammar's text, if it is no longer than what travels.
template <typename Make>
Result<std::string> text_of(const char* what, Make&& make) {
  ASSIGN_OR_RETURN(std::string text, engine_call(what, [&] { return repaired(make().ToString()); }));
  RETURN_IF_ERROR(check_size((std::string("the grammar of ") + what).c_str(), text.size(), kGrammarBytesMax));
  return text;
}

xgrammar::Grammar grammar_of_json(const std::string& schema) {
  return xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/true, /*indent=*/std::nullopt,
                                           /*separators=*/std::nullopt, /*strict_mode=*/false, kSpacesMax);
}

}  // namespace

Result<void> check_grammar(const std::string& text) {
  RETURN_IF_ERROR(check_size("the grammar", text.size(), kGrammarBytesMax));
  if (text.find('\0') != text.npos) return Error{Errc::kInvalidArgument, "the grammar has a zero byte"};
  const auto parsed = engine_call("grammar", [&] { return xgrammar::Grammar::FromEBNF(text); });
  return parsed ? Result<void>() : Result<void>(parsed.error());
}

Result<std::string> grammar_of_regex(const std::string& regex) {
  RETURN_IF_ERROR(check_size("regex", regex.size(), kSourceBytesMax));
  return text_of("regex", [&] { return xgrammar::Grammar::FromRegex(regex); });
}

Result<std::string> grammar_of_choices(std::span<const std::string> choices) {
  std::string text;
  for (const std::string& choice : choices) {
    // A JSON string is one of EBNF too, but for slashes.
    text += text.empty() ? "root ::= " : " | ";
    text += to_text(nlohmann::json(choice));
  }
  RETURN_IF_ERROR(check_size("the choices' grammar", text.size(), kGrammarBytesMax));
  RETURN_IF_ERROR(check_grammar(text));
  return text;
}

Result<std::string> grammar_of_json_object() {
  return text_of("JSON", [] { return grammar_of_json(R"({"type":"object"})"); });
}

Result<std::string> grammar_of_schema(const nlohmann::ordered_json& schema) {
  ASSIGN_OR_RETURN(const nlohmann::ordered_json exact, exact_schema(schema));
  const std::string text = exact.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  RETURN_IF_ERROR(check_size("the JSON schema", text.size(), kSourceBytesMax));
  return text_of("JSON schema", [&] { return grammar_of_json(text); });
}

Result<std::string> grammar_of_schema_file(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text(path));
  const auto schema = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) return Error{Errc::kMalformed, path.string() + ": no JSON, wanted a JSON schema"};
  Result<std::string> grammar = grammar_of_schema(schema);
  if (!grammar) return Error{grammar.error().code, path.string() + ": " + grammar.error().message};
  return grammar;
}

Result<std::string> grammar_of_file(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(std::string text, read_text(path));
  if (const Result<void> fine = check_grammar(text); !fine)
    return Error{fine.error().code, path.string() + ": " + fine.error().message};
  return text;
}

Result<std::string> either_grammar(const std::string& one, const std::string& other) {
  using xgrammar::Grammar;
  return text_of("the answer", [&] { return Grammar::Union({Grammar::FromEBNF(one), Grammar::FromEBNF(other)}); });
}

}  // namespace outrider
