#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "common/decoding/grammar/value_text.h"

namespace outrider {

/// A schema whose every keyword XGrammar follows, and that lets nothing in which the one it was made of does not.
struct ExactSchema {
  nlohmann::ordered_json schema;
  /// They match a text, a property's name or a constant. In `schema` stands the text placeholder() instead, since
  /// XGrammar's converter writes those wrongly, or only as JSON.
  std::vector<std::string> rules;
};
std::string placeholder(std::size_t index);

/// XGrammar ignores what it does not know and what stands beside `$ref`, `enum`, `anyOf` and the like; what cannot be
/// said in its own terms is refused here. Narrower than the schema where JSON Schema is wide: objects with properties
/// have no others, tuples no further items, and a schema that bounds values of some types has these types, unless it
/// says otherwise.
/// @param texts  the form of the values
/// @return kUnsupported or kInvalidArgument, with the keyword and where it is; kOutOfRange for one too large or deep
Result<ExactSchema> exact_schema(const nlohmann::ordered_json& schema, ValueText& texts);

}  // namespace outrider
