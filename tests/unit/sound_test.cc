// Sounds from files (tests/goldens/sounds) against the tones that they were made of, and files that are made to do
// harm.
#include "common/model/audio/sound.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numbers>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/model/audio/audio_features.h"
#include "common/os/files.h"
#include "tests/support/wav_file.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

std::string bytes_of(const std::string& file) {
  return read_text(fs::path(OUTRIDER_SOURCE_DIR) / "tests/goldens/sounds" / file).value();
}
Result<std::vector<float>> decode(std::string_view bytes, const AdmitSound& admit = {}) {
  return decode_sound(std::as_bytes(std::span(bytes)), "sound", admit);
}

/// What is said of bytes that are no good sound: one line that names the file. Empty for a good one.
std::string refusal(std::string_view bytes) {
  const auto samples = decode(bytes);
  if (samples) return "";
  EXPECT_TRUE(samples.error().message.starts_with("sound: ")) << samples.error().message;
  EXPECT_EQ(samples.error().message.find('\n'), std::string::npos) << samples.error().message;
  return samples.error().message;
}

/// The mean of 440 Hz and 1,000 Hz, each of amplitude 0.5, half a second long.
double tone(double seconds) {
  return 0.25 * (std::sin(2 * std::numbers::pi * 440 * seconds) + std::sin(2 * std::numbers::pi * 1000 * seconds));
}

// Samples of the right rate are the file's; a codec without loss and the resampler keep tones in their band within a
// few steps of 16 bits, but at the ends, where the filter sees silence; the others are near.
TEST(Sound, EveryKindIsTheTonesThatItWasMadeOf) {
  constexpr double kStep = 1.0 / 32768;
  for (const auto& [file, bound] : {std::pair("mono16k.wav", kStep),
                                    {"stereo44k.wav", 4 * kStep},
                                    {"float8k.wav", 4 * kStep},
                                    {"stereo48k.flac", 4 * kStep},
                                    {"stereo44k.ogg", 0.02},
                                    {"stereo48k.opus", 0.05},
                                    {"mono22k.mp3", 0.05}}) {
    SCOPED_TRACE(file);
    const auto decoded = decode(bytes_of(file));
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_NEAR(static_cast<double>(decoded->size()), 8000, 0.05 * kSampleRate);
    double largest = 0;
    for (std::size_t i = 1000; i < 7000; ++i)
      largest = std::max(largest, std::abs((*decoded)[i] - tone(static_cast<double>(i) / kSampleRate)));
    EXPECT_LT(largest, bound);
  }
}

TEST(Sound, ChannelsAreAveraged) {
  const std::string stereo = wav(16000, 2, std::vector<float>(2 * 500, 0.5F));
  EXPECT_EQ(decode(stereo).value(), std::vector<float>(500, 0.5F));
  std::vector<float> opposed;
  for (int i = 0; i < 1000; ++i) opposed.push_back(i % 2 == 0 ? 0.25F : -0.25F);
  EXPECT_EQ(decode(wav(16000, 2, opposed)).value(), std::vector<float>(500, 0.0F));
}

TEST(Sound, SilenceIsASound) { EXPECT_EQ(decode(wav(16000, 1, std::vector<float>(161))).value().size(), 161u); }

// Encoders pad at the end; more than that is another sound than was meant.
TEST(Sound, ThirtySecondsAreHeardAndLongerFilesRefused) {
  const auto seconds = [](double s) { return wav(16000, 1, std::vector<float>(static_cast<std::size_t>(16000 * s))); };
  EXPECT_EQ(decode(seconds(30.5)).value().size(), static_cast<std::size_t>(kSamplesMax));
  EXPECT_EQ(refusal(seconds(31.5)), "sound: a sound of 31.5 s, wanted at most 30: cut it into pieces");
}

// Ten hours, as the head of a file says that has a second: WAV is as long as its bytes, FLAC as its head says.
TEST(Sound, WhatAHeadSaysOfItsLengthTakesNoTime) {
  std::string head = wav(16000, 1, std::vector<float>(16000));
  const std::uint32_t huge = 0x7fffff00;
  std::memcpy(head.data() + 40, &huge, 4);
  EXPECT_EQ(decode(head).value().size(), 16000u) << "of a stream, whose writer does not know";
  std::string flac = bytes_of("stereo48k.flac");
  flac[4 + 4 + 14] = '\x7f';  // of the number of samples
  EXPECT_NE(refusal(flac).find("wanted at most 30"), std::string::npos);
}

TEST(Sound, WhatIsNoSoundIsRefusedInALine) {
  EXPECT_EQ(refusal(""), "sound: not a sound that can be read, wanted WAV, FLAC, Ogg or MP3");
  EXPECT_EQ(refusal("\x89PNG\r\n\x1a\n and more"), "sound: not a sound that can be read, wanted WAV, FLAC, Ogg or MP3");
  EXPECT_NE(refusal("RIFF1234WAVEbut nothing else"), "");
  EXPECT_NE(refusal("OggS and nothing else"), "");
  EXPECT_EQ(refusal("ID3 and nothing else"), "sound: MP3: no sound in it");
  EXPECT_NE(refusal(wav(16000, 1, {})).find("a sound of 0 samples at 16000 Hz, wanted at least 161"),
            std::string::npos);
  EXPECT_NE(refusal(wav(16000, 9, std::vector<float>(9000))).find("a sound of 9 channels at 16000 Hz"),
            std::string::npos);
  EXPECT_NE(refusal(wav(10, 1, std::vector<float>(200))).find("1 channels at 10 Hz"), std::string::npos);
  EXPECT_NE(refusal(wav(2'000'000'000, 1, std::vector<float>(200))).find("at 2000000000 Hz"), std::string::npos);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int rate : {16000, 44100}) {
      std::vector<float> samples(4000, 0.1F);
      samples[2000] = bad;
      EXPECT_EQ(refusal(wav(rate, 1, samples)), "sound: samples that are not finite numbers") << rate;
    }
  }
  EXPECT_NE(refusal(wav(16000, 1, std::vector<float>(kSoundBytesMax / 4 + 1))).find("wanted at most 33554432"),
            std::string::npos);
}

// Wherever it does: an error where the file says how long it is, else what is there; never a crash.
TEST(Sound, AFileThatBreaksOffIsShorterOrRefused) {
  for (const char* const file : {"mono16k.wav", "stereo48k.flac", "stereo44k.ogg", "stereo48k.opus", "mono22k.mp3"}) {
    const std::string whole = bytes_of(file);
    const std::size_t samples = decode(whole).value().size();
    for (std::size_t size = 0; size < whole.size(); size += 1 + whole.size() / 97) {
      const auto decoded = decode(whole.substr(0, size));
      if (decoded)
        EXPECT_LE(decoded->size(), samples) << file << " " << size;
      else
        refusal(whole.substr(0, size));
    }
  }
  const std::string flac = bytes_of("stereo48k.flac");
  EXPECT_NE(refusal(flac.substr(0, flac.size() / 2)), "");
}

TEST(Sound, ItsMemoryIsAskedForBeforeItIsTaken) {
  std::int64_t asked = 0;
  const auto none = [&](std::int64_t bytes) -> Result<void> {
    asked = bytes;
    return Error{Errc::kUnavailable, "no room"};
  };
  EXPECT_EQ(decode(bytes_of("stereo44k.wav"), none).error().message, "no room");
  EXPECT_GE(asked, std::int64_t{4 * (22050 + 8000)});
  EXPECT_LT(asked, 64 << 20);
}

}  // namespace
}  // namespace outrider
