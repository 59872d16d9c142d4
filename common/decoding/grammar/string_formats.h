#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outrider {

/// A regular expression for texts of a `format` of JSON Schema; none for one that is not known. Narrower than the
/// format: years have four digits from 1000 on, e-mail addresses no quotes, seconds are 59 at most.
std::optional<std::string> format_pattern(std::string_view format);

}  // namespace outrider
