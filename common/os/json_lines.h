#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace outrider {

/// One line of a log as a JSON object without a line feed. What is written as KEY=VALUE or KEY="VALUE" becomes a field;
/// other text becomes `message`. The keys that every line has (time, name, level) win over the text's own.
/// @param bytes_max  of the line; longer values are cut
std::string json_log_line(std::string_view time, std::string_view name, std::string_view level, std::string_view text,
                          std::size_t bytes_max);

}  // namespace outrider
