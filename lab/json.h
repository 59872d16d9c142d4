#pragma once

#include <nlohmann/json.hpp>

namespace outrider {

/// Keeps the order in which things are named.
using Json = nlohmann::ordered_json;

}  // namespace outrider
