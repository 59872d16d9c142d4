#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace outrider {

/// Formats one log line as a JSON object without a line feed. KEY=VALUE and KEY="VALUE" become fields; other text
/// becomes `message`. The common keys (time, name, level) take precedence over the text's own.
/// @param bytes_max  of the line; longer values are cut
std::string json_log_line(std::string_view time, std::string_view name, std::string_view level, std::string_view text,
                          std::size_t bytes_max);

}  // namespace outrider
