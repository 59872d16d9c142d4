#include <sndfile.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "common/model/audio/sound_decoders.h"
#include "common/os/files.h"

namespace outrider {
namespace {

/// A file in memory, for libsndfile's virtual I/O.
struct MemoryFile {
  std::span<const std::byte> bytes;
  sf_count_t at = 0;

  static MemoryFile& of(void* user) { return *static_cast<MemoryFile*>(user); }
  static sf_count_t size(void* user) { return std::ssize(of(user).bytes); }
  static sf_count_t tell(void* user) { return of(user).at; }
  static sf_count_t seek(sf_count_t offset, int whence, void* user) {
    const sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? of(user).at : size(user);
    // Clamped before adding, since a broken file could make a sum overflow.
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

}  // namespace

Result<DecodedSound> decode_wav_flac_ogg(std::span<const std::byte> file, const std::string& name,
                                         const AdmitSound& admit) {
  SF_VIRTUAL_IO io = {.get_filelen = MemoryFile::size,
                      .seek = MemoryFile::seek,
                      .read = MemoryFile::read,
                      .write = MemoryFile::write,
                      .tell = MemoryFile::tell};
  MemoryFile memory{file};
  SF_INFO info = {};
  const std::unique_ptr<SNDFILE, decltype(&sf_close)> opened(sf_open_virtual(&io, SFM_READ, &info, &memory), sf_close);
  if (opened == nullptr) return file_error(Errc::kMalformed, name, "{}", sf_strerror(nullptr));
  info.frames = std::max<sf_count_t>(info.frames, 0);  // a broken file may claim any number
  const sf_count_t frames_max = kSoundSecondsMax * info.samplerate;
  RETURN_IF_ERROR(admit_sound(info.channels, info.samplerate, std::min(info.frames, frames_max), name, admit));
  if (info.frames > frames_max)
    return too_long(name, fmt::format("{:.1f}", static_cast<double>(info.frames) / info.samplerate));
  DecodedSound decoded{.mono = {}, .rate = info.samplerate};
  decoded.mono.reserve(static_cast<std::size_t>(info.frames));
  constexpr sf_count_t kBlock = 4096;
  std::vector<float> block(static_cast<std::size_t>(kBlock * info.channels));
  while (std::ssize(decoded.mono) < info.frames) {
    const sf_count_t wanted = std::min(kBlock, info.frames - std::ssize(decoded.mono));
    const sf_count_t count = sf_readf_float(opened.get(), block.data(), wanted);
    if (count <= 0) break;
    append_mean(std::span(block).first(static_cast<std::size_t>(count * info.channels)), info.channels, decoded.mono);
  }
  if (sf_error(opened.get()) != SF_ERR_NO_ERROR)
    return file_error(Errc::kMalformed, name, "{}", sf_strerror(opened.get()));
  // Only FLAC's length is binding; the others end where the file does.
  if ((info.format & SF_FORMAT_TYPEMASK) == SF_FORMAT_FLAC && std::ssize(decoded.mono) < info.frames)
    return file_error(Errc::kMalformed, name, "FLAC: the file breaks off");
  return decoded;
}

}  // namespace outrider
