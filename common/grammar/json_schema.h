#pragma once

#include <nlohmann/json.hpp>

#include "common/base/result.h"

namespace outrider {

/// A schema whose every keyword XGrammar follows, and that lets nothing in which `schema` does not. XGrammar ignores
/// what it does not know and what stands beside `$ref`, `enum`, `anyOf` and the like; what cannot be said in its own
/// terms is refused here. Narrower than the schema where JSON Schema is wide: objects with properties have no others,
/// tuples no further items, and a schema that bounds values of some types has these types, unless it says otherwise.
/// @return kUnsupported or kInvalidArgument, with the keyword and where it is; kOutOfRange for one too large or deep
Result<nlohmann::ordered_json> exact_schema(const nlohmann::ordered_json& schema);

}  // namespace outrider
