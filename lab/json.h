#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

#include "common/base/json_nesting.h"

namespace outrider {

/// Keeps the order of members.
using Json = nlohmann::ordered_json;

/// Parses a file's text; discarded: a syntax error, or too deep.
inline Json parse_ordered(std::string_view text) {
  return json_nesting(text) > kJsonNestingMax ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
}

}  // namespace outrider
