#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "common/base/result.h"

namespace outrider {

/// It says beforehand what values a JSON schema, and each within it, may have. All answers are on the safe side,
/// whatever the schema is: what is not known may be.
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

  /// Whether a value is of the type of this name. @pre it names one
  static bool is_of_type(const Json& value, const std::string& name);

  /// @param root  what `$ref` is relative to; outlives this
  explicit SchemaShape(const Json& root) : root_(root) {}

  /// The schema that `$ref: target` names: '#', or one in $defs. Null: none.
  const Json* find(const std::string& target) const;
  /// `schema`, or what it only refers to.
  const Json& behind(const Json& schema) const;
  /// Types that its values may have.
  unsigned types(const Json& schema);
  /// Whether it is proved that no value is valid by both.
  bool exclude_each_other(const Json& a, const Json& b);

 private:
  bool apart(const Json& a, const Json& b, int depth);
  bool apart_by_properties(const Json& a, const Json& b, int depth);
  unsigned types(const Json& schema, int depth);
  bool may_be(const Json& value, const Json& schema, int depth);

  const Json& root_;
  int steps_left_ = 100'000;  ///< of all proofs: references multiply
};

}  // namespace outrider
