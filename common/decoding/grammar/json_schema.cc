#include "common/decoding/grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/json_fields.h"
#include "common/decoding/grammar/pattern.h"
#include "common/decoding/grammar/schema_shape.h"
#include "common/decoding/grammar/string_formats.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDepthMax = 64;
constexpr int kSchemasMax = 4096;  ///< in one schema
/// Limit of characters in all of a schema's patterns, with repeats expanded.
constexpr std::int64_t kPatternCharactersMax = 4096;
/// int32's largest value, since XGrammar counts repeats with that type.
constexpr std::int64_t kCountMax = std::numeric_limits<std::int32_t>::max();

/// These keywords do not constrain the value.
constexpr std::array<std::string_view, 13> kAnnotations = {
    "title",    "description", "default", "examples", "deprecated",  "readOnly",     "writeOnly",
    "$comment", "$schema",     "$id",     "$defs",    "definitions", "discriminator"};

struct Type {
  std::string_view name;
  std::vector<std::string_view> keywords;  ///< that constrain its values
};
const std::vector<Type>& types() {
  static const std::vector<std::string_view> numbers = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                                        "multipleOf"};
  static const std::vector<Type> all = {{"object",
                                         {"properties", "required", "additionalProperties", "patternProperties",
                                          "propertyNames", "minProperties", "maxProperties"}},
                                        {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}},
                                        {"string", {"minLength", "maxLength", "pattern", "format"}},
                                        {"number", numbers},
                                        {"integer", numbers},
                                        {"boolean", {}},
                                        {"null", {}}};
  return all;
}
const Type* find_type(std::string_view name) {
  const auto found = std::ranges::find(types(), name, &Type::name);
  return found == types().end() ? nullptr : &*found;
}
template <typename List>
bool has(const List& list, std::string_view word) {
  return !word.empty() && std::ranges::find(list, word) != std::end(list);
}

/// Reads a schema and its subschemas, up to the first that cannot be followed.
class Reader {
 public:
  Reader(const Json& root, ValueText& texts) : root_(root), texts_(texts), shape_(root) {}

  Result<ExactSchema> read() {
    Json result = schema(root_, "#", 0);
    if (error_) return *error_;
    if (impossible(result)) return Error{Errc::kInvalidArgument, "nothing is valid by the JSON schema"};
    for (const char* name : {"$defs", "definitions"}) {
      const auto defs = root_.is_object() ? root_.find(name) : root_.end();
      if (!root_.is_object() || defs == root_.end()) continue;
      if (!defs->is_object()) return refuse(name, "#", "is no object", Errc::kInvalidArgument), *error_;
      Json& read = result[name] = Json::object();
      for (const auto& [key, def] : defs->items()) read[key] = defined(def, fmt::format("#/{}/{}", name, key));
    }
    for (std::size_t i = 0; i < added_.size(); ++i) {
      const Added one = added_[i];
      result["$defs"][one.name] = defined(one.schema, one.at);
    }
    if (error_) return *error_;
    return ExactSchema{std::move(result), std::move(rules_)};
  }

 private:
  static bool impossible(const Json& schema) { return schema == Json(false); }

  Json defined(const Json& def, const std::string& at) {
    Json read = schema(def, at, 1);
    return impossible(read) ? text(R"([^\x00-\U0010ffff])") : read;  // so that a reference to it is a dead end
  }

  /// Returns the placeholder of a rule that matches a text.
  std::string placed(std::string rule) {
    rules_.push_back(std::move(rule));
    return placeholder(rules_.size() - 1);
  }
  Json text(std::string rule) { return {{"const", placed(std::move(rule))}}; }

  /// @return any schema, which is not used
  Json refuse(std::string_view keyword, const std::string& at, std::string_view problem,
              Errc code = Errc::kUnsupported) {
    if (!error_) error_ = Error(code, "JSON schema: '{}' at {} {}", keyword, at, problem);
    return true;
  }

  /// @return false: no value is valid
  Json schema(const Json& in, const std::string& at, int depth) {
    if (error_) return true;
    if (depth > kDepthMax || ++count_ > kSchemasMax) {
      error_ =
          Error(Errc::kOutOfRange, "JSON schema: more than {} levels or {} schemas at {}", kDepthMax, kSchemasMax, at);
      return true;
    }
    if (in.is_boolean()) return in.get<bool>() ? Json::object() : Json(false);
    if (!in.is_object()) {
      error_ = Error(Errc::kInvalidArgument, "JSON schema: {} is {}, wanted an object or a boolean", at,
                     show(nlohmann::json(in.type_name())));
      return true;
    }
    std::vector<std::string_view> keywords;
    for (const auto& [key, value] : in.items()) {
      const bool here = depth == 0 || !(key == "$id" || key == "$defs" || key == "definitions");
      if (has(kAnnotations, key) && here) continue;
      const bool known = has(kGeneral, key) || std::ranges::any_of(types(), [&, &name = key](const Type& type) {
                           return has(type.keywords, name);
                         });
      if (!known) return refuse(key, at, "is not supported");
      keywords.push_back(key);
    }
    for (const std::string_view whole : {"$ref", "allOf", "anyOf", "oneOf"}) {
      if (has(keywords, whole)) return combined(in, whole, keywords, at, depth);
    }
    for (const std::string_view values : {"const", "enum"}) {
      if (has(keywords, values)) return listed(in, values, keywords, at);
    }
    return typed(in, keywords, at, depth);
  }

  /// Reads a keyword that XGrammar follows only when it stands alone.
  Json combined(const Json& in, std::string_view keyword, const std::vector<std::string_view>& keywords,
                const std::string& at, int depth) {
    for (const std::string_view other : keywords) {
      if (other != keyword) return refuse(other, at, fmt::format("is not supported beside '{}'", keyword));
    }
    const Json& value = in[std::string(keyword)];
    if (keyword == "$ref") return reference(value, at);
    if (!value.is_array() || value.empty()) return refuse(keyword, at, "is no list of schemas", Errc::kInvalidArgument);
    if (keyword == "allOf" && value.size() > 1) return refuse(keyword, at, "of more than one schema is not supported");
    std::vector<Json> tagged(value.size());
    if (keyword == "oneOf") {
      tagged = with_tags(in, value);
      if (!excluding(value, tagged, at)) return true;
    }
    Json branches = Json::array();
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string where = fmt::format("{}/{}/{}", at, keyword, i);
      Json branch = schema(value[i], where, depth + 1);
      if (!tagged[i].is_null()) branch = {{"$ref", "#/$defs/" + definition(tagged[i], where)}};
      if (!impossible(branch)) branches.push_back(std::move(branch));
    }
    return one_of(std::move(branches));
  }
  static Json one_of(Json branches) {
    if (branches.empty()) return false;
    if (branches.size() == 1) return std::move(branches[0]);
    return {{"anyOf", std::move(branches)}};
  }

  /// Requires the property of OpenAPI's `discriminator` in branches that have it but do not require it: pydantic writes
  /// such branches if it has a default, and without it they would not exclude each other. Null: unchanged.
  std::vector<Json> with_tags(const Json& in, const Json& branches) const {
    std::vector<Json> result(branches.size());
    const auto discriminator = in.find("discriminator");
    if (discriminator == in.end() || !discriminator->is_object()) return result;
    const Json tag = discriminator->value("propertyName", Json());
    for (std::size_t i = 0; i < branches.size() && tag.is_string(); ++i) {
      const Json& branch = shape_.behind(branches[i]);
      const bool has = branch.is_object() && branch.contains("properties") && branch["properties"].is_object() &&
                       branch["properties"].contains(tag.get<std::string>());
      const Json required = has ? branch.value("required", Json::array()) : Json();
      if (!required.is_array() || std::ranges::find(required, tag) != required.end()) continue;
      result[i] = branch;
      result[i]["required"] = required;
      result[i]["required"].push_back(tag);
    }
    return result;
  }

  /// Adds a definition to $defs, since it may refer to itself. @return its name
  std::string definition(const Json& schema, const std::string& at) {
    const auto known = std::ranges::find(added_, schema, &Added::schema);
    if (known != added_.end()) return known->name;
    std::string name = fmt::format("tagged@{}", added_.size());
    while (shape_.find("#/$defs/" + name) != nullptr) name += '@';
    added_.push_back({name, schema, at});
    return name;
  }

  /// Returns true when no value of one branch is valid by another.
  bool excluding(const Json& branches, const std::vector<Json>& tagged, const std::string& at) {
    const auto written = [&](std::size_t i) -> const Json& { return tagged[i].is_null() ? branches[i] : tagged[i]; };
    for (std::size_t i = 0; i < branches.size(); ++i) {
      for (std::size_t j = i + 1; j < branches.size(); ++j) {
        if (shape_.exclude_each_other(written(i), branches[j]) && shape_.exclude_each_other(branches[i], written(j)))
          continue;
        return refuse("oneOf", at,
                      fmt::format("is not supported, since branches {} and {} are not seen to exclude each other by "
                                  "type, by const or enum, or by such a property that is required",
                                  i, j)),
               false;
      }
    }
    return true;
  }

  Json reference(const Json& value, const std::string& at) {
    if (!value.is_string()) return refuse("$ref", at, "is no text", Errc::kInvalidArgument);
    const auto& target = value.get_ref<const std::string&>();
    if (shape_.find(target) != nullptr) return {{"$ref", target}};
    return refuse("$ref", at,
                  fmt::format("is {}, wanted '#' or the place of a schema in $defs", show(nlohmann::json(target))));
  }

  Json listed(const Json& in, std::string_view keyword, const std::vector<std::string_view>& keywords,
              const std::string& at) {
    const std::vector<std::string> wanted = types_of(in, at);
    for (const std::string_view other : keywords) {
      if (other != keyword && other != "type")
        return refuse(other, at, fmt::format("is not supported beside '{}'", keyword));
    }
    const Json& value = in[std::string(keyword)];
    if (keyword == "enum" && (!value.is_array() || value.empty()))
      return refuse(keyword, at, "is no list of values", Errc::kInvalidArgument);
    Json values = Json::array();
    for (const Json& one : keyword == "const" ? Json::array({value}) : value) {
      if (!exact_number(one)) return refuse(keyword, at, "has a number that is no 64-bit one");
      const bool fits = wanted.empty() || std::ranges::any_of(wanted, [&](const std::string& type) {
                          return SchemaShape::is_of_type(one, type);
                        });
      if (!fits) continue;
      const bool name = naming_ && one.is_string();
      if (one.is_string() || one.is_structured())
        values.push_back(placed(name ? texts_.name(one.get<std::string>()) : texts_.constant(one)));
      else
        values.push_back(one);
    }
    if (values.empty()) return false;
    return {{"enum", std::move(values)}};
  }

  static bool exact_number(const Json& value) {
    if (value.is_number_unsigned()) return value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
    // A whole float beyond 64 bits may have been written with other digits than its value has.
    if (value.is_number_float()) return std::abs(value.get<double>()) < 0x1p63;
    if (value.is_binary()) return false;
    return !value.is_structured() || std::ranges::all_of(value, exact_number);
  }

  /// Returns the names in `type`; empty without it.
  std::vector<std::string> types_of(const Json& in, const std::string& at) {
    std::vector<std::string> wanted;
    const auto type = in.find("type");
    if (type == in.end()) return wanted;
    for (const Json& one : type->is_array() ? *type : Json::array({*type})) {
      if (!one.is_string() || find_type(one.get_ref<const std::string&>()) == nullptr)
        return refuse("type", at, fmt::format("is {}, wanted names of JSON types", show(nlohmann::json(*type))),
                      Errc::kInvalidArgument),
               wanted;
      wanted.push_back(one.get<std::string>());
    }
    if (wanted.empty()) refuse("type", at, "is an empty list", Errc::kInvalidArgument);
    return wanted;
  }

  Json typed(const Json& in, const std::vector<std::string_view>& keywords, const std::string& at, int depth) {
    std::vector<std::string> wanted = types_of(in, at);
    if (wanted.empty()) {
      for (const Type& type : types()) {
        if (type.name != "integer" &&
            std::ranges::any_of(keywords, [&](auto word) { return has(type.keywords, word); }))
          wanted.emplace_back(type.name);
      }
    }
    if (wanted.empty()) return Json::object();
    if (has(wanted, "number")) std::erase(wanted, "integer");
    Json branches = Json::array();
    for (const std::string& type : wanted) {
      Json branch = type == "object"                        ? object(in, at, depth)
                    : type == "array"                       ? array(in, at, depth)
                    : type == "string"                      ? string(in, at)
                    : type == "number" || type == "integer" ? number(in, type, at)
                                                            : Json{{"type", type}};
      if (!impossible(branch)) branches.push_back(std::move(branch));
    }
    return one_of(std::move(branches));
  }

  /// Returns a keyword's count; none if it is absent.
  std::optional<std::int64_t> count(const Json& in, const char* keyword, const std::string& at) {
    const auto found = in.find(keyword);
    if (found == in.end()) return std::nullopt;
    const bool whole = found->is_number() && found->get<double>() >= 0 && found->get<double>() <= kCountMax &&
                       std::floor(found->get<double>()) == found->get<double>();
    if (whole) return static_cast<std::int64_t>(found->get<double>());
    refuse(keyword, at, fmt::format("is {}, wanted 0 to {}", show(nlohmann::json(*found)), kCountMax),
           Errc::kInvalidArgument);
    return std::nullopt;
  }
  /// Copies both bounds of a count. @return false if no count is between them
  bool counts(const Json& in, Json& out, const char* low, const char* high, const std::string& at) {
    const std::optional<std::int64_t> least = count(in, low, at), most = count(in, high, at);
    if (least && *least > 0) out[low] = *least;
    if (most) out[high] = *most;
    return !most || least.value_or(0) <= *most;
  }

  Json string(const Json& in, const std::string& at) {
    Json bounds = Json::object();
    if (!counts(in, bounds, "minLength", "maxLength", at)) return false;
    Json out;
    for (const char* keyword : {"pattern", "format"}) {
      const auto found = in.find(keyword);
      if (found == in.end()) continue;
      if (!found->is_string()) return refuse(keyword, at, "is no text", Errc::kInvalidArgument);
      if (!out.is_null()) return refuse(keyword, at, "is not supported beside 'pattern'");
      const auto& text = found->get_ref<const std::string&>();
      out = keyword == std::string_view("pattern") ? pattern(text, keyword, at, bounds) : format(text, at, bounds);
    }
    if (!out.is_null()) return out;
    return text(texts_.text(bounds.value("minLength", 0), bounds.value("maxLength", -1)));
  }

  /// @param bounds  minLength and maxLength, if any
  Json pattern(const std::string& text, std::string_view keyword, const std::string& at, const Json& bounds = {}) {
    const Result<Pattern> read = read_pattern(text);
    if (!read) return refuse(keyword, at, read.error().message, read.error().code);
    const auto too_long = [&](const Pattern& pattern) {
      if (pattern.characters <= pattern_characters_left_) return false;
      refuse(keyword, at,
             fmt::format("has {} characters with its repeats written out, wanted at most {}", pattern.characters,
                         pattern_characters_left_));
      return true;
    };
    if (too_long(*read)) return false;
    const std::optional<Pattern> bounded = bounded_by(bounds, *read, keyword, at);
    if (!bounded || too_long(*bounded)) return false;
    pattern_characters_left_ -= bounded->characters;
    return bounded->matches_nothing() ? Json(false) : this->text(texts_.pattern(*bounded));
  }

  Json format(const std::string& name, const std::string& at, const Json& bounds) {
    const std::optional<std::string> known = format_pattern(name);
    if (!known) return refuse("format", at, fmt::format("{} is not supported", show(nlohmann::json(name))));
    const std::optional<Pattern> bounded = bounded_by(bounds, read_pattern(*known).value(), "format", at);
    if (!bounded) return false;
    return bounded->matches_nothing() ? Json(false) : text(texts_.pattern(*bounded));
  }

  /// Returns the pattern restricted to such lengths; none: it was refused.
  std::optional<Pattern> bounded_by(const Json& bounds, const Pattern& pattern, std::string_view keyword,
                                    const std::string& at) {
    if (bounds.empty()) return pattern;
    std::optional<Pattern> bounded = of_length(pattern, bounds.value("minLength", 0), bounds.value("maxLength", -1));
    if (!bounded)
      refuse(keyword, at,
             fmt::format("beside 'minLength' and 'maxLength' can share the characters among its parts in more than {} "
                         "ways, wanted fewer",
                         kSharesMax));
    return bounded;
  }

  Json number(const Json& in, const std::string& type, const std::string& at) {
    Json out = {{"type", type}};
    for (const char* keyword : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
      const auto found = in.find(keyword);
      if (found == in.end()) continue;
      if (!found->is_number() || !exact_number(*found))
        return refuse(keyword, at, "is no 64-bit number", Errc::kInvalidArgument);
      const double value = found->get<double>();
      if (keyword == std::string_view("multipleOf") && (type == "number" || std::floor(value) != value))
        return refuse(keyword, at, "is only supported for integers, of integers");
      out[keyword] = *found;
      // A fractional bound of integers is rounded inwards.
      if (type == "integer" && found->is_number_float()) {
        if (std::abs(value) > 9e15) return refuse(keyword, at, "is too large a bound for integers");
        const bool upper = std::string_view(keyword).ends_with("aximum");
        const bool exact = std::floor(value) == value;
        out.erase(keyword);
        if (exact)
          out[keyword] = static_cast<std::int64_t>(value);
        else
          tighten(out, upper, static_cast<std::int64_t>(upper ? std::floor(value) : std::ceil(value)));
      }
    }
    return out;
  }
  static void tighten(Json& out, bool upper, std::int64_t bound) {
    const char* keyword = upper ? "maximum" : "minimum";
    const auto known = out.find(keyword);
    if (known != out.end() && known->is_number_integer())
      bound = upper ? std::min(bound, known->get<std::int64_t>()) : std::max(bound, known->get<std::int64_t>());
    out[keyword] = bound;
  }

  Json array(const Json& in, const std::string& at, int depth) {
    Json out = {{"type", "array"}};
    if (const auto unique = in.find("uniqueItems"); unique != in.end() && *unique != Json(false))
      return refuse("uniqueItems", at, "is not supported");
    if (!counts(in, out, "minItems", "maxItems", at)) return false;
    const std::int64_t least = out.value("minItems", std::int64_t{0});
    std::optional<std::int64_t> most;
    if (out.contains("maxItems")) most = out["maxItems"].get<std::int64_t>();
    Json prefix = Json::array();
    bool cut = false;  // no item may follow the prefix
    if (const auto items = in.find("prefixItems"); items != in.end()) {
      if (!items->is_array()) return refuse("prefixItems", at, "is no list", Errc::kInvalidArgument);
      for (std::size_t i = 0; i < items->size() && !cut; ++i) {
        Json item = schema((*items)[i], fmt::format("{}/prefixItems/{}", at, i), depth + 1);
        cut = impossible(item) || (most && std::ssize(prefix) == *most);
        if (!cut) prefix.push_back(std::move(item));
      }
      cut = cut || !in.contains("items");
    }
    const Json rest = in.contains("items") && !cut ? schema(in["items"], at + "/items", depth + 1) : Json::object();
    cut = cut || impossible(rest);
    if (cut && least > std::ssize(prefix)) return false;
    if (!prefix.empty()) out["prefixItems"] = prefix;
    if (cut && prefix.empty()) out["maxItems"] = 0;
    out["items"] = cut && !prefix.empty() ? Json(false) : cut ? Json::object() : rest;
    if (cut && !prefix.empty()) out.erase("maxItems");  // the prefix alone bounds their number
    return out;
  }

  Json object(const Json& in, const std::string& at, int depth) {
    Json out = {{"type", "object"}};
    Json properties = Json::object();
    std::set<std::string> wanted;
    for (const char* keyword : {"properties", "patternProperties"}) {
      if (const auto found = in.find(keyword); found != in.end() && !found->is_object())
        return refuse(keyword, at, "is no object", Errc::kInvalidArgument);
    }
    if (const auto found = in.find("required"); found != in.end()) {
      if (!found->is_array()) return refuse("required", at, "is no list", Errc::kInvalidArgument);
      for (const Json& name : *found) {
        if (!name.is_string()) return refuse("required", at, "has what is no text", Errc::kInvalidArgument);
        wanted.insert(name.get<std::string>());
      }
    }
    if (const auto found = in.find("properties"); found != in.end()) {
      for (const auto& [name, property] : found->items()) {
        Json read = schema(property, fmt::format("{}/properties/{}", at, name), depth + 1);
        if (!impossible(read))
          properties[name] = std::move(read);
        else if (wanted.contains(name))
          return false;
      }
    }
    const auto patterns = in.find("patternProperties");
    const auto additional = in.find("additionalProperties");
    const bool patterned = patterns != in.end() && !patterns->empty();
    Json others =
        additional == in.end() ? Json::object() : schema(*additional, at + "/additionalProperties", depth + 1);
    for (const std::string& name : wanted) {
      const bool named = in.contains("properties") && in["properties"].contains(name);
      if (named || properties.contains(name)) continue;
      if (patterned)
        return refuse("required", at, "of another than 'properties' is not supported beside 'patternProperties'");
      if (impossible(others)) return false;
      properties[name] = others;
    }
    return bounded_object(in, std::move(out), std::move(properties), wanted, std::move(others), patterned, at, depth);
  }

  /// Reads the constraints on an object's other properties, and on the number of properties.
  Json bounded_object(const Json& in, Json out, Json properties, const std::set<std::string>& wanted, Json others,
                      bool patterned, const std::string& at, int depth) {
    const bool closed = !properties.empty() || patterned || impossible(others);
    if (!counts(in, out, "minProperties", "maxProperties", at)) return false;
    if (patterned) {
      const Json& patterns = in["patternProperties"];
      if (in.contains("properties") || patterns.size() > 1)
        return refuse("patternProperties", at, "is only supported of one pattern, without 'properties'");
      const auto& pattern = patterns.begin();
      Json read = schema(pattern.value(), fmt::format("{}/patternProperties/{}", at, pattern.key()), depth + 1);
      Json names = this->pattern(pattern.key(), "patternProperties", at);
      if (impossible(read) || impossible(names))
        return refuse("patternProperties", at, "that nothing is valid by are not supported");
      out["propertyNames"] = std::move(names);
      others = std::move(read);
    }
    if (const auto names = in.find("propertyNames"); names != in.end()) {
      if (closed) return refuse("propertyNames", at, "is not supported beside other properties");
      Json of_names = *names;
      if (of_names.is_object() && !of_names.contains("type") && !of_names.contains("enum") &&
          !of_names.contains("const"))
        of_names["type"] = "string";
      naming_ = true;
      Json read = schema(of_names, at + "/propertyNames", depth + 1);
      naming_ = false;
      if (impossible(read) || shape_.types(of_names) != SchemaShape::kString)
        return refuse("propertyNames", at, "is only supported of type string");
      if (others != Json::object())
        return refuse("propertyNames", at, "is not supported beside 'additionalProperties'");
      out["propertyNames"] = std::move(read);
    }
    // A name may occur twice when names are free, but counts once.
    const bool free = !closed || patterned;
    if (free && out.value("minProperties", 0) > 1)
      return refuse("minProperties", at, "above 1 is not supported where names are free");
    for (auto& [name, property] : properties.items()) {
      const std::string place = placed(texts_.name(name));
      out["properties"][place] = std::move(property);
      if (wanted.contains(name)) out["required"].push_back(place);
    }
    out["additionalProperties"] = closed && !patterned ? Json(false) : std::move(others);
    if (out["additionalProperties"] == Json::object()) out["additionalProperties"] = true;
    return out;
  }

  static constexpr std::array<std::string_view, 7> kGeneral = {"type",  "enum",  "const", "$ref",
                                                               "allOf", "anyOf", "oneOf"};
  const Json& root_;
  ValueText& texts_;
  SchemaShape shape_;
  std::vector<std::string> rules_;
  struct Added {
    std::string name;
    Json schema;
    std::string at;
  };
  std::vector<Added> added_;  ///< definitions
  bool naming_ = false;       ///< reading a schema of names
  int count_ = 0;
  std::int64_t pattern_characters_left_ = kPatternCharactersMax;
  std::optional<Error> error_;
};

}  // namespace

std::string placeholder(std::size_t index) { return fmt::format("@{}@", index); }

Result<ExactSchema> exact_schema(const nlohmann::ordered_json& schema, ValueText& texts) {
  return Reader(schema, texts).read();
}

}  // namespace outrider
