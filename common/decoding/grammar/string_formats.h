#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outrider {

/// Returns a regular expression for a `format` of JSON Schema; none if unknown. Narrower than the format: years have
/// four digits from 1000 on, e-mail addresses have no quotes, seconds are 59 at most.
std::optional<std::string> format_pattern(std::string_view format);

}  // namespace outrider
