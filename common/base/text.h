#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/base/ascii.h"

namespace outrider {

/// Replaces every occurrence of `from`, which is not empty; replacements are not searched again.
inline std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  result.reserve(text.size());
  std::size_t done = 0;
  for (std::size_t at; (at = text.find(from, done)) != text.npos; done = at + from.size())
    result.append(text, done, at - done).append(to);
  return result.append(text, done);
}

/// Reads two hexadecimal digits of either case per byte. @return false unless the text has exactly these
inline bool read_hex(std::string_view digits, std::span<std::uint8_t> bytes) {
  bool fits = digits.size() == 2 * bytes.size();
  for (std::size_t i = 0; fits && i < bytes.size(); ++i)
    fits = std::from_chars(digits.data() + 2 * i, digits.data() + 2 * i + 2, bytes[i], 16).ptr ==
           digits.data() + 2 * i + 2;
  return fits;
}

/// Parses the whole text as a number; none if it is something else, or out of T's range.
/// @param base  as in std::from_chars()
template <typename T>
std::optional<T> to_number(std::string_view text, auto... base) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base...);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

/// Removes the byte order mark that Windows editors put before UTF-8.
inline std::string_view without_byte_order_mark(std::string_view text) {
  return text.substr(text.starts_with("\xEF\xBB\xBF") ? 3 : 0);
}

/// Splits at line ends of Unix or Windows, and removes them. Text after the last end is a line too, unless empty.
inline std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    lines.emplace_back(line.substr(0, line.size() - (line.ends_with('\r') ? 1 : 0)));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return lines;
}

/// Returns "1 token", "2 tokens". @param thing  one of them, whose plural has an s
inline std::string counted(std::integral auto count, std::string_view thing) {
  return std::to_string(count) + " " + std::string(thing) + (count == 1 ? "" : "s");
}

inline constexpr std::size_t kWordMax = 64;
/// Returns true if a text is 1 to kWordMax ASCII letters, digits and `others`.
inline bool is_word(std::string_view text, std::string_view others) {
  return !text.empty() && text.size() <= kWordMax &&
         std::ranges::all_of(text, [&](char c) { return is_letter_or_digit(c) || others.find(c) != others.npos; });
}

}  // namespace outrider
