#pragma once

#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace outrider {

/// One line to standard error with the program's name in front. What cannot be printed becomes '?', whoever wrote it.
void complain_text(std::string_view text);
/// The same of these values, as fmt::format makes it.
template <typename... T>
void complain(fmt::format_string<T...> format, T&&... values) {
  complain_text(fmt::format(format, std::forward<T>(values)...));
}

}  // namespace outrider
