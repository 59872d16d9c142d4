#pragma once

#include <nlohmann/json.hpp>

namespace outrider {

/// Keeps the order of members.
using Json = nlohmann::ordered_json;

}  // namespace outrider
