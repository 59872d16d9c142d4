#include "common/decoding/grammar/value_text.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/base/ascii.h"
#include "common/base/json_fields.h"

namespace outrider {
namespace {
using Json = nlohmann::ordered_json;

/// Characters of a text that are counted by a rule each, with a mask each at compilation.
constexpr int kCountedMax = 128;

/// XGrammar's own rules accept lone surrogates.
constexpr const char* kJsonRules =
    R"(basic_string_sub ::= "\"" | [\x20-\x21\x23-\x5b\x5d-\ud7ff\ue000-\U0010ffff] basic_string_sub)"
    R"( | "\\" basic_escape basic_string_sub (=[ \n\t\r]{0,20} [,}\]:])
basic_escape ::= [\"\\/bfnrt] | "u" (basic_plain_hex | basic_pair)
basic_plain_hex ::= ([0-9a-cA-CefEF] basic_hex | [dD] [0-7]) basic_hex basic_hex
basic_pair ::= [dD] [89abAB] basic_hex basic_hex "\\u" [dD] [c-fC-F] basic_hex basic_hex
basic_hex ::= [0-9a-fA-F]
)";
/// Rules of every call grammar, except for the quote. Numbers fit a double or an int64.
constexpr const char* kCallRules = R"(basic_text ::= {0} [^\x00]* {0}
basic_string ::= [A-Za-z0-9_] [A-Za-z0-9_.-]{{0,63}}
basic_integer ::= "-"? ("0" | [1-9] [0-9]{{0,17}})
basic_number ::= basic_integer ("." [0-9]{{1,17}})? ([eE] [+-]? [0-9]{{1,2}})?
basic_any ::= basic_text | basic_number | basic_boolean | basic_null | basic_array | basic_object
basic_array ::= "[" (basic_any ("," basic_any)*)? "]"
basic_object ::= "{{" (basic_string ":" basic_any ("," basic_string ":" basic_any)*)? "}}"
)";

bool is_plain_name(std::string_view name) {
  return !name.empty() &&
         std::ranges::all_of(name, [](char c) { return is_letter_or_digit(c) || c == '_' || c == '.' || c == '-'; });
}

}  // namespace

std::string literal(std::string_view text) { return to_text(nlohmann::json(text)); }

ValueText::ValueText(std::optional<TokenId> quote)
    : json_(!quote),
      quote_(quote ? fmt::format("Token({})", *quote) : R"("\"")"),
      plain_(quote ? R"([^\x00])" : R"([\x20-\x21\x23-\x5b\x5d-\ud7ff\ue000-\U0010ffff])"),
      escape_(quote ? nullptr : R"("\\" [\"\\/bfnrt])"),
      rules_(quote ? fmt::format(fmt::runtime(kCallRules), quote_) : kJsonRules) {}

std::string ValueText::quoted(std::string_view text) const {
  return json_ ? literal(to_text(nlohmann::json(text))) : fmt::format("{0} {1} {0}", quote_, literal(text));
}

std::string ValueText::constant(const Json& value) const {
  if (value.is_string()) return quoted(value.get_ref<const std::string&>());
  if (!value.is_structured()) return literal(value.dump());
  std::vector<std::string> parts;
  for (const auto& [name, part] : value.items())
    parts.push_back(value.is_object() ? fmt::format(R"({} ":" {})", this->name(name), constant(part)) : constant(part));
  return fmt::format(R"("{}" {} "{}")", value.is_object() ? '{' : '[', fmt::join(parts, R"( "," )"),
                     value.is_object() ? '}' : ']');
}

std::string ValueText::name(const std::string& name) const {
  return json_ || !is_plain_name(name) ? quoted(name) : literal(name);
}

std::string ValueText::text(int least, int most) {
  if (least == 0 && most < 0) return json_ ? "basic_string" : "basic_text";
  return quote_ + ' ' + bounded(least, most);
}

std::string ValueText::pattern(const Pattern& pattern) const {
  return fmt::format("{0} {1} {0}", quote_, as_ebnf(json_ ? in_json(pattern) : pattern, /*short_repeats=*/true));
}

/// Defines a rule for the rest of a bounded text, after its opening quote, once per length. XGrammar's own count copies
/// a rule, which leaves most tokens of a large vocabulary undecided until the answer is there. @return the rule's name
std::string ValueText::bounded(int least, int most) {
  std::string name = fmt::format("text_{}_{}", least, most < 0 ? "any" : std::to_string(most));
  if (!known_.insert(name).second) return name;
  const auto either = [&](const std::string& rest) {
    return escape_ == nullptr ? fmt::format("{} {}", plain_, rest)
                              : fmt::format("{0} {2} | {1} {2}", plain_, escape_, rest);
  };
  std::string body;
  if (least > kCountedMax) {
    body = fmt::format("text_character{{{0}, {0}}} {1}", least - kCountedMax,
                       bounded(kCountedMax, most < 0 ? most : most - least + kCountedMax));
    if (known_.insert("text_character").second) rules_ += fmt::format("text_character ::= {}\n", either(R"("")"));
  } else if (least == 0 && most > kCountedMax) {
    // A budget applies where the rule may end, so that the quote follows it. An escape counts as two characters.
    body = fmt::format("{}_characters {}", name, quote_);
    rules_ += fmt::format("{}_characters[max_chars={}] ::= text_characters\n", name, most);
    if (known_.insert("text_characters").second)
      rules_ += fmt::format("text_characters ::= \"\" | {}\n", either("text_characters"));
  } else {
    if (least == 0) body = quote_;
    if (most != 0) {
      const std::string rest = bounded(std::max(least - 1, 0), most < 0 ? most : most - 1);
      body += (body.empty() ? "" : " | ") + either(rest);
    }
  }
  rules_ += fmt::format("{} ::= {}\n", name, body);
  return name;
}

}  // namespace outrider
