#include "common/decoding/grammar/grammar_text.h"

#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include "common/base/json_fields.h"
#include "common/base/json_nesting.h"
#include "common/decoding/grammar/dead_ends.h"
#include "common/decoding/grammar/engine.h"
#include "common/decoding/grammar/json_schema.h"
#include "common/decoding/grammar/limits.h"
#include "common/decoding/grammar/pattern.h"
#include "common/decoding/grammar/value_text.h"
#include "common/os/files.h"

namespace outrider {
namespace {

/// Size limit of a client's form, before it is converted into a grammar.
constexpr std::size_t kSourceBytesMax = 64 << 10;
/// White space allowed between two parts of JSON: enough to indent, too little to fill an answer.
constexpr int kSpacesMax = 20;

/// Converts a schema with XGrammar. @param json  JSON with white space; else without
Result<std::string> converted(const std::string& schema, bool json) {
  using Separators = std::pair<std::string, std::string>;
  return engine_call("JSON schema", [&] {
    return write_ebnf(xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/json, /*indent=*/std::nullopt,
                                                        json ? std::nullopt : std::optional(Separators(",", ":")),
                                                        /*strict_mode=*/false,
                                                        json ? std::optional(kSpacesMax) : std::nullopt));
  });
}

/// Replaces the rules of `grammar` that `texts` defines, and inserts those of `exact` at their placeholders.
std::string filled_in(std::string_view grammar, const ExactSchema& exact, const ValueText& texts) {
  std::set<std::string_view> known;
  for (std::string_view rules = texts.rules(); !rules.empty(); rules.remove_prefix(rules.find('\n') + 1))
    known.insert(rules.substr(0, rules.find_first_of(" [")));
  std::string out;
  while (!grammar.empty()) {
    std::string_view line = grammar.substr(0, grammar.find('\n') + 1);
    grammar.remove_prefix(line.size());
    if (known.contains(line.substr(0, line.find(' ')))) continue;
    constexpr std::string_view kBegin = R"(\"@)", kEnd = R"(@\")";
    for (std::size_t at; (at = line.find(kBegin)) != line.npos;) {
      const std::size_t end = line.find(kEnd, at + kBegin.size());
      const std::string index(line.substr(at + kBegin.size(), end - at - kBegin.size()));
      out += fmt::format(R"({}" {} ")", line.substr(0, at), exact.rules.at(std::stoul(index)));
      line.remove_prefix(end + kEnd.size());
    }
    out += line;
  }
  return out + texts.rules();
}

/// Returns the grammar's final text. @param nothing  error message if it matches no text
Result<std::string> finished(const std::string& text, const char* nothing) {
  RETURN_IF_ERROR(check_size("the grammar", text.size()));
  if (text.find('\0') != text.npos) return Error{Errc::kInvalidArgument, "the grammar has a zero byte"};
  ASSIGN_OR_RETURN(const xgrammar::Grammar whole, engine_call("grammar", [&] { return read_ebnf(text); }));
  const Result<std::optional<xgrammar::Grammar>> rest = without_dead_ends(whole);
  if (!rest && rest.error().code == Errc::kNotFound) return Error{Errc::kInvalidArgument, nothing};
  if (!rest) return rest.error();
  std::string result = *rest ? write_ebnf(**rest) : with_exact_escapes(text);
  RETURN_IF_ERROR(check_size("the grammar", result.size()));
  return result;
}

}  // namespace

Result<std::string> grammar_of_ebnf(const std::string& text) {
  return finished(text, "no text is valid by the grammar: it has no end");
}

Result<std::string> grammar_of_regex(const std::string& regex) {
  RETURN_IF_ERROR(check_size("regex", regex.size(), kSourceBytesMax));
  const Result<Pattern> pattern = read_pattern(regex);
  if (!pattern) return Error(pattern.error().code, "the regex {}", pattern.error().message);
  if (pattern->matches_nothing()) return Error{Errc::kInvalidArgument, "no text matches the regex"};
  return grammar_of_ebnf("root ::= " + as_ebnf(*pattern, /*short_repeats=*/false) + "\n");
}

Result<std::string> grammar_of_choices(std::span<const std::string> choices) {
  std::string text;
  for (const std::string& choice : choices) {
    // A JSON string is a valid EBNF string too, except for slashes.
    text += text.empty() ? "root ::= " : " | ";
    text += to_text(nlohmann::json(choice));
  }
  return grammar_of_ebnf(text);
}

Result<std::string> grammar_of_json_object() { return grammar_of_schema({{"type", "object"}}); }

Result<std::string> grammar_of_schema(const nlohmann::ordered_json& schema, std::optional<TokenId> quote) {
  ValueText texts(quote);
  ASSIGN_OR_RETURN(const ExactSchema exact, exact_schema(schema, texts));
  const std::string text = exact.schema.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  RETURN_IF_ERROR(check_size("the JSON schema", text.size(), kSourceBytesMax));
  ASSIGN_OR_RETURN(const std::string grammar, converted(text, !quote));
  return finished(filled_in(grammar, exact, texts), "nothing is valid by the JSON schema: it has no end");
}

Result<std::string> grammar_of_schema_file(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text(path));
  if (json_nesting(text) > kJsonNestingMax)
    return Error(Errc::kMalformed, "{}: nests deeper than {} levels", path.string(), kJsonNestingMax);
  const auto schema = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) return Error{Errc::kMalformed, path.string() + ": no JSON, wanted a JSON schema"};
  Result<std::string> grammar = grammar_of_schema(schema);
  if (!grammar) return Error{grammar.error().code, path.string() + ": " + grammar.error().message};
  return grammar;
}

Result<std::string> grammar_of_file(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text(path));
  Result<std::string> grammar = grammar_of_ebnf(text);
  if (!grammar) return Error{grammar.error().code, path.string() + ": " + grammar.error().message};
  return grammar;
}

Result<std::string> either_grammar(const std::string& one, const std::string& other) {
  using xgrammar::Grammar;
  ASSIGN_OR_RETURN(std::string text, engine_call("the answer", [&] {
                     return write_ebnf(Grammar::Union({read_ebnf(one), read_ebnf(other)}));
                   }));
  RETURN_IF_ERROR(check_size("the grammar of the answer", text.size()));
  return text;
}

}  // namespace outrider
