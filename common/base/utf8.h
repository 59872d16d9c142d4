#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace outrider {

enum class Utf8 {
  kValid,       ///< a whole character
  kIncomplete,  ///< could become a character if more bytes follow
  kInvalid,     ///< cannot, whatever follows
};

struct Utf8Scan {
  Utf8 state;
  std::size_t length;  ///< bytes of the character when valid, else 0
};

/// Scans the start of `text`. Strict, as Unicode 15 table 3-7: no overlong forms, no surrogates, nothing above
/// U+10FFFF. Empty text is incomplete.
inline Utf8Scan scan_utf8(std::string_view text) {
  constexpr Utf8Scan kIncomplete{Utf8::kIncomplete, 0};
  constexpr Utf8Scan kInvalid{Utf8::kInvalid, 0};
  if (text.empty()) return kIncomplete;

  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Utf8::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return kInvalid;
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;

  // Only the second byte's range depends on the lead byte.
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return kIncomplete;
    if (byte(i) < low || byte(i) > high) return kInvalid;
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8::kValid, length};
}

/// Returns true if the text consists of whole characters.
inline bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Scan scan = scan_utf8(text);
    if (scan.state != Utf8::kValid) return false;
    text.remove_prefix(scan.length);
  }
  return true;
}

/// Sanitises untrusted text for a log or a terminal: invalid UTF-8 and every control character (line ends and ESC among
/// them) becomes '?'.
inline std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const Utf8Scan scan = scan_utf8(text);
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const bool control = scan.length == 1 ? byte(0) < 0x20 || byte(0) == 0x7F
                                          : scan.length == 2 && byte(0) == 0xC2 && byte(1) < 0xA0;
    const std::size_t length = scan.state == Utf8::kValid ? scan.length : 1;
    if (scan.state == Utf8::kValid && !control) {
      result += text.substr(0, length);
    } else {
      result += '?';
    }
    text.remove_prefix(length);
  }
  return result;
}

}  // namespace outrider
