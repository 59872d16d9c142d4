#include "common/decoding/grammar/schema_shape.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace outrider {
namespace {
using Json = SchemaShape::Json;

constexpr int kProofDepthMax = 32;

const Json kAnything = true, kNothing = false;

/// Returns the list under `key`; empty if there is none.
const Json& list_at(const Json& schema, const char* key) {
  static const Json kNone = Json::array();
  const auto found = schema.find(key);
  return found != schema.end() && found->is_array() ? *found : kNone;
}

/// Returns the values of `const` or `enum`; null: neither is there.
const Json* values_of(const Json& schema, Json& storage) {
  if (const auto one = schema.find("const"); one != schema.end()) return &(storage = Json::array({*one}));
  const auto some = schema.find("enum");
  return some != schema.end() && some->is_array() ? &*some : nullptr;
}

unsigned type_of(const Json& value) {
  if (value.is_object()) return SchemaShape::kObject;
  if (value.is_array()) return SchemaShape::kArray;
  if (value.is_string()) return SchemaShape::kString;
  if (value.is_boolean()) return SchemaShape::kBoolean;
  if (value.is_null()) return SchemaShape::kNull;
  const bool whole = !value.is_number_float() || std::floor(value.get<double>()) == value.get<double>();
  return whole ? SchemaShape::kInteger : SchemaShape::kFraction;
}

unsigned type_named(const Json& name) {
  if (name == "object") return SchemaShape::kObject;
  if (name == "array") return SchemaShape::kArray;
  if (name == "string") return SchemaShape::kString;
  if (name == "integer") return SchemaShape::kInteger;
  if (name == "number") return SchemaShape::kInteger | SchemaShape::kFraction;
  if (name == "boolean") return SchemaShape::kBoolean;
  return name == "null" ? SchemaShape::kNull : SchemaShape::kAnyType;
}

/// Returns the schema for a property, in an object that has it.
const Json& property(const Json& schema, const std::string& name) {
  const auto properties = schema.find("properties");
  if (properties != schema.end() && properties->is_object() && properties->contains(name)) return (*properties)[name];
  const auto others = schema.find("additionalProperties");
  return others == schema.end() || schema.contains("patternProperties") ? kAnything : *others;
}

struct Bound {
  double at = -std::numeric_limits<double>::infinity();
  bool open = false;
};
/// Returns the lower bound of its numbers, or of their negatives.
Bound lowest(const Json& schema, bool negated) {
  Bound low;
  for (const bool open : {false, true}) {
    const auto found = schema.find(negated ? (open ? "exclusiveMaximum" : "maximum")
                                   : open  ? "exclusiveMinimum"
                                           : "minimum");
    if (found == schema.end() || !found->is_number()) continue;
    const double at = negated ? -found->get<double>() : found->get<double>();
    if (at >= low.at) low = {at, open};
  }
  return low;
}
bool is_below(const Json& a, const Json& b) {
  const Bound high = lowest(a, true), low = lowest(b, false);
  // Larger whole numbers may be equal as doubles only.
  const bool touch = low.at == -high.at && std::abs(low.at) < 0x1p53;
  return low.at > -high.at || (touch && (low.open || high.open));
}

}  // namespace

bool SchemaShape::is_of_type(const Json& value, const std::string& name) {
  return (type_of(value) & type_named(name)) != 0;
}

const Json* SchemaShape::find(const std::string& target) const {
  if (target == "#") return &root_;
  for (const char* defs : {"$defs", "definitions"}) {
    const std::string start = fmt::format("#/{}/", defs);
    if (!target.starts_with(start) || !root_.is_object()) continue;
    const std::string name = target.substr(start.size());
    const bool plain = name.find_first_of("~%/\"") == name.npos && !name.empty();
    const auto list = root_.find(defs);
    if (plain && list != root_.end() && list->is_object() && list->contains(name)) return &(*list)[name];
  }
  return nullptr;
}

const Json& SchemaShape::behind(const Json& schema) const {
  const Json* here = &schema;
  for (int i = 0; i < kProofDepthMax && here->is_object(); ++i) {
    const auto target = here->find("$ref");
    const Json& whole = list_at(*here, "allOf");
    const Json* next = whole.size() == 1 ? &whole[0] : nullptr;
    if (target != here->end() && target->is_string()) next = find(target->get_ref<const std::string&>());
    if (next == nullptr) break;
    here = next;
  }
  return *here;
}

unsigned SchemaShape::types(const Json& schema) { return types(schema, 0); }

unsigned SchemaShape::types(const Json& schema, int depth) {
  const Json& in = behind(schema);
  if (in == kNothing) return 0;
  if (!in.is_object() || depth > kProofDepthMax || --steps_left_ < 0) return kAnyType;
  unsigned all = kAnyType;
  if (const auto type = in.find("type"); type != in.end()) {
    unsigned named = 0;
    for (const Json& one : type->is_array() ? *type : Json::array({*type})) named |= type_named(one);
    all &= named;
  }
  Json storage;
  if (const Json* const values = values_of(in, storage)) {
    unsigned listed = 0;
    for (const Json& value : *values) listed |= type_of(value);
    all &= listed;
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const Json& branches = list_at(in, key);
    unsigned some = branches.empty() ? unsigned{kAnyType} : 0;
    for (const Json& branch : branches) some |= types(branch, depth + 1);
    all &= some;
  }
  return all;
}

bool SchemaShape::exclude_each_other(const Json& a, const Json& b) { return apart(a, b, 0); }

bool SchemaShape::apart(const Json& first, const Json& second, int depth) {
  if (depth > kProofDepthMax || --steps_left_ < 0) return false;
  const Json &a = behind(first), &b = behind(second);
  const unsigned common = types(a, depth) & types(b, depth);
  if (common == 0) return true;
  if (!a.is_object() || !b.is_object()) return false;
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const char* key : {"anyOf", "oneOf"}) {
      const Json& branches = list_at(*one, key);
      const auto is_apart = [&, &whole = *other](const Json& branch) { return apart(branch, whole, depth + 1); };
      if (!branches.empty() && std::ranges::all_of(branches, is_apart)) return true;
    }
    Json storage;
    const Json* const values = values_of(*one, storage);
    const auto cannot_be = [&, &whole = *other](const Json& value) { return !may_be(value, whole, depth); };
    if (values != nullptr && std::ranges::all_of(*values, cannot_be)) return true;
  }
  if ((common & ~unsigned{kInteger | kFraction}) == 0) return is_below(a, b) || is_below(b, a);
  return common == kObject && apart_by_properties(a, b, depth);
}

/// Two schemas exclude each other if a property that one of them requires cannot be valid by both.
bool SchemaShape::apart_by_properties(const Json& a, const Json& b, int depth) {
  for (const Json* const schema : {&a, &b}) {
    for (const Json& name : list_at(*schema, "required")) {
      if (!name.is_string()) continue;
      const auto& key = name.get_ref<const std::string&>();
      if (apart(property(a, key), property(b, key), depth + 1)) return true;
    }
  }
  return false;
}

bool SchemaShape::may_be(const Json& value, const Json& schema, int depth) {
  const Json& in = behind(schema);
  if (depth > kProofDepthMax || --steps_left_ < 0) return true;
  if ((types(in, depth) & type_of(value)) == 0) return false;
  if (!in.is_object()) return true;
  Json storage;
  const Json* const values = values_of(in, storage);
  // The order of an object's members does not matter.
  const auto is_equal = [&](const Json& other) { return nlohmann::json(other) == nlohmann::json(value); };
  if (values != nullptr && std::ranges::none_of(*values, is_equal)) return false;
  for (const char* key : {"anyOf", "oneOf"}) {
    const Json& branches = list_at(in, key);
    const auto fits = [&](const Json& branch) { return may_be(value, branch, depth + 1); };
    if (!branches.empty() && std::ranges::none_of(branches, fits)) return false;
  }
  if (!value.is_object()) return true;
  const Json& wanted = list_at(in, "required");
  const auto is_missing = [&](const Json& name) {
    return name.is_string() && !value.contains(name.get<std::string>());
  };
  if (std::ranges::any_of(wanted, is_missing)) return false;
  for (const auto& [name, member] : value.items()) {
    if (!may_be(member, property(in, name), depth + 1)) return false;
  }
  return true;
}

}  // namespace outrider
