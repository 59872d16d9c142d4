#include "common/audio/sound.h"

#include <samplerate.h>
#include <sndfile.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "common/audio/audio_features.h"

namespace outrider {
namespace {

/// A file in memory, as libsndfile reads one.
struct MemoryFile {
  std::span<const std::byte> bytes;
  sf_count_t at = 0;

  static MemoryFile& of(void* user) { return *static_cast<MemoryFile*>(user); }
  static sf_count_t size(void* user) { return std::ssize(of(user).bytes); }
  static sf_count_t tell(void* user) { return of(user).at; }
  static sf_count_t seek(sf_count_t offset, int whence, void* user) {
    const sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? of(user).at : size(user);
    // Not a sum, which a broken file may make overflow.
    return of(user).at = std::clamp<sf_count_t>(offset, -from, size(user) - from) + from;
  }
  static sf_count_t read(void* to, sf_count_t count, void* user) {
    MemoryFile& file = of(user);
    count = std::clamp<sf_count_t>(count, 0, size(user) - file.at);
    std::memcpy(to, file.bytes.data() + file.at, static_cast<std::size_t>(count));
    file.at += count;
    return count;
  }
  static sf_count_t write(const void*, sf_count_t, void*) { return 0; }
};

using SoundFile = std::unique_ptr<SNDFILE, decltype(&sf_close)>;

bool is_sound(std::string_view head) {
  const bool wav = head.starts_with("RIFF") && head.size() >= 12 && head.substr(8, 4) == "WAVE";
  const bool mpeg = head.size() >= 2 && head[0] == '\xff' && (static_cast<unsigned char>(head[1]) & 0xe0) == 0xe0;
  return wav || mpeg || head.starts_with("fLaC") || head.starts_with("OggS") || head.starts_with("ID3");
}

Result<void> check_limits(const SF_INFO& info, const std::string& name) {
  if (info.channels < 1 || info.channels > kSoundChannelsMax || info.samplerate < kSoundRateMin ||
      info.samplerate > kSoundRateMax) {
    return Error{Errc::kOutOfRange,
                 fmt::format("{}: a sound of {} channels at {} Hz, wanted at most {} channels and {} to {} Hz", name,
                             info.channels, info.samplerate, kSoundChannelsMax, kSoundRateMin, kSoundRateMax)};
  }
  if (info.frames > kSoundSecondsMax * info.samplerate) {
    return Error{Errc::kOutOfRange,
                 fmt::format("{}: a sound of {:.1f} s, wanted at most {}: cut it into pieces", name,
                             static_cast<double>(info.frames) / info.samplerate, kSamplesMax / kSampleRate)};
  }
  return {};
}

/// The mean of the channels.
Result<std::vector<float>> read_mono(SNDFILE* file, const SF_INFO& info, const std::string& name) {
  constexpr sf_count_t kBlock = 4096;
  std::vector<float> mono, block(static_cast<std::size_t>(kBlock * info.channels));
  mono.reserve(static_cast<std::size_t>(info.frames));
  const auto channels = static_cast<std::size_t>(info.channels);
  while (std::ssize(mono) < info.frames) {
    const sf_count_t count = sf_readf_float(file, block.data(), std::min(kBlock, info.frames - std::ssize(mono)));
    if (count <= 0) break;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      float sum = 0;
      for (std::size_t c = 0; c < channels; ++c) sum += block[i * channels + c];
      mono.push_back(sum / static_cast<float>(channels));
    }
  }
  if (sf_error(file) != SF_ERR_NO_ERROR) return Error{Errc::kMalformed, fmt::format("{}: {}", name, sf_strerror(file))};
  // The others end where they end; the length of an MP3 may be an estimate.
  if ((info.format & SF_FORMAT_TYPEMASK) == SF_FORMAT_FLAC && std::ssize(mono) < info.frames)
    return Error{Errc::kMalformed, fmt::format("{}: FLAC: the file breaks off", name)};
  return mono;
}

Result<std::vector<float>> resample(const std::vector<float>& from, int rate, const std::string& name) {
  const double ratio = static_cast<double>(kSampleRate) / rate;
  std::vector<float> to(static_cast<std::size_t>(std::ceil(static_cast<double>(from.size()) * ratio)) + 1);
  SRC_DATA data = {};
  data.data_in = from.data(), data.input_frames = std::ssize(from);
  data.data_out = to.data(), data.output_frames = std::ssize(to);
  data.src_ratio = ratio;
  if (const int error = src_simple(&data, SRC_SINC_BEST_QUALITY, 1); error != 0)
    return Error{Errc::kMalformed, fmt::format("{}: resampling: {}", name, src_strerror(error))};
  to.resize(static_cast<std::size_t>(data.output_frames_gen));
  return to;
}

}  // namespace

Result<std::vector<float>> decode_sound(std::span<const std::byte> file, const std::string& name,
                                        const AdmitSound& admit) {
  if (file.size() > kSoundBytesMax) {
    return Error{Errc::kOutOfRange,
                 fmt::format("{}: a sound of {} bytes, wanted at most {}", name, file.size(), kSoundBytesMax)};
  }
  if (!is_sound({reinterpret_cast<const char*>(file.data()), file.size()})) {
    return Error{Errc::kUnsupported,
                 fmt::format("{}: not a sound that can be read, wanted WAV, FLAC, Ogg or MP3", name)};
  }
  SF_VIRTUAL_IO io = {.get_filelen = MemoryFile::size,
                      .seek = MemoryFile::seek,
                      .read = MemoryFile::read,
                      .write = MemoryFile::write,
                      .tell = MemoryFile::tell};
  MemoryFile memory{file};
  SF_INFO info = {};
  const SoundFile opened(sf_open_virtual(&io, SFM_READ, &info, &memory), sf_close);
  if (opened == nullptr) return Error{Errc::kMalformed, fmt::format("{}: {}", name, sf_strerror(nullptr))};
  RETURN_IF_ERROR(check_limits(info, name));
  info.frames = std::max<sf_count_t>(info.frames, 0);  // whoever knows what a broken file says
  if (admit) {
    constexpr std::int64_t kReaderBytes = 8 << 20;
    const std::int64_t samples = info.frames + kSoundSecondsMax * kSampleRate;
    RETURN_IF_ERROR(admit(samples * std::int64_t{sizeof(float)} + kReaderBytes));
  }
  ASSIGN_OR_RETURN(std::vector<float> samples, read_mono(opened.get(), info, name));
  if (info.samplerate != kSampleRate) {
    ASSIGN_OR_RETURN(samples, resample(samples, info.samplerate, name));
  }
  samples.resize(std::min(samples.size(), static_cast<std::size_t>(kSamplesMax)));
  if (std::ssize(samples) < kSamplesMin) {
    return Error{Errc::kOutOfRange, fmt::format("{}: a sound of {} samples at {} Hz, wanted at least {}", name,
                                                samples.size(), kSampleRate, kSamplesMin)};
  }
  if (!std::ranges::all_of(samples, [](float value) { return std::isfinite(value); }))
    return Error{Errc::kMalformed, fmt::format("{}: samples that are not finite numbers", name)};
  return samples;
}

}  // namespace outrider
