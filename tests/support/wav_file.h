#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace outrider {

/// A WAV file of float samples [frames, channels], whose head says that they are of so many channels at this rate.
inline std::string wav(std::uint32_t rate, std::uint16_t channels, const std::vector<float>& samples) {
  const auto number = [](auto value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
  const auto chunk = [&](const char* name, const std::string& data) {
    return name + number(static_cast<std::uint32_t>(data.size())) + data;
  };
  constexpr std::uint16_t kFloat = 3, kBits = 32;
  const auto frame_bytes = static_cast<std::uint16_t>(4 * channels);
  const std::string format = number(kFloat) + number(channels) + number(rate) + number(rate * frame_bytes) +
                             number(frame_bytes) + number(kBits);
  std::string data(4 * samples.size(), '\0');
  if (!samples.empty()) std::memcpy(data.data(), samples.data(), data.size());
  return chunk("RIFF", "WAVE" + chunk("fmt ", format) + chunk("data", data));
}

}  // namespace outrider
