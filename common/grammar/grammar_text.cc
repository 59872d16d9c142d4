#include "common/grammar/grammar_text.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <string_view>

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
  return Error(Errc::kOutOfRange, "{} has {} bytes, wanted at most {}", what, bytes, bytes_max);
}

/// Characters of a JSON text that are counted by rules of their own, a mask each when a grammar is made ready.
constexpr int kCountedMax = 128;

/// Rules for what follows the opening quote of a JSON text of bounded length, each written once.
class BoundedTexts {
 public:
  /// @param most  -1: any number. @return the rule's name
  std::string rule(int least, int most) {
    std::string name = fmt::format("text_{}_{}", least, most < 0 ? "any" : std::to_string(most));
    if (!known_.insert(name).second) return name;
    std::string body;
    if (least > kCountedMax) {
      body = fmt::format("text_character{{{0}, {0}}} {1}", least - kCountedMax,
                         rule(kCountedMax, most < 0 ? most : most - least + kCountedMax));
      if (known_.insert("text_character").second)
        rules_ += fmt::format("text_character ::= {} | {}\n", kPlain, kEscape);
    } else if (least == 0 && most > kCountedMax) {
      // A budget binds where the rule may end, so the quote stands behind it. Of an escape both characters count.
      body = fmt::format(R"({}_characters "\"")", name);
      rules_ += fmt::format("{}_characters[max_chars={}] ::= text_characters\n", name, most);
      if (known_.insert("text_characters").second)
        rules_ +=
            fmt::format("text_characters ::= \"\" | {0} text_characters | {1} text_characters\n", kPlain, kEscape);
    } else {
      if (least == 0) body = R"("\"")";
      if (most != 0) {
        const std::string rest = rule(std::max(least - 1, 0), most < 0 ? most : most - 1);
        body += fmt::format("{}{} {} | {} {}", body.empty() ? "" : " | ", kPlain, rest, kEscape, rest);
      }
    }
    rules_ += fmt::format("{} ::= {}\n", name, body);
    return name;
  }
  const std::string& rules() const { return rules_; }

 private:
  static constexpr const char* kPlain = R"([\x20-\x21\x23-\x5b\x5d-\ud7ff\ue000-\U0010ffff])";
  static constexpr const char* kEscape = R"("\\" [\"\\/bfnrt])";
  std::set<std::string> known_;
  std::string rules_;
};

/// In JSON texts of bounded length XGrammar lets control characters and broken UTF-8 through, and no escapes; and since
/// it counts copies of a rule, hardly a token of a large vocabulary could be judged before the answer is there.
Result<std::string> repaired(std::string grammar) {
  constexpr std::string_view kWrong = R"( ::= (([^\"\\\r\n])))";
  BoundedTexts texts;
  for (std::size_t end; (end = grammar.find(kWrong)) != grammar.npos;) {
    const std::size_t begin = grammar.rfind('\n', end) + 1;
    const std::string name = grammar.substr(begin, end - begin);
    grammar.erase(begin, end + kWrong.size() + 1 - begin);
    const std::string use = R"("\"" )" + name + "{";
    const std::size_t at = grammar.find(use);
    int least = 0, most = 0, length = 0;
    const char* bounds = at == grammar.npos ? "" : grammar.c_str() + at + use.size();
    if (std::sscanf(bounds, R"(%d, %d} "\""%n)", &least, &most, &length) != 2 || length == 0)
      return Error{Errc::kUnsupported, "a text of bounded length is written in an unknown way"};
    grammar.replace(at, use.size() + static_cast<std::size_t>(length), R"("\"" )" + texts.rule(least, most));
  }
  return grammar + texts.rules();
}

/// The grammar's text, if it is no longer than what travels.
template <typename Make>
Result<std::string> text_of(const char* what, Make&& make) {
  ASSIGN_OR_RETURN(std::string raw, engine_call(what, [&] { return make().ToString(); }));
  ASSIGN_OR_RETURN(std::string text, repaired(std::move(raw)));
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
