#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "common/decoding/grammar/value_text.h"

namespace outrider {

/// A schema that uses only keywords that XGrammar follows, and admits no more values than its original.
struct ExactSchema {
  nlohmann::ordered_json schema;
  /// EBNF of texts, property names and constants, which XGrammar's converter writes wrongly, or only as JSON. In
  /// `schema` the text placeholder() stands for each.
  std::vector<std::string> rules;
};
std::string placeholder(std::size_t index);

/// Rewrites a schema for XGrammar, which ignores unknown keywords and those beside `$ref`, `enum`, `anyOf` and the
/// like; constraints that its subset cannot express are refused. The result is narrower than the schema where JSON
/// Schema is permissive: objects with properties have no others, tuples have no further items, and a schema that
/// constrains values of some types has these types, unless it says otherwise. @param texts  the form of the values
/// @return kUnsupported or kInvalidArgument, with the keyword and its location; kOutOfRange if too large or deep
Result<ExactSchema> exact_schema(const nlohmann::ordered_json& schema, ValueText& texts);

}  // namespace outrider
