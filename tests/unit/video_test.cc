// Files of videos against PyAV's frames of them (tests/goldens/videos), and files that are broken or lie. Built without
// FFmpeg, the program says so.
#include "common/model/vision/video.h"

#include <cmath>
#include <cstring>
#include <filesystem>

#include <gtest/gtest.h>

#include "common/model/checkpoint/checkpoint.h"
#include "common/os/files.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

fs::path videos() { return fs::path(OUTRIDER_SOURCE_DIR) / "tests/goldens/videos"; }
std::string read_video(const std::string& name) { return read_text(videos() / name).value(); }

struct Seen {
  std::vector<double> seconds;
  std::vector<Picture> frames;
};
Result<Seen> decode(const std::string& bytes, const AdmitPicture& admit = {}) {
  Seen seen;
  RETURN_IF_ERROR(decode_video(std::as_bytes(std::span(bytes)), "v", admit, [&](double seconds, const Picture& frame) {
    seen.seconds.push_back(seconds);
    seen.frames.push_back(frame);
    return Result<void>();
  }));
  return seen;
}
std::string refusal(const std::string& bytes, const AdmitPicture& admit = {}) {
  const Result<Seen> seen = decode(bytes, admit);
  return seen ? "" : seen.error().message;
}

bool without_ffmpeg() { return refusal("").find("built without FFmpeg") != std::string::npos; }

struct VideoFiles : testing::Test {
  void SetUp() override {
    if (without_ffmpeg()) GTEST_SKIP() << refusal("");
  }
};

TEST(SampledFrames, AreHuggingFaces) {
  EXPECT_EQ(sampled_frames(1), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(sampled_frames(32).back(), 31);
  const std::vector<std::int64_t> frames = sampled_frames(1000);
  ASSERT_EQ(frames.size(), 32u);
  for (std::size_t i = 0; i < frames.size(); ++i) EXPECT_EQ(frames[i], static_cast<std::int64_t>(i) * 1000 / 32);
}

// FFmpeg's scaler chooses its arithmetic by the processor, so a level may differ by some.
TEST_F(VideoFiles, OfEveryKindHaveTheReferencesFrames) {
  const Checkpoint golden = Checkpoint::open(videos() / "frames.safetensors").value();
  std::size_t compared = 0;
  for (const TensorEntry& entry : golden.tensors()) {
    const std::string file = entry.name.substr(0, entry.name.find('/'));
    const auto at = static_cast<std::size_t>(std::stoi(entry.name.substr(entry.name.find('/') + 1)));
    SCOPED_TRACE(entry.name);
    const Result<Seen> seen = decode(read_video(file));
    ASSERT_TRUE(seen) << seen.error().message;
    ASSERT_EQ(seen->frames.size(), 32u);
    EXPECT_NEAR(seen->seconds[at], static_cast<double>(at * 80 / 32) / 10, 0.002) << "80 frames, 10 a second";
    const Picture& frame = seen->frames[at];
    ASSERT_EQ((std::vector<std::int64_t>{frame.height, frame.width, 3}), entry.shape);
    int worst = 0;
    for (std::size_t i = 0; i < frame.rgb.size(); ++i)
      worst = std::max(worst, std::abs(int{frame.rgb[i]} - std::to_integer<int>(entry.bytes[i])));
    EXPECT_LE(worst, 4);
    ++compared;
  }
  EXPECT_EQ(compared, 7u * 4);
}

// One that breaks off before its index is refused; another is as long as it is there, or is refused: it never crashes.
TEST_F(VideoFiles, ThatBreakOffAreRefusedOrShort) {
  for (const char* name : {"h264.mp4", "hevc.mkv", "vp9.webm", "mjpeg.avi"}) {
    const std::string whole = read_video(name);
    for (std::size_t size = 0; size < whole.size(); size += 1 + whole.size() / 37) {
      const Result<Seen> seen = decode(whole.substr(0, size));
      if (seen) {
        EXPECT_LE(seen->frames.size(), 32u);
      } else {
        EXPECT_TRUE(seen.error().message.starts_with("v: ")) << seen.error().message;
      }
    }
  }
  EXPECT_NE(refusal(read_video("h264.mp4").substr(0, 200)).find("v: a broken video: "), std::string::npos);
  EXPECT_EQ(refusal(""), "v: not a video that can be read, wanted MP4, Matroska (WebM) or AVI");
  for (const char* other : {"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n", "ffconcat version 1.0\nfile /etc/passwd\n",
                            "file:/etc/passwd", "<?xml version='1.0'?><MPD/>"})
    EXPECT_NE(refusal(other).find("not a video that can be read"), std::string::npos) << other;
}

TEST_F(VideoFiles, AreBoundedBeforeAnythingIsDecoded) {
  const std::string whole = read_video("h264.mp4");
  std::vector<std::int64_t> asked;
  EXPECT_EQ(refusal(whole,
                    [&](const PictureHeader& header) -> Result<void> {
                      asked = {header.width, header.height};
                      EXPECT_GT(header.bytes, 48 * 32 * 3 * 20);
                      return Error{Errc::kUnavailable, "no room"};
                    }),
            "no room");
  EXPECT_EQ(asked, (std::vector<std::int64_t>{48, 32}));
  // The header of the track says another size, of 65,535 x 65,535 pixels.
  std::string huge = whole;
  for (std::size_t at = huge.find("avc1"); at != huge.npos; at = huge.find("avc1", at + 4))
    if (at + 32 < huge.size()) huge.replace(at + 28, 4, "\xff\xff\xff\xff");
  EXPECT_EQ(refusal(huge), "v: a video of 65535 x 65535 pixels, wanted at most 16777216 pixels");
  // A codec that is not on the list.
  std::string other = whole;
  for (std::size_t at = other.find("avc1"); at != other.npos; at = other.find("avc1", at + 4))
    other.replace(at, 4, "mp4v");
  EXPECT_NE(refusal(other).find(", wanted H.264, H.265, VP8, VP9, AV1 or Motion JPEG"), std::string::npos)
      << refusal(other);
}

TEST_F(VideoFiles, ErrorsOfTheTakerEndIt) {
  const std::string whole = read_video("h264.mp4");
  int frames = 0;
  const Result<void> result = decode_video(std::as_bytes(std::span(whole)), "v", {}, [&](double, const Picture&) {
    ++frames;
    return Result<void>(Error{Errc::kIo, "enough"});
  });
  EXPECT_EQ(result.error().message, "enough");
  EXPECT_EQ(frames, 1);
}

// As the camera was held.
TEST_F(VideoFiles, AreTurnedAsTheySay) {
  const Seen upright = decode(read_video("h264.mp4")).value(), turned = decode(read_video("turned.mp4")).value();
  ASSERT_EQ(turned.frames[0].height, 48);
  ASSERT_EQ(turned.frames[0].width, 32);
  for (std::int64_t r = 0; r < 32; ++r) {
    for (std::int64_t c = 0; c < 48; ++c) {
      const auto from = static_cast<std::size_t>(3 * (r * 48 + c)),
                 to = static_cast<std::size_t>(3 * (c * 32 + 31 - r));
      ASSERT_EQ(upright.frames[5].rgb[from], turned.frames[5].rgb[to]) << "a quarter with the clock";
    }
  }
}

}  // namespace
}  // namespace outrider
