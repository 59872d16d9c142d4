#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace outrider {

// PNG files that are made here, good ones and bad ones.

inline std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}
inline std::string png_chunk(const std::string& name_and_data) {
  std::uint32_t crc = ~0u;
  for (const char byte : name_and_data) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return big_endian(static_cast<std::uint32_t>(name_and_data.size() - 4)) + name_and_data + big_endian(~crc);
}
/// A stream of zlib that is not compressed.
inline std::string zlib_stored(const std::string& data) {
  std::string stream = "\x78\x01";
  std::uint32_t a = 1, b = 0;
  for (const char byte : data) a = (a + static_cast<unsigned char>(byte)) % 65521, b = (b + a) % 65521;
  for (std::size_t at = 0; at < data.size(); at += 65535) {
    const auto size = static_cast<std::uint16_t>(std::min<std::size_t>(65535, data.size() - at));
    stream += static_cast<char>(at + size == data.size());
    for (const std::uint16_t value : {size, static_cast<std::uint16_t>(~size)})
      stream += static_cast<char>(value & 255), stream += static_cast<char>(value >> 8);
    stream += data.substr(at, size);
  }
  return stream + big_endian(b << 16 | a);
}
/// A PNG in 8-bit RGB that says it has this size.
inline std::string png(std::uint32_t width, std::uint32_t height, const std::string& rows) {
  return "\x89PNG\r\n\x1a\n" +
         png_chunk("IHDR" + big_endian(width) + big_endian(height) + std::string("\x8\x2\0\0\0", 5)) +
         png_chunk("IDAT" + zlib_stored(rows)) + png_chunk("IEND");
}

}  // namespace outrider
