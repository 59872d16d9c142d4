#include "common/model/tokenizer/call_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "common/base/ascii.h"
#include "common/base/json_fields.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

constexpr std::string_view kCallPrefix = "call:";
constexpr std::size_t kWordBytesMax = 256;  ///< of a function's name, and of a key in look-ahead

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

bool is_word_char(char c) { return is_letter_or_digit(c) || c == '_' || c == '.' || c == '-'; }

/// Quotes of JSON and Python, and the format's own.
bool is_quote(char c) { return c == '"' || c == '\'' || c == kQuoteMark; }

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Replaces each token <|"|> within a text by its meaning.
std::string with_quotes(std::string_view text) {
  std::string result(text);
  std::ranges::replace(result, kQuoteMark, '"');
  return result;
}

/// Decodes the text between JSON's or Python's quotes; unchanged if its escapes are neither's.
std::string unescaped(std::string_view inside) {
  std::string json = "\"";
  for (std::size_t i = 0; i < inside.size(); ++i) {
    const char c = inside[i];
    if (c == '\\' && i + 1 < inside.size())
      json += inside[++i] == '\'' ? "'" : std::string{c, inside[i]};
    else if (c == '"' || c == kQuoteMark)
      json += "\\\"";
    else if (static_cast<unsigned char>(c) < 0x20)
      json += fmt::format("\\u{:04x}", c);
    else
      json += c;
  }
  const Json text = parse_json(json + '"');
  return text.is_string() ? text.get<std::string>() : with_quotes(inside);
}

/// Returns true for a JSON number that fits a double.
bool is_number(const std::string& text) {
  if (text.find_first_not_of("-+.0123456789eE") != text.npos) return false;
  return Json::accept(text) && std::isfinite(std::strtod(text.c_str(), nullptr));
}

/// Parses a value without quotes. Case does not matter, since the template prints Python's None.
Json bare_value(const std::string& text) {
  const std::string word = in_lower_case(text);
  if (word == "true" || word == "false") return word == "true";
  if (word == "null" || word == "none" || word == "nil") return nullptr;
  return is_number(text) ? parse_json(text) : Json(text);
}

class CallReader {
 public:
  /// @param strict  a value ends at the first possible place; else where the rest continues as a call
  CallReader(std::string_view text, bool strict) : text_(text), strict_(strict) {}

  std::optional<ToolCall> read() {
    skip_blanks();
    const std::size_t open = text_.find_first_of("{(", at_);
    if (!text_.substr(at_).starts_with(kCallPrefix) || open == text_.npos) return std::nullopt;
    std::string_view name = text_.substr(at_, open - at_);
    name = without_blanks(name.substr(name.rfind(':') + 1));  // no tool's name has a server's name before it
    if (name.empty() || name.size() > kWordBytesMax || !std::ranges::all_of(name, is_word_char)) return std::nullopt;
    at_ = open;
    Json arguments = object();
    skip_blanks();
    if (failed_ || at_ != text_.size()) return std::nullopt;
    return ToolCall{.id = {}, .name = std::string(name), .arguments = std::move(arguments)};
  }

 private:
  bool is_at(char c) const { return at_ < text_.size() && text_[at_] == c; }
  std::size_t after_blanks(std::size_t at) const {
    while (at < text_.size() && is_blank(text_[at])) ++at;
    return at;
  }
  void skip_blanks() { at_ = after_blanks(at_); }
  bool is_colon(std::size_t at) const { return at < text_.size() && (text_[at] == ':' || text_[at] == '='); }

  /// Opens a container at its first bracket.
  void open() {
    if (closers_.size() == static_cast<std::size_t>(kChatJsonDepthMax)) failed_ = true;
    const char bracket = text_[at_++];
    closers_ += bracket == '{' ? '}' : bracket == '[' ? ']' : ')';
  }
  /// @return true if the innermost container has another value; otherwise closes it
  bool another() {
    while (at_ < text_.size() && (is_blank(text_[at_]) || text_[at_] == ',')) ++at_;
    if (failed_ || at_ == text_.size()) return failed_ = true, false;
    if (!is_at(closers_.back())) return true;
    closers_.pop_back();
    ++at_;
    return false;
  }
  Json object() {
    Json object = Json::object();
    open();
    while (another()) {
      std::string name = key();
      object[std::move(name)] = value();
    }
    return object;
  }
  Json list() {
    Json list = Json::array();
    open();
    while (another()) list.push_back(value());
    return list;
  }

  /// Reads a key and its colon.
  std::string key() {
    std::string key;
    if (is_quote(text_[at_])) {
      key = quoted(/*first=*/true).value_or("");
      skip_blanks();
    } else {
      const std::size_t begin = at_;
      while (at_ < text_.size() && !is_colon(at_) && text_[at_] != ',' && text_[at_] != kQuoteMark &&
             text_[at_] != closers_.back())
        ++at_;
      key = without_blanks(text_.substr(begin, at_ - begin));
    }
    if (!is_colon(at_)) failed_ = true;
    ++at_;
    return key;
  }

  /// Reads a value and the blanks after it.
  Json value() {
    if (failed_) return {};
    skip_blanks();
    Json value;
    if (is_at('{')) {
      value = object();
    } else if (is_at('[')) {
      value = list();
    } else {
      const bool by_token = is_at(kQuoteMark);
      std::optional<std::string> text;
      if (at_ < text_.size() && is_quote(text_[at_])) text = quoted(/*first=*/strict_);
      if (!text && by_token) failed_ = true;
      value = text ? Json(*std::move(text)) : bare();
    }
    skip_blanks();
    if (!is_at(',') && !is_at(closers_.empty() ? '\0' : closers_.back())) failed_ = true;
    return value;
  }

  /// Returns the text from the quote here to its closing quote.
  /// @param first  the next quote closes it
  /// @return none: there is no closing quote
  std::optional<std::string> quoted(bool first) {
    const char quote = text_[at_];
    if (unclosed_.find(quote) != unclosed_.npos) return std::nullopt;
    for (std::size_t i = at_ + 1; i < text_.size(); ++i) {
      if (text_[i] == '\\' && quote != kQuoteMark) {
        ++i;
      } else if (text_[i] == quote && (first || ends_value(i + 1))) {
        const std::string_view inside = text_.substr(at_ + 1, i - at_ - 1);
        at_ = i + 1;
        return quote == kQuoteMark ? with_quotes(inside) : unescaped(inside);
      }
    }
    unclosed_ += quote;
    return std::nullopt;
  }

  Json bare() {
    const std::size_t begin = at_;
    int brackets = 0;  // opened by the text itself
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (!strict_ && (c == '{' || c == '[' || c == '('))
        ++brackets;
      else if (brackets > 0)
        brackets -= c == '}' || c == ']' || c == ')';
      else if (ends_bare(c))
        break;
    }
    const std::string_view text = text_.substr(begin, at_ - begin);
    if (!is_at(kQuoteMark)) return bare_value(with_quotes(without_blanks(text)));
    ++at_;  // its first quote is missing
    return with_quotes(text);
  }
  bool ends_bare(char c) const {
    if (c == ',' || c == kQuoteMark) return strict_ || ends_value(at_ + (c == kQuoteMark));
    return c == '}' || c == ']' || c == closers_.back();
  }

  /// Returns true when the text at `at` continues as a call does after a value: with the ends of open containers, then
  /// the end of the call, or a comma and another value.
  bool ends_value(std::size_t at) const {
    std::size_t open = closers_.size();
    at = after_blanks(at);
    while (open > 0 && at < text_.size() && text_[at] == closers_[open - 1]) {
      --open;
      at = after_blanks(at + 1);
    }
    if (open == 0) return at == text_.size();
    if (at == text_.size() || text_[at] != ',') return false;
    at = after_blanks(at + 1);
    return at < text_.size() && (closers_[open - 1] == ']' || text_[at] == closers_[open - 1] || is_key(at));
  }
  bool is_key(std::size_t at) const {
    const std::size_t begin = at, most = std::min(text_.size(), at + kWordBytesMax);
    if (is_quote(text_[at])) {
      at = text_.substr(0, most).find(text_[begin], begin + 1);
      return at != text_.npos && is_colon(after_blanks(at + 1));
    }
    const auto is_of_key = [](char c) {
      return is_word_char(c) || (static_cast<unsigned char>(c) >= 0x80 && c != kQuoteMark);
    };
    while (at < most && is_of_key(text_[at])) ++at;
    return at > begin && is_colon(after_blanks(at));
  }

  const std::string_view text_;
  const bool strict_;
  std::size_t at_ = 0;
  std::string closers_;   ///< of the enclosing containers
  std::string unclosed_;  ///< quotes without a closing one from here on
  bool failed_ = false;
};

}  // namespace

std::optional<ToolCall> read_call(std::string_view text) {
  std::optional<ToolCall> call = CallReader(text, /*strict=*/true).read();
  return call ? std::move(call) : CallReader(text, /*strict=*/false).read();
}

}  // namespace outrider
