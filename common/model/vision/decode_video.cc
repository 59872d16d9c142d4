#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/model/vision/decoders.h"
#include "common/model/vision/video.h"
#include "common/os/files.h"

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/imgutils.h>
#include <libswscale/swscale.h>
}

namespace outrider {
namespace {

/// Largest allocation that FFmpeg may make; only a forged file asks for more.
constexpr std::size_t kPieceBytesMax = 256 << 20;
constexpr unsigned kStreamsMax = 32;

template <typename T, void (*release)(T**)>
struct Release {
  void operator()(T* object) const { release(&object); }
};
using Packet = std::unique_ptr<AVPacket, Release<AVPacket, av_packet_free>>;
using Frame = std::unique_ptr<AVFrame, Release<AVFrame, av_frame_free>>;
using Decoder = std::unique_ptr<AVCodecContext, Release<AVCodecContext, avcodec_free_context>>;

std::string error_text(int error) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(error, text, sizeof text);
  return text;
}

Error broken(const std::string& name, std::string_view problem) {
  return file_error(Errc::kMalformed, name, "a broken video: {}", problem);
}

/// Returns the demuxer for a file with this beginning; null for others.
const char* demuxer_of(std::string_view head) {
  const std::string_view box = head.substr(std::min<std::size_t>(head.size(), 4), 4);
  for (const char* const first : {"ftyp", "moov", "mdat", "wide", "free", "skip"})
    if (box == first) return "mov";
  if (head.starts_with("\x1a\x45\xdf\xa3")) return "matroska";
  if (head.starts_with("RIFF") && head.substr(std::min<std::size_t>(head.size(), 8), 4) == "AVI ") return "avi";
  return nullptr;
}

/// Returns the decoder of a supported codec; null for others.
const AVCodec* decoder_of(AVCodecID id) {
  constexpr std::pair<AVCodecID, const char*> kDecoders[] = {
      {AV_CODEC_ID_H264, "h264"}, {AV_CODEC_ID_HEVC, "hevc"},    {AV_CODEC_ID_VP8, "vp8"},
      {AV_CODEC_ID_VP9, "vp9"},   {AV_CODEC_ID_AV1, "libdav1d"}, {AV_CODEC_ID_MJPEG, "mjpeg"}};
  for (const auto& [known, decoder] : kDecoders)
    if (known == id) return avcodec_find_decoder_by_name(decoder);
  return nullptr;
}

/// A file in memory, for FFmpeg's I/O; reads the first picture track.
class Container {
 public:
  explicit Container(std::span<const std::byte> file) : file_(file) {}
  ~Container() {
    avformat_close_input(&format_);
    if (io_ != nullptr) av_freep(&io_->buffer);
    avio_context_free(&io_);
  }
  Container(const Container&) = delete;
  Container& operator=(const Container&) = delete;

  Result<void> open(const char* demuxer, const std::string& name) {
    constexpr int kBuffer = 1 << 16;
    io_ = avio_alloc_context(static_cast<unsigned char*>(av_malloc(kBuffer)), kBuffer, 0, this, read, nullptr, seek);
    format_ = avformat_alloc_context();
    CHECK(io_ != nullptr && format_ != nullptr, "no memory for FFmpeg");
    format_->pb = io_;
    format_->flags |= AVFMT_FLAG_CUSTOM_IO;
    format_->max_streams = kStreamsMax;
    // Files that this one refers to are not opened.
    format_->protocol_whitelist = av_strdup("none");
    format_->io_open = [](AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) {
      return AVERROR(EACCES);
    };
    const int opened = avformat_open_input(&format_, "", av_find_input_format(demuxer), nullptr);
    if (opened < 0) return broken(name, error_text(opened));
    for (unsigned i = 0; i < format_->nb_streams; ++i) {
      AVStream* const candidate = format_->streams[i];
      const bool shows = candidate->codecpar->codec_type == AVMEDIA_TYPE_VIDEO &&
                         (candidate->disposition & AV_DISPOSITION_ATTACHED_PIC) == 0;
      if (shows && stream_ == nullptr)
        stream_ = candidate;
      else
        candidate->discard = AVDISCARD_ALL;
    }
    if (stream_ == nullptr) return file_error(Errc::kUnsupported, name, "a video without pictures");
    return {};
  }

  /// Reads the next packet of the track. @return false at the end
  bool next(AVPacket& packet) {
    for (;;) {
      av_packet_unref(&packet);
      if (av_read_frame(format_, &packet) < 0) return false;
      if (packet.stream_index == stream_->index && (packet.flags & AV_PKT_FLAG_DISCARD) == 0) return true;
    }
  }

  const AVStream& stream() const { return *stream_; }

  /// Returns the track's orientation as Exif's number.
  int orientation() const {
#if LIBAVFORMAT_VERSION_MAJOR >= 61
    const AVPacketSideData* const side = av_packet_side_data_get(
        stream_->codecpar->coded_side_data, stream_->codecpar->nb_coded_side_data, AV_PKT_DATA_DISPLAYMATRIX);
    const std::uint8_t* const data = side != nullptr ? side->data : nullptr;
    const std::size_t bytes = side != nullptr ? side->size : 0;
#else
    std::size_t bytes = 0;
    const std::uint8_t* const data = av_stream_get_side_data(stream_, AV_PKT_DATA_DISPLAYMATRIX, &bytes);
#endif
    if (data == nullptr || bytes < 9 * sizeof(std::int32_t)) return 1;
    std::int32_t matrix[9];
    std::memcpy(matrix, data, sizeof matrix);
    const double against_the_clock = av_display_rotation_get(matrix);
    if (std::isnan(against_the_clock)) return 1;
    constexpr int kOrientations[] = {1, 8, 3, 6};  // by quarter turns, counterclockwise
    const long quarters = std::lround(against_the_clock / 90);
    return kOrientations[((quarters % 4) + 4) % 4];
  }

 private:
  static int read(void* self, std::uint8_t* to, int size) {
    auto& ours = *static_cast<Container*>(self);
    const std::size_t left = ours.file_.size() - ours.at_;
    if (left == 0) return AVERROR_EOF;
    const std::size_t count = std::min<std::size_t>(left, static_cast<std::size_t>(size));
    std::memcpy(to, ours.file_.data() + ours.at_, count);
    ours.at_ += count;
    return static_cast<int>(count);
  }
  static std::int64_t seek(void* self, std::int64_t offset, int whence) {
    auto& ours = *static_cast<Container*>(self);
    const auto size = static_cast<std::int64_t>(ours.file_.size());
    whence &= ~AVSEEK_FORCE;
    if (whence == AVSEEK_SIZE) return size;
    const std::int64_t base = whence == SEEK_CUR ? static_cast<std::int64_t>(ours.at_) : whence == SEEK_END ? size : 0;
    if (offset < -base || offset > size - base) return AVERROR(EINVAL);
    ours.at_ = static_cast<std::size_t>(base + offset);
    return base + offset;
  }

  std::span<const std::byte> file_;
  std::size_t at_ = 0;
  AVIOContext* io_ = nullptr;
  AVFormatContext* format_ = nullptr;
  AVStream* stream_ = nullptr;
};

/// Facts about a packet, which are read before any is decoded, in decoding order.
struct PacketFacts {
  std::int64_t time;  ///< presentation time, in the track's units
  bool key;           ///< decoding can begin here
};

Result<std::vector<PacketFacts>> survey(Container& container, std::size_t file_bytes, const std::string& name) {
  std::vector<PacketFacts> packets;
  const Packet packet(av_packet_alloc());
  std::size_t bytes = 0;
  while (container.next(*packet)) {
    // A file may reference the same bytes for several frames, and so be longer than it is.
    bytes += static_cast<std::size_t>(packet->size);
    if (bytes > 2 * file_bytes) return broken(name, "its frames take more than the file has");
    if (std::ssize(packets) == kVideoFileFramesMax) {
      return file_error(Errc::kOutOfRange, name, "a video of more than {} frames: cut it into pieces",
                        kVideoFileFramesMax);
    }
    const std::int64_t time = packet->pts != AV_NOPTS_VALUE ? packet->pts : packet->dts;
    if (time == AV_NOPTS_VALUE) return broken(name, "a frame does not say when it is shown");
    packets.push_back({time, (packet->flags & AV_PKT_FLAG_KEY) != 0});
  }
  if (packets.empty()) return broken(name, "it has no frames");
  return packets;
}

/// A sampled frame.
struct Target {
  std::int64_t time;
  std::size_t packet, key;  ///< its packet, and the key frame from which it is decoded
};

/// Chooses the sampled frames, in order. Frames shown before the key frame that precedes them may need the previous
/// one.
std::vector<Target> choose(const std::vector<PacketFacts>& packets) {
  std::vector<std::size_t> shown(packets.size());
  for (std::size_t i = 0; i < shown.size(); ++i) shown[i] = i;
  std::ranges::stable_sort(shown, {}, [&](std::size_t i) { return packets[i].time; });
  std::vector<Target> targets;
  for (const std::int64_t at : sampled_frames(std::ssize(packets))) {
    Target target{.time = packets[shown[static_cast<std::size_t>(at)]].time,
                  .packet = shown[static_cast<std::size_t>(at)],
                  .key = 0};
    for (std::size_t i = target.packet + 1; i-- > 0;) {
      if (!packets[i].key || packets[i].time > target.time) continue;
      target.key = i;
      break;
    }
    targets.push_back(target);
  }
  return targets;
}

/// Returns the number of frames to decode for the targets.
std::int64_t frames_on_the_way(const std::vector<Target>& targets) {
  std::int64_t count = 0;
  std::size_t next = 0;
  for (const Target& target : targets) {
    const std::size_t begin = std::max(next, target.key);
    if (target.packet + 1 > begin) count += static_cast<std::int64_t>(target.packet + 1 - begin);
    next = std::max(next, target.packet + 1);
  }
  return count;
}

/// Converts frames to pictures.
class Converter {
 public:
  ~Converter() { sws_freeContext(context_); }

  Result<Picture> convert(const AVFrame& frame, const std::string& name) {
    const auto format = static_cast<AVPixelFormat>(frame.format);
    context_ = sws_getCachedContext(context_, frame.width, frame.height, format, frame.width, frame.height,
                                    AV_PIX_FMT_RGB24, SWS_BILINEAR, nullptr, nullptr, nullptr);
    if (context_ == nullptr) return broken(name, "frames of a kind that cannot be shown");
    const int* const colours =
        sws_getCoefficients(frame.colorspace == AVCOL_SPC_UNSPECIFIED ? SWS_CS_DEFAULT : frame.colorspace);
    const bool jpeg_range = format == AV_PIX_FMT_YUVJ420P || format == AV_PIX_FMT_YUVJ422P ||
                            format == AV_PIX_FMT_YUVJ444P || frame.color_range == AVCOL_RANGE_JPEG;
    constexpr int kOne = 1 << 16;
    sws_setColorspaceDetails(context_, colours, jpeg_range ? 1 : 0, sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, kOne,
                             kOne);
    // A padded frame, since the library writes some pixels beyond each row.
    const Frame rgb(av_frame_alloc());
    rgb->format = AV_PIX_FMT_RGB24, rgb->width = frame.width, rgb->height = frame.height;
    if (av_frame_get_buffer(rgb.get(), 0) < 0) return broken(name, "no memory for a frame");
    sws_scale(context_, frame.data, frame.linesize, 0, frame.height, rgb->data, rgb->linesize);
    Picture picture{.height = frame.height, .width = frame.width, .rgb = {}};
    picture.rgb.reserve(static_cast<std::size_t>(3 * picture.height * picture.width));
    for (int r = 0; r < frame.height; ++r) {
      const std::uint8_t* const row = rgb->data[0] + static_cast<std::ptrdiff_t>(r) * rgb->linesize[0];
      picture.rgb.insert(picture.rgb.end(), row, row + 3 * picture.width);
    }
    return picture;
  }

 private:
  SwsContext* context_ = nullptr;
};

Result<const AVCodec*> wanted_decoder(const AVCodecParameters& parameters, const std::string& name) {
  if (const AVCodec* const codec = decoder_of(parameters.codec_id)) return codec;
  return file_error(Errc::kUnsupported, name, "a video in {}, wanted H.264, H.265, VP8, VP9, AV1 or Motion JPEG",
                    avcodec_get_name(parameters.codec_id));
}

Result<Decoder> open_decoder(const AVCodecParameters& parameters, const std::string& name) {
  ASSIGN_OR_RETURN(const AVCodec* const codec, wanted_decoder(parameters, name));
  Decoder decoder(avcodec_alloc_context3(codec));
  if (decoder == nullptr || avcodec_parameters_to_context(decoder.get(), &parameters) < 0)
    return broken(name, "its header");
  decoder->thread_count = 1;  // so that the counted memory suffices
  // The admitted size, rounded up to whole blocks: frames may state another size than the file.
  constexpr std::int64_t kBlock = 64;
  decoder->max_pixels = (parameters.width + kBlock) * (parameters.height + kBlock);
  if (const int opened = avcodec_open2(decoder.get(), codec, nullptr); opened < 0)
    return broken(name, error_text(opened));
  return decoder;
}

/// Decodes until every target has been reached. Between two targets it skips to the later one's key frame, if that is
/// still ahead.
class Watching {
 public:
  Watching(Container& container, AVCodecContext& decoder, const std::string& name, const OnFrame& on_frame)
      : container_(container), decoder_(decoder), name_(name), on_frame_(on_frame), turn_(container.orientation()) {}

  Result<void> watch(const std::vector<Target>& targets, std::int64_t first_time) {
    first_time_ = first_time;
    const Packet packet(av_packet_alloc());
    std::size_t next = 0;
    while (seen_ < targets.size() && container_.next(*packet)) {
      if (next++ < targets[seen_].key) {
        skipped_ = true;
        continue;
      }
      if (std::exchange(skipped_, false)) avcodec_flush_buffers(&decoder_);
      const int sent = avcodec_send_packet(&decoder_, packet.get());
      if (sent < 0) return broken(name_, error_text(sent));
      RETURN_IF_ERROR(take_frames(targets));
    }
    if (seen_ < targets.size()) {
      avcodec_send_packet(&decoder_, nullptr);  // drains the decoder
      RETURN_IF_ERROR(take_frames(targets));
    }
    if (seen_ < targets.size()) return broken(name_, "it ends before its last frame");
    return {};
  }

 private:
  Result<void> take_frames(const std::vector<Target>& targets) {
    const Frame frame(av_frame_alloc());
    while (seen_ < targets.size()) {
      const int received = avcodec_receive_frame(&decoder_, frame.get());
      if (received == AVERROR(EAGAIN) || received == AVERROR_EOF) return {};
      if (received < 0) return broken(name_, error_text(received));
      const std::int64_t time = frame->best_effort_timestamp;
      if (time == AV_NOPTS_VALUE || time < targets[seen_].time) continue;
      ASSIGN_OR_RETURN(const Picture picture, converter_.convert(*frame, name_));
      const double ticks = static_cast<double>(targets[seen_].time) - static_cast<double>(first_time_);
      const double seconds = ticks * av_q2d(container_.stream().time_base);
      constexpr double kSecondsMax = 24 * 3600;
      if (!(seconds >= 0 && seconds <= kSecondsMax)) return broken(name_, "a frame that is shown in another day");
      RETURN_IF_ERROR(on_frame_(seconds, turn_ == 1 ? picture : turned(picture, turn_)));
      ++seen_;
    }
    return {};
  }

  Container& container_;
  AVCodecContext& decoder_;
  const std::string& name_;
  const OnFrame& on_frame_;
  const int turn_;
  Converter converter_;
  std::int64_t first_time_ = 0;
  std::size_t seen_ = 0;
  bool skipped_ = false;
};

Result<void> check_size(std::int64_t width, std::int64_t height, const std::string& name) {
  if (width < 1 || height < 1 || width > kVideoFramePixelsMax / height || !is_tower_shaped(height, width)) {
    return file_error(Errc::kOutOfRange, name,
                      "a video of {} x {} pixels, wanted at most {}, and no side longer than {} times the other", width,
                      height, kVideoFramePixelsMax, kPictureAspectMax);
  }
  return {};
}

Result<void> check_work(std::int64_t width, std::int64_t height, std::int64_t frames, const std::string& name,
                        const AdmitPicture& admit) {
  if (frames > kVideoDecodedPixelsMax / (width * height)) {
    return file_error(Errc::kOutOfRange, name,
                      "{} frames of {} x {} pixels would have to be decoded, wanted at "
                      "most {} pixels: cut it into pieces, or make it smaller",
                      frames, width, height, kVideoDecodedPixelsMax);
  }
  // Decoders hold up to 16 reference frames, usually of at most 3 bytes a pixel, and some in flight.
  constexpr std::int64_t kHeld = 20;
  return admit ? admit({.height = height, .width = width, .bytes = (kHeld + 3) * 3 * width * height}) : Result<void>();
}

}  // namespace

Result<void> decode_video(std::span<const std::byte> file, const std::string& name, const AdmitPicture& admit,
                          const OnFrame& on_frame) {
  if (file.size() > kVideoBytesMax)
    return file_error(Errc::kOutOfRange, name, "a video of {} bytes, wanted at most {}", file.size(), kVideoBytesMax);
  static const bool is_quiet = [] {
    av_log_set_level(AV_LOG_QUIET);  // an untrusted file must not write to standard error
    av_max_alloc(kPieceBytesMax);
    return true;
  }();
  (void)is_quiet;
  const char* const demuxer =
      demuxer_of({reinterpret_cast<const char*>(file.data()), std::min<std::size_t>(file.size(), 12)});
  if (demuxer == nullptr)
    return file_error(Errc::kUnsupported, name, "not a video that can be read, wanted MP4, Matroska (WebM) or AVI");
  std::vector<Target> targets;
  std::int64_t first_time = 0;
  {
    Container container(file);
    RETURN_IF_ERROR(container.open(demuxer, name));
    const AVCodecParameters& parameters = *container.stream().codecpar;
    RETURN_IF_ERROR(wanted_decoder(parameters, name));
    RETURN_IF_ERROR(check_size(parameters.width, parameters.height, name));
    ASSIGN_OR_RETURN(const std::vector<PacketFacts> packets, survey(container, file.size(), name));
    first_time = std::ranges::min(packets, {}, &PacketFacts::time).time;
    targets = choose(packets);
    RETURN_IF_ERROR(check_work(parameters.width, parameters.height, frames_on_the_way(targets), name, admit));
  }
  Container container(file);
  RETURN_IF_ERROR(container.open(demuxer, name));
  ASSIGN_OR_RETURN(const Decoder decoder, open_decoder(*container.stream().codecpar, name));
  return Watching(container, *decoder, name, on_frame).watch(targets, first_time);
}

}  // namespace outrider
