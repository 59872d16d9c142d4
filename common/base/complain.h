#pragma once

#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace outrider {

/// Writes one line to standard error, after the program's name. Anything unprintable becomes '?'.
void complain_text(std::string_view text);
/// The same with fmt::format().
template <typename... T>
void complain(fmt::format_string<T...> format, T&&... values) {
  complain_text(fmt::format(format, std::forward<T>(values)...));
}

}  // namespace outrider
