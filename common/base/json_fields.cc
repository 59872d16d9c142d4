#include "common/base/json_fields.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/edit_distance.h"
#include "common/base/json_nesting.h"

namespace outrider {
using nlohmann::json;

namespace {

/// Builds the same values as json::parse, except for long integers.
class ExactReader : public nlohmann::detail::json_sax_dom_parser<json> {
 public:
  using json_sax_dom_parser::json_sax_dom_parser;
  bool number_float(double value, const std::string& text) {
    if (text.find_first_not_of("-0123456789") != text.npos) return json_sax_dom_parser::number_float(value, text);
    json::binary_t digits({text.begin(), text.end()});
    return binary(digits);
  }
};

bool has_long_integer(const json& value) {
  return value.is_binary() || (value.is_structured() && std::ranges::any_of(value, has_long_integer));
}

void write_exactly(const json& value, std::string& out) {
  if (value.is_binary()) {
    out += digits_of(value);
  } else if (!has_long_integer(value)) {
    out += value.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
  } else {
    char before = value.is_object() ? '{' : '[';
    for (const auto& [name, member] : value.items()) {
      out += std::exchange(before, ',');
      if (value.is_object()) out += to_text(name) + ':';
      write_exactly(member, out);
    }
    out += value.is_object() ? '}' : ']';
  }
}

/// Finds the position of a syntax error.
struct ErrorFinder : nlohmann::detail::json_sax_acceptor<json> {
  std::size_t bytes_read = 0;  ///< including the wrong byte
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    bytes_read = position;
    return false;
  }
};

std::string place_of_error(std::string_view text) {
  ErrorFinder finder;
  json::sax_parse(text, &finder);
  const std::string_view before =
      text.substr(0, std::min(text.size(), std::max<std::size_t>(finder.bytes_read, 1) - 1));
  const std::size_t line_begin = before.rfind('\n') + 1;  // 0 if there is no line end
  return fmt::format("line {}, column {}{}", std::ranges::count(before, '\n') + 1, before.size() - line_begin + 1,
                     before.size() == text.size() ? " (unexpected end)" : "");
}

}  // namespace

int json_nesting(std::string_view text) {
  int depth = 0, deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

json parse_json(std::string_view text) {
  if (json_nesting(text) > kJsonNestingMax) return json(json::value_t::discarded);
  json root;
  ExactReader reader(root, /*allow_exceptions=*/false);
  if (!json::sax_parse(text, &reader)) return json(json::value_t::discarded);
  return root;
}

std::string_view digits_of(const json& long_integer) {
  const json::binary_t& digits = long_integer.get_binary();
  return {reinterpret_cast<const char*>(digits.data()), digits.size()};
}

std::string to_text(const json& value, int indent) {
  if (indent < 0 && has_long_integer(value)) {
    std::string text;
    write_exactly(value, text);
    return text;
  }
  return value.dump(indent, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

std::string show(const json& value) {
  constexpr std::size_t kBytesMax = 80;
  if (value.is_structured()) return fmt::format("an {} of {}", value.type_name(), value.size());
  std::string text = value.is_binary() ? std::string(digits_of(value))
                                       : value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kBytesMax) text = text.substr(0, kBytesMax) + "...";
  return text;
}

const json& member(const json& object, const char* key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

Result<json> parse_json_object(std::string_view text, std::string_view file, std::size_t bytes_max) {
  if (text.size() > bytes_max)
    return Error(Errc::kOutOfRange, "{}: {} bytes long, wanted at most {}", file, text.size(), bytes_max);
  if (json_nesting(text) > kJsonNestingMax)
    return Error(Errc::kMalformed, "{}: nests deeper than {} levels", file, kJsonNestingMax);
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) return parsed;
  return Error(Errc::kMalformed, "{}: {}, wanted a JSON object", file,
               parsed.is_discarded() ? "not JSON at " + place_of_error(text) : "is " + show(parsed));
}

void FirstError::set(Errc code, std::string_view problem, std::string_view wrong_key) {
  if (error) return;
  error = Error(code, "{}{}{}", file, file.empty() ? "" : ": ", problem);
  key = wrong_key;
}

const json* JsonFields::find(const char* key) const {
  const json& value = member(object_, key);
  return value.is_null() ? nullptr : &value;
}

void JsonFields::fail(Errc code, const char* key, const json& seen, std::string_view wanted) const {
  refuse(key, fmt::format("is {}, wanted {}", show(seen), wanted), code);
}

void JsonFields::refuse(const char* key, std::string_view problem, Errc code) const {
  const std::string path = prefix_ + key;
  first_error_.set(code, fmt::format("{} {}", path, problem), path);
}

void JsonFields::refuse_others(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : object_.items()) {
    if (std::ranges::find(known, key) == known.end())
      refuse(key.c_str(), fmt::format("is no known key; the nearest is {}", nearest_of(known, key)));
  }
}

void JsonFields::wrong(const char* key, std::string_view wanted) const {
  const json* const seen = find(key);
  if (seen != nullptr) return fail(Errc::kMalformed, key, *seen, wanted);
  refuse(key, fmt::format("is missing, wanted {}", wanted), Errc::kMalformed);
}

std::int64_t JsonFields::integer(const char* key, std::optional<std::int64_t> fallback, std::int64_t low,
                                 std::int64_t high) const {
  const json* const value = find(key);
  if (value == nullptr && fallback) return *fallback;
  // An unsigned value beyond the signed range is out of range too.
  const bool fits = value != nullptr && value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(high)) &&
                    low <= value->get<std::int64_t>() && value->get<std::int64_t>() <= high;
  if (fits) return value->get<std::int64_t>();
  wrong(key, low == high ? std::to_string(low) : fmt::format("a whole number from {} to {}", low, high));
  return fallback.value_or(low);
}

double JsonFields::number(const char* key, std::optional<double> fallback, double low, double high) const {
  const json* const value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_number()) {
    const auto x = value->get<double>();
    if (low <= x && x <= high) return x;
  }
  wrong(key, fmt::format("a number from {} to {}", low, high));
  return fallback.value_or(low);
}

bool JsonFields::boolean(const char* key, std::optional<bool> fallback) const {
  const json* const value = find(key);
  if (value != nullptr && value->is_boolean()) return value->get<bool>();
  if (value != nullptr || !fallback) wrong(key, "true or false");
  return fallback.value_or(false);
}

std::string JsonFields::text(const char* key, std::optional<std::string> fallback, std::string_view wanted) const {
  const json* const value = find(key);
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  if (value != nullptr || !fallback) wrong(key, wanted);
  return fallback.value_or("");
}

std::string JsonFields::choice(const char* key, std::optional<std::string> fallback,
                               std::initializer_list<const char*> allowed) const {
  const json* const value = find(key);
  if (value == nullptr && fallback) return *fallback;
  const std::string wanted = fmt::format("{}", fmt::join(allowed, " or "));
  if (value == nullptr || !value->is_string()) {
    wrong(key, wanted);
  } else if (std::ranges::find(allowed, value->get_ref<const std::string&>()) != allowed.end()) {
    return value->get<std::string>();
  } else {
    fail(Errc::kUnsupported, key, *value, wanted);
  }
  return fallback.value_or("");
}

void JsonFields::only(const char* key, bool wanted) const {
  if (boolean(key, wanted) != wanted) fail(Errc::kUnsupported, key, !wanted, wanted ? "true" : "false");
}

JsonFields JsonFields::object(const char* key) const {
  static const json kEmpty = json::object();
  const json* const value = find(key);
  if (value != nullptr && !value->is_object()) fail(Errc::kMalformed, key, *value, "an object");
  return {value != nullptr && value->is_object() ? *value : kEmpty, fmt::format("{}{}.", prefix_, key), first_error_};
}

const json& JsonFields::array(const char* key) const {
  static const json kEmpty = json::array();
  const json* const value = find(key);
  if (value != nullptr && value->is_array()) return *value;
  wrong(key, "an array");
  return kEmpty;
}

void JsonFields::each(const char* key, std::string_view wanted,
                      const std::function<void(const JsonFields&)>& read) const {
  const json* const value = find(key);
  if (value == nullptr) return;
  if (!value->is_array()) wrong(key, wanted);
  for (std::size_t i = 0; i < value->size() && !first_error_.error; ++i) {
    const std::string path = fmt::format("{}{}[{}]", prefix_, key, i);
    const json& item = (*value)[i];
    if (item.is_object())
      read({item, path + ".", first_error_});
    else
      first_error_.set(Errc::kMalformed, fmt::format("{} is {}, wanted an object", path, show(item)), path);
  }
}

}  // namespace outrider
