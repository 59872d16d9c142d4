#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "common/base/result.h"

namespace outrider {

/// Determines which values a JSON schema and its subschemas may have. All answers are conservative: anything unknown
/// counts as possible.
class SchemaShape {
 public:
  using Json = nlohmann::ordered_json;

  /// A set of JSON types. Numbers are integers or fractions.
  enum Types : unsigned {
    kObject = 1,
    kArray = 2,
    kString = 4,
    kInteger = 8,
    kFraction = 16,
    kBoolean = 32,
    kNull = 64,
    kAnyType = 127
  };

  /// Returns true when a value has the named type. @pre `name` is a type
  static bool is_of_type(const Json& value, const std::string& name);

  /// @param root  resolves `$ref`; outlives this object
  explicit SchemaShape(const Json& root) : root_(root) {}

  /// Returns the schema that `$ref: target` names: '#', or one in $defs. Null: none.
  const Json* find(const std::string& target) const;
  /// Returns `schema`, or the target if it is only a reference.
  const Json& behind(const Json& schema) const;
  /// Returns the types that its values may have.
  unsigned types(const Json& schema);
  /// Returns true when provably no value is valid by both.
  bool exclude_each_other(const Json& a, const Json& b);

 private:
  bool apart(const Json& a, const Json& b, int depth);
  bool apart_by_properties(const Json& a, const Json& b, int depth);
  unsigned types(const Json& schema, int depth);
  bool may_be(const Json& value, const Json& schema, int depth);

  const Json& root_;
  int steps_left_ = 100'000;  ///< budget of all proofs, since references multiply
};

}  // namespace outrider
