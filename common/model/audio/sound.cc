#include "common/model/audio/sound.h"

#include <samplerate.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "common/model/audio/audio_features.h"
#include "common/model/audio/sound_decoders.h"
#include "common/os/files.h"

namespace outrider {
namespace {

bool is_mp3(std::string_view head) {
  const bool frame = head.size() >= 2 && head[0] == '\xff' && (static_cast<unsigned char>(head[1]) & 0xe0) == 0xe0;
  return frame || head.starts_with("ID3");
}

bool is_wav_flac_ogg(std::string_view head) {
  const bool wav = head.starts_with("RIFF") && head.size() >= 12 && head.substr(8, 4) == "WAVE";
  return wav || head.starts_with("fLaC") || head.starts_with("OggS");
}

Result<std::vector<float>> resample(const std::vector<float>& from, int rate, const std::string& name) {
  const double ratio = static_cast<double>(kSampleRate) / rate;
  std::vector<float> to(static_cast<std::size_t>(std::ceil(static_cast<double>(from.size()) * ratio)) + 1);
  SRC_DATA data = {};
  data.data_in = from.data(), data.input_frames = std::ssize(from);
  data.data_out = to.data(), data.output_frames = std::ssize(to);
  data.src_ratio = ratio;
  if (const int error = src_simple(&data, SRC_SINC_BEST_QUALITY, 1); error != 0)
    return file_error(Errc::kMalformed, name, "resampling: {}", src_strerror(error));
  to.resize(static_cast<std::size_t>(data.output_frames_gen));
  return to;
}

}  // namespace

Result<void> admit_sound(int channels, int rate, std::int64_t samples, const std::string& name,
                         const AdmitSound& admit) {
  if (channels < 1 || channels > kSoundChannelsMax || rate < kSoundRateMin || rate > kSoundRateMax) {
    return file_error(Errc::kOutOfRange, name,
                      "a sound of {} channels at {} Hz, wanted at most {} channels and {} to {} Hz", channels, rate,
                      kSoundChannelsMax, kSoundRateMin, kSoundRateMax);
  }
  constexpr std::int64_t kReaderBytes = 8 << 20;
  const std::int64_t bytes = (samples + kSoundSecondsMax * kSampleRate) * std::int64_t{sizeof(float)} + kReaderBytes;
  return admit ? admit(bytes) : Result<void>();
}

Error too_long(const std::string& name, const std::string& seconds) {
  return file_error(Errc::kOutOfRange, name, "a sound of {} s, wanted at most {}: cut it into pieces", seconds,
                    kSamplesMax / kSampleRate);
}

void append_mean(std::span<const float> samples, int channels, std::vector<float>& mono) {
  const auto count = static_cast<std::size_t>(channels);
  for (std::size_t at = 0; at + count <= samples.size(); at += count) {
    float sum = 0;
    for (std::size_t c = 0; c < count; ++c) sum += samples[at + c];
    mono.push_back(sum / static_cast<float>(channels));
  }
}

Result<std::vector<float>> decode_sound(std::span<const std::byte> file, const std::string& name,
                                        const AdmitSound& admit) {
  if (file.size() > kSoundBytesMax)
    return file_error(Errc::kOutOfRange, name, "a sound of {} bytes, wanted at most {}", file.size(), kSoundBytesMax);
  const std::string_view head(reinterpret_cast<const char*>(file.data()), std::min<std::size_t>(file.size(), 12));
  if (!is_mp3(head) && !is_wav_flac_ogg(head))
    return file_error(Errc::kUnsupported, name, "not a sound that can be read, wanted WAV, FLAC, Ogg or MP3");
  ASSIGN_OR_RETURN(DecodedSound decoded, (is_mp3(head) ? decode_mp3 : decode_wav_flac_ogg)(file, name, admit));
  std::vector<float>& samples = decoded.mono;
  if (decoded.rate != kSampleRate) {
    ASSIGN_OR_RETURN(samples, resample(samples, decoded.rate, name));
  }
  samples.resize(std::min(samples.size(), static_cast<std::size_t>(kSamplesMax)));
  if (std::ssize(samples) < kSamplesMin) {
    return file_error(Errc::kOutOfRange, name, "a sound of {} samples at {} Hz, wanted at least {}", samples.size(),
                      kSampleRate, kSamplesMin);
  }
  if (!std::ranges::all_of(samples, [](float value) { return std::isfinite(value); }))
    return file_error(Errc::kMalformed, name, "samples that are not finite numbers");
  return std::move(samples);
}

}  // namespace outrider
